"""One frame and its sinks become one query, which is started later: by `penstock run`, or by hand.

With one sink, Spark writes to it directly. With several, each batch is computed once, kept, and written to them in
the order given; a failure at the second repeats the first, which knows the batch again by its number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit
from uuid import UUID

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.checkpoint.checkpoint_folder import store_of
from penstock.checkpoint.identity import keep, of_query
from penstock.config import duration
from penstock.errors import PenstockError

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
            save(rows, Batch(query, number, *batch_offsets(rows.sparkSession, query, number)))
        except (PySparkException, Py4JJavaError) as error:
            if passing := passing_failure(error, f"batch {number}"):
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


# What the checkpoint of a running query says of a batch: its offsets in the sources, and when it was planned.
COUNTS_ONLY = '"logOffset"'
"""In offsets of Spark's sources of files, which count batches: only the time of planning tells two of them apart."""


def batch_offsets(spark: SparkSession, query: str, number: int) -> tuple[str, str]:
    """The offsets at which a batch begins and ends, of all sources; empty when no running query has this id."""
    running = _running(spark, query)
    if running is None:
        return "", ""
    log = running.offsetLog()
    end = _text(log, number)
    if COUNTS_ONLY in end:
        end = _planned(end, batch_millis(spark, query, number))
    return _text(log, number - 1) if number else "", end


def offsets_in_checkpoint(checkpoint: str, number: int) -> tuple[str, str]:
    """The same from the files of a checkpoint; empty when it is in no folder of this machine."""
    address = urlsplit(checkpoint)
    if not checkpoint or address.scheme not in ("", "file"):
        return "", ""
    folder = Path(unquote(address.path) if address.scheme else checkpoint) / "offsets"
    end, millis = _of_file(folder / str(number))
    if COUNTS_ONLY in end:
        end = _planned(end, millis)
    return _of_file(folder / str(number - 1))[0] if number else "", end


def batch_millis(spark: SparkSession, query: str, number: int) -> int | None:
    """When a batch was planned, in milliseconds since 1970; None if no running query has this id, or no such batch."""
    running = _running(spark, query)
    if running is None:
        return None
    kept = running.offsetLog().offsetSeqMetadataForBatchId(number)
    return int(kept.get().batchTimestampMs()) if kept.isDefined() else None


def _text(log: Any, number: int) -> str:
    found = log.get(number)
    return str(found.get().toString()) if found.isDefined() else ""


def _of_file(path: Path) -> tuple[str, int | None]:
    """As Spark shows them: a line for each source behind the version and the settings of the batch."""
    try:
        version, settings, *lines = path.read_text().splitlines()
        millis = int(json.loads(settings)["batchTimestampMs"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", None
    return (f"[{', '.join(lines)}]", millis) if version == "v1" else ("", None)


def _planned(end: str, millis: int | None) -> str:
    return f"{end} planned at {millis} ms"


def _running(spark: SparkSession, query: str) -> Any:
    """Spark's own object of the query with this id, of whatever session: a batch has one that knows no query."""
    try:
        UUID(query)
    except ValueError:
        return None
    session = spark._jsparkSession
    return session.sharedState().activeStreamingQueries().get(spark._jvm.java.util.UUID.fromString(query))  # type: ignore[union-attr]


# Failures of the systems that sinks write to, told apart by whether trying again can help.

# Kafka's own mark for an error that passes; the end of a Python process that Spark talked to; a full disk, which may be
# that of the checkpoint.
RETRIABLE_CAUSES = (
    "org.apache.kafka.common.errors.RetriableException",
    "java.io.EOFException",
    "java.net.SocketException",
    "java.net.SocketTimeoutException",
)
RETRIABLE_TEXT = re.compile(
    "Python worker exited unexpectedly|Python worker failed to connect back|No space left on device|Disk quota exceeded"
)


class Unavailable(PenstockError):
    """What passes when the other system is back: `penstock run` starts the query again from its checkpoint."""

    retriable = True


def causes(error: Any) -> Iterator[tuple[set[str], str]]:
    """Each Java exception of the chain: its class with all super-classes, and its message."""
    while error is not None:
        kinds, kind = set(), error.getClass()
        while kind is not None:
            kinds.add(str(kind.getName()))
            kind = kind.getSuperclass()
        yield kinds, str(error.getMessage() or "")
        error = error.getCause()


def passes(found: list[tuple[set[str], str]]) -> bool:
    """Whether trying again can help with an error of these causes."""
    return any(set(RETRIABLE_CAUSES) & kinds or RETRIABLE_TEXT.search(text) for kinds, text in found)


def passing_failure(error: PySparkException | Py4JJavaError, where: str) -> Unavailable | None:
    """A failure that passes, of Spark inside a batch that Python writes: from it Spark would keep only the text."""
    # PySpark wraps Java's exceptions of some classes and lets others through.
    origin = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    found = list(causes(origin))
    if not passes(found):
        return None
    said = next((text.splitlines()[0] for _, text in reversed(found) if text.strip()), "Spark gave no reason")
    return Unavailable(said, where=where, next="see whether the other system is up")
