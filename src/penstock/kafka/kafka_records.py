"""Records of some partitions as record batches of the source, with the members of their JSON values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.kafka.json_columns import Members, columns, members
from penstock.kafka.kafka_schema import READ, UNREADABLE, schema
from penstock.kafka.kafka_settings import KafkaSettings
from penstock.kafka.topic_reader import topic
from penstock.wire.consumer.fetcher import Unreadable

TIMES = -62_135_424_000_000, 253_402_128_000_000
"""Milliseconds from 1970 to the limits of the years 1 to 9999, less two days, so that Python has them in all zones."""
MOST_ROWS = 20_000
"""Most rows of a batch, which a task holds besides the records from the broker."""


def batches(settings: KafkaSettings, start: dict[int, int], end: dict[int, int]) -> Iterator[pa.RecordBatch]:
    """All records, in order within each partition; one row for a batch that is skipped."""
    wanted = None if settings.members is None else members(settings.members)
    arrow = to_arrow_schema(schema(settings.members, tolerant=settings.tolerant), timezone="UTC")
    for found in topic(settings).read(start, end):
        if isinstance(found, Unreadable):
            yield _unreadable(found, arrow)
            continue
        partition, records = found
        for first in range(0, len(records), MOST_ROWS):
            yield _batch(partition, records.slice(first, MOST_ROWS).combine_chunks(), wanted, arrow)


def _batch(partition: int, records: pa.Table, wanted: Members | None, arrow: pa.Schema) -> pa.RecordBatch:
    plain = records.to_batches()[0]
    found = {name: plain.column(name) for name in plain.schema.names}
    found["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), plain.num_rows)
    if UNREADABLE in arrow.names:
        found[UNREADABLE] = pa.nulls(plain.num_rows, pa.string())
    values = [_fitting(found[field.name], field.type) for field in arrow if field.name in found]
    if wanted is not None:
        read, cells = columns(found["value"], wanted)
        values += [read, *cells]
    return pa.RecordBatch.from_arrays(values, schema=arrow)


def _unreadable(batch: Unreadable, arrow: pa.Schema) -> pa.RecordBatch:
    time = pa.array([batch.timestamp]).cast(pa.timestamp("ms", "UTC"))
    told: dict[str, pa.Array] = {
        "partition": pa.array([batch.partition], pa.int32()),
        "offset": pa.array([batch.offset]),
        "timestamp": _fitting(time, arrow.field("timestamp").type),
        UNREADABLE: pa.array([str(batch.error)]),
        READ: pa.array([False]),
    }
    return pa.RecordBatch.from_arrays([told.get(one.name, pa.nulls(1, one.type)) for one in arrow], schema=arrow)


def _fitting(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in Spark's type; headers are null if there are none, as in Spark's source.

    A producer may write any time: a time outside the years 1 to 9999 becomes the nearest one inside.
    """
    if pa.types.is_list(kind) and not len(column.values):
        return pa.nulls(len(column), kind)
    if pa.types.is_timestamp(kind):
        column = pa.array(np.clip(column.cast(pa.int64()).to_numpy(), *TIMES)).cast(column.type)
    return column.cast(kind)
