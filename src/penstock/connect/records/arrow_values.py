"""Values of Arrow arrays as records have them (`records.record`), column by column, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codec.connect_schema import Schema
from penstock.connect.records.record import DATA, Date, TimeOfDay, Timestamp

_TIMES: dict[str, Callable[[int], Any]] = {
    f"{DATA}Date": Date,
    f"{DATA}Time": TimeOfDay,
    f"{DATA}Timestamp": Timestamp,
}


def values_of(schema: Schema, array: pa.Array) -> list[Any]:
    """The values of an array with the Spark type of a schema (`codec.connect_schema.spark_type`)."""
    kind = schema["type"]
    if kind == "struct":
        return _structs(schema, array)
    if kind == "array":
        return _lists(array, values_of(schema["items"], array.flatten()))
    if kind == "map":
        return [_value(schema, pairs) for pairs in array.to_pylist()]
    values: list[Any] = array.to_pylist()
    if time := _TIMES.get(schema.get("name") or ""):
        return [None if value is None else time(value) for value in values]
    return values


def _value(schema: Schema, value: Any) -> Any:
    """One value, of what Arrow makes of it: its maps are lists of pairs."""
    kind = schema["type"]
    if value is None:
        return None
    if kind == "struct":
        return {one["field"]: _value(one, value[one["field"]]) for one in schema["fields"]}
    if kind == "array":
        return [_value(schema["items"], one) for one in value]
    if kind == "map":
        return {_value(schema["keys"], name): _value(schema["values"], one) for name, one in value}
    time = _TIMES.get(schema.get("name") or "")
    return time(value) if time else value


def _structs(schema: Schema, array: pa.StructArray) -> list[Any]:
    names = [field["field"] for field in schema["fields"]]
    if not names:
        return [{} if there else None for there in array.is_valid().to_pylist()]
    columns = [values_of(field, array.field(number)) for number, field in enumerate(schema["fields"])]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    if array.null_count == 0:
        return rows
    return [row if there else None for row, there in zip(rows, array.is_valid().to_pylist(), strict=True)]


def _lists(array: pa.Array, elements: Sequence[Any]) -> list[Any]:
    """The elements, which are those of all lists, list by list."""
    rest = iter(elements)
    sizes = pc.list_value_length(array).to_pylist()
    return [None if size is None else list(islice(rest, size)) for size in sizes]


def stored(schema: Schema) -> Callable[[Any], Any] | None:
    """Makes what Arrow takes of a value; None if it takes all values as they are."""
    kind = schema["type"]
    if kind == "array":
        return _each(stored(schema["items"]))
    if kind == "map":
        return _pairs(stored(schema["keys"]), stored(schema["values"]))
    if kind != "struct":
        return None
    changes = [(field["field"], change) for field in schema["fields"] if (change := stored(field)) is not None]
    if not changes:
        return None

    def of_struct(row: Any) -> Any:
        return None if row is None else {**row, **{name: change(row.get(name)) for name, change in changes}}

    return of_struct


def _each(change: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if change is None:
        return None
    return lambda values: None if values is None else [change(value) for value in values]


def _pairs(key: Callable[[Any], Any] | None, value: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def pairs(entries: Any) -> Any:
        if entries is None:
            return None
        return [(key(name) if key else name, value(one) if value else one) for name, one in entries.items()]

    return pairs
