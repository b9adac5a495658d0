"""Windows over event time: tumbling, hopping and session windows, with early results, and late rows kept.

    clicks.transform(window.tumbling, "1 minute", at="ts", key="page", name="per_page", n="count(*)")

A result row has the key, `window_start`, `window_end`, the aggregates, and two flags. `final` is true when the
watermark has passed the window's end. `late` is true for rows that came after that: such a result holds the late rows
alone, so adding it to the final one gives the whole; nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pyspark.sql import DataFrame, functions as F, types as st

from penstock.config import duration
from penstock.errors import PenstockError
from penstock.keyed_state.aggregates import parse
from penstock.keyed_state.arrow_keys import arrow_schema
from penstock.keyed_state.buckets import stateful
from penstock.keyed_state.event_time import require_no_window
from penstock.window import hopping_windows, session_windows
from penstock.window.window_state import END, FINAL, LATE, START, Shape, Windows

FINAL_ONLY, CHANGES = "final", "changes"
WATERMARK = "spark.watermarkDelayMs"
"""Spark's mark on the column that has a watermark."""


def tumbling(
    frame: DataFrame,
    size: timedelta | str,
    *,
    at: str,
    key: str | Sequence[str],
    name: str,
    emit: str = FINAL_ONLY,
    **aggregates: str,
) -> DataFrame:
    """Windows of `size` side by side, from 1970 on (UTC).

    `frame` needs a watermark on the timestamp column `at`; a stream of a window's rows is refused. `aggregates`
    are columns by name: `n="count(*)"`, `total="sum(price)"`; there are count, sum, min, max and avg, of any SQL
    expression. With `emit="changes"` each batch also sends the present result of every window that it changed, with
    `final` false. Rows without a time are left out.
    Columns: the key's, `window_start`, `window_end timestamp`, the aggregates', `final`, `late boolean`.
    """
    wide = _micros(size, "size")
    return _windows(frame, hopping_windows.Panes(wide, wide), at, key, name, emit, aggregates)


def hopping(
    frame: DataFrame,
    size: timedelta | str,
    *,
    every: timedelta | str,
    at: str,
    key: str | Sequence[str],
    name: str,
    emit: str = FINAL_ONLY,
    **aggregates: str,
) -> DataFrame:
    """Windows of `size` that begin `every` so often, a divisor of `size`; the rest is as in `tumbling`."""
    wide, step = _micros(size, "size"), _micros(every, "every")
    if wide % step:
        raise PenstockError(
            f"windows of {size} cannot begin every {every}",
            where=f"window.hopping {name}",
            next="give an every= that divides the size, such as 1 minute for 5 minutes",
        )
    return _windows(frame, hopping_windows.Panes(wide, step), at, key, name, emit, aggregates)


def session(
    frame: DataFrame,
    gap: timedelta | str,
    *,
    at: str,
    key: str | Sequence[str],
    name: str,
    emit: str = FINAL_ONLY,
    **aggregates: str,
) -> DataFrame:
    """Rows of a key with less than `gap` between them; `window_end` is `gap` behind the last one.

    With `emit="changes"` a session that grew or swallowed others comes again under its new start and end, and those
    starts that are no more come as rows with null aggregates. The rest is as in `tumbling`.
    """
    return _windows(frame, session_windows.Sessions(_micros(gap, "gap")), at, key, name, emit, aggregates)


def _windows(
    frame: DataFrame, shape: Shape, at: str, key: str | Sequence[str], name: str, emit: str, wanted: dict[str, str]
) -> DataFrame:
    keys = [key] if isinstance(key, str) else list(key)
    _require(frame, at, keys, emit, name)
    made, aggregates = parse(frame.where(F.col(at).isNotNull()), wanted)
    sources = [part.source for aggregate in aggregates for part in aggregate.parts]
    rows = made.select(*keys, F.unix_micros(at).alias(START), *dict.fromkeys(sources))
    kinds = st.StructType([st.StructField(name, frame.schema[name].dataType) for name in keys])
    logic = Windows(shape, arrow_schema(kinds), aggregates, emit == CHANGES)
    output = st.StructType([*kinds, st.StructField(START, st.TimestampType()), st.StructField(END, st.TimestampType())])
    for aggregate in aggregates:
        output.add(aggregate.column, aggregate.type)
    output.add(FINAL, st.BooleanType()).add(LATE, st.BooleanType())
    return stateful(rows, logic, name=name, key=keys, output=output, timed=True)


def _micros(value: timedelta | str, name: str) -> int:
    micros = duration(value, name=name) // timedelta(microseconds=1)
    if micros < 1000:
        raise PenstockError(f"{name} is too short: {value}", next="give a millisecond or more")
    return micros


def _require(frame: DataFrame, at: str, keys: list[str], emit: str, name: str) -> None:
    where = f"window {name}"
    if emit not in (FINAL_ONLY, CHANGES):
        raise PenstockError(f"no emit {emit!r}", where=where, next=f"use {FINAL_ONLY!r} or {CHANGES!r}")
    if missing := [column for column in (at, *keys) if column not in frame.columns]:
        has = ", ".join(frame.columns)
        raise PenstockError(f"the frame has no column {', '.join(missing)}", where=where, next=f"it has {has}")
    if not isinstance(frame.schema[at].dataType, st.TimestampType):
        kind = frame.schema[at].dataType.simpleString()
        raise PenstockError(f"the column {at} is no timestamp but {kind}", where=where, next="cast it before")
    require_no_window(frame, where)
    if frame.isStreaming and WATERMARK not in frame.schema[at].metadata:
        raise PenstockError(
            f"the column {at} has no watermark",
            where=where,
            next=f'read with kafka.read(..., at="{at}", late="10 minutes"), or give the frame .withWatermark',
        )
