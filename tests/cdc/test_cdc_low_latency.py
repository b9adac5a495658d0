"""Low latency on a real node: rows at once, late rows too, each once; restarts, and switching from and to safe."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cdc_queries import Sink, run
from checkpoints import forget_last_commit
from pyspark.sql import DataFrame
from waiting import PATIENCE

CONFIDENCE = dt.timedelta(seconds=30)


@pytest.fixture
def low(read: Any) -> Callable[..., DataFrame]:
    return lambda table, **options: read(table, **{"latency": "low", "confidence": CONFIDENCE} | options)


def write(cql: Any, name: str, ids: Any, ago: dt.timedelta = dt.timedelta(0)) -> None:
    """Insert a row for each id, with timestamps in the past."""
    insert = cql.prepare(f"INSERT INTO {name} (id, v) VALUES (?, 1) USING TIMESTAMP ?")
    for number in ids:
        cql.execute(insert, (number, int((time.time() - ago.total_seconds()) * 1e6)))


def ids(sink: Sink) -> list[int]:
    return sorted(row.key.id for row in sink.rows)


@contextmanager
def running(frame: DataFrame, sink: Sink, checkpoint: Path) -> Iterator[Callable[[int], None]]:
    """Run a query without pauses; yields a function that waits until the sink holds at least `rows` rows."""
    writer = frame.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="0 seconds").start()

    def wait(rows: int) -> None:
        with sink.kept:
            assert sink.kept.wait_for(lambda: len(sink.rows) >= rows, timeout=PATIENCE), query.exception()

    try:
        yield wait
    finally:
        query.stop()


def test_rows_come_at_once_and_late_ones_once(cql: Any, table: Any, low: Any, tmp_path: Path) -> None:
    name = table("id int PRIMARY KEY, v int")
    sink = Sink()
    with running(low(name), sink, tmp_path) as wait:
        # In a cold session the first batch takes seconds.
        write(cql, name, range(10))
        wait(10)
        write(cql, name, range(10, 20))
        wait(20)
        assert all(row.read_ts - row.ts < CONFIDENCE for row in sink.rows[10:])
        write(cql, name, range(20, 30), ago=dt.timedelta(seconds=1))
        wait(30)
        # Older than the two seconds that plans look back: found when their time becomes complete.
        write(cql, name, range(30, 40), ago=dt.timedelta(seconds=23))
        write(cql, name, range(40, 50))
        wait(50)
    assert ids(sink) == list(range(50))
    assert all(row.read_ts - row.ts >= CONFIDENCE for row in sink.rows if 30 <= row.key.id < 40)


@pytest.mark.slow
def test_a_restart_repeats_nothing_and_finds_what_came_late(cql: Any, table: Any, low: Any, tmp_path: Path) -> None:
    name = table("id int PRIMARY KEY, v int")
    write(cql, name, range(300))
    first, second, third = Sink(), Sink(), Sink()
    frame = low(name, confidence="20 seconds", max_rows=100)
    run(frame, first, tmp_path)
    write(cql, name, [300], ago=dt.timedelta(seconds=3))
    forget_last_commit(tmp_path)
    run(frame, second, tmp_path)
    assert sorted(second.seen[0][1]) == sorted(first.seen[-1][1])
    write(cql, name, [301])
    run(frame, third, tmp_path)
    again = [row for _, rows in second.seen[1:] for row in rows]
    assert sorted(row.key.id for row in [*first.rows, *again, *third.rows]) == list(range(302))


@pytest.mark.slow
def test_a_checkpoint_serves_both_latencies(cql: Any, table: Any, low: Any, read: Any, tmp_path: Path) -> None:
    name = table("id int PRIMARY KEY, v int")
    sinks = [Sink() for _ in range(4)]
    write(cql, name, range(10))
    run(read(name, confidence=dt.timedelta(0)), sinks[0], tmp_path)
    complete = time.time()
    write(cql, name, range(10, 20))
    run(low(name), sinks[1], tmp_path)
    # Late for the low latency, in time for the safe one, however long the run between them took.
    write(cql, name, [20], ago=dt.timedelta(seconds=time.time() - complete))
    run(read(name, confidence=dt.timedelta(0)), sinks[2], tmp_path)
    write(cql, name, range(21, 30))
    run(low(name), sinks[3], tmp_path)
    assert [ids(sink) for sink in sinks] == [list(range(10)), list(range(10, 20)), [20], list(range(21, 30))]
