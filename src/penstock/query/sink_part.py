"""A sink that gets some of the rows of a query: sinks of one query can share its rows, and no row goes to both or none.

Two queries of one frame have a watermark each, and need not agree on which rows are late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.border.public import public
from penstock.border.spark_refusals import refusal
from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.query.query import AroundSink, Batch, KeyedFrame, Sink


@dataclass(frozen=True)
class Only(AroundSink):
    """The part of a query's rows that a sink gets; created by `only`."""

    condition: str
    columns: tuple[str, ...] | None

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows as they are written; raises `PenstockError` if the frame lacks a column, or the sink refuses it."""
        return self.sink.records(self._part(frame))

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query whose only sink is this one."""
        return self.sink.stream(self._part(frame))

    def save(self, frame: DataFrame, batch: Batch) -> None:
        """Write the rows of one batch that meet the condition."""
        self.sink.save(self._part(frame), batch)

    def keyed(self, table: KeyedFrame) -> Sink:
        raise PenstockError(
            "a sink of a table takes all its rows, because a row that leaves a part has to be deleted there",
            where="only",
            next="make a table of the part: Table(frame, key, version, deleted=...), with deleted true for other rows",
        )

    def _part(self, frame: DataFrame) -> DataFrame:
        try:
            rows = frame.where(self.condition)
            if self.columns is None:
                return rows
            return rows.select(*self.columns, *(name for name in (delays.TIME,) if name in rows.columns))
        except (AnalysisException, ParseException) as error:
            reason = refusal(error, frame.columns)
            raise PenstockError(
                f"Spark refuses the part {self.condition!r} of the rows: {reason.what}",
                where=f"only, {' '.join(self.target)}",
                next=f"{reason.hint}use the frame's columns: {', '.join(frame.columns)}",
            ) from None


@public("only")
def only(condition: str, sink: Sink, *, columns: Sequence[str] | None = None) -> Only:
    """The sink, which gets only the rows for which the SQL `condition` is true, and of these the `columns`, or all.

        ps.write(minutes, ps.only("NOT late", totals), ps.only("late", rest))

    Each batch is computed once and goes to all sinks of the query. Each row is in exactly one of these parts, because
    `late` is never null; rows for which a condition is null are in neither of it and its negation.
    `write` raises `PenstockError` if the frame lacks a column.
    """
    return Only(sink, condition, None if columns is None else tuple(columns))
