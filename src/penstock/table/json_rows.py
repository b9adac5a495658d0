"""JSON objects as Arrow rows, as Spark reads them: all at once, and one by one only where some cannot be read."""

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
"""Types that are read as Spark reads them: it has maps too, and takes text for binary as Base64."""


def unreadable(kind: st.DataType) -> st.DataType | None:
    """The type itself, or one in it, that is not read of JSON."""
    if not isinstance(kind, READABLE):
        return kind
    if isinstance(kind, st.ArrayType):
        return unreadable(kind.elementType)
    fields = kind.fields if isinstance(kind, st.StructType) else []
    return next((found for one in fields if (found := unreadable(one.dataType))), None)


def decoded(values: pa.Array, schema: pa.Schema) -> tuple[pa.Table, Any]:
    """The rows of those that are neither null nor bad, in order, and which of all values are not bad."""
    # Arrow's reader dies of a null before the first object, and takes later ones for objects without members.
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
    """A row for each of the objects; None if one of them cannot be read."""
    if not len(values):
        return schema.empty_table()
    try:
        # Arrow's reader takes any bytes for text, and what is cut in two for one object. With a brace at both ends of
        # each value none goes on in the next: no JSON has an object right behind another but at the top.
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
    """The field in a type that Arrow reads of JSON, which has dates as text: it takes them for numbers."""
    kind = field.type
    if pa.types.is_date(kind):
        kind = pa.string()
    elif pa.types.is_list(kind):
        kind = pa.list_(_readable(kind.value_field))
    elif pa.types.is_struct(kind):
        kind = pa.struct([_readable(one) for one in kind])
    return field.with_type(kind)


def _told(value: bytes, schema: pa.Schema) -> bytes | None:
    """The object with texts where texts are wanted; None if it is none."""
    try:
        found = json.loads(value.decode())
        told = _with_texts(found, pa.struct(list(schema)))
        # As it came as far as possible, because of numbers with more digits than Python's have.
        return value if told == found else json.dumps(told).encode()
    except (ValueError, RecursionError):
        return None


def _with_texts(value: Any, kind: pa.DataType) -> Any:
    """What is another value where a text is wanted is its JSON."""
    if pa.types.is_string(kind) and value is not None and not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return value | {one.name: _with_texts(value[one.name], one.type) for one in kind if one.name in value}
    if pa.types.is_list(kind) and isinstance(value, list):
        return [_with_texts(one, kind.value_type) for one in value]
    return value
