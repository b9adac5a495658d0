"""Public functions refuse arguments of the wrong type by their annotations, before they ask a server or Spark."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np
import pytest
from public_names import public as public_names

from penstock import kafka, segment, wire
from penstock.border import public
from penstock.durations import Duration
from penstock.errors import PenstockError
from penstock.query.query import Query

NOT_MARKED = {
    # Users raise and catch errors, and print their text.
    *("PenstockError", "errors.PenstockError", "errors.DataLost", "errors.Missing", "errors.SchemaChanged"),
    "errors.first_line",
    "wire.groups.GroupHasMembers",
    # Penstock's functions make them and users get them.
    *("Batch", "Query", "cql.CqlSink", "cql.Erased", "cql.IdStore", "delta.DeltaSink", "files.FilesSink"),
    *("kafka.DeadLetters", "kafka.KafkaSink", "local.services.Services", "local.services.Status"),
    *("postgres.PostgresSink", "replicate.Difference", "replicate.Progress", "replicate.ReplicateSink"),
    *("replicate.Report", "replicate.Side", "segment.Counted", "segment.Counts", "segment.Erased", "segment.Receipt"),
    *("segment.Rule", "segment.RuleFile", "segment.SegmentSink", "table.GlobalTable", "wire.Committed"),
    *("wire.Receipt", "wire.RecordMetadata", "wire.TableFailed", "wire.Texts", "wire.admin.ConfigEntry"),
    *("wire.admin.PartitionInfo", "wire.admin.TopicInfo", "wire.groups.GroupInfo", "wire.groups.GroupListing"),
    *("wire.groups.GroupMember", "wire.groups.Groups", "wire.sasl.Scram"),
}
"""Public names whose arguments are not checked; a check of `Producer.send` would cost as much as the sending."""
FUNCTIONS = {name.removeprefix("penstock."): value for name, value in public_names()}
MARKED = {name: value for name, value in FUNCTIONS.items() if name not in NOT_MARKED} | {"Query.start": Query.start}
LISTS = {Sequence, Collection, Iterable, tuple, list}
UNCHECKED = {("segment.create_tables", "session")}
"""Arguments of any type: a session of the driver, which is an extra."""


def parameters(function: Any) -> dict[str, Any]:
    """The types of all arguments, with the options of `**options`."""
    made = function.__init__ if inspect.isclass(function) else function
    found = public.types_of(made)
    kinds = inspect.signature(made).parameters
    named = {name: hint for name, hint in found.items() if kinds[name].kind is not inspect.Parameter.VAR_KEYWORD}
    for name in found.keys() - named:
        named |= public._options(found[name]) or {"any_name": found[name]}
    return named


def sample(hint: Any) -> Any:
    """A value that an annotation takes."""
    parts, kind = get_args(hint), get_origin(hint) or hint
    if kind in (Union, UnionType):
        return sample(parts[0])
    if kind is Literal:
        return parts[0]
    if kind is Callable:
        return print
    if kind is tuple and parts and parts[-1] is not Ellipsis:
        return tuple(map(sample, parts))
    if isinstance(kind, type) and issubclass(kind, Iterable) and kind is not str:
        return {} if issubclass(kind, Mapping) else ()
    made = {str: "x", int: 1, float: 1.0, bool: True, NoneType: None, Path: Path("x"), Any: None}
    return made[kind] if kind in made else object.__new__(kind)


def call(function: Any, argument: str, value: Any) -> None:
    """Call it with samples, and with the value for one argument."""
    made = function.__init__ if inspect.isclass(function) else function
    taken, types = inspect.signature(made), public.types_of(made)
    bound = taken.bind_partial()
    for name, one in taken.parameters.items():
        if one.kind is inspect.Parameter.VAR_KEYWORD:
            bound.arguments[name] = {} if argument in taken.parameters else {argument: value}
        elif one.kind is inspect.Parameter.VAR_POSITIONAL:
            bound.arguments[name] = (value if name == argument else sample(types[name]),)
        elif name == argument or one.default is inspect.Parameter.empty:
            bound.arguments[name] = value if name == argument else sample(types.get(name, Any))
    made(*bound.args, **bound.kwargs)


def test_all_public_functions_check_their_arguments() -> None:
    unmarked = {name for name, value in FUNCTIONS.items() if not is_marked(value)}
    assert unmarked == NOT_MARKED


def is_marked(value: Any) -> bool:
    return hasattr(value.__init__ if inspect.isclass(value) else value, "__wrapped__")


@pytest.mark.parametrize("name", MARKED)
def test_a_wrong_type_is_refused_by_each_argument(name: str) -> None:
    """With the argument's name, the function's, what it got and what it takes."""
    for argument, hint in parameters(MARKED[name]).items():
        if (name, argument) in UNCHECKED:
            continue
        assert hint is not Any, argument
        with pytest.raises(PenstockError) as caught:
            call(MARKED[name], argument, object())
        where = "Table" if name.endswith(".Table") else name
        caught.match(rf"^the argument {argument}(\[0\])? is an object \({where}\)\. Next: give (\w|')")


@pytest.mark.parametrize("name", MARKED)
def test_a_string_is_not_a_list_of_its_letters(name: str) -> None:
    for argument, hint in parameters(MARKED[name]).items():
        parts = (hint, *get_args(hint))
        if str in parts or not any(get_origin(part) in LISTS and str in get_args(part) for part in parts):
            continue
        with pytest.raises(PenstockError, match=rf"{argument} is a str .*, as in {argument}=\[\.\.\.\]"):
            call(MARKED[name], argument, "abc")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: kafka.sink(["a", "b"], servers="x"),  # type: ignore[arg-type]
            r"topic is a list \(kafka.sink\)\. Next: give a string, a Column or None",
        ),
        (
            lambda: kafka.sink("t", servers="x", key=["id", 3]),  # type: ignore[list-item]
            r"key\[1\] is an int \(kafka.sink\)\. Next: give a string, a list of strings or None",
        ),
        (
            lambda: kafka.sink("t", servers="x", options={"acks": 1}),  # type: ignore[dict-item]
            r"options\['acks'\] is an int \(kafka.sink\)\. Next: give a mapping of strings to strings or None",
        ),
        (
            lambda: kafka.Registry("http://x", password=b"secret"),  # type: ignore[arg-type]
            r"password is a bytes \(kafka.Registry\)\. Next: give a string or None$",
        ),
        (
            lambda: wire.Producer("x", in_flight=True),
            r"in_flight is a bool \(wire.Producer\)\. Next: give an integer",
        ),
        (
            lambda: segment.sequence("a = 1", 2, within="1 day"),  # type: ignore[arg-type]
            r"steps\[1\] is an int \(segment.sequence\)\. Next: give a string",
        ),
    ],
)
def test_the_words_name_what_was_given_and_not_its_value(call: Callable[[], object], said: str) -> None:
    with pytest.raises(PenstockError, match=f"^the argument {said}"):
        call()


def test_what_is_as_good_as_the_type_is_taken() -> None:
    """Integers of NumPy, subclasses, and iterators where they are read once."""
    for value, hint in [
        (np.int64(3), int),
        (3, float),
        (np.float32(3), float),
        (timedelta(1), Duration),
        (iter("ab"), Iterable[str]),
        (("a",), Sequence[str]),
        (Path("x"), str | PathLike[str]),
        ([("a", 1)], Sequence[tuple[str, int]]),
        (print, Callable[[str], None]),
    ]:
        public.require("argument", value, hint, "here")


def test_an_argument_that_is_missing_is_python_s_own_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'servers'"):
        kafka.sink("t")  # type: ignore[call-arg]
