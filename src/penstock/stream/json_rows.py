"""JSON objects as Arrow rows: all at once, and one by one only where some of them cannot be read."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

OBJECT = r"^[ \t\r\n]*\{"


def decoded(values: pa.Array, schema: pa.Schema) -> tuple[pa.Table, Any]:
    """The rows of those that are neither null nor bad, in order, and which of all values are not bad."""
    # Arrow's reader dies of a null before the first object, and takes later ones for objects without members.
    objects = pc.fill_null(pc.match_substring_regex(values, OBJECT), True)
    good = np.array(objects.to_numpy(zero_copy_only=False))
    present = values.filter(objects).drop_null()
    if not len(present):
        return schema.empty_table(), good
    try:
        rows = _together(present, schema)
        if len(rows) == len(present):
            return rows, good
    except pa.ArrowInvalid:
        pass
    made: list[pa.Table] = []
    for place in np.flatnonzero(good & values.is_valid().to_numpy(zero_copy_only=False)):
        try:
            json.loads(values[place].as_py())
            made.append(_together(values.slice(place, 1), schema))
        except ValueError:  # ArrowInvalid is one
            good[place] = False
    return pa.concat_tables(made) if made else schema.empty_table(), good


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
