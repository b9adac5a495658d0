"""The state of queries, while they run and after: from checkpoints, from PostgreSQL, over HTTP and by the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from postgres_server import execute, new_table
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from spark_tasks import tasks
from waiting import until

from penstock import postgres as pg
from penstock.errors import PenstockError
from penstock.query.query import Batch
from penstock.serve.rest_server import RestServer, bind
from penstock.state.postgres_state import PostgresState
from penstock.state.read import Checkpoints, partition
from penstock.state.serve import app
from penstock.state.stores import stores

CLICKS = [
    ("ann", "2024-02-29 12:00:01"),
    ("ann", "2024-02-29 12:00:59"),
    ("ann", "2024-02-29 12:01:00"),
    ("bob", "2024-02-29 12:00:30"),
]


def clicks(spark: SparkSession, folder: Path) -> DataFrame:
    frame = spark.createDataFrame(CLICKS, "user string, at string").withColumn("at", F.col("at").cast("timestamp"))
    frame.coalesce(1).write.mode("append").parquet(str(folder))
    return spark.readStream.schema(frame.schema).parquet(str(folder))


def start(frame: DataFrame, checkpoint: Path, mode: str = "update") -> StreamingQuery:
    """A query that has done its first batch, and waits with the next batch for longer than the test takes."""
    writer = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="1 hour").start()
    until(lambda: query.lastProgress or query.exception(), "first batch")
    assert not query.exception()
    return query


def counting() -> StatefulProcessor:
    """Keeps a user's visits and places, and for an hour the last time; defined here, so workers get it by value."""

    class Seen(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.count = handle.getValueState("count", "n long")
            self.brief = handle.getValueState("brief", "n long", 3_600_000)
            self.places = handle.getMapState("places", "place string", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            n = sum(1 for _ in rows)
            self.count.update((n,))
            self.brief.update((n,))
            self.places.updateValue(("here",), (n,))
            yield from ()

        def close(self) -> None:
            pass

    return Seen()


@pytest.fixture(scope="module")
def checkpoints(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Checkpoints of two pipelines: `visits` with windows and a join, which run, and `seen`, which stopped."""
    folder = tmp_path_factory.mktemp("checkpoints")
    data = folder.parent / "clicks"
    stream = clicks(spark, data)
    windows = stream.groupBy("user", F.window("at", "1 minute")).count()
    left, right = (stream.withWatermark("at", "1 hour").alias(side) for side in ("a", "b"))
    joined = left.join(right, F.expr("a.user = b.user AND a.at = b.at")).select("a.user")
    running = [start(windows, folder / "visits/windows"), start(joined, folder / "visits/joined", "append")]
    try:
        seen = stream.groupBy("user").transformWithState(counting(), "n long", "update", "ProcessingTime")
        start(seen, folder / "seen").stop()
        yield folder
    finally:
        for query in running:
            query.stop()


@pytest.fixture(scope="module")
def states(spark: SparkSession, checkpoints: Path) -> Checkpoints:
    return Checkpoints(checkpoints, lambda: spark)


@pytest.mark.slow
def test_every_state_has_a_name_and_is_fresh(checkpoints: Path, states: Checkpoints) -> None:
    assert [store.name for store in stores(checkpoints)] == [
        "seen/brief",
        "seen/count",
        "seen/places",
        "visits/joined/symmetricHashJoin/left",
        "visits/joined/symmetricHashJoin/right",
        "visits/windows/stateStoreSave",
    ]
    assert all(one["batch"] >= 0 and 0 <= one["age_seconds"] < 600 for one in states.overview())


def test_windows_of_a_key_while_the_query_runs(states: Checkpoints) -> None:
    answer = states.get("visits/windows", "ann").to_json()
    assert answer["name"] == "visits/windows/stateStoreSave" and 0 <= answer["age_seconds"] < 600
    counts = {row["key"]["window"]["start"]: row["value"]["count"] for row in answer["rows"]}
    assert counts == {"2024-02-29T12:00:00.000Z": 2, "2024-02-29T12:01:00.000Z": 1}
    one = states.get("visits/windows", '{"user": "ann", "window": {"start": "2024-02-29T12:01:00Z"}}')
    assert [row["value"]["count"] for row in one.rows] == [1]


@pytest.mark.slow
def test_scans_with_a_condition_and_a_limit(states: Checkpoints) -> None:
    found = states.scan("visits/windows", "key.user = 'ann' AND value.count > 1")
    assert [row["value"]["count"] for row in found.rows] == [2] and not found.more
    cut = states.scan("visits/windows", limit=2)
    assert len(cut.rows) == 2 and cut.more
    for much in (1 << 31, 1 << 64):
        assert len(states.scan("visits/windows", limit=much - 1).rows) == 3
        assert len(states.get("visits/windows", "ann", much - 1).rows) == 2
    assert len(states.scan("visits/joined/symmetricHashJoin/left").rows) == len(CLICKS)


def test_variables_of_a_query_that_stopped_with_and_without_ttl(states: Checkpoints) -> None:
    assert [row["value"] for row in states.get("seen/count", "ann").rows] == [{"n": 3}]
    (brief,) = states.get("seen/brief", "ann").rows
    assert brief["value"]["value"] == {"n": 3} and brief["value"]["ttlExpirationMs"] > 0
    (place,) = states.get("seen/places", "bob").rows
    assert place["user_map_key"] == {"place": "here"} and place["user_map_value"] == {"n": 1}


@pytest.mark.slow
def test_the_partition_of_a_key_is_that_of_sparks_shuffle(spark: SparkSession) -> None:
    rows = spark.range(3).selectExpr("concat('u', id) AS user", "cast(id AS int) AS bucket")
    place = F.spark_partition_id().alias("place")
    for key in (["user"], ["bucket"], ["user", "bucket"]):
        for row in rows.repartition(5, *key).select("*", place).collect():
            values = [F.lit(row[name]) for name in key]
            assert partition(spark, values, 5) == row.place


@pytest.mark.slow
def test_of_a_whole_key_only_its_partition_is_read(spark: SparkSession, states: Checkpoints) -> None:
    assert next(one for one in stores(states.folder) if one.name == "seen/count").partitions > 1
    for name, key in (("seen/count", "ann"), ("seen/places", "bob"), ("seen/brief", "bob")):
        with tasks(spark) as read:
            assert len(states.get(name, key).rows) == 1
        assert read == [1, 1], "which partition it is, and what is there"
    with tasks(spark) as read, pytest.raises(PenstockError, match="has nothing under the key eve"):
        states.get("seen/count", "eve")
    assert sum(read) > 2, "all were searched"


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        (
            "visit",
            "ann",
            r"there is no state visit \(checkpoints in .*choose one of: seen/brief, .*visits/windows/stateStore",
        ),
        ("seen", "ann", r"seen names 3 states .*choose one of: seen/brief, seen/count, seen/places"),
        ("visits/windows", "eve", r"has nothing under the key eve \(batch \d+\).*state scan visits/windows"),
        *[
            ("visits/windows", key, r"is not a key of visits/windows.*its key is struct<user:string,window.*give")
            for key in ('{"user": {"x": 1}}', '{"user": ["a"]}', '{"window": "2026"}')
        ],
        (
            "visits/windows",
            '{"person": 1}',
            r"is not a key of visits/windows.*its key is struct<user:string,window.*give",
        ),
    ],
)
def test_what_is_not_there_is_told(states: Checkpoints, name: str, key: str, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        states.get(name, key)


def test_a_wrong_condition_shows_the_columns(states: Checkpoints) -> None:
    with pytest.raises(
        PenstockError, match=r"this is not a valid condition: .*nobody.*the columns are struct<key:struct<user"
    ):
        states.scan("visits/windows", "nobody = 1")


def test_a_checkpoint_of_another_version_is_told(tmp_path: Path, states: Checkpoints) -> None:
    metadata = tmp_path / "old/state/0/_metadata/metadata"
    metadata.parent.mkdir(parents=True)
    (tmp_path / "old/offsets").mkdir()
    metadata.write_text("v9\n{}")
    with pytest.raises(PenstockError, match=r"of another version of Spark: 'v9'.*version of penstock that runs"):
        Checkpoints(tmp_path, states.session).get("old", "a")
    metadata.unlink()
    with pytest.raises(PenstockError, match=r"no description of the state: .*wait for the first batch"):
        Checkpoints(tmp_path, states.session).get("old", "a")
    with pytest.raises(PenstockError, match=r"there is no folder of checkpoints \(.*nowhere\)"):
        Checkpoints(tmp_path / "nowhere", states.session).overview()


def ask(url: str) -> Any:
    with urlopen(url) as answer:
        return json.loads(answer.read())


def test_state_over_http(states: Checkpoints) -> None:
    with bind("127.0.0.1", 0) as bound:
        server = RestServer(app(states), bound)
        try:
            assert "visits/windows/stateStoreSave" in [one["name"] for one in ask(f"{server.url}/state")]
            rows = ask(f"{server.url}/state/visits/windows?key=ann")
            assert len(rows["rows"]) == 2 and rows["age_seconds"] >= 0
            rows = ask(f"{server.url}/state/visits/windows?limit=1&key={quote(json.dumps({'user': 'ann'}))}")
            assert len(rows["rows"]) == 1 and rows["more"]
            assert len(ask(f"{server.url}/state/seen/count")["rows"]) == 2
            for path, status in (
                ("visits/windows?key=eve", 404),
                ("x", 404),
                ("visits/windows?limit=0", 400),
                (f"visits/windows?limit={'9' * 5_000}", 400),
                (f"visits/windows?key={'[' * 20_000}", 404),
            ):
                with pytest.raises(HTTPError) as told:
                    urlopen(f"{server.url}/state/{path}")
                with told.value as answer:
                    assert answer.code == status and {"error", "where", "next"} == json.loads(answer.read()).keys()
        finally:
            server.close()


@pytest.mark.slow
def test_state_in_postgres(spark: SparkSession, postgres: str) -> None:
    with new_table(postgres, '"user" text, day date, n bigserial, PRIMARY KEY ("user", day)') as table:
        sink = pg.sink(table, url=postgres, key=["user", "day"])
        sink.save(spark.sql("SELECT 'ann' AS user, DATE '2024-02-29' AS day, 3L AS n"), Batch("kept", 7))
        tables = PostgresState(postgres)
        row = {"user": "ann", "day": "2024-02-29", "n": 3}
        for key in ('{"user": "ann"}', '{"user": "ann", "day": "2024-02-29"}'):
            answer = tables.get(table, key).to_json()
            assert (answer["rows"], answer["batch"]) == ([row], 7) and 0 <= answer["age_seconds"] < 600
        assert tables.scan(table, "n > 2").rows == [row] and tables.scan(table, "n > 3").rows == []
        assert (table, 7) in [(told["name"], told["batch"]) for told in tables.overview()]
        with pytest.raises(PenstockError, match=f"ann is not a key of {table} .its primary key is user, day.*give"):
            tables.get(table, "ann")
        with pytest.raises(PenstockError, match="has nothing under the key"):
            tables.get(table, '{"user": "eve"}')
        with pytest.raises(PenstockError, match=f"there is no state pg_class .PostgreSQL.*choose one of: .*{table}"):
            tables.get("pg_class", "1")
        with pytest.raises(PenstockError, match=r"cannot execute .* in a read-only transaction"):
            tables.scan(table, f"nextval('{table}_n_seq') > 0")


def test_a_table_in_postgres_may_be_called_by_a_reserved_word(spark: SparkSession, postgres: str) -> None:
    execute(postgres, 'CREATE TABLE "end" (id int PRIMARY KEY)')
    pg.sink("end", url=postgres, key="id").save(spark.sql("SELECT 1 AS id"), Batch("word", 1))
    assert PostgresState(postgres).get("end", "1").to_json()["rows"] == [{"id": 1}]
    execute(postgres, 'DROP TABLE "end"')


def test_the_command_prints_json_and_errors_in_a_line(checkpoints: Path) -> None:
    command = [sys.executable, "-m", "penstock", "state", "get", "--checkpoints", str(checkpoints)]
    # Without Java's own line about the options that it picked up.
    plain = {name: text for name, text in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
    told = subprocess.run([*command, "visits/windows", "bob"], capture_output=True, text=True, check=False, env=plain)
    assert told.returncode == 0, told.stderr
    (row,) = json.loads(told.stdout)["rows"]
    assert row["value"] == {"count": 1} and told.stderr == ""
    told = subprocess.run([*command, "nowhere", "bob"], capture_output=True, text=True, check=False)
    assert told.returncode == 1 and told.stderr.startswith("penstock: there is no state nowhere") and not told.stdout
