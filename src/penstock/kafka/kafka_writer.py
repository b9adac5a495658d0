"""Arrow batches of Spark to Kafka through our own client: `format("penstock-kafka")`, and what `kafka.sink` does.

At least once, the tasks of a process share its producer (`write_part`).

Exactly once, each task of a micro-batch is one transaction. With its records it commits a marker: the number of the
batch, as the offset of a consumer group that is named after the query, and a digest of the batch's offsets, as metadata
(`markers`). A task that runs again after a crash takes over the transactional id, which ends or fences the open
transaction of an older attempt, and reads the markers: if its batch was committed before, it writes nothing. So a
reader of committed records sees each row of each batch once, if a batch that is run again gives each task the same
rows, as Spark's replayable sources do. Before it writes, a task checks the markers of all tasks. A marker of a later
batch, of another batch with the same number, or of the same batch with another number of tasks is an error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from math import ceil
from typing import NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkAttributeError
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.checkpoint.batch_offsets import newest_in_checkpoint
from penstock.errors import PenstockError
from penstock.kafka.client_options import Options, wrong
from penstock.metrics import delays
from penstock.native import Array
from penstock.query.delivery import AT_LEAST_ONCE, EXACTLY_ONCE, marker_group
from penstock.query.markers import Marker, is_written
from penstock.query.query import Batch
from penstock.spark_runtime.logical_plan import tasks
from penstock.wire import BlockingProducer, Producer
from penstock.wire.coordinator import Committed
from penstock.wire.producer.stats import Stats
from penstock.wire.producer.table_receipts import by_topic
from penstock.wire.producer.transactions import Transactions
from penstock.wire.records.record_encoder import COLUMNS

MARKERS = "__consumer_offsets"
"""The topic under which markers are stored, one partition per task; any topic that exists works, and this one does."""
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's names for the query and the micro-batch in the properties of a task."""
TASKS = "penstock.tasks"
"""Our name there for a batch's number of tasks."""
Settings = tuple[tuple[str, str], ...]
"""Names and values of options, for `Options.of`."""
GATHERED = 4 << 20
"""Bytes of rows to encode together."""
IDLE = 60.0
"""Seconds after which a producer that no task has used is replaced: a broker forgets it, and closes its connections."""


class PenstockKafka(DataSource):
    """The sink, registered under its name."""

    @classmethod
    def name(cls) -> str:
        return "penstock-kafka"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        check(schema, Options.of(dict(self.options)))
        return StreamWriter(_settings(self.options), self.options.get("checkpointLocation", ""))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        check(schema, Options.of(dict(self.options)))
        return BatchWriter(_settings(self.options))


