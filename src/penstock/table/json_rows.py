"""JSON objects as Arrow rows, as Spark reads them: all at once; one by one only if some cannot be read."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json
from pyspark.sql import types as st

from penstock.codec import exact_json
from penstock.codec.decode_json import FIRST, LAST, MICROS, Epoch
from penstock.durations import EPOCH

SPACE = " \t\r\n"
OBJECT = rf"^[{SPACE}]*\{{"
NO_NUMBER = "NaN|Inf"
"""What Arrow's reader takes for numbers. It may also be in a string; then the values are read the slow way."""
CONSTANTS = ("NaN", "Infinity", "-Infinity")
LARGEST = {pa.float32(): float(np.finfo(np.float32).max), pa.float64(): float(np.finfo(np.float64).max)}
UNITS = {"seconds": "s", "millis": "ms", "micros": "us"}
READABLE = (
    *(st.StringType, st.BooleanType, st.NumericType, st.DateType, st.TimestampType, st.TimestampNTZType),
    *(st.ArrayType, st.StructType),
)
"""Types that are read as Spark reads them. Spark also reads maps, and binary from Base64 strings."""


def unreadable(kind: st.DataType) -> st.DataType | None:
    """The type, or a type in it, that cannot be read from JSON; None if all can."""
    if not isinstance(kind, READABLE):
        return kind
    if isinstance(kind, st.ArrayType):
        return unreadable(kind.elementType)
    fields = kind.fields if isinstance(kind, st.StructType) else []
    return next((inner for field in fields if (inner := unreadable(field.dataType))), None)


def decoded(values: pa.Array, schema: pa.Schema, epoch: Epoch = "seconds") -> tuple[pa.Table, Any]:
    """The rows of the values that are neither null nor bad, in order, and a mask of the values that are not bad.

    A number in a timestamp column counts `epoch` since 1970.
    """
    # Arrow's reader crashes on a null before the first object, and reads later nulls as objects without members.
    objects = pc.fill_null(pc.match_substring_regex(values, OBJECT), True)
    good = np.array(objects.to_numpy(zero_copy_only=False))
    places = np.flatnonzero(good & values.is_valid().to_numpy(zero_copy_only=False))
    present = values.take(pa.array(places))
    rows = _plain(present, schema, epoch)
    if rows is not None:
        return rows, good
    texts = [_typed_json(value, schema, MICROS[epoch]) for value in present.to_pylist()]
    rows = _rows(pa.array([text for text in texts if text is not None], pa.binary()), schema)
    if rows is not None:
        good[places] = [text is not None for text in texts]
        return rows, good
    row_tables = [None if text is None else _rows(pa.array([text], pa.binary()), schema) for text in texts]
    good[places] = [row is not None for row in row_tables]
    return pa.concat_tables([schema.empty_table(), *(row for row in row_tables if row is not None)]), good


def _plain(values: pa.Array, schema: pa.Schema, epoch: Epoch) -> pa.Table | None:
    """A row for each object; None if one has a value that Arrow's reader takes for another, or does not take."""
    if pc.any(pc.match_substring_regex(values, NO_NUMBER)).as_py():
        return None
    rows = _rows(values, schema)
    if rows is None and any(_is_instant(leaf.type) for leaf in _leaves(schema.empty_table())):
        counts = _rows(values, pa.schema([_retyped(field, lambda _: pa.int64(), _is_instant) for field in schema]))
        try:
            # Through numbers without a unit: Arrow knows no cast from integers to a timestamp of another unit.
            unit = pa.timestamp(UNITS[epoch], "UTC")
            units = pa.schema([_retyped(field, lambda _: unit, _is_instant) for field in schema])
            rows = None if counts is None else counts.cast(units).cast(schema)
        except pa.ArrowInvalid:
            return None
        rows = None if rows is None or _has_far_times(rows) else rows
    # An infinity was a number that is too large for the type.
    floats = [] if rows is None else [leaf for leaf in _leaves(rows) if pa.types.is_floating(leaf.type)]
    return None if any(pc.any(pc.is_inf(leaf)).as_py() for leaf in floats) else rows


def _rows(values: pa.Array, schema: pa.Schema) -> pa.Table | None:
    """A row for each object; None if one of them cannot be read."""
    if not len(values):
        return schema.empty_table()
    try:
        # Arrow's reader accepts any bytes as strings, and an object split over two values. With a brace at both ends of
        # each value no object continues in the next: in JSON one object follows another directly only at the top level.
        if not pc.all(pc.ends_with(pc.ascii_rtrim(values.cast(pa.string()), SPACE), "}")).as_py():
            return None
        rows = _together(values, pa.schema([_readable(field) for field in schema])).cast(schema)
    except pa.ArrowInvalid:
        return None
    return rows if len(rows) == len(values) and not _has_far_times(rows) else None


