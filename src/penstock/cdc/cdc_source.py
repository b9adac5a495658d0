"""The change log as a Spark streaming source, `format("scylla-cdc")`, and `cdc.read`, which makes frames of it.

A batch covers the time (start, end] of one generation in every stream. `end` stays `confidence` behind the current
time, so that the covered time is complete. Spark keeps both ends in its checkpoint: a batch that runs again after a
crash reads the same rows. Each task reads some of the streams. A stream's rows stay in order, and all changes of a row
are in one stream, so changes of one primary key keep their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Literal, TypeVar, Unpack

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.border.public import public
from penstock.cdc.ad_hoc import AdHoc, Requests, filter_problem
from penstock.cdc.cdc_options import IMAGES, BadValues, CdcOptions, CdcSettings, Image, option_text, settings
from penstock.cdc.cdc_resume import CdcResume
from penstock.cdc.cdc_tables import frame_schema, layout, log_schema
from penstock.cdc.generations import Position, Span, TokenRange, now_micros
from penstock.cdc.low_latency import Fresh
from penstock.cdc.planner import Planner, Snapshot, covering, describe, retrying
from penstock.codec.problem import problem_counts
from penstock.database.cql_types import CqlTable
from penstock.durations import Duration, duration, duration_text, keywords, require_known
from penstock.errors import PenstockError
from penstock.process.log_lines import quoted
from penstock.query.packed_rows import packed, packed_schema, rows_schema
from penstock.spark_runtime.logical_plan import parallelism

log = logging.getLogger(__name__)
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
        schema = frame_schema(self.table, problem=problem, write_times=self.settings.write_times)
        return packed_schema(schema) if self.settings.packed else schema

    def streamReader(self, schema: StructType) -> CdcStreamReader:
        return CdcStreamReader(self.settings, self.table, rows_schema(schema))


class CdcStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in a Python process of the driver and reads them in the executors' Python workers."""

    def __init__(self, chosen: CdcSettings, table: CqlTable, schema: StructType) -> None:
        self.settings, self.table, self.schema = chosen, table, schema
        self.target: int | None = None
        self.requests = Requests(chosen.signals) if chosen.signals else None
        self.chunk_next = False

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
        ad_hoc = replace(AdHoc.of(start), chunk=None)
        if moved := self._plan(lambda: self.resume.moved(start)):
            return moved | ad_hoc.offset()
        at = Position.of(start)
        if at.planned and (taken := self._signalled(ad_hoc)) != ad_hoc:
            # An empty batch, whose offset has the signals.
            return self.resume.offset(at) | taken.offset()
        if at.planned and ad_hoc.runs and at.snapshot is None and self.chunk_next:
            self.chunk_next = False
            return self._chunk(at, ad_hoc)
        end = self._next(start, at, limit, wait=not ad_hoc.runs)
        if end is None:
            return self._chunk(at, ad_hoc) if at.planned and ad_hoc.runs else start
        self.chunk_next = True
        return end | ad_hoc.offset()

    def _next(self, start: dict[str, Any], at: Position, limit: ReadLimit, *, wait: bool) -> dict[str, Any] | None:
        """Where the next batch of the log, or of the first snapshot, ends; None if there is nothing to read.

        With `wait` and low latency it waits a moment for something to read.
        """
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
        if idle and wait:
            self.fresh.pause()
        return None if idle or until == at else self.resume.offset(until)

    def _signalled(self, ad_hoc: AdHoc) -> AdHoc:
        """The ad-hoc snapshots after the signals that have come."""
        for signal in self.requests.after(ad_hoc.seen) if self.requests else ():
            ad_hoc = ad_hoc.taken(signal, self.settings.table)
        return ad_hoc

    def _chunk(self, at: Position, ad_hoc: AdHoc) -> dict[str, Any]:
        """The end of a batch that reads a chunk of the first ad-hoc snapshot, and nothing of the log."""
        wanted = ad_hoc.queue[0]
        session = self.planner.generations.session
        problem = wanted.filter and self._plan(lambda: filter_problem(session, self.table, wanted.filter))
        if problem:
            log.warning(
                "%s: gave up the snapshot of signal %s, because the database refuses its filter %s: %s",
                self.settings.name,
                quoted(wanted.id),
                quoted(wanted.filter),
                problem,
            )
            return self.resume.offset(at) | ad_hoc.without_first().offset()
        most = self.settings.chunk_rows
        reached = self._plan(lambda: self.snapshot.next(replace(at, snapshot=ad_hoc.token), most))
        return self.resume.offset(at) | ad_hoc.read(reached.snapshot, reached.planned).offset()

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
        begin, until, chunk = Position.of(start), Position.of(end), AdHoc.of(end).chunk
        if begin == until and chunk is None:
            return []
        # A batch that runs again is not planned by latestOffset, so the check is here too.
        if not self._plan(lambda: self.resume.check(start, end)):
            return []
        if chunk is not None:
            return [RangePartition(part) for part in self._plan(lambda: self.snapshot.chunk(chunk, until))]
        if begin.snapshot is not None:
            return [RangePartition(part) for part in self._plan(lambda: self.snapshot.ranges(begin, until))]
        return [SpanPartition(spans) for spans in self._plan(lambda: self.fresh.spans(begin, until))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        changes = self._changes(partition)
        return packed(changes) if self.settings.packed else changes

    def _changes(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Imported here: Spark starts a process for each plan and each frame, and only the workers decode.
        from penstock.cdc.partition_read import read_range, read_span

        if isinstance(partition, RangePartition):
            yield from read_range(self.settings, self.table, self.schema, partition.range)
            return
        assert isinstance(partition, SpanPartition)
        for span in partition.spans:
            yield from read_span(self.settings, self.table, self.schema, span)

    def _plan(self, plan: Callable[[], T]) -> T:
        return retrying(self.settings, "planning a batch", plan)


@public("cdc.read")
def read(
    spark: SparkSession,
    table: str,
    *,
    hosts: str,
    name: str,
    images: Image | tuple[Image, Image] = "none",
    start: Literal["earliest", "latest", "snapshot"] | str | datetime = "earliest",
    confidence: Duration = timedelta(seconds=30),
    fail_on_data_loss: bool = True,
    bad_values: BadValues = "stop",
    late: Duration | None = None,
    **options: Unpack[CdcOptions],
) -> DataFrame:
    """Read the changes of `table` ("keyspace.table") as a streaming frame with one row per change.

    Changes of one primary key arrive in order, each once in every run of a batch. docs/cdc.md describes the columns:
    `op string` (c, u, d; r in a snapshot), `key struct`, `before struct`, `after struct`, `delta struct`,
    `written array<string>`, `deleted array<string>`, `deleted_elements struct`, `range struct`, `operation tinyint`,
    `ttl bigint` (seconds), `ts timestamp`, `read_ts timestamp`, `stream_id binary`, `time string`, `batch_seq_no int`,
    `end_of_batch boolean`, `keyspace string`, `table string`. A struct that would have no field is left out.

    `images` asks for the row before and after each change: "none", "full", or a pair (before, after). `start` is
    "earliest", "latest", "snapshot" (the rows of the table, then its changes), or a time, UTC unless it has a zone.
    Writes younger than `confidence` are left for a later batch. If rows expired before they were read, or the table was
    dropped and created again, the query stops with `DataLost`; with `fail_on_data_loss=False` it logs what is missing
    and continues. With `bad_values="stop"` a cell that cannot be read ends the query with an error that names it. With
    "problem" the cell is null and the column `problem struct` describes it: `cdc.events` leaves these rows out, and
    `kafka.dead_letters` takes them. `late` is the watermark's delay, for windows and joins: how long after changes with
    a newer `ts` a change may come. With `write_times=True` there are also `expires timestamp` (when a change's values
    expire) and, for the rows of a snapshot, `write_times struct` (microseconds since 1970) and `expiries struct`
    (seconds since 1970), with a list where each element has its own, and `inserted struct` (when an INSERT made the
    row). A change of some elements of a list has the whole list in `lists struct`. `options` are other options of the
    source, such as `user`, `consistency`, `max_rows` or `latency`; docs/cdc.md lists them.

    Raises PenstockError if a setting is not valid, the table does not exist or has no change log, the user may not read
    it, or the log lacks the images; DatabaseUnavailable if no node answers within `patience` (5 minutes).
    """
    require_known(options, [*keywords(read), *CdcOptions.__annotations__], where=f"cdc.read of {table}")
    before, after = _pair(images)
    delay = None if late is None else duration(late, name="late")
    texts = {
        "table": table,
        "hosts": hosts,
        "name": name,
        "before": before,
        "after": after,
        "start": start.isoformat() if isinstance(start, datetime) else start,
        "confidence": option_text("confidence", confidence),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "bad_values": bad_values,
        "partitions": str(parallelism(spark)),
        **{key: option_text(key, value) for key, value in options.items()},
    }
    if late is not None and options.get("packed"):
        raise PenstockError("late= needs the column ts", where=table, next="leave packed= out")
    if not name:
        raise PenstockError("cdc.read needs a name", where=table, next='give the source a name, such as name="orders"')
    describe(settings(texts))
    # Spark knows the source without this, but would run it in other Python workers than the functions of a query.
    spark.dataSource.register(ScyllaCdc)
    changes = spark.readStream.format("scylla-cdc").options(**texts).load()
    counted = changes.observe(name, *problem_counts()) if bad_values == "problem" else changes
    return counted if delay is None else counted.withWatermark("ts", duration_text(delay))


def _pair(images: Image | tuple[Image, Image]) -> tuple[Image, Image]:
    both = (images, images) if isinstance(images, str) else images
    if not isinstance(both, (tuple, list)) or len(both) != 2 or any(image not in IMAGES for image in both):
        raise PenstockError(
            f"images cannot be {images!r}", where="cdc.read", next='use "none", "full" or a pair of them'
        )
    return both[0], both[1]
