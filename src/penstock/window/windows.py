"""Windows over event time: tumbling, hopping and session windows, with early results and without dropping late rows.

    clicks.transform(window.tumbling, "1 minute", at="ts", key="page", name="per_page", n="count(*)")

A result row has the key, `window_start`, `window_end`, the aggregates, and two flags. `final` is true when the
watermark has passed the window's end. `late` is true for a result of rows that came after that. It contains only the
late rows, so adding it to the final result gives the total; no row is dropped. A sink that keeps one row for a key
would replace the total with it, and refuses such a frame without a condition on `late`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions as F, types as st

from penstock.border.public import public
from penstock.durations import Duration, duration
from penstock.errors import PenstockError
from penstock.keyed_state.aggregates import Aggregate, fields, merged, parse, partial, parts_of
from penstock.keyed_state.arrow_keys import Numbers, arrow_schema, codes, columns_of, concat, numbers, positions
from penstock.keyed_state.buckets import BUCKET, BucketStep, require_no_window, stateful, upserted, with_gone
from penstock.query import real_time
from penstock.spark_runtime import casts
from penstock.spark_runtime.logical_plan import LATE as LATE_MARK, STARTS, WATERMARK, WINDOW_START
from penstock.window import native_windows

START, END, FINAL, LATE = WINDOW_START, "window_end", "final", "late"
MARKS = {START: {STARTS: True}, LATE: {LATE_MARK: True}}
"""Metadata of columns, by which sinks know them."""
TIME = pa.timestamp("us", "UTC")
Mask = npt.NDArray[np.bool_]
SESSION = "_session"
Emit: TypeAlias = Literal["final", "changes"]
FINAL_ONLY: Final = "final"
CHANGES: Final = "changes"


@public("window.tumbling")
def tumbling(
    frame: DataFrame,
    size: Duration,
    *,
    at: str,
    key: str | Sequence[str],
    name: str,
    emit: Emit = FINAL_ONLY,
    **aggregates: str,
) -> DataFrame:
    """Adjacent windows of `size`, aligned to 1970-01-01 UTC.

    `aggregates` are columns by name: `n="count(*)"`, `total="sum(price)"`; the functions are count, sum, min, max and
    avg of any SQL expression. With `emit="changes"` each batch also emits the current result of every window that it
    changed, with `final` false. In a pipeline of real-time mode, which needs `emit="changes"`, each row does so, and no
    row is final. Rows without a time are ignored. `name` names the state in the checkpoint.

    The result has the key columns, `window_start` and `window_end` (timestamps), the aggregates, `final` and `late`
    (booleans). Raises PenstockError if a streaming `frame` has no watermark on the timestamp column `at` or contains a
    window already, and for invalid arguments.
    """
    wide = _micros(size, "size")
    return _windows(frame, Panes(wide, wide), at, key, name, emit, aggregates)


@public("window.hopping")
def hopping(
    frame: DataFrame,
    size: Duration,
    *,
    every: Duration,
    at: str,
    key: str | Sequence[str],
    name: str,
    emit: Emit = FINAL_ONLY,
    **aggregates: str,
) -> DataFrame:
    """Windows of `size` that begin at each multiple of `every`, a divisor of `size`; the rest is as in `tumbling`."""
    wide, step = _micros(size, "size"), _micros(every, "every")
    if wide % step:
        raise PenstockError(
            f"windows of {size} cannot begin every {every}",
            where=f"window.hopping {name}",
            next="set every= to a divisor of the size, such as 1 minute for 5 minutes",
        )
    return _windows(frame, Panes(wide, step), at, key, name, emit, aggregates)


@public("window.session")
def session(
    frame: DataFrame,
    gap: Duration,
    *,
    at: str,
    key: str | Sequence[str],
    name: str,
    emit: Emit = FINAL_ONLY,
    **aggregates: str,
) -> DataFrame:
    """Sessions: rows of a key with less than `gap` between them; `window_end` is `gap` after the last row.

    With `emit="changes"` a session that grew or absorbed others is emitted with its new start and end, and each start
    that no longer exists as a row with null aggregates. The rest is as in `tumbling`.
    """
    return _windows(frame, Sessions(_micros(gap, "gap")), at, key, name, emit, aggregates)


def _windows(
    frame: DataFrame,
    shape: WindowShape,
    at: str,
    key: str | Sequence[str],
    name: str,
    emit: str,
    wanted: dict[str, str],
) -> DataFrame:
    keys = [key] if isinstance(key, str) else list(key)
    _require(frame, at, keys, emit, name)
    with_arguments, aggregates = parse(frame.where(F.col(at).isNotNull()), wanted)
    if real_time.is_building() and frame.isStreaming:
        return _in_real_time(with_arguments, shape, at, keys, aggregates, emit, f"window {name}")
    sources = [part.source for aggregate in aggregates for part in aggregate.parts]
    rows = with_arguments.select(*keys, F.unix_micros(at).alias(START), *dict.fromkeys(sources))
    kinds = columns_of(frame, keys)
    logic = Windows(shape, arrow_schema(kinds), aggregates, emit == CHANGES)
    output = st.StructType([*kinds]).add(START, st.TimestampType(), metadata=MARKS[START]).add(END, st.TimestampType())
    for aggregate in aggregates:
        output.add(aggregate.column, aggregate.type)
    output.add(FINAL, st.BooleanType()).add(LATE, st.BooleanType(), metadata=MARKS[LATE])
    return stateful(rows, logic, name=name, key=keys, output=output, timed=True)


def _in_real_time(
    rows: DataFrame,
    shape: WindowShape,
    at: str,
    keys: list[str],
    aggregates: Sequence[Aggregate],
    emit: str,
    where: str,
) -> DataFrame:
    if not isinstance(shape, Panes):
        raise PenstockError(
            "session windows do not run in real-time mode",
            where=where,
            next="give the pipeline an interval, such as every='1 second'",
        )
    if emit != CHANGES:
        raise PenstockError(
            "a window of real-time mode sends its result with each row, because Spark sends none when it ends",
            where=where,
            next="give emit='changes', or give the pipeline an interval such as every='1 second'",
        )
    windowed = native_windows.native(rows, shape.size, shape.step, at, keys, aggregates, where)
    start = F.col(native_windows.START).alias(START, metadata=MARKS[START])
    times = [start, F.col(native_windows.END).alias(END)]
    names = [aggregate.column for aggregate in aggregates]
    late = F.col(native_windows.LATE).alias(LATE, metadata=MARKS[LATE])
    return windowed.select(*keys, *times, *names, F.lit(False).alias(FINAL), late)


def _micros(value: Duration, name: str) -> int:
    micros = duration(value, name=name) // timedelta(microseconds=1)
    if micros < 1000:
        raise PenstockError(f"{name} is too short: {value}", next="use at least 1 millisecond")
    return micros


def _require(frame: DataFrame, at: str, keys: list[str], emit: str, name: str) -> None:
    where = f"window {name}"
    if emit not in (FINAL_ONLY, CHANGES):
        raise PenstockError(f"unknown emit {emit!r}", where=where, next=f"use {FINAL_ONLY!r} or {CHANGES!r}")
    if missing := [column for column in (at, *keys) if column not in frame.columns]:
        has = ", ".join(frame.columns)
        raise PenstockError(f"the frame has no column {', '.join(missing)}", where=where, next=f"use one of {has}")
    if not isinstance(frame.schema[at].dataType, st.TimestampType):
        kind = frame.schema[at].dataType
        next = casts.advice(at, kind, st.TimestampType())
        raise PenstockError(f"the column {at} is {kind.simpleString()}, not timestamp", where=where, next=next)
    require_no_window(frame, where)
    if frame.isStreaming and WATERMARK not in frame.schema[at].metadata:
        raise PenstockError(
            f"the column {at} has no watermark",
            where=where,
            next=f'give cdc.read late="10 minutes", kafka.read at="{at}" and late=, or call .withWatermark',
        )


# The state of windows: partial aggregates by key and start, closed when the watermark has passed their end. Times are
# microseconds since 1970. Only the shape differs between kinds of windows: how rows become windows.


class WindowShape(Protocol):
    """How rows become windows."""

    def partial(self, rows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
        """Rows, with their time in `window_start`, as partial windows: keys, start, end, partial results."""

    def merge(self, state: pa.Table, windows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> Merge:
        """Merge partial windows with the open windows."""


@dataclass(frozen=True)
class Merge:
    """Changed windows, including the windows merged into them; `gone` are the rows to remove from the state.

    `fresh` masks the windows that did not contain an open window.
    """

    windows: pa.Table
    gone: pa.Table
    fresh: Mask


@dataclass(frozen=True)
class Windows:
    """The logic of a stage with windows (see `buckets`)."""

    shape: WindowShape
    key_schema: pa.Schema
    aggregates: tuple[Aggregate, ...]
    changes: bool

    @cached_property
    def state(self) -> pa.Schema:
        times = [pa.field(START, pa.int64()), pa.field(END, pa.int64())]
        return pa.schema([*self.key_schema, *times, *fields(self.aggregates)])

    @property
    def keys(self) -> list[str]:
        return list(self.key_schema.names)

    @property
    def state_key(self) -> tuple[str, ...]:
        return (*self.keys, START)

    @property
    def computed(self) -> Mapping[str, Sequence[str]]:
        return parts_of(self.aggregates)

    def before(self, rows: pa.Table) -> pa.Table:
        return self.shape.partial(rows, [BUCKET, *self.keys], self.aggregates)

    def step(self, state: pa.Table, rows: pa.Table | None, watermark: int, number: int) -> BucketStep:
        now = watermark * 1000
        closing = numbers(state[END]) <= now
        closed, still_open = state.filter(pa.array(closing)), state.filter(pa.array(~closing))
        gone = [with_gone(closed, True)]
        output = [self._results(closed, final=True, late=False)]
        if rows is not None:
            merge = self.shape.merge(still_open, concat([rows], self.state), self.keys, self.aggregates)
            late = merge.fresh & (numbers(merge.windows[END]) <= now)
            changed = merge.windows.filter(pa.array(~late))
            output.append(self._results(merge.windows.filter(pa.array(late)), final=True, late=True))
            if self.changes:
                output.append(self._results(self._nothing(merge.gone), final=False, late=False))
                output.append(self._results(changed, final=False, late=False))
            gone += [with_gone(merge.gone, True), with_gone(changed, False)]
        change = pa.concat_tables(gone).combine_chunks()
        state = upserted(state, change, self.state_key) if len(change) else state
        # Rounded up to a millisecond: one earlier, the window is still open, and no timer would fire again.
        wake = -(-int(pc.min(state[END]).as_py()) // 1000) if len(state) else None
        return BucketStep(change, pa.concat_tables(output).combine_chunks(), wake, state)

    def _nothing(self, gone: pa.Table) -> pa.Table:
        """Removed windows, with null aggregates."""
        columns = {name: gone[name] for name in (*self.keys, START, END)}
        parts = {field.name: pa.nulls(len(gone), field.type) for field in fields(self.aggregates)}
        return pa.table({**columns, **parts}, schema=self.state)

    def _results(self, windows: pa.Table, *, final: bool, late: bool) -> pa.Table:
        columns = {name: windows[name] for name in self.keys}
        columns |= {name: windows[name].cast(TIME) for name in (START, END)}
        columns |= {aggregate.column: aggregate.value(windows) for aggregate in self.aggregates}
        flags = {FINAL: pa.array(np.full(len(windows), final)), LATE: pa.array(np.full(len(windows), late))}
        return pa.table({**columns, **flags})


# Tumbling and hopping windows: rows are aggregated in panes of one step, and each pane goes to all of its windows.


@dataclass(frozen=True)
class Panes:
    """Windows of `size` that begin every `step` microseconds; `size` is a multiple of `step`."""

    size: int
    step: int

    def partial(self, rows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
        times = numbers(rows[START])
        rows = rows.set_column(rows.column_names.index(START), START, pa.array(times - times % self.step))
        panes = partial(rows, [*keys, START], aggregates)
        if self.size > self.step:
            panes = merged(self._spread(panes), [*keys, START], aggregates)
        return panes.append_column(END, pa.array(numbers(panes[START]) + self.size))

    def merge(self, state: pa.Table, windows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> Merge:
        windows = merged(windows, [*keys, START, END], aggregates).select(state.column_names)
        places = positions(state, windows, [*keys, START])
        known = state.take(pa.array(places[places >= 0]))
        fresh = windows.filter(pa.array(places < 0))
        grown = merged(
            pa.concat_tables([known, windows.filter(pa.array(places >= 0))]), [*keys, START, END], aggregates
        ).select(state.column_names)
        flags = np.concatenate([np.zeros(len(grown), bool), np.ones(len(fresh), bool)])
        return Merge(pa.concat_tables([grown, fresh]).combine_chunks(), state.slice(0, 0), flags)

    def _spread(self, panes: pa.Table) -> pa.Table:
        count = self.size // self.step
        spread = panes.take(pa.array(np.repeat(np.arange(len(panes)), count)))
        back = np.tile(np.arange(count) * self.step, len(panes))
        return spread.set_column(spread.column_names.index(START), START, pa.array(numbers(spread[START]) - back))


# Session windows: rows of a key belong to one session while less than the gap lies between them.


@dataclass(frozen=True)
class Sessions:
    """Sessions that end `gap` microseconds after their last row."""

    gap: int

    def partial(self, rows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> pa.Table:
        start = numbers(rows[START])
        of = _grouped(codes([rows], keys)[0], start, start + self.gap)
        sessions = partial(rows.append_column(SESSION, pa.array(of.session)), [*keys, SESSION], aggregates)
        return of.bounded(sessions)

    def merge(self, state: pa.Table, windows: pa.Table, keys: Sequence[str], aggregates: Sequence[Aggregate]) -> Merge:
        there, here = codes([state, windows], keys)
        # Open sessions of other keys stay as they are.
        near = np.isin(there, here)
        known = state.filter(pa.array(near))
        rows = concat([known, windows], state.schema)
        of = _grouped(np.concatenate([there[near], here]), numbers(rows[START]), numbers(rows[END]))
        slim = rows.drop_columns([START, END]).append_column(SESSION, pa.array(of.session))
        sessions = of.bounded(merged(slim, [*keys, SESSION], aggregates))
        touched, opened = (_flags(some, len(of.start)) for some in (of.session[len(known) :], of.session[: len(known)]))
        number = numbers(sessions[SESSION])
        changed = touched[number]
        # Rows of the state whose session now has another start.
        swallowed = numbers(known[START]) != of.start[of.session[: len(known)]]
        return Merge(
            sessions.filter(pa.array(changed)).select(state.column_names),
            known.filter(pa.array(swallowed)),
            ~opened[number][changed],
        )


@dataclass(frozen=True)
class _Grouped:
    """The session of each row, and start and end of each session."""

    session: Numbers
    start: Numbers
    end: Numbers

    def bounded(self, sessions: pa.Table) -> pa.Table:
        """Sessions with their start and end."""
        number = numbers(sessions[SESSION])
        bounds = sessions.append_column(START, pa.array(self.start[number]))
        return bounds.append_column(END, pa.array(self.end[number]))


def _grouped(key: Numbers, start: Numbers, end: Numbers) -> _Grouped:
    """Rows of one key with overlapping spans form one session; sessions are numbered from 0."""
    if not len(key):
        return _Grouped(key, start, end)
    order = np.lexsort((start, key))
    key, starts = key[order], start[order]
    # The largest end so far within a key: ends as ranks, which do not overflow when combined with the key.
    by_end = np.argsort(end[order], kind="stable")
    rank = np.empty(len(key), np.int64)
    rank[by_end] = np.arange(len(key))
    change = np.concatenate([[False], key[1:] != key[:-1]])
    base = np.cumsum(change) * len(key)
    reached = end[order][by_end[np.maximum.accumulate(base + rank) - base]]
    begins = change | np.concatenate([[True], starts[1:] >= reached[:-1]])
    number = np.cumsum(begins) - 1
    session = np.empty(len(key), np.int64)
    session[order] = number
    last = np.concatenate([begins[1:], [True]])
    return _Grouped(session, starts[begins], reached[last])


def _flags(numbers_of_sessions: Numbers, count: int) -> Mask:
    flags = np.zeros(count, bool)
    flags[numbers_of_sessions] = True
    return flags
