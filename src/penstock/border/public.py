"""The border of the package: public functions take what their annotations say, and errors there are in our words.

`@public("kafka.read")` checks the arguments of each call by the function's own annotations, before it asks a server or
Spark. A string is not a sequence of strings here: its letters are never what a caller means. What Spark refuses inside
of the function is reported as `spark_refusals` words it.

A check costs up to a tenth of a millisecond: functions that are called for each record, such as `Producer.send`, have
none.
"""

from __future__ import annotations

import inspect
import numbers
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, wraps
from typing import Any, Literal, TypeAlias, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints, is_typeddict

from penstock.border.trial import Unknown, running
from penstock.errors import PenstockError

F = TypeVar("F", bound=Callable[..., Any])
TEXTS = str, bytes, bytearray
WORDS: dict[Any, tuple[str, str]] = {
    str: ("a string", "strings"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "booleans"),
    bytes: ("bytes", "bytes"),
    types.NoneType: ("None", "None"),
}
"""What a type is called, alone and as the elements of another one."""
REFUSED = "AnalysisException", "ParseException"


def public(name: str, **wider: Any) -> Callable[[F], F]:
    """Mark a public function or class, which users call by `name`.

    `wider` are types of arguments that are not refused here though they are not of their annotations.
    """

    def mark(function: F) -> F:
        if isinstance(function, type):
            function.__init__ = _checked(function.__init__, name, wider)  # type: ignore[misc]
            return function
        called = _checked(function, name, wider)

        @wraps(function)
        def at_the_border(*args: Any, **kwargs: Any) -> Any:
            trial = running()
            return called(*args, **kwargs) if trial is None else trial.call(called, args, kwargs)

        return at_the_border  # type: ignore[return-value]

    return mark


def _checked(function: Callable[..., Any], name: str, wider: Mapping[str, Any]) -> Callable[..., Any]:
    taken = inspect.signature(function)

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = taken.bind(*args, **kwargs)
        except TypeError:
            # Python's own error names the argument that is missing, or not known.
            return function(*args, **kwargs)
        for argument, value, annotation in _arguments(function, bound):
            require(argument, value, wider.get(argument, annotation), name)
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if type(error).__name__ in REFUSED:
                raise _refused(error, name) from error
            raise

    return checked


def require(argument: str, value: Any, annotation: Any, name: str) -> None:
    """Raise PenstockError if the value of an argument is not of the annotation's type; `name` is the function's."""
    wrong = _misfit(argument, value, annotation)
    if wrong is not None:
        place, actual, taken = (*wrong, f"{_words(annotation)}{_advice(argument, value, annotation)}")
        raise PenstockError(f"the argument {place} is {actual}", where=name, next=f"give {taken}")


def _refused(error: Any, name: str) -> PenstockError:
    # Here, because the Kafka client is used without Spark.
    from penstock.border.spark_refusals import refusal

    refused = refusal(error)
    return PenstockError(refused.what, where=name, next=refused.next)


def _arguments(function: Callable[..., Any], bound: inspect.BoundArguments) -> Iterator[tuple[str, Any, Any]]:
    """The arguments of a call with the annotations of their parameters; those of `*` and `**` one by one."""
    hints = types_of(function)
    for name, value in bound.arguments.items():
        hint, kind = hints.get(name, Any), bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from ((f"{name}[{place}]", element, hint) for place, element in enumerate(value))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            options = _options(hint)
            yield from (
                (key, option, hint if options is None else options.get(key, Any)) for key, option in value.items()
            )
        else:
            yield name, value, hint


@cache
def types_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The types of a function's parameters, by its annotations; names that only type checkers load stand for any."""
    function = inspect.unwrap(function)
    type_by_name: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.annotation is not inspect.Parameter.empty:
            alone = types.SimpleNamespace(__annotations__={name: parameter.annotation})
            type_by_name |= _hints(alone, function.__globals__, include_extras=True)
    return type_by_name


def _hints(of: Any, names: dict[str, Any] | None = None, *, include_extras: bool = False) -> dict[str, Any]:
    unknown: dict[str, Any] = {}
    while True:
        try:
            return get_type_hints(of, names, unknown, include_extras)
        except NameError as error:
            unknown[str(error.name)] = Any


@cache
def _options(hint: Any) -> dict[str, Any] | None:
    """The types of `**options: Unpack[SomeTypedDict]`, without NotRequired; None for another annotation."""
    if get_origin(hint) is not Unpack or not is_typeddict(get_args(hint)[0]):
        return None
    return _hints(get_args(hint)[0])


Misfit: TypeAlias = tuple[str, str] | None
"""What is not of its type, an argument or an element such as "columns[1]", and what it is."""


