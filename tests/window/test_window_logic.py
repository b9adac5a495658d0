"""Windows batch by batch, with the watermark set by hand: early, final and late results."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from bucket_runs import Run
from drawn import drawn, same
from pyspark.sql import types as st

from penstock.keyed_state.aggregates import Aggregate, PartialColumn
from penstock.keyed_state.arrow_keys import packed, unpacked
from penstock.keyed_state.buckets import BLOB, BUCKET, _once
from penstock.window.windows import END, START, Panes, Sessions, Windows, WindowShape

MS = 1000
COUNT = Aggregate("n", (PartialColumn("n_count", "_of_n", "count", pa.int64()),), st.LongType())
TOTAL = Aggregate("total", (PartialColumn("total_sum", "_of_total", "sum", pa.int64()),), st.LongType())
MEAN = Aggregate(
    "mean",
    (
        PartialColumn("mean_sum", "_of_mean", "sum", pa.float64()),
        PartialColumn("mean_count", "_of_mean", "count", pa.int64()),
    ),
    st.DoubleType(),
)

PARTS = [part.column for aggregate in (COUNT, TOTAL, MEAN) for part in aggregate.parts]
SOURCES = ["_of_n", "_of_total", "_of_mean"]


def windows(shape: WindowShape, *, changes: bool = False) -> Run:
    return Run(Windows(shape, pa.schema([("k", pa.string())]), (COUNT, TOTAL, MEAN), changes))


def batch(run: Run, text: str, watermark: int) -> list[dict[str, Any]]:
    """One batch of rows `k, at (milliseconds), v`; results with start and end in milliseconds."""
    rows = drawn(text) if text else []
    made = {
        "k": pa.array([row["k"] for row in rows], pa.string()),
        START: pa.array([row["at"] * MS for row in rows], pa.int64()),
        "_of_n": pa.array([True] * len(rows)),
        **{f"_of_{name}": pa.array([row["v"] for row in rows], pa.int64()) for name in ("total", "mean")},
    }
    return [shown(row) for row in run.batch(pa.table(made) if rows else None, watermark)]


def shown(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: int(row[name].timestamp() * 1000) for name in (START, END)}


def test_tumbling_windows_close_at_the_watermark_and_keep_late_rows() -> None:
    run = windows(Panes(10 * MS, 10 * MS))
    first = batch(run, "| k | at | v |\n| a | 1 | 5 |\n| a | 9 | 7 |\n| b | 12 | - |\n| - | 3 | 1 |", watermark=0)
    assert first == []
    assert batch(run, "| k | at | v |\n| a | 25 | 1 |", watermark=9) == []
    same(
        batch(run, "| k | at | v |\n| a | 26 | 2 |\n| a | 4 | 3 |\n| a | 5 | 1 |", watermark=20),
        """
        | k | window_start | window_end | n | total | mean | final | late  |
        | a | 0            | 10         | 2 | 12    | 6.0  | true  | false |
        | - | 0            | 10         | 1 | 1     | 1.0  | true  | false |
        | b | 10           | 20         | 1 | -     | -    | true  | false |
        | a | 0            | 10         | 2 | 4     | 2.0  | true  | true  |
        """,
    )
    same(
        batch(run, "", watermark=30),
        """
        | k | window_start | n | total | final | late  |
        | a | 20           | 2 | 3     | true  | false |
        """,
    )


def test_early_results_tell_the_windows_that_a_batch_changed() -> None:
    run = windows(Panes(10 * MS, 10 * MS), changes=True)
    batch(run, "| k | at | v |\n| a | 1 | 5 |\n| b | 1 | 5 |", watermark=0)
    same(
        batch(run, "| k | at | v |\n| a | 2 | 1 |\n| a | 11 | 1 |", watermark=0),
        """
        | k | window_start | n | total | final | late  |
        | a | 0            | 2 | 6     | false | false |
        | a | 10           | 1 | 1     | false | false |
        """,
    )


def test_hopping_windows_overlap() -> None:
    run = windows(Panes(10 * MS, 5 * MS))
    batch(run, "| k | at | v |\n| a | 7 | 1 |\n| a | 12 | 2 |", watermark=0)
    same(
        batch(run, "", watermark=100),
        """
        | k | window_start | window_end | n | total |
        | a | 0            | 10         | 1 | 1     |
        | a | 5            | 15         | 2 | 3     |
        | a | 10           | 20         | 1 | 2     |
        """,
    )


def test_sessions_grow_swallow_each_other_and_close() -> None:
    run = windows(Sessions(10 * MS), changes=True)
    batch(run, "| k | at | v |\n| a | 0 | 1 |\n| a | 15 | 2 |\n| b | 15 | 9 |", watermark=0)
    same(
        batch(run, "| k | at | v |\n| a | 8 | 4 |\n| c | 40 | 1 |", watermark=5),
        """
        | k | window_start | window_end | n | total | final |
        | a | 15           | 25         | - | -     | false |
        | a | 0            | 25         | 3 | 7     | false |
        | c | 40           | 50         | 1 | 1     | false |
        """,
    )
    same(
        batch(run, "| k | at | v |\n| a | 20 | 1 |\n| c | 35 | 1 |", watermark=30),
        """
        | k | window_start | window_end | n | total | final | late  |
        | a | 0            | 25         | 3 | 7     | true  | false |
        | b | 15           | 25         | 1 | 9     | true  | false |
        | a | 20           | 30         | 1 | 1     | true  | true  |
        | c | 40           | 50         | - | -     | false | false |
        | c | 35           | 50         | 2 | 2     | false | false |
        """,
    )


def test_a_gap_of_exactly_the_size_parts_two_sessions() -> None:
    run = windows(Sessions(10 * MS))
    batch(run, "| k | at | v |\n| a | 0 | 1 |\n| a | 10 | 2 |\n| a | 19 | 2 |", watermark=0)
    same(
        batch(run, "", watermark=100),
        "| k | window_start | window_end | n |\n| a | 0 | 10 | 1 |\n| a | 10 | 29 | 2 |",
    )


def test_a_window_is_woken_when_it_is_over_and_not_before() -> None:
    logic = windows(Sessions(10 * MS + 500)).logic
    rows = pa.table({"k": ["a"], START: pa.array([0]), **{name: pa.array([1]) for name in PARTS}})
    step = logic.step(logic.state.empty_table(), rows.append_column(END, pa.array([10 * MS + 500])), 0, 1)
    assert step.wake == 11


def test_no_row_of_a_frame_that_is_no_stream_is_late_not_even_one_before_1970() -> None:
    logic = windows(Panes(10 * MS, 10 * MS)).logic
    rows = {"k": ["a", "a"], START: pa.array([-(10**15), 5]), BUCKET: [0, 0]} | {p: pa.array([1, 1]) for p in SOURCES}
    blobs = pa.array([packed(logic.before(pa.table(rows)).drop_columns([BUCKET]))], pa.binary())
    made = [unpacked(blob.as_buffer()) for blob in _once(logic)(pa.table({BLOB: blobs}))[BLOB]]
    assert [(row["final"], row["late"]) for row in pa.concat_tables(made).to_pylist()] == [(True, False)] * 2


@pytest.mark.parametrize("shape", [Panes(10 * MS, 10 * MS), Panes(20 * MS, 5 * MS), Sessions(7 * MS)])
def test_every_row_is_in_a_final_or_a_late_result(shape: WindowShape) -> None:
    draw, run, sent, results = random.Random(3), windows(shape), [], []
    for number in range(25):
        rows = [(draw.choice("abc"), max(0, number * 20 + draw.randint(-60, 20))) for _ in range(6)]
        sent += rows
        text = "\n".join(["| k | at | v |", *(f"| {k} | {at} | 1 |" for k, at in rows)])
        results += batch(run, text, watermark=max(0, number * 20 - 30))
    results += batch(run, "", watermark=10**6)
    copies = shape.size // shape.step if isinstance(shape, Panes) else 1
    counted = Counter[str]()
    for row in results:
        counted[row["k"]] += row["n"]
    assert counted == {k: n * copies for k, n in Counter(k for k, _ in sent).items()}
    assert any(row["late"] for row in results) and not len(run.state)
