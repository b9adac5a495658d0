"""The source on a real node, through Spark: what arrives, in what order, and what happens when something is wrong."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import BoundStatement
from cassandra.util import uuid_from_time
from cdc_queries import Sink, run
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from penstock import cql as cql_module
from penstock.cdc import batch_sizing
from penstock.cdc.cdc_options import settings
from penstock.cdc.cdc_source import CdcStreamReader
from penstock.cdc.cdc_tables import find_table, frame_schema
from penstock.cdc.generations import Generations, micros
from penstock.cdc.planner import MOVE_EVERY, Planner, describe
from penstock.checkpoint.checkpoint_folder import Local
from penstock.database.cql_connection import connection
from penstock.errors import PenstockError
from penstock.metrics.delays import bad_records
from penstock.run.faults import of_query
from penstock.run.positions import move

KEYSPACE = "source_live"
BRIEF = "{'enabled': true, 'ttl': 60}"
MINUTE = 60_000_000


def test_every_type_arrives(cql: Any, table: Any, read: Any, tmp_path: Path) -> None:
    cql.execute(f"CREATE TYPE IF NOT EXISTS {KEYSPACE}.address (street text, lines frozen<list<int>>)")
    name = table(
        """id int PRIMARY KEY, a ascii, b bigint, c blob, d boolean, e date, f decimal, g double, h duration, i float,
           j inet, k smallint, l text, m time, n timestamp, o timeuuid, p tinyint, q uuid, r varchar, s varint,
           fl frozen<list<int>>, fs frozen<set<text>>, fm frozen<map<int, text>>, t tuple<int, text>,
           ud address, fu frozen<address>, li list<int>, se set<text>, ma map<text, int>, v vector<float, 2>"""
    )
    cql.execute(
        f"""INSERT INTO {name} (id, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, fl, fs, fm, t, ud, fu,
            li, se, ma, v) VALUES (1, 'ascii', -9223372036854775808, 0x00ff, true, '1969-12-31', 12345.670, 0.1,
            -1mo2d3ns, 1.5, '2001:db8::1', -32768, 'üñï', '23:59:59.999999999', '2026-01-31T12:00:00.123Z',
            50554d6e-29bb-11e5-b345-feff819cdc9f, -128, 123e4567-e89b-12d3-a456-426614174000, 'v',
            170141183460469231731687303715884105727000, [3, 1], {{'b', 'a'}}, {{2: 'two'}}, (1, null),
            {{street: 'x', lines: [1]}}, {{street: null, lines: [2]}}, [3, 1, 2], {{'b', 'a'}}, {{'k': 1}}, [1, 2])"""
    )
    sink = Sink()
    run(read(name, images="full"), sink, tmp_path)
    (change,) = sink.rows
    assert change.before is None
    assert change.after.asDict(recursive=True) == {
        "id": 1,
        "a": "ascii",
        "b": -(2**63),
        "c": bytearray(b"\x00\xff"),
        "d": True,
        "e": dt.date(1969, 12, 31),
        "f": "12345.670",
        "g": 0.1,
        "h": "-1mo2d3ns",
        "i": 1.5,
        "j": "2001:db8:0:0:0:0:0:1",
        "k": -32768,
        "l": "üñï",
        "m": 86399999999999,
        "n": dt.datetime(2026, 1, 31, 12, 0, 0, 123000),  # noqa: DTZ001 (Spark gives naive local time, here UTC)
        "o": "50554d6e-29bb-11e5-b345-feff819cdc9f",
        "p": -128,
        "q": "123e4567-e89b-12d3-a456-426614174000",
        "r": "v",
        "s": "170141183460469231731687303715884105727000",
        "fl": [3, 1],
        "fs": ["a", "b"],
        "fm": {2: "two"},
        "t": {"field_0": 1, "field_1": None},
        "ud": {"street": "x", "lines": [1]},
        "fu": {"street": None, "lines": [2]},
        "li": [3, 1, 2],
        "se": ["a", "b"],
        "ma": {"k": 1},
        "v": [1.0, 2.0],
    }


def test_changes_of_a_row_keep_their_order_and_their_images(cql: Any, table: Any, read: Any, tmp_path: Path) -> None:
    name = table("id int, n int, v int, PRIMARY KEY (id, n)")
    update = cql.prepare(f"UPDATE {name} SET v = ? WHERE id = ? AND n = 0")
    for value in range(40):
        for key in range(5):
            cql.execute(update, (value, key))
    sink = Sink()
    run(read(name, images="full", partitions=3), sink, tmp_path)
    for key in range(5):
        changes = [(row.before and row.before.v, row.after.v) for row in sink.rows if row.key.id == key]
        assert changes == [(value - 1 if value else None, value) for value in range(40)]


def log_inserts(cql: Any, name: str, count: int, pace: dt.timedelta, hot: int | None = None) -> list[int]:
    """Put inserts of the ids 0, 1, ... directly into the log, one per `pace`: the server accepts no old writes.

    Each stream gets its share of the ring; with `hot`, all but every `hot`-th go to one stream. Returns all times in
    microseconds.
    """
    published = Generations(cql)
    shares = published.shares(published.starts()[-1])
    drawn = random.Random(count).choices(list(shares), list(shares.values()), k=count)
    insert = cql.prepare(
        f'INSERT INTO {name}_scylla_cdc_log ("cdc$stream_id", "cdc$time", "cdc$batch_seq_no", "cdc$operation", id) '
        "VALUES (?, ?, 0, 2, ?)"
    )
    begin = dt.datetime.now(dt.UTC) - count * pace
    times = [begin + number * pace for number in range(count)]
    streams = [drawn[n] if hot is None or n % hot == 0 else drawn[0] for n in range(count)]
    rows = [(streams[n], uuid_from_time(time.timestamp()), n) for n, time in enumerate(times)]
    execute_concurrent_with_args(cql, insert, rows)
    return [micros(time) for time in times]


@pytest.mark.slow
def test_a_query_that_lags_takes_its_rows_in_bounded_batches(cql: Any, table: Any, read: Any, tmp_path: Path) -> None:
    name = table("id int PRIMARY KEY, v int")
    log_inserts(cql, name, 400, dt.timedelta(seconds=1))
    sink = Sink()
    run(read(name, max_rows=100), sink, tmp_path)
    assert sorted(row.key.id for row in sink.rows) == list(range(400))
    sizes = [len(rows) for rows in sink.batches.values()]
    assert max(sizes) <= 100
    assert len(sizes) <= 9


@pytest.mark.slow
def test_a_large_batch_is_judged_by_some_streams_and_the_heavy_ones(
    cql: Any, table: Any, services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = table("id int PRIMARY KEY, v int")
    times = np.array(log_inserts(cql, name, 8000, dt.timedelta(milliseconds=10), hot=2))
    chosen = settings({"table": name, "hosts": services.cql, "confidence": "0 seconds"})
    planner = Planner(chosen, find_table(connection(chosen.access).rows, name))
    at = planner.next(planner.first(), planner.confident(), 1000)
    taken = [int((times <= at.time).sum())]
    assert 500 <= taken[0] <= 1000
    monkeypatch.setattr(batch_sizing, "SAMPLE", 100)
    while at.time < times[-1]:
        at = planner.next(at, planner.confident(), 1000)
        taken.append(int((times <= at.time).sum()))
    assert taken[-1] == len(times)
    sizes = np.diff(taken)
    assert max(sizes) < 2000 and min(sizes[:-1]) >= 250


@pytest.mark.slow
def test_a_batch_covers_no_more_time_than_it_may(cql: Any, table: Any, read: Any, tmp_path: Path) -> None:
    name = table("id int PRIMARY KEY, v int")
    log_inserts(cql, name, 60, dt.timedelta(minutes=1))
    sink = Sink()
    run(read(name, max_time=dt.timedelta(minutes=10)), sink, tmp_path)
    assert len(sink.rows) == 60
    for rows in sink.batches.values():
        times = [row.ts for row in rows]
        assert not times or max(times) - min(times) <= dt.timedelta(minutes=10)


def test_an_idle_query_plans_no_batch_but_moves_now_and_then(cql: Any, table: Any, services: Any) -> None:
    name = table("id int PRIMARY KEY, v int")
    chosen = settings({"table": name, "hosts": services.cql, "confidence": "0 seconds"})
    link = connection(chosen.access).rows
    planner = Planner(chosen, find_table(link, name))
    first = planner.first()
    at = planner.next(first, planner.confident(), 1000)
    assert not planner.idle(first, at)
    until = planner.next(at, planner.confident(), 1000)
    assert planner.idle(at, until)
    assert not planner.idle(at, replace(until, planned=at.planned + MOVE_EVERY))
    cql.execute(f"INSERT INTO {name} (id, v) VALUES (1, 1)")
    written = planner.next(at, planner.confident(), 1000)
    assert not planner.idle(at, written)
    assert planner.idle(written, planner.next(written, planner.confident(), 1000))
    # The offset moves before its age suggests that rows after it expired, even with a short ttl.
    planner.table = replace(planner.table, cdc=(("ttl", "4"),))
    assert not planner.idle(at, replace(until, planned=at.planned + 2_000_000))


def test_a_batch_that_broke_is_read_again_with_the_same_rows(cql: Any, table: Any, read: Any, tmp_path: Path) -> None:
    name = table("id int PRIMARY KEY, v int")
    for number in range(50):
        cql.execute(f"INSERT INTO {name} (id, v) VALUES (%s, 1)", (number,))
    broken = Sink(fail_at=0)
    with pytest.raises(StreamingQueryException, match="the sink broke"):
        run(read(name), broken, tmp_path)
    for number in range(50, 80):
        cql.execute(f"INSERT INTO {name} (id, v) VALUES (%s, 1)", (number,))
    healed = Sink()
    run(read(name), healed, tmp_path)
    assert sorted(healed.batches[0]) == sorted(broken.seen[0][1])
    assert sorted(row.key.id for row in healed.rows) == list(range(80))


def reader(services: Any, name: str, **options: str) -> CdcStreamReader:
    """The source's reader as Spark calls it."""
    chosen = settings({"table": name, "hosts": services.cql, "confidence": "0 seconds"} | options)
    table = describe(chosen)
    return CdcStreamReader(chosen, table, frame_schema(table))


