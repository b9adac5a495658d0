"""What a sink has written, and how long each row took from its event to the sink's acknowledgement.

A task counts where the acknowledgement arrives: rows, bytes, retries, and a histogram of delays with fixed buckets, so
that the counts of tasks, batches and processes add up exactly. A sink that writes in a stage of a streaming query sends
the counts of its tasks as rows, which Spark reports with the query's progress (`add_observed`). A sink that
writes batches from the driver collects these rows and adds them itself (`add`). `counts_of` has the sums of both.

The time of an event is a column of the frame (`event_micros`): the change's time in a frame of `cdc.read`, Kafka's
timestamp in a frame of `kafka.read`, and the end of the window in a frame of windows. It travels in a column of its own
to the sink's tasks, which do not write it.
"""

from __future__ import annotations

import re
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from traceback import format_exception_only
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, functions as F, types as st

Array: TypeAlias = npt.NDArray[np.int64]

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""The upper bounds of the buckets, in seconds; one more bucket has the longer delays."""
TIME = "penstock$time"
"""The column of event times, in microseconds since 1970."""
REASON = "penstock$reason"
"""The column of dead letters with the number of their reason in REASONS."""
HIDDEN = (TIME, REASON)
"""Columns that travel to the sink's tasks, and are not written."""
OBSERVED = "penstock$sink"
"""The name of a sink's counts among the observed metrics of its query."""
EVENT_TIME = "penstock.event_time"
"""The mark of a column with event times, in its metadata."""
MARK = {EVENT_TIME: True}
OLDEST = -62_135_596_800_000_000
"""The year 1: earlier times count as this one, so that a difference is a 64-bit integer."""
MOST_SINKS = 4096
"""Sinks whose counts a process keeps; beyond, it forgets those that have been idle longest."""
UNKNOWN = -(1 << 63)
"""The event time of a row that has none."""
MOST_TIMES = 1 << 20
"""Event times that wait for a commit one by one."""
FAR = 3_600_000_000
"""Microseconds: events that are further in the future than this have no delay at the commit either."""
_BOUNDS = np.array([round(bound * 1_000_000) for bound in BOUNDS])
REASONS = (
    "no_value",
    "not_utf8",
    "not_json",
    "not_csv",
    "not_framed",
    "unknown_schema",
    "not_of_schema",
    "wrong_type",
    "missing_field",
    "wrong_time",
    "unreadable",
    "too_large",
    "other",
)
"""Why a record is bad; `codec.problem` finds the reason's number."""
SCHEMA = "rows bigint, bytes bigint, retries bigint, seconds double, buckets array<bigint>, letters array<bigint>"
"""The columns of a row of counts; `letters` are in the order of REASONS."""


@dataclass(frozen=True)
class SinkCounts:
    """What a sink has acknowledged: records, their bytes as the sink counts them, and requests that were repeated.

    `buckets` has a count for each of BOUNDS and one for longer delays; they are not cumulative. They have all rows with
    an event time, and `seconds` is the sum of these delays. `failures` counts failed batches by the error's class, and
    `letters` the dead letters by their reason, one of REASONS.
    """

    rows: int = 0
    bytes: int = 0
    retries: int = 0
    buckets: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    seconds: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)
    letters: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: SinkCounts) -> SinkCounts:
        return SinkCounts(
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.retries + other.retries,
            tuple(a + b for a, b in zip(self.buckets, other.buckets, strict=True)),
            self.seconds + other.seconds,
            _sum(self.failures, other.failures),
            _sum(self.letters, other.letters),
        )

    def batch(self) -> pa.RecordBatch:
        """The counts as a row with the columns of SCHEMA."""
        numbers = {"rows": self.rows, "bytes": self.bytes, "retries": self.retries}
        lists = {"buckets": self.buckets, "letters": [self.letters.get(reason, 0) for reason in REASONS]}
        columns = {name: pa.array([number], pa.int64()) for name, number in numbers.items()}
        columns["seconds"] = pa.array([self.seconds])
        return pa.record_batch(
            {**columns, **{name: pa.array([some], pa.list_(pa.int64())) for name, some in lists.items()}}
        )

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> SinkCounts:
        """The counts in such a row."""
        letters = {reason: int(count) for reason, count in zip(REASONS, row["letters"], strict=True) if count}
        numbers = int(row["rows"]), int(row["bytes"]), int(row["retries"])
        return cls(*numbers, tuple(map(int, row["buckets"])), float(row["seconds"]), letters=letters)


