"""The CQL sink: errors at build time, the contents of real tables, and repeated batches."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from checkpoints import forget_last_commit
from keyspaces import new_keyspace
from pyspark.sql import DataFrame, SparkSession, functions as F

from penstock import cql as pcql, write
from penstock.cql import cql_sink as sink_cql
from penstock.cql.cql_writer import CqlWriter
from penstock.errors import PenstockError, SchemaChanged
from penstock.local.services import Services
from penstock.query.query import Batch

NOWHERE = Batch("no query", 0)
PATIENCE = "30 seconds"
TYPES = {
    "k": pa.string(),
    "a": pa.int32(),
    "penstock$table": pa.string(),
    "penstock$timestamp": pa.int64(),
    "penstock$ttl": pa.int32(),
}


@pytest.fixture(scope="module")
def keyspace(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "sink") as name:
        cql.execute(f"CREATE TABLE {name}.visits (who text, day date, n int, v bigint, PRIMARY KEY (who, day, n))")
        cql.execute(
            f"CREATE TABLE {name}.members (who text PRIMARY KEY, since timestamp, tags set<text>, score double)"
        )
        cql.execute(f"CREATE TABLE {name}.hits (who text PRIMARY KEY, n counter)")
        yield name


def test_a_time_to_live_is_at_least_a_second() -> None:
    with pytest.raises(PenstockError, match=r"ttl cannot be 0:00:00\.5.*one second to 20 years"):
        pcql.sink("ks.t", hosts="127.0.0.1:1", ttl=0.5)


def test_what_does_not_fit_is_told_when_the_sink_is_built(
    spark: SparkSession, services: Services, keyspace: str
) -> None:
    def made(table: str = "members", **options: Any) -> pcql.CqlSink:
        return pcql.sink(f"{keyspace}.{table}", **{"hosts": services.cql, "patience": "5 seconds", **options})

    with pytest.raises(PenstockError, match=r"there is no table .*\.nosuch.*tables in .*: hits, members, visits"):
        made("nosuch")
    with pytest.raises(PenstockError, match=r"does not write counters.*increment counts twice.*bigint column"):
        made("hits")
    with pytest.raises(PenstockError, match=r"unknown mode 'merge'.*'insert' or 'upsert'"):
        made(mode="merge")
    with pytest.raises(PenstockError, match=r"ttl cannot be 0:00:00.*one second"):
        made(ttl="0 seconds")
    with pytest.raises(PenstockError, match=r"unknown argument 'pasword'.*did you mean 'password'"):
        made(pasword="x")
    with pytest.raises(PenstockError, match=r"hosts has no address"):
        made(hosts=" ")
    with pytest.raises(PenstockError, match="tables= is required if table is a column"):
        pcql.sink(F.col("to"), hosts=services.cql)
    frame = spark.sql("SELECT 'a' AS who, 1.5 AS since, array('x') AS tags, 60L AS ttl, 'd' AS op")
    for wrong, said in [
        (frame.drop("who"), "no column who of the table's primary key"),
        (frame.select("who", F.lit(1).alias("scores")), r"has no column scores.*did you mean score\?.*ALTER TABLE"),
        (frame.select("who", "since"), r"column since is decimal\(2,1\), but in the table it is timestamp.*cast"),
        (frame.select("who", F.array(F.lit(1)).alias("tags")), r"tags is array<int>, but in the table it is set<text>"),
    ]:
        with pytest.raises(PenstockError, match=said):
            made().records(wrong)
    rest = frame.select("who", "tags", "ttl", "op")
    with pytest.raises(PenstockError, match="ttl is not a column of the frame: 'tll'"):
        made(ttl="tll").records(rest)
    with pytest.raises(PenstockError, match=r"delete is string.*boolean"):
        made(delete="op", ttl="ttl").records(rest)
    for condition in ("nocol = 1", "op =", F.col("nocol") == 1):
        with pytest.raises(PenstockError, match=r"delete does not fit the frame: .*columns who, tags.*fix delete="):
            made(delete=condition).records(rest)
    assert made(delete="op = 'd'", ttl="ttl").records(rest).columns == [
        "who",
        "tags",
        "penstock$delete",
        "penstock$ttl",
    ]


def test_rows_are_inserted_merged_and_deleted(spark: SparkSession, services: Services, cql: Any, keyspace: str) -> None:
    table = f"{keyspace}.members"
    rows = [("a", 1.0, ["x"], None), ("b", 2.0, None, 500), ("c", None, ["y", "z"], 0), ("a", 3.0, None, None)]
    frame = spark.createDataFrame(rows, "who string, score double, tags array<string>, ttl int").coalesce(1)
    pcql.sink(table, hosts=services.cql, patience=PATIENCE, ttl="ttl").save(frame, NOWHERE)
    query = f"SELECT who, score, tags, TTL(score) FROM {table}"
    found = {who: (score, tags and set(tags), ttl) for who, score, tags, ttl in cql.execute(query)}
    assert 0 < found["b"][2] <= 500
    assert found == {"a": (3.0, None, None), "b": (2.0, None, found["b"][2]), "c": (None, {"y", "z"}, None)}
    rows = [("a", None, ["new"], False), ("b", None, None, True), ("c", 4.0, None, None)]
    merged = spark.createDataFrame(rows, "who string, score double, tags array<string>, gone boolean")
    pcql.sink(table, hosts=services.cql, patience=PATIENCE, mode="upsert", delete="gone").save(merged, NOWHERE)
    assert {who: (score, set(tags)) for who, score, tags, _ in cql.execute(query)} == {
        "a": (3.0, {"new"}),
        "c": (4.0, {"y", "z"}),
    }


def test_each_row_goes_to_the_table_that_it_names_at_the_time_it_says(
    spark: SparkSession, services: Services, cql: Any, keyspace: str
) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.one (k uuid PRIMARY KEY, a int)")
    cql.execute(f"CREATE TABLE {keyspace}.other (k uuid PRIMARY KEY, b int)")
    at = dt.datetime(2026, 1, 1, 12, 0, 0, 5)  # noqa: DTZ001 (Spark's local time, here UTC)
    keys = ["123e4567-e89b-12d3-a456-426614174000", "123e4567-e89b-12d3-a456-426614174001"]
    frame = spark.createDataFrame(
        [(keys[0], 1, 2, "one", at), (keys[1], 3, 4, "other", at)], "k string, a int, b int, to string, at timestamp"
    )
    names = [f"{keyspace}.one", f"{keyspace}.other"]
    target = F.concat(F.lit(f"{keyspace}."), F.col("to"))
    sink = pcql.sink(target, tables=names, hosts=services.cql, patience=PATIENCE, timestamp="at", ttl="1 day")
    sink.save(frame, NOWHERE)
    micros = int(at.replace(tzinfo=dt.UTC).timestamp()) * 10**6 + 5
    for table, column, key, value in (("one", "a", keys[0], 1), ("other", "b", keys[1], 4)):
        (found,) = cql.execute(f"SELECT k, {column}, WRITETIME({column}), TTL({column}) FROM {keyspace}.{table}")
        assert (str(found[0]), *found[1:3]) == (key, value, micros)
        assert found[3] > 86_000
    writer = CqlWriter(sink.access, sink.tables, "insert", 0, sink.limits)
    row: dict[str, Any] = {
        "k": keys[0],
        "a": 1,
        "penstock$table": names[0],
        "penstock$timestamp": 1,
        "penstock$ttl": 60,
    }
    cases: list[tuple[dict[str, Any], str]] = [
        ({"penstock$table": "a.third"}, r"a row goes to a\.third, which is not in tables=.*\.one, .*\.other"),
        ({"k": "no uuid"}, r"'no uuid' is not a valid uuid.*\.one\.k"),
        ({"k": None}, r"k is null in 1 of 1 rows.*filter these rows"),
        ({"penstock$timestamp": None}, "timestamp is null in 1 of 1 rows"),
        ({"penstock$ttl": -1}, "a TTL is -1 seconds"),
    ]
    for wrong, said in cases:
        columns = {name: pa.array([value], TYPES[name]) for name, value in (row | wrong).items()}
        with pytest.raises(PenstockError, match=said):
            list(writer(iter([pa.RecordBatch.from_pydict(columns)])))


@pytest.mark.parametrize(
    ("kind", "row", "said"),
    [
        ("int", {"k": "", "v": 1}, "database refuses a value: .*Key may not be empty.*filter these rows out"),
        ("timeuuid", {"v": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}, "database refuses a value: .*TimeUUID"),
        ("int", {"v": 1, "penstock$timestamp": -(2**63)}, "database refuses a value: .*[Tt]imestamp"),
        (
            "int",
            {"k": "x" * 70_000, "v": 1},
            r"primary key has 70000 bytes; databases accept at most 65535 \(.*\.refused\.k\)",
        ),
        ("duration", {"v": "3000000000mo"}, r"'3000000000mo' is not a valid duration \(.*\.refused\.v\)"),
        ("time", {"v": 86_400 * 10**9}, r"86400000000000 is not a valid time \(.*\.refused\.v\)"),
        ("list<int>", {"v": [1, None]}, r"a list<int> contains a null \(.*\.refused\.v\)"),
    ],
)
def test_a_value_that_is_refused_ends_the_run(
    services: Services, cql: Any, keyspace: str, kind: str, row: dict[str, Any], said: str
) -> None:
    table = f"{keyspace}.refused"
    cql.execute(f"DROP TABLE IF EXISTS {table}")
    cql.execute(f"CREATE TABLE {table} (k text PRIMARY KEY, v {kind})")
    sink = pcql.sink(table, hosts=services.cql, patience=PATIENCE)
    writer = CqlWriter(sink.access, sink.tables, "insert", 0, sink.limits)
    batch = pa.RecordBatch.from_pylist([{"k": "a"} | row])
    with pytest.raises(PenstockError, match=said) as told:
        list(writer(iter([batch])))
    assert not told.value.retriable


@pytest.mark.parametrize(("planned", "expected"), [({4: 7_000, 5: 8_000}, 8_000_000), ({5: 8_000}, 8_000_000)])
def test_a_batch_has_the_time_at_which_it_was_planned(
    monkeypatch: pytest.MonkeyPatch, planned: dict[int, int], expected: int
) -> None:
    monkeypatch.setattr(sink_cql, "batch_millis", lambda spark, query, number: planned.get(number))
    assert sink_cql.batch_micros(cast(SparkSession, None), Batch("q.1", 5)) == expected


@pytest.mark.parametrize("planned", [{4: 8_000, 5: 8_000}, {4: 9_500, 5: 8_000}])
def test_a_clock_that_went_back_hides_no_rows(monkeypatch: pytest.MonkeyPatch, planned: dict[int, int]) -> None:
    monkeypatch.setattr(sink_cql, "batch_millis", lambda spark, query, number: planned.get(number))
    said = r"the clock .* went back by \d+ ms between two batches: rows of batch 5 would be hidden.*1970-01"
    with pytest.raises(PenstockError, match=said) as told:
        sink_cql.batch_micros(cast(SparkSession, None), Batch("q", 5))
    assert not told.value.retriable


def test_a_table_that_has_changed_is_written_after_a_restart(services: Services, cql: Any, keyspace: str) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.changing (k text PRIMARY KEY, v int)")
    sink = pcql.sink(f"{keyspace}.changing", hosts=services.cql, patience=PATIENCE)
    writer = CqlWriter(sink.access, sink.tables, "insert", 0, sink.limits)
    cql.execute(f"ALTER TABLE {keyspace}.changing DROP v")
    with pytest.raises(SchemaChanged, match="the table has changed since the query was built"):
        list(writer(iter([pa.RecordBatch.from_pylist([{"k": "a", "v": 1}])])))


def visits(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema("who string, day date, n int, v bigint").json(str(folder))


def test_a_batch_that_is_run_again_writes_the_same_rows_at_the_same_times(
    spark: SparkSession, services: Services, cql: Any, keyspace: str, tmp_path: Path
) -> None:
    table, checkpoint = f"{keyspace}.visits", tmp_path / "checkpoint"
    (tmp_path / "in").mkdir()
    rows = [f'{{"who": "w{i % 7}", "day": "2026-01-0{i % 5 + 1}", "n": {i // 2}, "v": {i}}}' for i in range(500)]
    (tmp_path / "in" / "1.json").write_text("\n".join(rows))
    query = write(
        visits(spark, tmp_path / "in"),
        pcql.sink(table, hosts=services.cql, patience=PATIENCE, ttl=dt.timedelta(hours=1)),
    )
    select = f"SELECT who, day, n, v, WRITETIME(v), TTL(v) FROM {table}"
    query.start(checkpoint=checkpoint, trigger="once").awaitTermination()
    first = {tuple(row[:5]) for row in cql.execute(select)}
    assert {row[3] for row in first} == set(range(500))
    # A later correction by another client, which the repeated batch must not undo.
    cql.execute(f"UPDATE {table} SET v = -1 WHERE who = 'w0' AND day = '2026-01-01' AND n = 0")
    forget_last_commit(checkpoint)
    query.start(checkpoint=checkpoint, trigger="once").awaitTermination()
    second = {tuple(row[:5]) for row in cql.execute(select)}
    assert {row for row in second if row[3] >= 0} == {row for row in first if row[3] != 0}
    assert all(3000 < row[5] <= 3600 for row in cql.execute(select) if row[3] >= 0)