@pytest.mark.parametrize("latency", ["safe", "low"])
def test_a_first_batch_of_the_latest_that_broke_loses_no_row(cql: Any, table: Any, services: Any, latency: str) -> None:
    name = table("id int PRIMARY KEY, v int")
    options, most = {"start": "latest", "latency": latency}, ReadMaxRows(100)
    offsets = [(broken := reader(services, name, **options)).initialOffset()]
    cql.execute(f"INSERT INTO {name} (id, v) VALUES (1, 1)")
    offsets.append(broken.latestOffset(offsets[0], most))
    # Batch 0 runs again, with the beginning of a new query and the end that the first query chose.
    healed = reader(services, name, **options)
    offsets[0] = healed.initialOffset()
    offsets.append(healed.latestOffset(offsets[1], most))
    read = [
        row["key"]["id"]
        for span in pairwise(offsets)
        for part in healed.partitions(*span)
        for batch in healed.read(part)
        for row in batch.to_pylist()
    ]
    assert read == [1]


def test_a_column_added_while_reading_stops_the_query_and_loses_nothing(
    cql: Any, table: Any, read: Any, tmp_path: Path
) -> None:
    name = table("id int PRIMARY KEY, v int")
    cql.execute(f"INSERT INTO {name} (id, v) VALUES (1, 1)")
    stale = read(name)
    sink = Sink()
    run(stale, sink, tmp_path)
    cql.execute(f"ALTER TABLE {name} ADD w text")
    cql.execute(f"INSERT INTO {name} (id, v, w) VALUES (2, 2, 'new')")
    with pytest.raises(StreamingQueryException, match=r"SchemaChanged.*w text added"):
        run(stale, sink, tmp_path)
    run(read(name), sink, tmp_path)
    cql.execute(f"ALTER TABLE {name} DROP w")
    cql.execute(f"INSERT INTO {name} (id, v) VALUES (3, 3)")
    run(read(name), sink, tmp_path)
    found = [(row.key.id, row.delta.asDict().get("w")) for row in sink.rows]
    assert found == [(1, None), (2, "new"), (3, None)]


