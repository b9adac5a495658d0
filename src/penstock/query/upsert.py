"""Tables to sinks with a key: the newest row of each key in a batch, and the deleted keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.query.query import AroundSink, Batch, KeyedFrame, in_batches
from penstock.spark_runtime.logical_plan import has_late_results

_PLACE, _ROW = "_place", "_row"


@dataclass(frozen=True)
class Newest(AroundSink):
    """A sink that gets one row per key and batch, in the form that `columns` makes."""

    table: KeyedFrame
    columns: Callable[[DataFrame], DataFrame]

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows as they are written; raises `PenstockError` if the sink cannot take the frame."""
        require_no_late_results(frame, self.table.key, " ".join(self.target))
        return self.sink.records(self.columns(frame))

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query whose only sink is this one."""
        return in_batches(delays.timed(frame), self.save)

    def save(self, frame: DataFrame, batch: Batch) -> None:
        """Write one batch."""
        self.sink.save(self.columns(newest(frame, self.table.key, self.table.version)), batch)


def newest(rows: DataFrame, key: Sequence[str], version: str | None) -> DataFrame:
    """The row with the highest version of each key; of equal versions, or without a version, the last row."""
    placed = rows.withColumn(_PLACE, F.monotonically_increasing_id())
    order = F.struct(*filter(None, (version, _PLACE)))
    last = F.max_by(F.struct(*map(F.col, rows.columns)), order).alias(_ROW)
    return placed.groupBy(*key).agg(last).select(f"{_ROW}.*")


def require_no_late_results(frame: DataFrame, key: Sequence[str], where: str) -> None:
    """Raise `PenstockError` if late results of a window, which are to be added, would replace others."""
    if has_late_results(frame):
        raise PenstockError(
            f"late results of a window have only the rows that came late, and would replace the window's row with the "
            f"key {', '.join(key)}",
            where=where,
            next="""write both parts in one query: ps.only("NOT late", sink), ps.only("late", one without a key)""",
        )


def require_key(sink: str, place: str, known: Sequence[str], table: KeyedFrame, next: str) -> None:
    """Raise `PenstockError` unless the sink's key equals the table's key."""
    if set(known) == set(table.key):
        return
    has = f"the key {', '.join(known)}" if known else "no key"
    what = f"the table's key is {', '.join(table.key)}, and {sink} has {has}"
    raise PenstockError(what, where=place, next=next)


def require_same(sink: str, version: str | None, deleted: str | None, table: KeyedFrame) -> None:
    """Raise `PenstockError` if a sink's version or deleted column is set, and is not the table's."""
    for name, ours, theirs in (("version", version, table.version), ("deleted", deleted, table.deleted)):
        if ours not in (None, theirs):
            raise PenstockError(
                f"{name}= is {ours}, but the table's is {theirs}",
                where=sink,
                next=f"omit {name}=: the table defines it",
            )
