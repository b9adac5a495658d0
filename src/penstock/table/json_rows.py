"""JSON objects as Arrow rows, as Spark reads them: all at once; one by one only if some cannot be read."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json
from pyspark.sql import types as st

SPACE = " \t\r\n"
OBJECT = rf"^[{SPACE}]*\{{"
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
    return next((found for one in fields if (found := unreadable(one.dataType))), None)


def decoded(values: pa.Array, schema: pa.Schema) -> tuple[pa.Table, Any]:
    """The rows of the values that are neither null nor bad, in order, and a mask of the values that are not bad."""
    # Arrow's reader crashes on a null before the first object, and reads later nulls as objects without members.
    objects = pc.fill_null(pc.match_substring_regex(values, OBJECT), True)
    good = np.array(objects.to_numpy(zero_copy_only=False))
    places = np.flatnonzero(good & values.is_valid().to_numpy(zero_copy_only=False))
    present = values.take(pa.array(places))
    rows = _rows(present, schema)
    if rows is not None:
        return rows, good
    texts = [_told(value, schema) for value in present.to_pylist()]
    rows = _rows(pa.array([text for text in texts if text is not None], pa.binary()), schema)
    if rows is not None:
        good[places] = [text is not None for text in texts]
        return rows, good
    made = [None if text is None else _rows(pa.array([text], pa.binary()), schema) for text in texts]
    good[places] = [row is not None for row in made]
    return pa.concat_tables([schema.empty_table(), *(row for row in made if row is not None)]), good


def _rows(values: pa.Array, schema: pa.Schema) -> pa.Table | None:
    """A row for each object; None if one of them cannot be read."""
    if not len(values):
        return schema.empty_table()
    try:
        # Arrow's reader accepts any bytes as strings, and an object split over two values. With a brace at both ends of
        # each value no object continues in the next: in JSON one object follows another directly only at the top level.
        if not pc.all(pc.ends_with(pc.ascii_rtrim(values.cast(pa.string()), SPACE), "}")).as_py():
            return None
        rows = _together(values, pa.schema([_readable(one) for one in schema])).cast(schema)
    except pa.ArrowInvalid:
        return None
    return rows if len(rows) == len(values) else None


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
    kind = field.type
    if pa.types.is_date(kind):
        kind = pa.string()
    elif pa.types.is_list(kind):
        kind = pa.list_(_readable(kind.value_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_readable(one) for one in kind])
    return field.with_type(kind)


def _told(value: bytes, schema: pa.Schema) -> bytes | None:
    """The object with strings where the schema has strings; None if it cannot be parsed."""
    try:
        found = json.loads(value.decode())
        told = _with_texts(found, pa.struct(list(schema)))
        # Unchanged if possible, because of numbers with more digits than Python's floats.
        return value if told == found else json.dumps(told).encode()
    except (ValueError, RecursionError):
        return None


def _with_texts(value: Any, kind: pa.DataType) -> Any:
    """The value, with the JSON of any other value where the type is string."""
    if pa.types.is_string(kind) and value is not None and not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return value | {one.name: _with_texts(value[one.name], one.type) for one in kind if one.name in value}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_with_texts(one, kind.value_type) for one in value]
    return value
