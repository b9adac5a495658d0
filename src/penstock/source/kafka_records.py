"""Records of some partitions as record batches of the source, with the members of their JSON values."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.source.json_columns import Members, columns, members
from penstock.source.kafka_schema import schema
from penstock.source.kafka_settings import Settings
from penstock.source.kafka_topic import topic

MOST_ROWS = 20_000
"""Of a batch: what a task holds besides the records that the broker gave."""


def batches(settings: Settings, start: dict[int, int], end: dict[int, int]) -> Iterator[pa.RecordBatch]:
    """All records, those of a partition in order."""
    wanted = None if settings.members is None else members(settings.members)
    arrow = to_arrow_schema(schema(settings.members), timezone="UTC")
    for partition, records in topic(settings).read(start, end):
        for first in range(0, len(records), MOST_ROWS):
            yield _batch(partition, records.slice(first, MOST_ROWS).combine_chunks(), wanted, arrow)


def _batch(partition: int, records: pa.Table, wanted: Members | None, arrow: pa.Schema) -> pa.RecordBatch:
    plain = records.to_batches()[0]
    found = {name: plain.column(name) for name in plain.schema.names}
    found["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), plain.num_rows)
    values = [_fitting(found[field.name], field.type) for field in arrow if field.name in found]
    if wanted is not None:
        read, cells = columns(found["value"], wanted)
        values += [read, *cells]
    return pa.RecordBatch.from_arrays(values, schema=arrow)


def _fitting(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in Spark's type; headers, of which most records have none, are null then as in Spark's source."""
    if pa.types.is_list(kind) and not len(column.values):
        return pa.nulls(len(column), kind)
    return column.cast(kind)
