"""A public constant has one home: where two modules have the same name for the same value, one imports it.

Names of a single word, such as PATIENCE or ROWS, are chosen by each module for what is its own. The characters of
topics' names have one home, too, whatever the name of the regular expression that has them.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import ascii_letters, digits

import pytest

SOURCE = Path(__file__).parents[1] / "src"
ALLOWED = {
    "AT_ONCE": (3, "questions about groups, about topics, and accepted connections"),
    "LARGEST_ANSWER": (2, "answers about topics, and about the members of a group"),
    "MOST_DEPTH": (2, "Avro's schemas, and JSON's values"),
    "MOST_DIGITS": (2, "Parquet's decimals, and Spark's"),
    "READ_ROWS": (2, "staged rows, and event times"),
}
"""Names with the number of modules that have one of their own, and why they do."""


def constants(module: Path) -> Iterator[tuple[str, ast.expr]]:
    """The names of several words that a module binds to a value of its own: no name, type, or small number."""
    for node in ast.parse(module.read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case _:
                continue
        if name.isupper() and "_" in name.strip("_") and not name.startswith("_") and not trivial(value):
            yield name, value


def trivial(value: ast.expr) -> bool:
    match value:
        case ast.Constant(value=int() | float() as number):
            return abs(number) <= 2
        case ast.Constant(value=empty):
            return not empty
        case ast.Name() | ast.Attribute():
            return True
        case ast.Call(func=ast.Name(id="TypeVar" | "ParamSpec" | "get_args" | "object")):
            return True
        case ast.List(elts=[]) | ast.Tuple(elts=[]) | ast.Dict(keys=[]):
            return True
    return False


def test_a_constant_has_one_home() -> None:
    homes: dict[tuple[str, str], list[str]] = {}
    for module in sorted(SOURCE.rglob("*.py")):
        for name, value in constants(module):
            homes.setdefault((name, ast.dump(value)), []).append(str(module.relative_to(SOURCE)))
    twice = [(name, module) for (name, _), modules in homes.items() if len(modules) > 1 for module in modules]
    counts = Counter(name for name, _ in twice)
    allowed = {name: count for name, (count, _) in ALLOWED.items()}
    assert [(name, module) for name, module in twice if counts[name] > allowed.get(name, 0)] == []
    assert allowed == counts, "it has one home now, or fewer modules: correct ALLOWED"


# The characters of Kafka's names of topics: `penstock.wire.topic_names` has the rule for them.

OF_TOPICS = frozenset(f"{ascii_letters}{digits}._-")
SET = re.compile(r"\[\^?((?:[^\]\\]|\\.)+)\]")
"""A set of characters in a regular expression."""
ASKED = tuple(map(chr, range(0x250)))
"""Characters that tell sets apart: `\\w` has letters beyond ASCII's."""


def sets_of_topics(module: Path) -> Iterator[int]:
    """The lines with a regular expression that has exactly the characters of topics' names."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for each in SET.finditer(node.value):
                if is_of_topics(each[1]):
                    yield node.lineno


@cache
def is_of_topics(characters: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of sets in sets
        try:
            one = re.compile(f"[{characters}]")
        except re.error:
            return False
    return frozenset(filter(one.fullmatch, ASKED)) == OF_TOPICS


@pytest.mark.parametrize(
    ("written", "known"), [("a-zA-Z0-9._-", True), (r"\-_.\da-zA-Z", True), ("-_.0-9a-zA-Z", True), (r"\w.-", False)]
)
def test_a_set_of_characters_is_known_however_it_is_written(written: str, known: bool) -> None:
    assert is_of_topics(written) is known


def test_the_characters_of_topics_have_one_home() -> None:
    homes = {str(module.relative_to(SOURCE)) for module in SOURCE.rglob("*.py") for _ in sets_of_topics(module)}
    assert homes == {"penstock/wire/topic_names.py"}, "use penstock.wire.topic_names"