@pytest.fixture
def next_generation(cql: Any) -> Iterator[Callable[[], dt.datetime]]:
    """Publishes a generation that begins now, until the test ends: with low latency, its rows wait for the previous
    generation."""
    timestamps = "system_distributed.cdc_generation_timestamps"
    descriptions = "system_distributed.cdc_streams_descriptions_v2"
    published: list[dt.datetime] = []

    def publish() -> dt.datetime:
        times = [row[0] for row in cql.execute(f"SELECT time FROM {timestamps} WHERE key = 'timestamps'")]
        switch = dt.datetime.now(dt.UTC).replace(tzinfo=None, microsecond=0) + dt.timedelta(milliseconds=1)
        published.append(switch)
        # The same streams, so that the node's writes are still found under the new generation.
        ranges = cql.execute(f"SELECT range_end, streams FROM {descriptions} WHERE time = %s", (max(times),))
        insert = f"INSERT INTO {descriptions} (time, range_end, streams) VALUES (%s, %s, %s)"
        for end, streams in ranges:
            cql.execute(insert, (switch, end, streams))
        cql.execute(f"INSERT INTO {timestamps} (key, time) VALUES ('timestamps', %s)", (switch,))
        return switch

    yield publish
    for switch in published:
        cql.execute(f"DELETE FROM {timestamps} WHERE key = 'timestamps' AND time = %s", (switch,))
        cql.execute(f"DELETE FROM {descriptions} WHERE time = %s", (switch,))


