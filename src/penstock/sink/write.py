"""One frame and its sinks become one query, which is started later: by `penstock run`, or by hand.

With one sink, Spark writes to it directly. With several, each batch is computed once, kept, and written to them in
the order given; a failure at the second repeats the first, which knows the batch again by its number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Protocol, runtime_checkable

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.checkpoint.identity import keep, of_query
from penstock.checkpoint.store import store_of
from penstock.config import duration
from penstock.errors import PenstockError
from penstock.sink.failures import of_batch
from penstock.sink.running import offsets

ONCE = "once"
MODES = ("append", "update", "complete")
QUERY_ID = "sql.streaming.queryId"
"""What Spark calls the id of a query in the properties of the thread that runs its batch."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch: `query` is the id that the query's checkpoint keeps, `number` counts its batches from 0.

    A batch that is run again has the same two, also after a restart. Each sink of a query has an id of its own: the
    query's for the first, for later ones with their place behind it. `start` and `end` are the offsets of all sources
    between which the batch is, as the checkpoint has them; empty if they are not known.
    """

    query: str
    number: int
    start: str = ""
    end: str = ""


class Sink(Protocol):
    """What `write` asks of a sink."""

    @property
    def delivery(self) -> str:
        """How often a row arrives when its batch is run again: "exactly-once" or "at-least-once"."""

    @property
    def target(self) -> tuple[str, str]:
        """The kind of the sink and where it writes, without addresses and secrets: checkpoints keep it."""

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows that will be written; raises for a frame that the sink cannot take."""

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The write of a query that has only this sink."""

    def save(self, frame: DataFrame, batch: Batch) -> None:
        """Write the rows of one batch; when it is written again, that must change nothing."""


class KeyedFrame(Protocol):
    """A table: a frame of which the newest row of each key counts (`penstock.table.Table`)."""

    @property
    def df(self) -> DataFrame: ...

    @property
    def key(self) -> tuple[str, ...]: ...

    @property
    def version(self) -> str:
        """The column that tells which row is newest."""

    @property
    def deleted(self) -> str | None:
        """The boolean column of rows that say that their key is no more."""


@runtime_checkable
class KeyedSink(Protocol):
    """What `write` asks of a sink that takes tables."""

    def keyed(self, table: KeyedFrame) -> Sink:
        """The sink that upserts and deletes the table's rows by key; raises if its key is another."""


def in_batches(frame: DataFrame, save: Callable[[DataFrame, Batch], None]) -> DataStreamWriter:
    """The write of a query that gives each of its batches to `save`."""

    def save_numbered(rows: DataFrame, number: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        assert query, "Spark names the query whose batch it runs"
        try:
            save(rows, Batch(query, number, *offsets(rows.sparkSession, query, number)))
        except (PySparkException, Py4JJavaError) as error:
            if passing := of_batch(error, f"batch {number}"):
                raise passing from error
            raise

    return frame.writeStream.foreachBatch(save_numbered)


@dataclass(frozen=True)
class Query:
    """A query that does not run yet."""

    frame: DataFrame
    sinks: tuple[Sink, ...]
    name: str | None = None
    mode: str = "append"

    def start(
        self, *, checkpoint: str | Path, trigger: timedelta | str = "1 second", name: str | None = None
    ) -> StreamingQuery:
        """Run it: a batch each `trigger` (zero: without pause), or with "once" until all present data is written.

        Raises `PenstockError` if the checkpoint belongs to a query of another source or sink, or is damaged.
        """
        self.claim(checkpoint)
        writer = self._writer().outputMode(self.mode).option("checkpointLocation", str(checkpoint))
        if query_name := name or self.name:
            writer = writer.queryName(query_name)
        if trigger == ONCE:
            return writer.trigger(availableNow=True).start()
        pause = duration(trigger, name="trigger")
        return writer.trigger(processingTime=f"{pause // timedelta(milliseconds=1)} milliseconds").start()

    def claim(self, checkpoint: str | Path) -> None:
        """Keep in the checkpoint that it is this query's; raises as `start` does."""
        keep(store_of(checkpoint, self.frame.sparkSession), of_query(self.frame, self.sinks))

    def _writer(self) -> DataStreamWriter:
        if len(self.sinks) == 1:
            return self.sinks[0].stream(self.frame)
        return in_batches(self.frame, self._save)

    def _save(self, rows: DataFrame, batch: Batch) -> None:
        rows.persist()
        try:
            for place, sink in enumerate(self.sinks):
                sink.save(rows, replace(batch, query=f"{batch.query}.{place}") if place else batch)
        finally:
            rows.unpersist()


def write(frame: DataFrame | KeyedFrame, *sinks: Sink, name: str | None = None, mode: str = "append") -> Query:
    """A query, not yet started, that writes each row of a streaming `frame` to every sink.

    Of a `Table` the sinks, which must have its key, get the newest row of each key, and delete those that are no more.
    `name` is needed only in a pipeline of several queries: it tells their checkpoints apart. `mode` is Spark's output
    mode: with "update" windows and counts are written each time they change.
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
    if mode not in MODES:
        raise PenstockError(f"unknown mode {mode!r}", where="write()", next=f"use one of {', '.join(map(repr, MODES))}")
    for sink in sinks:
        sink.records(frame)
    return Query(frame, sinks, name, mode)


def _keyed(sink: Sink, table: KeyedFrame) -> Sink:
    if isinstance(sink, KeyedSink):
        return sink.keyed(table)
    raise PenstockError(
        f"{type(sink).__name__} knows no key, by which the rows of a table replace each other",
        where="write()",
        next="use cql.sink, postgres.sink or kafka.sink, or write all revisions: table.to_stream(...)",
    )
