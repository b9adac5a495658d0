"""Rows of events with their sets and maps sorted, so that two can be compared."""

from __future__ import annotations

import json
from typing import Any

from penstock.database.cql_types import CqlType

Json = Any
Types = dict[str, list[CqlType]]
"""Each column's types: a case's tables may have columns of one name and several types."""


def ordered_row(row: Json, types: Types) -> Json:
    """A row of an event in an order of its own."""
    return row and {name: ordered(value, type_of(value, types[name])) for name, value in row.items()}


def type_of(value: Json, kinds: list[CqlType]) -> CqlType:
    """The type that a value's shape fits; what fits none, as the legacy format's cells, has no order of its own."""
    return next((kind for kind in kinds if fits(value, kind)), CqlType("text"))


def fits(value: Json, kind: CqlType) -> bool:
    """Whether a value has the shape of this type."""
    shape = dict if kind.name in ("tuple", "udt") else list if kind.args else (str, int, float, bool)
    return value is None or isinstance(value, shape)


def ordered(value: Json, kind: CqlType) -> Json:
    """The value with its sets and maps sorted: their order means nothing."""
    if value is None or not kind.args:
        return value
    if kind.name == "map":
        pairs = [{"key": ordered(e["key"], kind.args[0]), "value": ordered(e["value"], kind.args[1])} for e in value]
        return sorted(pairs, key=_text)
    if kind.name in ("tuple", "udt"):
        names = kind.fields or [f"field_{i}" for i in range(len(kind.args))]
        return {name: ordered(value[name], arg) for name, arg in zip(names, kind.args, strict=True)}
    elements = [ordered(element, kind.args[0]) for element in value]
    return sorted(elements, key=_text) if kind.name == "set" else elements


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