def test_a_new_generation_of_streams_follows_the_old_one(
    cql: Any, table: Any, read: Any, next_generation: Callable[[], dt.datetime], tmp_path: Path
) -> None:
    name = table("id int PRIMARY KEY, v int")
    for number in range(20):
        cql.execute(f"INSERT INTO {name} (id, v) VALUES (%s, 1)", (number,))
    switch = next_generation()
    for number in range(20, 40):
        cql.execute(f"INSERT INTO {name} (id, v) VALUES (%s, 1)", (number,))
    sink = Sink()
    run(read(name), sink, tmp_path)
    assert sorted(row.key.id for row in sink.rows) == list(range(40))
    spans = [(min(r.ts for r in rows), max(r.ts for r in rows)) for rows in sink.batches.values() if rows]
    assert all(not first < switch <= last for first, last in spans)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("source_live.nosuch", {}, "there is no table source_live.nosuch"),
        ("nosuch.nosuch", {}, "does not exist or is empty"),
        ("source_live", {}, "is not the name of a table"),
        ("source_live.plain", {}, r"has no change log.*ALTER TABLE source_live.plain WITH cdc"),
        ("source_live.bare", {"images": "full"}, r"has no preimages.*'preimage': true"),
        ("source_live.brief", {"confidence": "60 seconds"}, "holds them 60 s, and confidence is 60 s"),
        ("source_live.bare", {"images": "some"}, "images cannot be 'some'"),
        ("source_live.bare", {"hosts": "a:b:c"}, "is not a valid address"),
        ("source_live.bare", {"start": "yesterday"}, "start cannot be 'yesterday'"),
        ("source_live.bare", {"confidence": "5 apples"}, "confidence is not a duration"),
        ("source_live.bare", {"max_rows": 0}, "max_rows is not a positive integer"),
        ("source_live.bare", {"consistency": "MOST"}, "is not a consistency level"),
        ("source_live.bare", {"confidense": "1 second"}, "did you mean 'confidence'"),
        ("source_live.bare", {"name": ""}, "needs a name"),
    ],
)
def test_what_is_wrong_is_said_when_the_frame_is_made(
    cql: Any, keyspace: str, read: Any, name: str, options: dict[str, Any], message: str
) -> None:
    cql.execute(f"CREATE TABLE IF NOT EXISTS {keyspace}.plain (id int PRIMARY KEY)")
    cql.execute(
        f"CREATE TABLE IF NOT EXISTS {keyspace}.bare (id int PRIMARY KEY, v int) WITH cdc = {{'enabled': true}}"
    )
    cql.execute(f"CREATE TABLE IF NOT EXISTS {keyspace}.brief (id int PRIMARY KEY) WITH cdc = {BRIEF}")
    with pytest.raises(PenstockError, match=message):
        read(name, **options)


def test_no_node_at_start_is_an_error_that_may_heal(read: Any) -> None:
    with pytest.raises(PenstockError, match=r"127\.0\.0\.1:1") as failure:
        read("source_live.any", hosts="127.0.0.1:1", patience=dt.timedelta(milliseconds=200))
    assert failure.value.retriable


