"""Makes a query of one frame and its sinks; `penstock run` or the user starts it later.

With one sink, Spark writes to it directly. With several sinks, each batch is computed once, cached, and written to them
in the given order; a failure at the second sink repeats the first, which recognizes the batch by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.border.public import public
from penstock.checkpoint.batch_offsets import batch_offsets
from penstock.checkpoint.checkpoint_folder import Location, is_object_store, location
from penstock.checkpoint.hadoop_folder import store_of
from penstock.checkpoint.identity import keep, of_query
from penstock.durations import Duration, duration
from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.query import real_time
from penstock.spark_runtime import worker_waits
from penstock.spark_runtime.failures import passing_failure
from penstock.spark_runtime.logical_plan import require_classic
from penstock.spark_runtime.settings import FILE_MANAGER, MANAGER
from penstock.spark_runtime.worker_waits import QUERY_ID

ONCE = "once"
Mode: TypeAlias = Literal["append", "update", "complete"]
MODES = get_args(Mode)
WITHOUT_RENAMES = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"


@dataclass(frozen=True)
class Batch:
    """One micro-batch: `query` is the id in the query's checkpoint, `number` counts its batches from 0.

    A batch that is run again has the same `query` and `number`, also after a restart. Each sink of a query has its own
    id: the query's id for the first sink, and "<id>.<index of the sink>" for later ones. `start` and `end` are the
    batch's start and end offsets in all sources, as in the checkpoint; "" if they are not known.
    """

    query: str
    number: int
    start: str = ""
    end: str = ""


class Sink(Protocol):
    """The methods that `write` needs of a sink."""

    @property
    def delivery(self) -> str:
        """The delivery guarantee when a batch is run again: "exactly-once" or "at-least-once"."""

    @property
    def target(self) -> tuple[str, str]:
        """The kind of the sink and where it writes, without addresses and secrets; checkpoints store it."""

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows to write; raises `PenstockError` if the sink cannot take the frame."""

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query whose only sink is this one."""

    def save(self, frame: DataFrame, batch: Batch) -> None:
        """Write the rows of one batch; writing the same batch again must change nothing."""


@runtime_checkable
class CountingSink(Protocol):
    """The mark of a sink that counts what it writes, and takes the column `delays.TIME`, which it does not write."""

    counts_delays: ClassVar[bool]


@dataclass(frozen=True)
class AroundSink:
    """A sink that prepares rows for another one, which says what both promise; a base class."""

    sink: Sink

    @property
    def counts_delays(self) -> bool:
        """As the other sink: raises AttributeError if it does not count."""
        return bool(getattr(self.sink, "counts_delays"))  # noqa: B009

    @property
    def delivery(self) -> str:
        return self.sink.delivery

    @property
    def target(self) -> tuple[str, str]:
        """How a checkpoint identifies the sink."""
        return self.sink.target


class KeyedFrame(Protocol):
    """A table: a frame in which only the newest row of each key counts (`penstock.table.Table`)."""

    @property
    def df(self) -> DataFrame: ...

    @property
    def key(self) -> tuple[str, ...]: ...

    @property
    def version(self) -> str:
        """The column that orders the rows of a key: the highest value is the newest row."""

    @property
    def deleted(self) -> str | None:
        """The boolean column that is true in rows that delete their key; None if there is none."""


@runtime_checkable
class KeyedSink(Protocol):
    """The method that `write` needs of a sink that takes tables."""

    def keyed(self, table: KeyedFrame) -> Sink:
        """The sink that upserts and deletes the table's rows by key; raises `PenstockError` if the keys differ."""


