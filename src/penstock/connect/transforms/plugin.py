"""Classes of transforms and predicates: their names and options, and how steps come from the options' values."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Any, Generic, TypeVar

from penstock.codec.typed_records import Side
from penstock.connect.definition import Check, Property, from_toml
from penstock.connect.transforms.steps import Step, Test, Values

KAFKA = "org.apache.kafka.connect.transforms."
DEBEZIUM = "io.debezium.transforms."
SCYLLA = "com.scylladb.cdc.debezium.connector.transforms."
SIDES: tuple[Side, ...] = ("key", "value")
Made = TypeVar("Made")


@dataclass(frozen=True)
class TransformPlugin(Generic[Made]):
    """A class that makes steps or tests; `problem` returns the error of the options together, or None."""

    name: str
    options: tuple[Property, ...]
    make: Callable[[Values], Made]
    problem: Callable[[Values], str | None] = lambda values: None


Transformation = TransformPlugin[Step]
Predicate = TransformPlugin[Test]


def plugin(
    name: str,
    make: Callable[[Values], Made],
    checks: Mapping[str, Check] | None = None,
    problem: Callable[[Values], str | None] = lambda values: None,
) -> TransformPlugin[Made]:
    """The class with the options in options.toml; `checks` are of their values, by option."""
    sections, own = _sections(), name.rpartition(".")[2].partition("$")[0]
    options = {option: about or sections["*"][option] for option, about in sections[own].items()}
    described = (from_toml(option, about, check=(checks or {}).get(option)) for option, about in options.items())
    return TransformPlugin(name, tuple(described), make, problem)


@cache
def _sections() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("penstock.connect.transforms") / "options.toml").read_text())


def on_key_and_value(
    name: str,
    make: Callable[[Side, Values], Step],
    checks: Mapping[str, Check] | None = None,
    problem: Callable[[Values], str | None] = lambda values: None,
) -> list[Transformation]:
    """The `$Key` and `$Value` classes of one of Kafka's transforms."""
    return [plugin(f"{KAFKA}{name}${side.capitalize()}", partial(make, side), checks, problem) for side in SIDES]


def not_empty(value: Any) -> str | None:
    return None if value else "String must be non-empty"


def some_names(value: Any) -> str | None:
    return None if value else "Empty list"


def one_of(*allowed: str) -> Check:
    return lambda value: None if value in allowed else f"String must be one of: {', '.join(allowed)}"


def one_of_any_case(*allowed: str) -> Check:
    return lambda value: None if value.lower() in allowed else f"Value must be one of {', '.join(allowed)}"