def test_a_checkpoint_older_than_the_log_is_refused(cql: Any, table: Any, read: Any, tmp_path: Path) -> None:
    name = table("id int PRIMARY KEY, v int")
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    run(read(name, start=begin.isoformat(), confidence=dt.timedelta(minutes=30)), Sink(), tmp_path)
    cql.execute(f"ALTER TABLE {name} WITH cdc = {BRIEF}")
    with pytest.raises(StreamingQueryException, match="rows of the log expired before they were read"):
        run(read(name), Sink(), tmp_path)


@pytest.mark.slow
def test_values_that_nobody_can_read_stop_the_query_or_are_told(
    cql: Any, table: Any, read: Any, services: Any, spark: SparkSession, tmp_path: Path
) -> None:
    """An empty map key is plain CQL, and a negative count passes the database's checks: both once ended the process."""
    name = table("id int PRIMARY KEY, m map<int, text>, t tuple<int, frozen<list<int>>>, v text")
    insert = cql.prepare(f"INSERT INTO {name} (id, t, v) VALUES (?, ?, ?)")
    cql.execute(f"INSERT INTO {name} (id, m, v) VALUES (1, {{0: 'x'}}, 'good')")
    cql.execute(f"INSERT INTO {name} (id, m, v) VALUES (2, {{blob_as_int(0x): 'x'}}, 'empty key')")
    bound = BoundStatement(insert)
    bound.values = [b"\0\0\0\3", b"\xff\xff\xff\xff\0\0\0\4\xff\xff\xff\x9c", b"negative count"]
    cql.execute(bound)

    writer = read(name, images="full").writeStream.foreachBatch(Sink()).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=r"BadValue"):
        query.awaitTermination()
    fault = of_query(query)
    assert fault is not None and not fault.retriable
    assert f"of {name} has a value that cannot be read: " in fault.text
    assert re.search(r"stream 0x[0-9a-f]{32}, time [0-9a-f-]{36}, key {\"id\": [23]}, \w+, cell 0x", fault.text)

    sink = Sink()
    told = read(name, images="full", bad_values="problem")
    writer = told.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    counts: Counter[str] = Counter()
    for one in query.recentProgress:
        for reasons in bad_records(one["observedMetrics"]).values():
            counts.update(reasons)
    assert counts == {"unreadable": 2}
    rows = {row.key.id: row for row in sink.rows}
    assert {key: row.after.v for key, row in rows.items()} == {1: "good", 2: "empty key", 3: "negative count"}
    assert rows[1].problem is None and rows[1].after.m == {0: "x"}
    assert [(cell.column, cell.part) for cell in rows[2].problem.cells] == [("m", "after"), ("m", "delta")]
    assert [bytes(cell.value) for cell in rows[3].problem.cells] == [bound.values[1]] * 2
    assert rows[2].after.m is None and rows[3].after.t is None

    frame = spark.createDataFrame([(3,)], "id int")
    found = cql_module.lookup(frame, name, hosts=services.cql, on="id", columns=["t"], ttl="1 minute", name="l")
    with pytest.raises(PySparkException, match=rf"column t of {name} .*key {{\"id\": 3}}, cell 0xffffffff"):
        found.collect()


@pytest.mark.slow
def test_changes_from_before_a_key_was_renamed_are_told(cql: Any, table: Any, read: Any, tmp_path: Path) -> None:
    name = table("id int PRIMARY KEY, v int")
    for number in range(5):
        cql.execute(f"INSERT INTO {name} (id, v) VALUES ({number}, 1)")
    cql.execute(f"ALTER TABLE {name} RENAME id TO ident")
    cql.execute(f"INSERT INTO {name} (ident, v) VALUES (7, 1)")

    writer = read(name).writeStream.foreachBatch(Sink()).option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    fault = of_query(query)
    assert fault is not None and not fault.retriable
    assert re.search(rf"\d of \d changes of {name} have no ident, a column of the primary key", fault.text)

    sink = Sink()
    run(read(name, bad_values="problem"), sink, tmp_path)
    assert [row.key.ident for row in sink.rows if row.problem is None] == [7]
    lost = [row.problem.cells for row in sink.rows if row.problem]
    assert [(cell.part, cell.column) for (cell,) in lost] == [("key", "ident")] * 5


