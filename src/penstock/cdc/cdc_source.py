"""The change log as a Spark streaming source, `format("scylla-cdc")`.

A batch covers the time (start, end] of one generation in every stream. `end` stays `confidence` behind the current
time, so that the covered time is complete. Spark keeps both ends in its checkpoint: a batch that runs again after a
crash reads the same rows. Each task reads some of the streams. A stream's rows stay in order, and all changes of a row
are in one stream, so changes of one primary key keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.cdc.cdc_options import CdcSettings, settings
from penstock.cdc.cdc_resume import CdcResume
from penstock.cdc.change_rows import frame_schema, layout, log_schema
from penstock.cdc.generations import Position, Span
from penstock.cdc.low_latency import Fresh
from penstock.cdc.planner import Planner, covering, describe, retrying
from penstock.cdc.snapshot_plan import Snapshot, TokenRange
from penstock.cdc.timeuuid import now_micros
from penstock.schema import CqlTable

T = TypeVar("T")


@dataclass
class SpanPartition(InputPartition):
    """The spans that one task reads, in this order."""

    spans: list[Span]


@dataclass
class RangePartition(InputPartition):
    """The token range that one task of a snapshot reads."""

    range: TokenRange


class ScyllaCdc(DataSource):
    """The Spark data source "scylla-cdc"; `CdcSettings` describes its options."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.settings = settings(options)

    @classmethod
    def name(cls) -> str:
        return "scylla-cdc"

    @cached_property
    def table(self) -> CqlTable:
        return describe(self.settings)

    def schema(self) -> StructType:
        problem = self.settings.bad_values == "problem"
        if self.settings.rows == "log":
            return log_schema(layout(self.table), problem=problem)
        return frame_schema(self.table, problem=problem)

    def streamReader(self, schema: StructType) -> CdcStreamReader:
        return CdcStreamReader(self.settings, self.table, schema)


class CdcStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in a Python process of the driver and reads them in the executors' Python workers."""

    def __init__(self, chosen: CdcSettings, table: CqlTable, schema: StructType) -> None:
        self.settings, self.table, self.schema = chosen, table, schema
        self.target: int | None = None

    @cached_property
    def planner(self) -> Planner:
        return retrying(self.settings, "connecting", lambda: Planner(self.settings, self.table))

    @cached_property
    def fresh(self) -> Fresh:
        return Fresh(self.planner)

    @cached_property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.planner)

    @cached_property
    def resume(self) -> CdcResume:
        return CdcResume(self.planner)

    def initialOffset(self) -> dict[str, Any]:
        return self.resume.offset(self._plan(self.planner.first))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if moved := self._plan(lambda: self.resume.moved(start)):
            return moved
        at = Position.of(start)
        if not at.planned and self.settings.start == "latest":
            # An empty batch fixes the start: after a failed first batch, "latest" would be later and skip its rows.
            return self.resume.offset(replace(at, planned=now_micros()))
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self.settings.max_rows
        if at.snapshot is not None:
            return self.resume.offset(self._plan(lambda: self.snapshot.next(at, most)))
        target = self._newest() if self.target is None else self.target
        # Also in safe mode, if an earlier run with low latency left time that is not complete.
        if self.settings.latency == "safe" and at.newest == at.time:
            until = self._plan(lambda: self.planner.next(at, target, most))
            idle = self.target is None and self._plan(lambda: self.planner.idle(at, until))
        else:
            until = self._plan(lambda: self.fresh.next(at, target, most))
            idle = self.target is None and until == at
        if idle:
            self.fresh.pause()
        return start if idle or until == at else self.resume.offset(until)

    def _newest(self) -> int:
        """The last microsecond that can be read now."""
        return now_micros() if self.settings.latency == "low" else self.planner.confident()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.settings.max_rows)

    def reportLatestOffset(self) -> dict[str, Any]:
        target = self._newest()
        return self._plan(lambda: Position(covering(self.planner.generations.starts(), target), target)).offset()

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self._newest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = Position.of(start), Position.of(end)
        # A batch that runs again is not planned by latestOffset, so the check is here too.
        if not self._plan(lambda: self.resume.check(start, end)):
            return []
        if begin.snapshot is not None:
            return [RangePartition(part) for part in self._plan(lambda: self.snapshot.ranges(begin, until))]
        return [SpanPartition(spans) for spans in self._plan(lambda: self.fresh.spans(begin, until))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Imported here: Spark starts a process for each plan and each frame, and only the workers decode.
        from penstock.cdc.snapshot_read import read_range
        from penstock.cdc.span_read import read_span

        if isinstance(partition, RangePartition):
            yield from read_range(self.settings, self.table, self.schema, partition.range)
            return
        assert isinstance(partition, SpanPartition)
        for span in partition.spans:
            yield from read_span(self.settings, self.table, self.schema, span)

    def _plan(self, plan: Callable[[], T]) -> T:
        return retrying(self.settings, "planning a batch", plan)