def _sum(counts: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    return {name: counts.get(name, 0) + other.get(name, 0) for name in {**counts, **other}} if other else counts


# In tasks: delays from event times.


class DelayCounts:
    """The rows of a task and their delays, counted as they are acknowledged."""

    def __init__(self) -> None:
        self.rows = 0
        self.buckets = np.zeros(len(BOUNDS) + 1, np.int64)
        self.seconds = 0.0
        self._letters = np.zeros(len(REASONS), np.int64)

    def letters(self, reasons: Array) -> None:
        """Count dead letters by their numbers in REASONS."""
        self._letters += np.bincount(reasons, minlength=len(REASONS))

    def left_out(self, records: int) -> None:
        """Count records that a connector could not write, as dead letters of the reason `other`."""
        self._letters[-1] += records

    def acknowledged(self, rows: int, times: Array | None, now: int | None = None) -> None:
        """Count rows that the sink has acknowledged now; `times` are their event times, as `split` returns them.

        A time in the future counts as no delay. `now` is in microseconds since 1970, by default the clock's.
        """
        self.rows += rows
        if times is not None and len(times):
            self.add(times, 1, _now() if now is None else now)

    def add(self, times: Array, each: Array | int, now: int) -> None:
        """Count events with these times, `each` as often."""
        times, each = _known(times, each)
        delays = now - np.clip(times, OLDEST, now)
        weights = None if isinstance(each, int) else each
        counted = np.bincount(np.searchsorted(_BOUNDS, delays), weights, minlength=len(self.buckets))
        self.buckets += counted.astype(np.int64)
        self.seconds += float((delays * (each / 1_000_000)).sum())

    def counts(self, *, bytes: int = 0, retries: int = 0) -> SinkCounts:
        letters = {name: int(count) for name, count in zip(REASONS, self._letters, strict=True) if count}
        return SinkCounts(self.rows, bytes, retries, tuple(map(int, self.buckets)), self.seconds, letters=letters)


class EventTimes:
    """The event times of rows that all become visible later, at a commit; in bounded memory.

    Above MOST_TIMES rows, it keeps a count for each millisecond. What is older than the last bound by then, and what is
    far in the future, stays in its bucket until the commit: so there are at most as many milliseconds as between.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._times: list[Array] = []
        self._more = 0
        """Rows in `_times`."""
        self._millis = self._each = np.empty(0, np.int64)
        self._old = DelayCounts()
        self._old_until = _now()
        """When the delays in `_old` end."""

    def add(self, rows: int, times: Array | None) -> None:
        self.rows += rows
        if times is not None:
            self._times.append(times)
            self._more += len(times)
            if self._more > MOST_TIMES:
                self.condense()

    def condense(self, now: int | None = None) -> None:
        """Replace the times by counts for each millisecond."""
        now = _now() if now is None else now
        times, _ = _known(np.concatenate([*self._times, self._millis[:0]]), 1)
        old = now - times > _BOUNDS[-1]
        millis = np.minimum(times[~old], now + FAR) // 1000
        every = np.concatenate([self._millis, millis])
        each = np.concatenate([self._each, np.ones(len(millis), np.int64)])
        self._millis, places = np.unique(every, return_inverse=True)
        self._each = np.bincount(places, each, minlength=len(self._millis)).astype(np.int64)
        self._age(now)
        self._old.add(times[old], 1, now)
        self._times, self._more = [], 0

    def packed(self) -> bytes:
        """The times as bytes, to the millisecond, for `of_packed` in another process."""
        self.condense()
        old = np.array([self._old.buckets[-1], self._old_until])
        return np.concatenate([old, np.array([self._old.seconds]).view(np.int64), self._millis, self._each]).tobytes()

    @classmethod
    def of_packed(cls, data: bytes, rows: int) -> EventTimes:
        """What `packed` made; `rows` is the number of rows, also of those without a time."""
        times, numbers = cls(), np.frombuffer(data, np.int64)
        times.rows, times._old.buckets[-1], times._old_until = rows, numbers[0], int(numbers[1])
        times._old.seconds = float(numbers[2:3].view(np.float64)[0])
        times._millis, times._each = np.split(numbers[3:], 2)
        return times

    def acknowledged(self, into: DelayCounts, now: int | None = None) -> DelayCounts:
        """Count all rows as acknowledged now; returns `into`."""
        now = _now() if now is None else now
        for times in self._times:
            into.acknowledged(0, times, now)
        into.add(self._millis * 1000, self._each, now)
        self._age(now)
        into.buckets += self._old.buckets
        into.seconds += self._old.seconds
        into.rows += self.rows
        return into

    def _age(self, now: int) -> None:
        """The delays of old events up to `now`."""
        self._old.seconds += int(self._old.buckets.sum()) * (now - self._old_until) / 1_000_000
        self._old_until = now


def split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Array | None]:
    """The batch without the column TIME, and the event times in microseconds, UNKNOWN for null.

    The times are None if the batch has no such column.
    """
    return _take(batch, TIME)


def split_letters(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Array | None]:
    """The batch without the column REASON, and the numbers of the reasons; None if there is no such column."""
    return _take(batch, REASON)


def _take(batch: pa.RecordBatch, name: str) -> tuple[pa.RecordBatch, Array | None]:
    return (batch.drop_columns([name]), integers(batch.column(name))) if name in batch.schema.names else (batch, None)


def integers(times: pa.Array) -> Array:
    """An array of int64 event times, UNKNOWN for null."""
    known: Array = (times.fill_null(UNKNOWN) if times.null_count else times).to_numpy(zero_copy_only=False)
    return known


def _known(times: Array, each: Any) -> tuple[Array, Any]:
    known = times != UNKNOWN
    if known.all():
        return times, each
    return times[known], each if isinstance(each, int) else each[known]


def _now() -> int:
    return time.time_ns() // 1000


# On the driver: the column of event times, and the sums.


def event_field(frame: DataFrame) -> tuple[str, ...]:
    """The column, or the field of a column, with the times of the rows' events; empty if the frame has none."""
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    marked = [field.name for field in frame.schema.fields if field.metadata.get(EVENT_TIME)]
    change = "key" in kinds and "penstock.table" in frame.schema["key"].metadata
    for name in [*marked, *(["ts"] if change else []), "window_end"]:
        if isinstance(kinds.get(name), st.TimestampType):
            return (name,)
    window = kinds.get("window")
    if not isinstance(window, st.StructType) or window.names != ["start", "end"]:
        return ()
    return ("window", "end") if isinstance(window["end"].dataType, st.TimestampType) else ()


def event_time(frame: DataFrame) -> Column | None:
    """The time of each row's event, a timestamp column; None if the frame has none."""
    path = event_field(frame)
    return F.col(_spelt(path)) if path else None


def event_micros(frame: DataFrame) -> Column | None:
    """The time of each row's event in microseconds since 1970, a bigint column; None if the frame has none."""
    if TIME in frame.columns:
        return F.col(TIME)
    path = event_field(frame)
    return _micros(path).alias(TIME) if path else None


def _micros(path: Sequence[str]) -> Column:
    return F.unix_micros(_spelt(path))


def _spelt(path: Sequence[str]) -> str:
    return ".".join(f"`{name.replace('`', '``')}`" for name in path)


_with_times: WeakKeyDictionary[DataFrame, DataFrame] = WeakKeyDictionary()


def hidden(frame: DataFrame) -> DataFrame:
    """The frame without its column TIME; `timed` of the result gives the frame back."""
    without_times = frame.drop(TIME)
    _with_times[without_times] = frame
    return without_times


def timed(frame: DataFrame, column: str | None = None) -> DataFrame:
    """The frame with the column TIME if its rows have event times, else unchanged.

    `column` names a timestamp column with the times to take instead.
    """
    if column is not None:
        return frame.withColumn(TIME, _micros((column,)))
    if frame in _with_times:
        return _with_times[frame]
    times = event_micros(frame)
    return frame if times is None or TIME in frame.columns else frame.withColumn(TIME, times)


def observed(counts: DataFrame) -> DataFrame:
    """A frame of rows of counts, which the query reports with its progress.

    They are a list with a row for each task: a sum for each column would cost a batch many times as much.
    """
    return counts.observe(OBSERVED, F.collect_list(F.struct(*counts.columns)).alias("tasks"))


_sinks: OrderedDict[tuple[str, int], SinkCounts] = OrderedDict()
_lock = Lock()


def add(query: str, counts: SinkCounts) -> None:
    """Add to the counts of a sink; `query` is the id in its `Batch`: "<id>", or "<id>.<index of the sink>"."""
    place = _place(query)
    with _lock:
        _sinks[place] = _sinks.pop(place, SinkCounts()) + counts
        if len(_sinks) > MOST_SINKS:
            _sinks.popitem(last=False)


def bad_records(observed: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """The bad records of a batch by source and reason, from the observed metrics of a query's progress.

    A source has the name that `kafka.read` or `cdc.read` got as `name=`; a source of `cdc.read` is only there with
    `bad_values="problem"`. Reasons are those of REASONS; a source without bad records has no reasons.
    """
    by_source = {}
    for source, metrics in observed.items():
        row = _mapping(metrics)
        if "problems" in row and "reasons" in row:
            # Spark merges the tasks' bins of a reason only when there are too many of them.
            counts: Counter[str] = Counter()
            for reason_bin in map(_mapping, row["reasons"] or ()):
                counts[REASONS[int(reason_bin["x"])]] += round(reason_bin["y"])
            by_source[source] = dict(counts)
    return by_source


def _mapping(row: Any) -> Mapping[str, Any]:
    """A row as PySpark gives it, or as it stands in the JSON of a progress."""
    return row if isinstance(row, Mapping) else row.asDict()


def _place(query: str) -> tuple[str, int]:
    name, _, index = query.partition(".")
    return name, int(index) if index.isdecimal() else 0


def add_rows(query: str, rows: Sequence[Row]) -> None:
    """Add the rows of counts of a batch's tasks."""
    for row in rows:
        add(query, SinkCounts.of(row.asDict()))


def add_observed(query_id: str, observed: Mapping[str, Any]) -> None:
    """Add the counts in the observed metrics of a query's progress; call it once with each progress."""
    if (counts := observed.get(OBSERVED)) is not None:
        for row in _mapping(counts)["tasks"]:
            add(str(query_id), SinkCounts.of(_mapping(row)))


def counts_of(query_id: str) -> dict[int, SinkCounts]:
    """The counts of each sink of a query since this process started, by the sink's index in `write`."""
    with _lock:
        return {index: counts for (name, index), counts in _sinks.items() if name == str(query_id)}


# Why a sink failed: the class of the error, which Spark passes on as text if a task raised it.

_CLASS = re.compile(r"^(?!SQLSTATE)(?:\w+\.)*([A-Z]\w+)(?::|$)", re.MULTILINE)
_OURS = re.compile(r"^penstock(?:\.\w+)*\.(\w+)(?::|$)", re.MULTILINE)
_OF_ROWS = re.compile(r"rows failed, the first at \d+ to \d+: ([A-Z][A-Z0-9_]+)")
"""What the Kafka client says if some rows failed: the name of their error."""
_STOPPED = re.compile(r"InterruptedException|SPARK_JOB_CANCELLED|cancelled part of cancelled job group")
MOST_REASONS = 32
OTHER = "other"


@contextmanager
def failures(query: str) -> Iterator[None]:
    """Count an error that leaves the block as a failure of this sink; `query` is the id in its `Batch`."""
    try:
        yield
    except Exception as error:
        if not _STOPPED.search(text := f"{type(error).__name__}: {error}"):
            _add_failure(query, reason_of(text))
        raise


class SinkFailed(Exception):
    """The error of a stage that writes a query's records, with the error that ended it as text.

    Spark passes on an exception of a task as the text of its traceback, where a class has its full name.
    """


SINK_FAILED = f"{SinkFailed.__module__}.{SinkFailed.__qualname__}: "
"""What stands before the text of a `SinkFailed` in a traceback."""


@contextmanager
def stage_failures() -> Iterator[None]:
    """Raise an error that leaves the block as `SinkFailed`: `add_fault` counts it, and no failure of a source.

    For a stage of a streaming query. Sinks that write batches from the driver count their failures there (`failures`).
    """
    try:
        yield
    except Exception as error:
        raise SinkFailed("".join(format_exception_only(error)).strip()) from error


def add_fault(query_id: str, trace: str) -> None:
    """Count the failure of a query if the stage of its sink raised it; `trace` is the text of the query's exception."""
    _, failed, text = trace.rpartition(SINK_FAILED)
    if failed:
        _add_failure(str(query_id), reason_of(text))


def reason_of(text: str) -> str:
    """The class of the error at the end of a traceback, such as MessageTooLarge or DatabaseUnavailable."""
    if of_rows := _OF_ROWS.search(text):
        return "".join(word.capitalize() for word in of_rows[1].split("_"))
    classes = _OURS.findall(text) or _CLASS.findall(text)
    return str(classes[-1]) if classes else OTHER


def _add_failure(query: str, reason: str) -> None:
    with _lock:
        known = _sinks.get(_place(query), SinkCounts()).failures
    add(query, SinkCounts(failures={reason if reason in known or len(known) < MOST_REASONS else OTHER: 1}))