def _has_far_times(rows: pa.Table) -> bool:
    """Whether a time is outside the years 1 to 9999."""
    times = (pc.min_max(leaf.cast(pa.int64())) for leaf in _leaves(rows) if pa.types.is_timestamp(leaf.type))
    ends = [(bounds["min"].as_py(), bounds["max"].as_py()) for bounds in times]
    return any(first is not None and not FIRST <= first <= last <= LAST for first, last in ends)


def _leaves(rows: pa.Table) -> Iterator[pa.Array]:
    """All values of columns and of what is in them, by type."""
    left = [chunk for column in rows.columns for chunk in column.chunks or [pa.array([], column.type)]]
    while left:
        array = left.pop()
        if pa.types.is_struct(array.type):
            left += array.flatten()
        elif pa.types.is_list(array.type):
            left.append(array.flatten())
        else:
            yield array


def _together(values: pa.Array, schema: pa.Schema) -> pa.Table:
    end_of_line = pa.scalar(b"\n", pa.large_binary())
    lines = pc.binary_join_element_wise(values.cast(pa.large_binary()), pa.scalar(b"", pa.large_binary()), end_of_line)
    options = arrow_json.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="ignore", newlines_in_values=True
    )
    start, end = _bounds(lines)
    data = lines.buffers()[2].slice(start, end - start)
    reading = arrow_json.ReadOptions(block_size=max(1 << 20, end - start + 1), use_threads=False)
    return arrow_json.read_json(io.BytesIO(data), read_options=reading, parse_options=options).select(schema.names)


def _bounds(cells: pa.Array) -> tuple[int, int]:
    offsets = np.frombuffer(cells.buffers()[1], np.int64, len(cells) + 1, cells.offset * 8)
    return int(offsets[0]), int(offsets[-1])


def _readable(field: pa.Field) -> pa.Field:
    """The field with a type that Arrow reads from JSON: dates as strings, since Arrow reads a date as a number."""
    return _retyped(field, lambda _: pa.string(), pa.types.is_date)


def _retyped(
    field: pa.Field,
    to: Callable[[pa.DataType], pa.DataType],
    where: Callable[[pa.DataType], bool],
) -> pa.Field:
    """The field with other types where `where` is true, at any depth."""
    kind = field.type
    if where(kind):
        kind = to(kind)
    elif pa.types.is_list(kind):
        kind = pa.list_(_retyped(kind.value_field, to, where))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_retyped(child, to, where) for child in kind])
    return field.with_type(kind)


def _is_instant(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None


def _typed_json(value: bytes, schema: pa.Schema, unit: int) -> bytes | None:
    """The object as Arrow's reader needs it; None if it is bad. `unit` is what a number for a time counts, in
    microseconds.
    """
    try:
        parsed = exact_json.loads(value.decode())
        typed = _as_typed(parsed, pa.struct(list(schema)), unit)
        return value if typed == parsed else exact_json.dumps(typed, ascii=True, other=_constant).encode()
    except (ValueError, OverflowError, RecursionError):
        return None


def _doubles(value: Any) -> Any:
    """The value with the numbers that doubles hold as such: Spark shows 1.10 as 1.1. The others keep their digits."""
    if isinstance(value, dict):
        return {name: _doubles(member) for name, member in value.items()}
    if isinstance(value, list):
        return [_doubles(element) for element in value]
    return exact_json.as_double(value) if isinstance(value, Decimal) else value


def _is_within(value: float | Decimal, largest: float) -> bool:
    return -largest <= value <= largest


def _constant(value: float) -> str:
    """A number that is not finite, as Arrow's reader takes it."""
    return json.dumps(value)


def _as_typed(value: Any, kind: pa.DataType, unit: int) -> Any:
    """The value with strings for strings and times, and infinities and NaN where the sinks write them as strings."""
    if pa.types.is_string(kind) and value is not None and not isinstance(value, str):
        return exact_json.dumps(_doubles(value), compact=True)
    if _is_instant(kind) and isinstance(value, int) and not isinstance(value, bool):
        return (EPOCH + timedelta(microseconds=value * unit)).isoformat()
    if pa.types.is_floating(kind) and value in CONSTANTS:
        return float(value)
    if pa.types.is_floating(kind) and isinstance(value, int | float | Decimal) and not _is_within(value, LARGEST[kind]):
        raise ValueError
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return value | {
            field.name: _as_typed(value[field.name], field.type, unit) for field in kind if field.name in value
        }
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_as_typed(element, kind.value_type, unit) for element in value]
    return value