def check(schema: StructType, options: Options) -> None:
    """Raises `PenstockError` if these columns cannot be written."""
    names = set(schema.names) - set(delays.HIDDEN)
    if unknown := names - {*COLUMNS, "topic"}:
        raise wrong(f"the unknown columns {', '.join(sorted(unknown))}", f"select topic, {', '.join(COLUMNS)}")
    if "value" not in names:
        raise wrong("no column `value` to write", "add the column")
    if bool(options.topic) == ("topic" in names):
        raise wrong("no topic, or two", 'give either .option("topic", ...) or a column `topic`')


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes one task's part of a micro-batch; `checkpoint` is the folder with its query's offsets.

    Spark makes a writer for each batch, after it has stored the batch's offsets. They are read here and not in the
    tasks: a task can outlive its query, and would find the offsets of another batch in a checkpoint that was restored.
    """

    def __init__(self, settings: Settings, checkpoint: str) -> None:
        self.settings = settings
        self.number, self.start, self.end = newest_in_checkpoint(checkpoint)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        task = TaskContext.get()
        assert task
        query, batch = task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)
        options = Options.of(dict(self.settings))
        if options.delivery == AT_LEAST_ONCE or query is None or batch is None:
            write_part(self.settings, iterator)
        else:
            number = int(batch)
            offsets = (self.start, self.end) if number == self.number else ("", "")
            write_once(options, iterator, Batch(query, number, *offsets))
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: each task has committed its own transaction."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: what tasks have committed stays, and they skip it when the batch is run again."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch frame: with `query` and `batch` as a stream does, otherwise without transactions.

    Without transactions, the rows of a failed task stay, and a retry writes them again.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        options = Options.of(dict(self.settings))
        if options.delivery == EXACTLY_ONCE and options.query:
            write_once(options, iterator, Batch(options.query, options.batch))
        else:
            write_part(self.settings, iterator)
        return WriterCommitMessage()


def _settings(options: Mapping[str, str]) -> Settings:
    return tuple(sorted(options.items()))


def write_part(settings: Settings, batches: Iterator[pa.RecordBatch]) -> delays.SinkCounts:
    """Write the rows of a task with the producer of its process; a task that runs again writes them again."""
    producer, written = _producer(settings), AcknowledgedRows()
    before = _sent(producer.stats())
    try:
        parts = written.parts(_parts(batches, dict(settings).get("topic", "")))
        producer.send_tables(parts, acknowledged=written.acknowledged)
    except BaseException:
        del _producers[settings]
        producer.close()
        raise
    _producers[settings] = producer, time.monotonic()
    # A process runs one task at a time, so the difference is this task's.
    size, retries = (now - then for now, then in zip(_sent(producer.stats()), before, strict=True))
    return written.counts(size, retries)


def _sent(stats: Stats) -> tuple[int, int]:
    """The bytes that brokers have acknowledged, and the batches that were sent again."""
    return sum(topic.bytes for topic in stats.topics.values()), sum(topic.retries for topic in stats.topics.values())


class AcknowledgedRows:
    """Counts the rows of a task when brokers acknowledge them, with the delay since their events.

    With `at_once` false the rows are counted when `commit` is called, as those of a transaction.
    """

    def __init__(self, *, at_once: bool = True) -> None:
        self._delays = delays.DelayCounts()
        self._at_once = at_once
        self._parts: dict[int, BatchInFlight] = {}
        """The parts with rows that are not acknowledged yet, by their number."""
        self._waiting = delays.EventTimes()

    def parts(self, parts: Iterator[tuple[str, pa.RecordBatch]]) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The parts without the columns that are not written, which stay in memory until the rows are acknowledged."""
        for number, (topic, batch) in enumerate(parts):
            batch, times = delays.split(batch)
            batch, reasons = delays.split_letters(batch)
            self._parts[number] = BatchInFlight(times, reasons, batch.num_rows)
            yield topic, batch

    def acknowledged(self, number: int, rows: range | Array) -> None:
        """Called by the producer."""
        part = self._parts.pop(number)
        if part.left > len(rows):
            self._parts[number] = part._replace(left=part.left - len(rows))
        times, reasons = (_of(values, rows) for values in part[:2])
        if self._at_once:
            self._delays.acknowledged(len(rows), times)
        else:
            self._waiting.add(len(rows), times)
        if reasons is not None:
            self._delays.letters(reasons)

    def commit(self) -> None:
        self._waiting.acknowledged(self._delays)

    def counts(self, size: int, retries: int) -> delays.SinkCounts:
        return self._delays.counts(bytes=size, retries=retries)


class BatchInFlight(NamedTuple):
    """An Arrow batch on its way to the brokers: event times, reasons of dead letters, and rows not acknowledged."""

    times: Array | None
    reasons: Array | None
    left: int


def _of(values: Array | None, rows: range | Array) -> Array | None:
    if values is None:
        return None
    part: Array = values[rows.start : rows.stop] if isinstance(rows, range) else values[rows]
    return part


_producers: dict[Settings, tuple[BlockingProducer, float]] = {}
"""The producers of this process, and when a task last used each."""


def _producer(settings: Settings) -> BlockingProducer:
    cached, used = _producers.get(settings, (None, 0.0))
    if cached and time.monotonic() < used + IDLE:
        return cached
    if cached:
        cached.close()
    producer = Options.of(dict(settings)).producer(BlockingProducer)
    _producers[settings] = producer, time.monotonic()
    return producer