def test_a_table_made_again_is_not_taken_for_the_one_before(cql: Any, table: Any, read: Any, tmp_path: Path) -> None:
    columns = "id int PRIMARY KEY, v int"
    name = table(columns)
    cql.execute(f"INSERT INTO {name} (id, v) VALUES (1, 1)")
    sink = Sink()
    run(read(name), sink, tmp_path)
    cql.execute(f"INSERT INTO {name} (id, v) VALUES (2, 2)")
    cql.execute(f"DROP TABLE {name}")
    table(columns)
    cql.execute(f"INSERT INTO {name} (id, v) VALUES (3, 3)")
    with pytest.raises(StreamingQueryException, match=r"created again: .* not read: changes from 20[^ ]*Z to 20[^ ]*Z"):
        run(read(name), Sink(), tmp_path)
    run(read(name, fail_on_data_loss=False), sink, tmp_path)
    assert [row.key.id for row in sink.rows] == [1, 3]
    # From now on the checkpoint belongs to the new table.
    cql.execute(f"INSERT INTO {name} (id, v) VALUES (4, 4)")
    run(read(name), sink, tmp_path)
    assert [row.key.id for row in sink.rows] == [1, 3, 4]


@pytest.mark.slow
def test_a_position_that_is_set_to_a_time_reads_exactly_the_rows_from_then_on(
    cql: Any, table: Any, read: Any, tmp_path: Path
) -> None:
    name, sink = table("id int PRIMARY KEY, v int"), Sink()
    cql.execute(f"INSERT INTO {name} (id, v) VALUES (1, 1)")
    then = dt.datetime.now(dt.UTC).isoformat()
    cql.execute(f"INSERT INTO {name} (id, v) VALUES (2, 2)")
    run(read(name), sink, tmp_path / "orders")
    move(Local(tmp_path), "orders", then)
    run(read(name), sink, tmp_path / "orders")
    cql.execute(f"INSERT INTO {name} (id, v) VALUES (3, 3)")
    run(read(name), sink, tmp_path / "orders")
    # Rows of different keys have no order within a batch.
    assert sorted(row.key.id for row in sink.rows) == [1, 2, 2, 3]
    move(Local(tmp_path), "orders", (dt.datetime.now(dt.UTC) - dt.timedelta(days=2)).isoformat())
    with pytest.raises(
        StreamingQueryException, match=r"does not go back to 20.*, the position that was set: its ttl is 86400"
    ):
        run(read(name), sink, tmp_path / "orders")
    move(Local(tmp_path), "orders", "earliest")
    run(read(name), sink, tmp_path / "orders")
    assert sorted(row.key.id for row in sink.rows[4:]) == [1, 2, 3]


def test_a_running_query_that_falls_behind_the_log_is_stopped(cql: Any, table: Any, services: Any) -> None:
    name = table("id int PRIMARY KEY, v int")
    cql.execute(f"ALTER TABLE {name} WITH cdc = {BRIEF}")
    running, most = reader(services, name), ReadMaxRows(100)
    first = running.initialOffset()
    assert 0 < first["time"] + MINUTE - micros(dt.datetime.now(dt.UTC)) < MINUTE // 10
    until = running.latestOffset(first, most)
    late = until | {"time": until["time"] - MINUTE}
    with pytest.raises(PenstockError, match="rows of the log expired before they were read"):
        running.latestOffset(late, most)
    # The same when a batch runs again.
    with pytest.raises(PenstockError, match="rows of the log expired before they were read"):
        running.partitions(late, until)
    snapshot = running.latestOffset(late | {"snapshot": 0}, most)
    with pytest.raises(PenstockError, match="rows of the log expired before they were read"):
        running.latestOffset(snapshot, most)


def test_a_start_that_the_log_no_longer_holds_is_earliest(cql: Any, table: Any, services: Any) -> None:
    name = table("id int PRIMARY KEY, v int")
    cql.execute(f"ALTER TABLE {name} WITH cdc = {BRIEF}")
    hour_ago = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    first = reader(services, name, start=hour_ago.isoformat()).initialOffset()
    assert first["time"] + MINUTE > micros(dt.datetime.now(dt.UTC))