def _misfit(name: str, value: Any, annotation: Any) -> Misfit:
    if isinstance(value, Unknown):
        return None
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        wrong = [_misfit(name, value, part) for part in parts]
        # That of an element or of a length, if the value itself is of one of the types.
        return None if None in wrong else max(filter(None, wrong), key=lambda misfit: misfit != (name, _kind(value)))
    if origin is Literal:
        # Functions say which strings they take.
        return None if type(value) in map(type, parts) else (name, _kind(value))
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return _of_elements(name, value, origin, parts)
    return None if _is_instance(value, origin or annotation) else (name, _kind(value))


def _of_elements(name: str, value: Any, kind: Any, parts: tuple[Any, ...]) -> Misfit:
    if isinstance(value, TEXTS) or not isinstance(value, kind):
        return name, _kind(value)
    if isinstance(value, Mapping):
        pairs = [(f"a key of {name}", key, parts[0]) for key in value]
        pairs += [(f"{name}[{key!r}]", element, parts[1]) for key, element in value.items()]
    elif kind is tuple and parts[-1] is not Ellipsis:
        if len(value) != len(parts):
            return name, f"a tuple of {len(value)} element{'s' * (len(value) != 1)}"
        pairs = [(f"{name}[{n}]", element, part) for n, (element, part) in enumerate(zip(value, parts, strict=True))]
    elif isinstance(value, Collection):
        pairs = [(f"{name}[{n}]", element, parts[0]) for n, element in enumerate(value)]
    else:
        # An iterator can be read once only.
        pairs = []
    return next((wrong for each in pairs if (wrong := _misfit(*each))), None)


def _is_instance(value: Any, kind: Any) -> bool:
    if kind is None:
        return value is None
    if kind in (Any, object) or not isinstance(kind, type):
        return True
    if kind is int:
        return isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, numbers.Real) and not isinstance(value, bool)
    if _is_protocol(kind):
        return all(hasattr(type(value), name) or name in getattr(value, "__dict__", ()) for name in _members(kind))
    return isinstance(value, kind) or _is_of_connect(value, kind)


def _is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False)) and kind.__module__ != "collections.abc"


@cache
def _members(protocol: type) -> list[str]:
    bases = [base for base in protocol.__mro__ if vars(base).get("_is_protocol")]
    names = {name for base in bases for name in (*vars(base), *vars(base).get("__annotations__", ()))}
    return sorted(name for name in names if not name.startswith("_") or name == "__call__")


def _is_of_connect(value: Any, kind: type) -> bool:
    """Whether it is what Spark Connect has in place of one of PySpark's classes."""
    spark = "pyspark.sql"
    same = (ancestor for ancestor in type(value).__mro__ if ancestor.__name__ == kind.__name__)
    return kind.__module__.startswith(spark) and any(ancestor.__module__.startswith(spark) for ancestor in same)


def _kind(value: Any) -> str:
    """The value's type, and not the value: it may be a password."""
    return "None" if value is None else f"{_article(type(value).__name__)} {type(value).__name__}"


def _words(annotation: Any) -> str:
    """What to give, such as "a string or None"."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _either([_words(part) for part in sorted(parts, key=lambda part: part is types.NoneType)])
    if origin is Literal:
        return _either([repr(part) for part in parts])
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a mapping of {_plural(parts[0])} to {_plural(parts[1])}"
    if origin is tuple and parts[-1] is not Ellipsis:
        return f"a tuple of {len(parts)} elements: {', '.join(map(_words, parts))}"
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return f"a {'tuple' if origin is tuple else 'list'} of {_plural(parts[0])}"
    kind = origin or annotation
    if kind is Callable or (isinstance(kind, type) and _is_protocol(kind) and _members(kind) == ["__call__"]):
        return "a function"
    named = getattr(kind, "__name__", str(kind))
    return WORDS.get(kind, (f"{_article(named)} {named}", ""))[0]


def _plural(annotation: Any) -> str:
    if get_origin(annotation) in (Union, types.UnionType):
        return _either([_plural(part) for part in get_args(annotation)])
    if get_origin(annotation) is Literal:
        return _words(annotation)
    named = getattr(annotation, "__name__", str(annotation))
    return WORDS.get(annotation, ("", f"{named}s"))[1]


def _either(words: list[str]) -> str:
    words = list(dict.fromkeys(words))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _article(word: str) -> str:
    return "an" if word[:1].lower() in "aeiou" else "a"


def _advice(argument: str, value: Any, annotation: Any) -> str:
    """For a string in place of a list: how the list is written."""
    parts = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    lists = (get_origin(part) for part in parts if str in get_args(part))
    listed = any(isinstance(kind, type) and issubclass(kind, Iterable) and kind is not Mapping for kind in lists)
    return f", as in {argument}=[...]" if isinstance(value, str) and listed else ""
