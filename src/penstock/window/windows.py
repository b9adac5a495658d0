"""Windows over event time: tumbling, hopping and session windows, with early results and without dropping late rows.

    clicks.transform(window.tumbling, "1 minute", at="ts", key="page", name="per_page", n="count(*)")

A result row has the key, `window_start`, `window_end`, the aggregates, and two flags. `final` is true when the
watermark has passed the window's end. `late` is true for a result of rows that came after that. It contains only the
late rows, so adding it to the final result gives the total; no row is dropped.
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
"""Spark's metadata key on the column with a watermark."""


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
    """Adjacent windows of `size`, aligned to 1970-01-01 UTC.

    `aggregates` are columns by name: `n="count(*)"`, `total="sum(price)"`; the functions are count, sum, min, max and
    avg of any SQL expression. With `emit="changes"` each batch also emits the current result of every window that it
    changed, with `final` false. Rows without a time are ignored. `name` names the state in the checkpoint.

    The result has the key columns, `window_start` and `window_end` (timestamps), the aggregates, `final` and `late`
    (booleans). Raises PenstockError if a streaming `frame` has no watermark on the timestamp column `at` or contains a
    window already, and for invalid arguments.
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
    """Windows of `size` that begin at each multiple of `every`, a divisor of `size`; the rest is as in `tumbling`."""
    wide, step = _micros(size, "size"), _micros(every, "every")
    if wide % step:
        raise PenstockError(
            f"windows of {size} cannot begin every {every}",
            where=f"window.hopping {name}",
            next="set every= to a divisor of the size, such as 1 minute for 5 minutes",
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
    """Sessions: rows of a key with less than `gap` between them; `window_end` is `gap` after the last row.

    With `emit="changes"` a session that grew or absorbed others is emitted with its new start and end, and each start
    that no longer exists as a row with null aggregates. The rest is as in `tumbling`.
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
        kind = frame.schema[at].dataType.simpleString()
        raise PenstockError(f"the column {at} is {kind}, not timestamp", where=where, next="cast it first")
    require_no_window(frame, where)
    if frame.isStreaming and WATERMARK not in frame.schema[at].metadata:
        raise PenstockError(
            f"the column {at} has no watermark",
            where=where,
            next=f'read with kafka.read(..., at="{at}", late="10 minutes"), or call .withWatermark on the frame',
        )
