"""`format("penstock-kafka")`: Arrow batches of Spark to Kafka through our own client, exactly once in a stream.

Each task of a micro-batch is one transaction. With its records it commits a marker: the number of the batch, as the
offset of a consumer group that is named after the query. A task that runs again, after whatever crash, takes over the
transactional id, which ends or fences what an older attempt has left open, and reads the marker: if its batch was
committed before, it writes nothing. So a reader of committed records sees each row of each batch once, provided
that a batch that is run again gives each task the same rows, which Spark's replayable sources do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.sink.delivery import AT_LEAST_ONCE, EXACTLY_ONCE
from penstock.sink.kafka_options import Options, wrong
from penstock.wire.columns import COLUMNS
from penstock.wire.tables import by_topic
from penstock.wire.transaction import Committed, Transactions

MARKERS = "__consumer_offsets"
"""The topic under which markers are kept: any that exists will do, and this one always does."""
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""What Spark calls the query and the micro-batch in the properties of a task."""
GATHERED = 4 << 20
"""Bytes of rows that are encoded together."""


class PenstockKafka(DataSource):
    """The sink by its name."""

    @classmethod
    def name(cls) -> str:
        return "penstock-kafka"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = Options.of(dict(self.options))
        _check(schema, options)
        return StreamWriter(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = Options.of(dict(self.options))
        _check(schema, options)
        return BatchWriter(options)


def _check(schema: StructType, options: Options) -> None:
    names = set(schema.names)
    if unknown := names - {*COLUMNS, "topic"}:
        raise wrong(f"no place for the columns {', '.join(sorted(unknown))}", f"select topic, {', '.join(COLUMNS)}")
    if "value" not in names:
        raise wrong("no column `value` to write", "select one")
    if bool(options.topic) == ("topic" in names):
        raise wrong("no topic, or two", 'give .option("topic", ...) or a column `topic`, and not both')


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the part of a micro-batch that is one task's."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task
        query, batch = task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)
        if self.options.delivery == AT_LEAST_ONCE or query is None or batch is None:
            asyncio.run(_write(self.options, iterator))
        else:
            asyncio.run(_write_once(self.options, iterator, query, int(batch), task.partitionId()))
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Each task has committed its own."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What tasks have committed stays; they skip it when the batch is run again."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch frame: with its query and number as a stream does, else without transactions.

    Without them, what a failed task has written stays, and a repeat repeats it.
    """

    def __init__(self, options: Options) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options, task = self.options, TaskContext.get()
        if options.delivery == EXACTLY_ONCE and options.query:
            assert task
            asyncio.run(_write_once(options, iterator, options.query, options.batch, task.partitionId()))
        else:
            asyncio.run(_write(options, iterator))
        return WriterCommitMessage()


async def _write(options: Options, batches: Iterator[pa.RecordBatch]) -> None:
    async with options.producer() as producer:
        await producer.send_tables(_parts(batches, options.topic))


async def _write_once(options: Options, batches: Iterator[pa.RecordBatch], query: str, batch: int, task: int) -> None:
    group = f"penstock-{query}"
    async with (
        options.producer(transactional_id=f"{group}-{task}") as producer,
        producer.transaction() as transaction,
    ):
        if await _is_done(transaction, group, batch, task):
            return
        if await producer.send_tables(_parts(batches, options.topic)):
            await transaction.add_offsets(group, {(MARKERS, task): Committed(batch + 1)})


async def _is_done(transaction: Transactions, group: str, batch: int, task: int) -> bool:
    marker = await transaction.committed(group, MARKERS, task)
    return marker is not None and marker.offset > batch


def _parts(batches: Iterator[pa.RecordBatch], topic: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    some = _gathered(batches)
    return ((topic, batch) for batch in some) if topic else by_topic(some)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Spark's batches of some thousand rows, joined until they fill several of Kafka's."""
    some: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            some.append(batch)
        if sum(one.nbytes for one in some) >= GATHERED:
            yield pa.concat_batches(some)
            some = []
    if some:
        yield pa.concat_batches(some)
