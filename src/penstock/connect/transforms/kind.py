"""What a class of transforms or predicates is: its name, its options, and how a step is made from their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column

from penstock.codec.typed_records import Side
from penstock.connect.definition import REQUIRED, Check, Importance, Property, Type as OptionType
from penstock.connect.transforms.state import State, Step

Values = Mapping[str, Any]
"""The values of a class's options, by their names without a prefix."""


def no_problem(values: Values) -> str | None:
    return None


@dataclass(frozen=True)
class Transformation:
    """A class of transforms; `problem` tells what is wrong with the options as a whole."""

    name: str
    options: tuple[Property, ...]
    make: Callable[[Values], Step]
    problem: Callable[[Values], str | None] = no_problem


@dataclass(frozen=True)
class Test:
    """A predicate with its options: a condition, or a truth that holds for all records.

    `narrowed` gives what is known of the records for which the predicate holds, or does not.
    """

    holds: Callable[[State], Column | bool]
    narrowed: Callable[[State, bool], State] = lambda state, holds: state


@dataclass(frozen=True)
class Predicate:
    """A class of predicates."""

    name: str
    options: tuple[Property, ...]
    make: Callable[[Values], Test]
    problem: Callable[[Values], str | None] = no_problem


def option(
    name: str,
    kind: OptionType,
    default: Any,
    doc: str,
    check: Check | None = None,
    importance: Importance = "MEDIUM",
) -> Property:
    return Property(name, kind, default, doc, check, importance)


def needed(
    name: str, kind: OptionType, doc: str, check: Check | None = None, importance: Importance = "HIGH"
) -> Property:
    """An option that must be given."""
    return Property(name, kind, REQUIRED, doc, check, importance)


def on_key_and_value(
    name: str,
    options: tuple[Property, ...],
    make: Callable[[Side, Values], Step],
    problem: Callable[[Values], str | None] = no_problem,
) -> list[Transformation]:
    """The two classes of a transform that works on keys or on values."""

    def of(side: Side) -> Transformation:
        return Transformation(f"{name}${side.capitalize()}", options, lambda values: make(side, values), problem)

    return [of("key"), of("value")]


KAFKA = "org.apache.kafka.connect.transforms."

DEFAULTS = option(
    "replace.null.with.default",
    "BOOLEAN",
    True,
    "Whether a field that is null shows its schema's default. The only field with one is source.snapshot, never null.",
)


def not_empty(value: Any) -> str | None:
    return None if value else "String must be non-empty"


def some_names(value: Any) -> str | None:
    return None if value else "Empty list"


def one_of(*allowed: str) -> Check:
    return lambda value: None if value in allowed else f"String must be one of: {', '.join(allowed)}"
