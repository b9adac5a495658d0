"""Windows of any rows against plain Python: all windows of a row, sessions as intervals that touch."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from bucket_runs import Run
from hypothesis import given, settings, strategies as st
from pyspark.sql import types

from penstock.keyed_state.aggregates import Aggregate, PartialColumn
from penstock.window.windows import END, START, Panes, Sessions, Windows, WindowShape

few = settings(max_examples=50)
COUNT = Aggregate("n", (PartialColumn("n_count", "_of_n", "count", pa.int64()),), types.LongType())
TOTAL = Aggregate("total", (PartialColumn("total_sum", "_of_total", "sum", pa.int64()),), types.LongType())
LOW = Aggregate("low", (PartialColumn("low_min", "_of_low", "min", pa.int64()),), types.LongType())
AGGREGATES = (COUNT, TOTAL, LOW)
SHAPES = [Panes(10, 10), Panes(20, 5), Panes(7, 7), Sessions(5), Sessions(1)]
Row = tuple[str | None, int, int | None]
Window = tuple[str | None, int, int]
Values = tuple[int, int | None, int | None]

ROWS: st.SearchStrategy[list[Row]] = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.integers(-30, 60), st.none() | st.integers(-9, 9)), max_size=14
)


def windows_of(shape: WindowShape, rows: list[Row]) -> dict[Window, list[Row]]:
    """The rows of each window."""
    found = defaultdict[Window, list[Row]](list)
    if isinstance(shape, Panes):
        for row in rows:
            last = row[1] // shape.step * shape.step
            for start in range(last, last - shape.size, -shape.step):
                assert start <= row[1] < start + shape.size
                found[row[0], start, start + shape.size].append(row)
        return found
    assert isinstance(shape, Sessions)
    for key in {key for key, *_ in rows}:
        of_key = sorted((row for row in rows if row[0] == key), key=lambda row: row[1])
        session = [of_key[0]]
        for row in of_key[1:]:
            if row[1] - session[-1][1] >= shape.gap:
                found[key, session[0][1], session[-1][1] + shape.gap] += session
                session = []
            session.append(row)
        found[key, session[0][1], session[-1][1] + shape.gap] += session
    return found


def values_of(rows: list[Row]) -> Values:
    known = [value for *_, value in rows if value is not None]
    return len(rows), sum(known) if known else None, min(known, default=None)


def expected(shape: WindowShape, rows: list[Row]) -> dict[Window, Values]:
    return {window: values_of(some) for window, some in windows_of(shape, rows).items()}


def stage(shape: WindowShape, changes: bool = False) -> Run:
    return Run(Windows(shape, pa.schema([("k", pa.string())]), AGGREGATES, changes))


def batch(run: Run, rows: list[Row], watermark: int = -(10**9)) -> list[dict[str, Any]]:
    """The results of a batch, with times in microseconds; the watermark is in milliseconds."""
    made = {
        "k": pa.array([key for key, *_ in rows], pa.string()),
        START: pa.array([at for _, at, _ in rows], pa.int64()),
        "_of_n": pa.array([True] * len(rows), pa.bool_()),
        **{f"_of_{name}": pa.array([value for *_, value in rows], pa.int64()) for name in ("total", "low")},
    }
    found = run.batch(pa.table(made) if rows else None, watermark)
    # Not through floats: times are exact to the microsecond.
    for row in found:
        for name in (START, END):
            row[name] = pa.scalar(row[name], pa.timestamp("us", "UTC")).value
    return found


def window(row: dict[str, Any]) -> Window:
    return row["k"], row[START], row[END]


def values(row: dict[str, Any]) -> Values:
    return row["n"], row["total"], row["low"]


@pytest.mark.slow_after(2)
@few
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@given(batches=st.lists(ROWS, min_size=1, max_size=4))
def test_windows_close_with_the_values_of_all_their_rows_however_they_came(
    shape: WindowShape, batches: list[list[Row]]
) -> None:
    run = stage(shape)
    assert [row for rows in batches for row in batch(run, rows)] == []
    closed = batch(run, [], watermark=10**9)
    assert all(row["final"] and not row["late"] for row in closed)
    assert len(closed) == len({window(row) for row in closed}) and not len(run.state)
    assert {window(row): values(row) for row in closed} == expected(shape, [row for rows in batches for row in rows])


@pytest.mark.slow_after(2)
@few
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@given(batches=st.lists(ROWS, min_size=1, max_size=4))
def test_early_results_taken_by_start_are_the_windows_so_far(shape: WindowShape, batches: list[list[Row]]) -> None:
    """A row without a count says that a session with this start is now a part of another."""
    run, known, seen = stage(shape, changes=True), dict[tuple[Any, int], tuple[Window, Values]](), list[Row]()
    for rows in batches:
        seen += rows
        for row in batch(run, rows):
            assert not row["final"] and not row["late"]
            known.pop((row["k"], row[START]), None)
            if row["n"] is not None:
                known[row["k"], row[START]] = window(row), values(row)
        assert dict(known.values()) == expected(shape, seen)


@few
@pytest.mark.parametrize("shape", [Panes(10_000, 10_000), Panes(20_000, 5_000)], ids=str)
@given(batches=st.lists(ROWS, min_size=1, max_size=5), pauses=st.lists(st.integers(0, 25), min_size=5, max_size=5))
def test_final_and_late_results_add_up_to_all_rows(shape: Panes, batches: list[list[Row]], pauses: list[int]) -> None:
    """The watermark passes windows while rows for them still come: each row counts in each of its windows once."""
    run, sent, now, ended = stage(shape), list[Row](), -30, set[Window]()
    counts, totals = defaultdict[Window, int](int), defaultdict[Window, int](int)
    for rows, pause in zip(batches, pauses, strict=False):
        of_ms = [(key, at * 1000, value) for key, at, value in rows]
        sent += of_ms
        now += pause
        for row in batch(run, of_ms, now):
            assert row["final"] and row[END] <= now * 1000
            # A window ends once; what comes later is late.
            assert row["late"] or window(row) not in ended
            ended.add(window(row))
            counts[window(row)] += row["n"]
            totals[window(row)] += row["total"] or 0
    for row in batch(run, [], 10**9):
        assert not row["late"] and window(row) not in ended
        counts[window(row)] += row["n"]
        totals[window(row)] += row["total"] or 0
    assert counts == {window: n for window, (n, _, _) in expected(shape, sent).items()}
    assert totals == {window: total or 0 for window, (_, total, _) in expected(shape, sent).items()}


def test_a_session_of_many_rows_that_came_in_pieces_is_one() -> None:
    run = stage(Sessions(3))
    # The even times first: each is a session of its own until the odd ones come.
    batch(run, [("a", at, 1) for at in range(0, 400, 4)])
    assert len(run.state) == 100
    batch(run, [("a", at, 1) for at in range(2, 400, 4)])
    assert len(run.state) == 1
    (row,) = batch(run, [], 10**9)
    assert (window(row), values(row)) == (("a", 0, 401), (200, 200, 1))


@pytest.mark.parametrize("at", [0, 253_402_300_799_000_000, -62_135_596_800_000_000])
def test_the_first_and_the_last_year_have_windows(at: int) -> None:
    minute = 60_000_000
    run = stage(Panes(minute, minute))
    batch(run, [("a", at, 1)], watermark=-(10**14))
    state = run.state.to_pylist()
    assert [(row[START], row[END]) for row in state] == [(at // minute * minute, at // minute * minute + minute)]
