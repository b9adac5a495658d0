"""`write_times=True`: when values were written and when they expire, and whole lists; on a real node."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest
from cdc_queries import Sink, run
from pyspark.sql import Row, SparkSession
from waiting import patience, until

from penstock import cdc
from penstock.cdc.cdc_options import settings
from penstock.cdc.cdc_tables import frame_schema
from penstock.cdc.generations import FIRST_TOKEN, LAST_TOKEN, Span, TokenRange, now_micros
from penstock.cdc.partition_read import read_range, read_span
from penstock.cdc.planner import Planner, describe as described
from penstock.database import write_times
from penstock.errors import PenstockError
from penstock.local.services import Services

COLUMNS = (
    "k int, c int, s int static, v int, m map<text, int>, l list<int>, u frozen<tuple<int, int>>, PRIMARY KEY (k, c)"
)
Table = Callable[..., str]


def lasts(expiry: float, written: float) -> bool:
    """Whether a value expires 5000 seconds after it was written.

    The node's clock and ours are read at different times, and both are rounded.
    """
    return abs(expiry - written - 5000) <= patience(4)


@pytest.fixture
def read(spark: SparkSession, services: Services, tmp_path: Path) -> Callable[..., list[Row]]:
    """The rows of a query on the changes of a table."""

    def read(table: str, start: str = "earliest") -> list[Row]:
        sink = Sink()
        frame = cdc.read(spark, table, hosts=services.cql, name="times", start=start, latency="low", write_times=True)
        run(frame, sink, tmp_path / start)
        return sink.rows

    return read


def test_a_row_of_a_snapshot_has_the_times_of_its_values(
    table: Table, cql: Any, read: Callable[..., list[Row]]
) -> None:
    name = table(COLUMNS)
    began = time.time_ns() // 1000 - 100
    cql.execute(f"INSERT INTO {name} (k, c, v, m) VALUES (1, 2, 3, {{'a': 1}}) USING TIMESTAMP {began}")
    cql.execute(f"UPDATE {name} USING TIMESTAMP {began + 1} AND TTL 5000 SET m['b'] = 2, l = [7] WHERE k = 1 AND c = 2")
    cql.execute(f"UPDATE {name} USING TIMESTAMP {began + 2} SET s = 4 WHERE k = 1")
    written = time.time()
    static, row = (one for one in read(name, "snapshot") if one.op == "r")
    assert (static.write_times.s, static.write_times.v, static.expiries.s) == (began + 2, None, None)
    assert (row.write_times.v, row.write_times.m, row.write_times.s) == (began, [began, began + 1], None)
    assert row.write_times.l == [began + 1] and row.write_times.u is None
    assert row.expiries.v is None and row.expiries.m[0] is None
    assert lasts(row.expiries.m[1], written) and lasts(row.expiries.l[0], written)
    # The changes since before the snapshot come after it, and its rows are older than all of them.
    assert row.after.v == 3 and row.ts.timestamp() * 1_000_000 < began and row.expires is None


def test_a_change_says_when_its_values_expire(table: Table, cql: Any, read: Callable[..., list[Row]]) -> None:
    name = table(COLUMNS)
    until(lambda: _is_inserted_with_an_old_time(cql, name), "log that takes writes with older times")
    cql.execute(f"INSERT INTO {name} (k, c, v) VALUES (1, 1, 1) USING TTL 5000")
    written = time.time()
    cql.execute(f"INSERT INTO {name} (k, c, v) VALUES (1, 3, 1)")
    found = {row.key.c: row for row in read(name)}
    assert found[3].expires is None
    # A time to live counts from the clock, also if the client's timestamp is another one.
    assert lasts(found[1].expires.timestamp(), written)
    later = found[2].expires.timestamp() - found[2].ts.timestamp() - 5000
    assert abs(later - OLD) <= patience(4)


OLD = 12
"""Seconds by which the timestamp of a write is before its time."""


def _is_inserted_with_an_old_time(cql: Any, name: str) -> bool:
    """Write a row; false if the node has not been there for so long."""
    at = time.time_ns() // 1000 - OLD * 1_000_000
    try:
        cql.execute(f"INSERT INTO {name} (k, c, v) VALUES (1, 2, 1) USING TIMESTAMP {at} AND TTL 5000")
    except InvalidRequest as error:
        assert "from the past" in str(error)
        return False
    return True


@pytest.mark.parametrize("page_size", ["2", "5000"])
def test_a_row_of_a_snapshot_says_when_it_was_inserted(
    table: Table, cql: Any, services: Services, page_size: str
) -> None:
    name = table("k int, c int, d int, s int static, v int, PRIMARY KEY (k, c, d)")
    began = time.time_ns() // 1000 - 1000
    expected: dict[tuple[int, int, int | None], int | None] = {}
    for number in range(90):
        k, c, d = number % 4, number % 5, number
        text = f"INSERT INTO {name} (k, c, d) VALUES ({k}, {c}, {d}) USING TIMESTAMP {began + number}"
        if number % 3:
            text = f"UPDATE {name} USING TIMESTAMP {began + number} SET v = 1 WHERE k = {k} AND c = {c} AND d = {d}"
        expected[k, c, d] = None if number % 3 else began + number
        cql.execute(text)
    cql.execute(f"UPDATE {name} SET s = 1 WHERE k = 2")
    cql.execute(f"UPDATE {name} SET s = 1 WHERE k = 9")
    rows = _snapshot(services.cql, name, page_size)
    found = {tuple(row["key"].values()): row["inserted"] for row in rows if row["key"]["d"] is not None}
    assert found == {key: {"time": at, "expires": None} for key, at in expected.items()}
    cql.execute(f"INSERT INTO {name} (k, c, d, v) VALUES (8, 1, 1, 1) USING TTL 5000")
    written = time.time()
    (row,) = (row for row in _snapshot(services.cql, name, page_size) if row["key"]["k"] == 8)
    assert row["inserted"]["time"] == row["write_times"]["v"] and lasts(row["inserted"]["expires"], written)


def test_nodes_that_do_not_show_markers_leave_it_open(
    table: Table, cql: Any, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_times, "MARKED", "NO_SUCH_STATEMENT")
    name = table(COLUMNS)
    cql.execute(f"INSERT INTO {name} (k, c, v) VALUES (1, 1, 1)")
    assert [row["inserted"] for row in _snapshot(services.cql, name, "5000")] == [None]


def _snapshot(cql: str, name: str, page_size: str) -> list[dict[str, Any]]:
    """The rows of a table, read in this process."""
    chosen = settings({"table": name, "hosts": cql, "write_times": "true", "page_size": page_size})
    table, now = described(chosen), now_micros()
    part = TokenRange(FIRST_TOKEN, LAST_TOKEN, (), now, now)
    batches = read_range(chosen, table, frame_schema(table, write_times=True), part)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("of", ["rows", "log"])
def test_expiries_stay_while_a_page_waits(table: Table, cql: Any, services: Services, of: str) -> None:
    """The next page is requested at once, and waits for as long as whoever applies the changes is held up."""
    name = table(COLUMNS)
    for number in range(3):
        cql.execute(f"INSERT INTO {name} (k, c, v) VALUES (1, {number}, 1) USING TTL 5000")
    chosen = settings({"table": name, "hosts": services.cql, "write_times": "true", "page_size": "1"})
    planner = Planner(chosen, described(chosen))
    schema, now = frame_schema(planner.table, write_times=True), now_micros()
    if of == "rows":
        part = TokenRange(FIRST_TOKEN, LAST_TOKEN, (), now, now)
        batches = read_range(chosen, planner.table, schema, part)
    else:
        streams = planner.generations.streams(planner.generations.starts()[-1])
        batches = read_span(chosen, planner.table, schema, Span(streams, now - HOUR, now + HOUR, now))
    found = [next(batches)]
    held = time.monotonic() + HELD
    until(lambda: time.monotonic() > held, "time in which a page waits")
    found += batches
    expiries = [
        row["expires"].timestamp() if of == "log" else row["expiries"]["v"]
        for batch in found
        for row in batch.to_pylist()
    ]
    assert len(expiries) == 3 and max(expiries) - min(expiries) < HELD - 1


HOUR = 3_600_000_000
HELD = 4


def test_a_change_of_some_elements_has_the_whole_list(table: Table, cql: Any, read: Callable[..., list[Row]]) -> None:
    name = table(COLUMNS)
    cql.execute(f"INSERT INTO {name} (k, c, l) VALUES (1, 1, [1, 2])")
    cql.execute(f"UPDATE {name} USING TTL 5000 SET l = l + [3] WHERE k = 1 AND c = 1")
    cql.execute(f"UPDATE {name} SET l = [9] + l WHERE k = 1 AND c = 2")
    written = time.time()
    cql.execute(f"DELETE l FROM {name} WHERE k = 1 AND c = 2")
    cql.execute(f"UPDATE {name} SET v = 1 WHERE k = 1 AND c = 3")
    inserted, appended, prepended, deleted, other = read(name)
    assert appended.lists.l["values"] == [1, 2, 3] and appended.lists.l.expiries[:2] == [None, None]
    assert lasts(appended.lists.l.expiries[2], written)
    # The list is read after the change: it is gone by then.
    assert prepended.lists.l["values"] == []
    assert [one.lists.l for one in (inserted, deleted, other)] == [None] * 3


def test_rows_of_the_log_have_no_such_columns(spark: SparkSession, services: Services, table: Table) -> None:
    with pytest.raises(PenstockError, match='write_times does not work with rows "log"'):
        cdc.read(spark, table(COLUMNS), hosts=services.cql, name="times", rows="log", write_times=True)
