"""Snapshots on a real node: rows of every kind; also under writes and after a crash, compared with the table."""

from __future__ import annotations

import datetime as dt
import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from cdc_queries import Sink, run
from pyspark.errors import StreamingQueryException
from pyspark.sql import Row

from penstock.errors import PenstockError

SECOND = dt.timedelta(seconds=1)


def old() -> int:
    """A write time before the snapshot, but recent enough that the server accepts it."""
    return int((time.time() - 3) * 1e6)


@pytest.mark.slow
def test_rows_of_every_kind(cql: Any, table: Any, read: Any, tmp_path: Path) -> None:
    cql.execute("CREATE TYPE IF NOT EXISTS source_live.place (street text, lines frozen<list<int>>)")
    name = table(
        """p text, q int, c text, d int, s int static, t set<text> static, v decimal, l list<int>, m map<text, int>,
           u place, PRIMARY KEY ((p, q), c, d)"""
    )
    wide = cql.prepare(f"INSERT INTO {name} (p, q, c, d, v) VALUES ('wide', 1, ?, ?, 1.50) USING TIMESTAMP {old()}")
    for number in range(90):
        cql.execute(wide, ("abc"[number // 30], number))
    for text in (
        "(p, q, s, t) VALUES ('static', 1, 7, {'x', 'y'})",
        "(p, q, s, c, d, l, m, u) VALUES ('both', 1, 8, 'k', 1, [3, 1], {'a': 1}, {street: 'x', lines: [1]})",
        "(p, q, c, d) VALUES ('key only', 1, 'k', 1)",
    ):
        cql.execute(f"INSERT INTO {name} {text} USING TIMESTAMP {old()}")
    sink = Sink()
    run(read(name, start="snapshot", images="full", confidence=SECOND, max_rows=60, page_size=7), sink, tmp_path)
    assert {row.op for row in sink.rows} == {"r"}
    assert {(row.before, row.operation, row.ttl, row.stream_id) for row in sink.rows} == {(None, None, None, None)}
    assert sorted(row.key.d for row in sink.rows if row.key.p == "wide") == list(range(90))
    found = {(row.key.p, row.key.c): row for row in sink.rows}
    assert len(sink.rows) == 94
    static, both = found["static", None].after.asDict(), found["both", "k"]
    assert (static["s"], sorted(static["t"]), static["c"], static["v"]) == (7, ["x", "y"], None, None)
    assert (found["both", None].after.s, both.after.s) == (8, None)
    assert both.after.asDict(recursive=True) | {"l": [3, 1], "m": {"a": 1}} == both.after.asDict(recursive=True)
    assert (both.after.u.street, both.delta.m, both.delta.l) == ("x", {"a": 1}, None)
    assert (both.written, both.deleted) == (["l", "m", "u"], [])
    assert (found["key only", "k"].written, found["key only", "k"].after.v) == ([], None)
    cql.execute(f"INSERT INTO {name} (p, q, c, d) VALUES ('new', 1, 'k', 1)")
    later = Sink()
    run(read(name, start="snapshot", images="full"), later, tmp_path)
    assert [(row.op, row.key.p) for row in later.rows] == [("c", "new")]


def test_a_table_of_keys_alone_and_an_empty_one(cql: Any, table: Any, read: Any, tmp_path: Path) -> None:
    name = table("id int PRIMARY KEY")
    run(read(name, start="snapshot"), empty := Sink(), tmp_path / "empty")
    cql.execute(f"INSERT INTO {name} (id) VALUES (1) USING TIMESTAMP {old()}")
    run(read(name, start="snapshot", confidence=SECOND), sink := Sink(), tmp_path / "one")
    assert empty.rows == []
    assert [(row.op, row.key.id, row.after.id, row.written) for row in sink.rows] == [("r", 1, 1, [])]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("images", ["none", "full"])
def test_a_first_batch_that_is_run_again_shows_no_value_before_an_older_one(
    cql: Any, table: Any, read: Any, tmp_path: Path, images: str
) -> None:
    name = table("p int PRIMARY KEY, c int, v int")
    cql.execute(f"INSERT INTO {name} (p, v) VALUES (1, 1) USING TIMESTAMP {old()}")
    with pytest.raises(StreamingQueryException, match="the sink broke"):
        run(read(name, start="snapshot", images=images), Sink(fail_at=0), tmp_path)
    for value in (2, 3):
        cql.execute(f"UPDATE {name} SET v = %s WHERE p = 1", (value,))
    run(read(name, start="snapshot", images=images), sink := Sink(), tmp_path)
    assert [row.delta.v for row in sink.rows if "v" in row.written] == [2, 3]


def test_a_snapshot_has_no_log_rows(read: Any) -> None:
    with pytest.raises(PenstockError, match="a snapshot has no log rows"):
        read("source_live.any", start="snapshot", rows="log")


PARTITIONS, ROWS = 60, 10


@contextmanager
def writers(cql: Any, name: str, *, inserts: int = 4) -> Iterator[None]:
    """Threads that write to the first half of the partitions; in a row each value is greater than all earlier ones.

    Of 18 writes as many are inserts, which write all columns.
    """
    insert = cql.prepare(f"INSERT INTO {name} (p, c, v, w) VALUES (?, ?, ?, ?)")
    update = cql.prepare(f"UPDATE {name} SET w = ? WHERE p = ? AND c = ?")
    static = cql.prepare(f"UPDATE {name} SET s = ? WHERE p = ?")
    delete = cql.prepare(f"DELETE FROM {name} WHERE p = ? AND c = ?")
    wipe = cql.prepare(f"DELETE FROM {name} WHERE p = ? AND c >= ?")
    done = Event()

    def write(share: int) -> None:
        dice, value = random.Random(share), 1
        while not done.wait(0.005):
            p, c, value = dice.randrange(share, PARTITIONS // 2, 3), dice.randrange(ROWS), value + 1
            statement, values = dice.choices(
                [(insert, (p, c, value, value)), (update, (value, p, c)), (static, (value, p)), (delete, (p, c)),
                 (wipe, (p, ROWS - 1))],
                [inserts, 12 - inserts, 3, 2, 1],
            )[0]  # fmt: skip
            cql.execute(statement, values)

    threads = [Thread(target=write, args=(share,)) for share in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        done.set()
        for thread in threads:
            thread.join()


def replay(rows: list[Row], *, whole_rows: bool = True) -> dict[tuple[int, int | None], dict[str, int | None]]:
    """The state after the events; fails if a value comes after a greater one.

    Without `whole_rows` of a change only what it wrote is taken.
    """
    state: dict[tuple[int, int | None], dict[str, int | None]] = {}
    newest: dict[tuple[int, int | None, str], int] = {}
    for row in rows:
        key = (row.key.p, row.key.c)
        if row.op == "d":
            first = row.range.start.c if row.range else None
            gone = [k for k in state if (k[0] == key[0] and k[1] is not None and k[1] >= first if first else k == key)]
            for k in gone:
                del state[k]
            continue
        values = {column: row.delta[column] for column in row.written}
        for column, value in values.items():
            assert value >= newest.get((*key, column), 0), (key, column, row.op)
            newest[*key, column] = value
        whole = row.after.asDict() if row.after and whole_rows else state.get(key, {}) | values
        state[key] = values if row.op == "r" else whole
    return {key: {c: v for c, v in values.items() if v is not None and c not in "pc"} for key, values in state.items()}


def filled(cql: Any, table: Any) -> str:
    """A table with `PARTITIONS` of `ROWS` rows that the log does not have."""
    name: str = table("p int, c int, s int static, v int, w int, PRIMARY KEY (p, c)")
    fill = cql.prepare(f"INSERT INTO {name} (p, c, s, v, w) VALUES (?, ?, 1, 1, 1)")
    # Rows that are written without a log are not changes, even if they are very recent.
    cql.execute(f"ALTER TABLE {name} WITH cdc = {{'enabled': false}}")
    for p in range(PARTITIONS):
        for c in range(ROWS):
            cql.execute(fill, (p, c))
    cql.execute(f"ALTER TABLE {name} WITH cdc = {{'enabled': true, 'preimage': 'full', 'postimage': true}}")
    return name


def assert_ends_as_the_table(cql: Any, name: str, rows: list[Row], *, whole_rows: bool = True) -> None:
    """The state after these events is that of the table (see `replay`)."""
    table_rows = list(cql.execute(f"SELECT p, c, s, v, w FROM {name}"))
    expected = {(p, c): {"v": v, "w": w} for p, c, _, v, w in table_rows if c is not None}
    expected |= {(p, None): {"s": s} for p, _, s, _, _ in table_rows if s is not None}
    assert {key: values for key, values in replay(rows, whole_rows=whole_rows).items() if values} == {
        key: values for key, columns in expected.items() if (values := {c: v for c, v in columns.items() if v})
    }


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("images", "latency", "whole_rows"), [("full", "safe", True), ("none", "low", True), ("full", "safe", False)]
)
def test_a_snapshot_under_writes_leads_to_the_table_as_it_is(
    cql: Any, table: Any, read: Any, tmp_path: Path, images: str, latency: str, whole_rows: bool
) -> None:
    name = filled(cql, table)
    options = {"start": "snapshot", "images": images, "max_rows": 250, "page_size": 40, "latency": latency}
    options |= {"whole_rows": whole_rows}
    first, second, third = Sink(fail_at=1), Sink(), Sink()
    # Without inserts, what an update does not write is known from the snapshot alone.
    with writers(cql, name, inserts=4 if whole_rows else 0):
        with pytest.raises(StreamingQueryException, match="the sink broke"):
            run(read(name, confidence=10 * SECOND, **options), first, tmp_path)
        run(read(name, confidence=10 * SECOND, **options), second, tmp_path)
    run(read(name, **options), third, tmp_path)
    rows = [*first.rows, *second.rows, *third.rows]
    snapshot = [row for row in rows if row.op == "r"]
    keys = {(row.key.p, row.key.c) for row in snapshot}
    assert len(keys) == len(snapshot)
    assert {(p, c) for p in range(PARTITIONS // 2, PARTITIONS) for c in [None, *range(ROWS)]} <= keys
    assert_ends_as_the_table(cql, name, rows, whole_rows=whole_rows)


def ask(file: Path, *signals: tuple[str, dict[str, str]]) -> None:
    """Write signals for a query; each is a type, and the filters by table."""
    listed = [{"number": i, "id": f"id {i}", "type": one[0], "tables": one[1]} for i, one in enumerate(signals, 1)]
    file.write_text(json.dumps({"signals": listed}))


@pytest.mark.slow
@pytest.mark.parametrize(("images", "latency"), [("full", "safe"), ("none", "low")])
def test_an_ad_hoc_snapshot_under_writes_leads_to_the_table_as_it_is(
    cql: Any, table: Any, read: Any, tmp_path: Path, images: str, latency: str
) -> None:
    name, file = filled(cql, table), tmp_path / "signals"
    options = {"images": images, "latency": latency, "signals": str(file), "chunk_rows": 150, "page_size": 40}
    first, second, third, fourth = Sink(), Sink(fail_at=3), Sink(), Sink()
    with writers(cql, name):
        run(read(name, confidence=SECOND, **options), first, tmp_path / "query")
        ask(file, ("execute-snapshot", {name: "", "ks.other": ""}), ("pause-snapshot", {"ks.other": ""}))
        with pytest.raises(StreamingQueryException, match="the sink broke"):
            run(read(name, confidence=SECOND, **options), second, tmp_path / "query")
        run(read(name, confidence=SECOND, **options), third, tmp_path / "query")
    run(read(name, **options), fourth, tmp_path / "query")
    assert {row.op for row in first.rows} <= {"c", "u", "d"}
    rows = [*first.rows, *second.rows, *third.rows, *fourth.rows]
    snapshot = [row for row in rows if row.op == "r"]
    keys = {(row.key.p, row.key.c) for row in snapshot}
    assert len(keys) == len(snapshot) and {row.operation for row in snapshot} == {0}
    assert {(p, c) for p in range(PARTITIONS // 2, PARTITIONS) for c in [None, *range(ROWS)]} <= keys
    # Chunks and batches of the log take turns.
    assert any(row.op == "r" for row in third.rows) and sum(map(bool, third.batches.values())) > 2
    assert_ends_as_the_table(cql, name, rows)
