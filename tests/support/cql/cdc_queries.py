"""Runs queries over the change log and keeps the rows that they read."""

from __future__ import annotations

from pathlib import Path
from threading import Condition

from pyspark.sql import DataFrame, Row


class Sink:
    """Keeps the rows of each batch; fails once before batch `fail_at` is kept."""

    def __init__(self, fail_at: int = -1) -> None:
        self.batches: dict[int, list[Row]] = {}
        self.seen: list[tuple[int, list[Row]]] = []
        self.fail_at = fail_at
        self.kept = Condition()

    def __call__(self, frame: DataFrame, batch: int) -> None:
        rows = frame.collect()
        self.seen.append((batch, rows))
        if batch == self.fail_at:
            raise RuntimeError("the sink broke")
        with self.kept:
            self.batches[batch] = rows
            self.kept.notify_all()

    @property
    def rows(self) -> list[Row]:
        return [row for batch in sorted(self.batches) for row in self.batches[batch]]


def run(frame: DataFrame, sink: Sink, checkpoint: Path) -> None:
    """Read all available changes, in one or more batches."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
