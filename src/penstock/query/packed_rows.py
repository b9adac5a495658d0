"""Rows that pass through Spark in one binary column: for a sink that takes them all, as `replicate.sink` does.

Wide rows cost Spark more on their way from one Python process to the next than reading or writing them. So the first
row of a page has the whole page, as an Arrow stream, and the others have null: the number of rows stays right. The
column's metadata has the schema of the rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import types as st

COLUMN = "packed"
SCHEMA = "penstock.packed"
"""The entry of the column's metadata with the schema, as JSON."""


def packed_schema(rows: st.StructType) -> st.StructType:
    """The schema of packed rows."""
    return st.StructType([st.StructField(COLUMN, st.BinaryType(), metadata={SCHEMA: rows.json()})])


def is_packed(schema: st.StructType) -> bool:
    return schema.names == [COLUMN] and SCHEMA in schema[COLUMN].metadata


def rows_schema(schema: st.StructType) -> st.StructType:
    """The schema of the rows, packed or not."""
    return st.StructType.fromJson(json.loads(schema[COLUMN].metadata[SCHEMA])) if is_packed(schema) else schema


def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as stream:
                stream.write_batch(batch)
            page = pa.array([sink.getvalue().to_pybytes()], pa.binary())
            yield pa.record_batch({COLUMN: pa.concat_arrays([page, pa.nulls(batch.num_rows - 1, pa.binary())])})


def unpacked(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The pages of rows."""
    for page in batch.column(COLUMN).drop_null():
        yield from pa.ipc.open_stream(page.as_buffer())
