"""One frame and its sinks become one query, which is started later: by `penstock run`, or by hand.

With one sink, Spark writes to it directly. With several, each batch is computed once, kept, and written to them in
the order given; a failure at the second repeats the first, so each sink sees a batch at least once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.config import duration
from penstock.errors import PenstockError
from penstock.sink.delivery import EXACTLY_ONCE

ONCE = "once"


class Sink(Protocol):
    """What `write` asks of a sink."""

    @property
    def delivery(self) -> str:
        """What `stream` promises; `save` is repeated with its batch, and so promises "at-least-once"."""

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows that will be written; raises for a frame that the sink cannot take."""

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The write of a query that has only this sink."""

    def save(self, frame: DataFrame) -> None:
        """Write one batch."""


@dataclass(frozen=True)
class Query:
    """A query that does not run yet."""

    frame: DataFrame
    sinks: tuple[Sink, ...]
    name: str | None = None

    def start(
        self, *, checkpoint: str | Path, trigger: timedelta | str = "1 second", name: str | None = None
    ) -> StreamingQuery:
        """Run it: a batch each `trigger` (zero: without pause), or with "once" until all present data is written."""
        writer = self._writer().option("checkpointLocation", str(checkpoint))
        if query_name := name or self.name:
            writer = writer.queryName(query_name)
        if trigger == ONCE:
            return writer.trigger(availableNow=True).start()
        pause = duration(trigger, name="trigger")
        return writer.trigger(processingTime=f"{pause // timedelta(milliseconds=1)} milliseconds").start()

    def _writer(self) -> DataStreamWriter:
        if len(self.sinks) == 1:
            return self.sinks[0].stream(self.frame)
        return self.frame.writeStream.foreachBatch(self._save)

    def _save(self, batch: DataFrame, number: int) -> None:
        batch.persist()
        try:
            for sink in self.sinks:
                sink.save(batch)
        finally:
            batch.unpersist()


def write(frame: DataFrame, *sinks: Sink, name: str | None = None) -> Query:
    """A query, not yet started, that writes each row of a streaming `frame` to every sink.

    `name` is needed only in a pipeline of several queries: it tells their checkpoints apart.
    """
    if not sinks:
        raise PenstockError("write() got no sink", next="give it one, such as kafka.sink(...)")
    if not frame.isStreaming:
        raise PenstockError(
            "write() got a frame that is not a stream",
            next="read it with cdc.read(...) or spark.readStream; write a batch with sink.save(frame)",
        )
    if len(sinks) > 1 and any(sink.delivery == EXACTLY_ONCE for sink in sinks):
        raise PenstockError(
            f"write() cannot write exactly once to one of {len(sinks)} sinks",
            where="a batch that fails at one of them is written to all again",
            next="give each exactly-once sink a query of its own: [write(frame, sink, name=...), ...]",
        )
    for sink in sinks:
        sink.records(frame)
    return Query(frame, sinks, name)