def save(records: DataFrame, options: Options, batch: Batch) -> None:
    """Write a batch of a query, each of its tasks in a transaction."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield write_once(options, batches, batch).batch()

    check(records.schema, options)
    written = records.mapInArrow(write, delays.SCHEMA)
    try:
        context = records.sparkSession.sparkContext
    except PySparkAttributeError as error:
        raise PenstockError(
            "kafka.sink with exactly-once delivery needs a classic Spark session, and this is a Spark Connect session",
            next='give it delivery="at-least-once"; docs/notebook.md has what Connect can do',
        ) from error
    # The tasks need their number before they run; the plan that is counted is the plan that is run.
    context.setLocalProperty(TASKS, str(tasks(written)))
    try:
        delays.add_rows(batch.query, written.collect())
    finally:
        context.setLocalProperty(TASKS, None)  # type: ignore[arg-type]


def write_once(options: Options, batches: Iterator[pa.RecordBatch], batch: Batch) -> delays.SinkCounts:
    """Write the running task's part of a batch, unless it was written before; then the counts are 0."""
    task = TaskContext.get()
    assert task
    tasks = int(task.getLocalProperty(TASKS) or 0)
    return asyncio.run(_write_once(options, batches, batch, task.partitionId(), tasks))


async def _write_once(
    options: Options, batches: Iterator[pa.RecordBatch], batch: Batch, task: int, tasks: int
) -> delays.SinkCounts:
    written = AcknowledgedRows(at_once=False)
    async with options.producer(Producer, transactional_id=f"{marker_group(batch.query)}-{task}") as producer:
        async with producer.transaction() as transaction:
            place = await unwritten(transaction, batch, task, tasks)
            parts = written.parts(_parts(batches, options.topic))
            if place and await producer.send_tables(parts, acknowledged=written.acknowledged):
                committed = Committed(batch.number + 1, Marker.for_batch(batch, tasks).text())
                await transaction.add_offsets(place.group, {(MARKERS, place.partition): committed})
        written.commit()
        size, retries = _sent(producer.stats())
    return written.counts(size, retries)


class MarkerPosition(NamedTuple):
    """The position of a task's marker."""

    group: str
    partition: int


async def unwritten(transaction: Transactions, batch: Batch, task: int, tasks: int) -> MarkerPosition | None:
    """The position for this task's marker; None if the task has committed its part.

    A broker refuses offsets of partitions that do not exist: a group has at most a marker per partition of MARKERS.
    """
    # This request also makes a new cluster create the topic whose partitions are counted next.
    first = await transaction.all_committed(marker_group(batch.query), MARKERS)
    width = await transaction.partitions(MARKERS)
    place = MarkerPosition(marker_group(batch.query, task // width), task % width)
    more = range(1, ceil(max(tasks, task + 1) / width))
    own, others = await asyncio.gather(
        transaction.committed(place.group, MARKERS, place.partition),
        asyncio.gather(*(transaction.all_committed(marker_group(batch.query, number), MARKERS) for number in more)),
    )
    all = {n * width + p: committed for n, group in enumerate([first, *others]) for p, committed in group.items()}
    if own is not None:
        all[task] = own
    done = {
        number: is_written(Marker.read(committed.offset - 1, committed.metadata), batch, "Kafka", tasks=tasks)
        for number, committed in all.items()
    }
    return None if done.get(task, False) else place


def _parts(batches: Iterator[pa.RecordBatch], topic: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    some = _gathered(batches)
    return ((topic, batch) for batch in some) if topic else by_topic(some)


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Spark's batches of some thousand rows, joined until they fill several record batches."""
    some: list[pa.RecordBatch] = []
    for batch in batches:
        if batch.num_rows:
            some.append(batch)
        if sum(batch.nbytes for batch in some) >= GATHERED:
            yield pa.concat_batches(some)
            some = []
    if some:
        yield pa.concat_batches(some)