def in_batches(frame: DataFrame, save: Callable[[DataFrame, Batch], None]) -> DataStreamWriter:
    """The writer of a query that passes each batch to `save`."""

    def save_numbered(rows: DataFrame, number: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert query, "Spark did not set the query's id for its batch"
        try:
            with worker_waits.of_query(query):
                save(rows, Batch(query, number, *batch_offsets(rows.sparkSession, query, number)))
        except (PySparkException, Py4JJavaError) as error:
            if passing := passing_failure(error, f"batch {number}"):
                raise passing from error
            raise

    return frame.writeStream.foreachBatch(save_numbered)


def compute(rows: DataFrame) -> None:
    """Compute the rows of a batch that a sink has already, because the query's stages keep state of them.

    Spark refuses to end a batch whose state is not committed (STATE_STORE_COMMIT_VALIDATION_FAILED).
    """
    rows.write.format("noop").mode("overwrite").save()


@dataclass(frozen=True)
class Query:
    """A query that does not run yet."""

    frame: DataFrame
    sinks: tuple[Sink, ...]
    name: str | None = None
    mode: Mode = "append"

    @public("Query.start")
    def start(
        self,
        *,
        checkpoint: str | Location,
        trigger: Literal["once", "real-time"] | Duration = "1 second",
        name: str | None = None,
    ) -> StreamingQuery:
        """Start the query: a batch every `trigger` (zero: without pause); "once" writes all present data, then ends.

        `checkpoint` is a folder of this machine, or a URI of Hadoop's such as hdfs://name:8020/checkpoints/orders.
        With "real-time" rows do not wait for a batch (docs/real-time.md). Raises `PenstockError` if the checkpoint
        belongs to a query with another source or sink, or is damaged, and for a query that cannot run in real time.
        """
        early = trigger == real_time.REAL_TIME
        if early:
            self._require_real_time()
        self.claim(checkpoint)
        writer = self._early_writer() if early else self._writer()
        kept_at = location(checkpoint) if isinstance(checkpoint, str) else checkpoint
        writer = writer.outputMode(self.mode).option("checkpointLocation", _spelt(kept_at))
        if query_name := name or self.name:
            writer = writer.queryName(query_name)
        with _file_manager(self.frame.sparkSession, kept_at):
            if trigger == ONCE:
                return writer.trigger(availableNow=True).start()
            if early:
                untyped: Any = writer.outputMode("update")  # PySpark's types lack its trigger
                with real_time.checkpoints(self.frame):
                    started: StreamingQuery = untyped.trigger(realTime=real_time.BATCH).start()
                return started
            pause = duration(trigger, name="trigger")
            return writer.trigger(processingTime=f"{pause // timedelta(milliseconds=1)} milliseconds").start()

    def _require_real_time(self) -> None:
        where = f"query {self.name}" if self.name else "query"
        real_time.require(self, where)
        real_time.require_slots(self.frame.sparkSession, [self.frame], where)

    def claim(self, checkpoint: str | Location) -> None:
        """Mark the checkpoint as this query's; raises `PenstockError` as `start` does."""
        _require_no_renames(self.frame.sparkSession, checkpoint)
        keep(store_of(checkpoint, self.frame.sparkSession), of_query(self.frame, self.sinks))

    def _writer(self) -> DataStreamWriter:
        if len(self.sinks) == 1:
            return self.sinks[0].stream(self.frame)
        return in_batches(delays.timed(self.frame), self._save)

    def _early_writer(self) -> DataStreamWriter:
        sink = self.sinks[0]
        assert isinstance(sink, real_time.EarlySink), "real_time.require takes no other sink"
        return sink.early(self.frame)

    def _save(self, rows: DataFrame, batch: Batch) -> None:
        rows.persist()
        try:
            for place, sink in enumerate(self.sinks):
                sink_rows = rows if isinstance(sink, CountingSink) else rows.drop(delays.TIME)
                sink.save(sink_rows, replace(batch, query=f"{batch.query}.{place}") if place else batch)
        finally:
            rows.unpersist()


def _spelt(checkpoint: Location) -> str:
    """The folder for Spark, for which a path without a scheme may be one of another file system (fs.defaultFS)."""
    return f"file:{checkpoint.absolute()}" if isinstance(checkpoint, Path) else checkpoint.uri


@contextmanager
def _file_manager(spark: SparkSession, checkpoint: Location) -> Iterator[None]:
    """Queries that start inside have Spark's own manager of files if their checkpoint is not on this machine.

    Penstock's default starts no processes, but its rename does not replace files elsewhere, as a batch that runs again
    must.
    """
    if isinstance(checkpoint, Path) or spark.conf.get(MANAGER, None) != FILE_MANAGER:
        yield
        return
    spark.conf.unset(MANAGER)
    try:
        yield
    finally:
        spark.conf.set(MANAGER, FILE_MANAGER)


def _require_no_renames(spark: SparkSession, checkpoint: str | Location) -> None:
    """Raises `PenstockError` for an object store with a manager that renames: two drivers could plan the same batch."""
    if is_object_store(str(checkpoint)) and spark.conf.get(MANAGER, None) in (None, FILE_MANAGER):
        raise PenstockError(
            "the checkpoint is in an object store, which cannot rename files",
            where=f"checkpoint {checkpoint}",
            next=f"add Spark's spark-hadoop-cloud to its jars, and --conf {MANAGER}={WITHOUT_RENAMES}",
        )


@public("write")
def write(frame: DataFrame | KeyedFrame, *sinks: Sink, name: str | None = None, mode: Mode = "append") -> Query:
    """A query, not yet started, that writes each row of a streaming `frame` to every sink.

    For a `Table`, the sinks get the newest row of each key and delete the keys that were deleted; their key must be the
    table's. `name` is needed only in a pipeline of several queries: it separates their checkpoints. `mode` is Spark's
    output mode ("append", "update" or "complete"): with "update", windows and counts are written each time they change.
    Raises `PenstockError` if there is no sink, the frame is not a stream, or a sink cannot take it.
    """
    if not sinks:
        raise PenstockError("write() got no sink", next="give it one, such as kafka.sink(...)")
    if not isinstance(frame, DataFrame):
        table = frame
        frame, sinks = table.df, tuple(_keyed(sink, table) for sink in sinks)
    if not frame.isStreaming:
        raise PenstockError(
            "write() got a frame that is not a stream",
            next="read it with cdc.read(...) or spark.readStream; write a batch with sink.save(frame, Batch(...))",
        )
    require_classic(frame, "write()")
    if mode not in MODES:
        raise PenstockError(f"unknown mode {mode!r}", where="write()", next=f"use one of {', '.join(map(repr, MODES))}")
    for sink in sinks:
        sink.records(frame)
    # Real-time mode has only this one; --once runs the same query in batches.
    if real_time.is_building() and mode == "append":
        mode = "update"
    return Query(frame, sinks, name, mode)


def _keyed(sink: Sink, table: KeyedFrame) -> Sink:
    if isinstance(sink, KeyedSink):
        return sink.keyed(table)
    raise PenstockError(
        f"{type(sink).__name__} has no key, which it needs to replace the rows of a table",
        where="write()",
        next="use cql.sink, postgres.sink, delta.sink or kafka.sink, or write all revisions: table.to_stream(...)",
    )
