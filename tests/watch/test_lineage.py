"""Events of lineage: against OpenLineage's schema, at a real receiver, and at one that is slow, broken or away."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Session
from kafka_topics import new_topics, stored
from keyspaces import new_keyspace
from lineage_receiver import Receiver, names, receiving, require_valid
from pyspark.sql import SparkSession, types as st
from waiting import PATIENCE, patience, until

from penstock import cdc, cql as cql_tables, files, kafka
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.query.query import Query, write
from penstock.run.pipeline import pipeline
from penstock.run.supervise import PipelineRun, StopRequests
from penstock.watch import lineage
from penstock.watch.graph import Node, table, topic
from penstock.watch.lineage import Lineage, LineageSender, dataset, receiver, sent
from penstock.wire.producer.blocking import BlockingProducer


@pytest.fixture
def at() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


# Data sets.


@pytest.mark.parametrize(
    ("node", "namespace", "name"),
    [
        (topic("clicks", "k1:9092,k2:9093"), "kafka://k1:9092", "clicks"),
        (topic("clicks", "k1"), "kafka://k1:9092", "clicks"),
        (table("shop.orders", "10.0.0.1, 10.0.0.2:9043"), "cassandra://10.0.0.1:9042", "shop.orders"),
        (table("shop.orders", "[::1]:9042"), "cassandra://[::1]:9042", "shop.orders"),
        (Node("", "sink", "t", "postgres", "db:5433/shop"), "postgres://db:5433", "shop.public.t"),
        (Node("", "sink", "a.t", "postgres", "db/shop"), "postgres://db:5432", "shop.a.t"),
        (Node("", "sink", "/data/out", "files"), "file", "/data/out"),
        (Node("", "sink", "file:///data/a%20b", "files"), "file", "/data/a b"),
        (Node("", "sink", "hdfs://name:8020/out", "files"), "hdfs://name:8020", "/out"),
        (Node("", "sink", "s3://bucket/a/t", "delta"), "s3://bucket", "/a/t"),
        (Node("", "table", "db.t", "iceberg"), "iceberg", "db.t"),
    ],
)
def test_a_data_set_is_named_as_openlineage_names_it(node: Node, namespace: str, name: str) -> None:
    assert dataset(node) == {"namespace": namespace, "name": name, "facets": {}}


@pytest.mark.parametrize(
    "node", [topic("topics of each row", "k:1"), topic("c.*", "k:1"), Node("", "table", "", "rate")]
)
def test_what_has_no_name_is_no_data_set(node: Node) -> None:
    assert dataset(node) is None


def test_columns_are_told_with_the_fields_of_structs() -> None:
    columns = st.StructType().add("id", st.LongType()).add("who", st.StructType().add("name", "string"))
    told = dataset(topic("t"), columns)
    assert told is not None
    assert told["facets"]["schema"]["fields"] == [
        {"name": "id", "type": "bigint", "ordinal_position": 1},
        {
            "name": "who",
            "type": "struct",
            "ordinal_position": 2,
            "fields": [{"name": "name", "type": "string", "ordinal_position": 1}],
        },
    ]


# Runs.


@pytest.fixture(scope="module")
def rates(spark: SparkSession) -> Query:
    frame = spark.readStream.format("rate").load().selectExpr("string(value) value")
    return write(frame, kafka.sink("rates", servers="127.0.0.1:9092"))


def test_a_run_of_a_query_is_told_from_start_to_end(
    rates: Query, at: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "EVERY", 0.0)
    monkeypatch.setenv(lineage.API_KEY, "secret")
    with sent(at.url) as observer:
        observer.begins("shop.rates", rates, Path())
        observer.progress("shop.rates", {})
        observer.progress("no such query", {})
    assert at.types() == ["START", "RUNNING", "COMPLETE"]
    for event in at.events:
        require_valid(event)
        assert event["job"] == {"namespace": "penstock", "name": "shop.rates", "facets": event["job"]["facets"]}
        (output,) = event["outputs"]
        assert (output["namespace"], output["name"]) == ("kafka://127.0.0.1:9092", "rates")
        assert [one["name"] for one in output["facets"]["schema"]["fields"]] == ["value"]
    assert len({event["run"]["runId"] for event in at.events}) == 1
    assert set(at.paths) == {"/api/v1/lineage"}
    assert set(at.keys) == {"Bearer secret"}


def test_the_query_that_failed_fails_and_those_stopped_with_it_complete(rates: Query, at: Receiver) -> None:
    with sent(at.url) as observer:
        for name in ("a", "b"):
            observer.begins(name, rates, Path())
        for name in ("a", "b"):
            observer.stopped(name)
        observer.fault("Kafka is away", query="b", pause=1.0, trace="Traceback ...\n  in line 1")
        for name in ("a", "b"):
            observer.begins(name, rates, Path())
        observer.fault("the start failed")
    assert at.types("a") == ["START", "COMPLETE", "START", "FAIL"]
    assert at.types("b") == ["START", "FAIL", "START", "FAIL"]
    failed = next(event for event in at.events if event["eventType"] == "FAIL")
    require_valid(failed)
    assert failed["run"]["facets"]["errorMessage"]["message"] == "Kafka is away"
    assert failed["run"]["facets"]["errorMessage"]["stackTrace"] == "Traceback ...\n  in line 1"
    assert len({event["run"]["runId"] for event in at.events if event["job"]["name"] == "b"}) == 2


def test_a_run_that_ends_with_an_error_fails(rates: Query, at: Receiver) -> None:
    def run() -> None:
        with sent(at.url) as observer:
            observer.begins("a", rates, Path())
            raise PenstockError("Spark's Java process ended")

    with pytest.raises(PenstockError):
        run()
    assert at.types() == ["START", "FAIL"]
    assert at.events[1]["run"]["facets"]["errorMessage"]["message"] == "Spark's Java process ended"


def test_a_query_that_cannot_be_looked_into_runs_all_the_same(
    rates: Query, at: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(query: Query) -> list[Any]:
        raise ValueError("no plan")

    monkeypatch.setattr(lineage, "inputs_of", fails)
    with sent(at.url) as observer:
        observer.begins("a", rates, Path())
    assert at.types() == ["START", "COMPLETE"]
    assert "a: its inputs and outputs are not known to lineage: no plan" in caplog.text


def test_without_a_url_nothing_is_made() -> None:
    before = threading.active_count()
    with sent(None) as observer:
        assert not isinstance(observer, Lineage)
        assert threading.active_count() == before


@pytest.mark.slow
def test_a_real_pipeline_tells_its_tables_and_topics(
    spark: SparkSession, services: Services, cql: Session, at: Receiver, tmp_path: Path
) -> None:
    with new_keyspace(cql, "lineage") as keyspace, new_topics(services.kafka, ["lineage-in", "lineage-out"], 1):
        cql.execute(f"CREATE TABLE {keyspace}.a (id int PRIMARY KEY, n int) WITH cdc = {{'enabled': true}}")
        cql.execute(f"CREATE TABLE {keyspace}.b (id int PRIMARY KEY, person text)")
        with BlockingProducer(services.kafka) as producer:
            producer.send("lineage-in", b'{"id": 1}')

        @pipeline(name="both")
        def both(spark: SparkSession) -> list[Query]:
            changes = cdc.read(spark, f"{keyspace}.a", hosts=services.cql, name="a", confidence="1 second")
            read = kafka.read(spark, "lineage-in", servers=services.kafka, schema="id int", name="in")
            found = read.transform(
                cql_tables.lookup,
                f"{keyspace}.b",
                hosts=services.cql,
                on="id",
                columns=["person"],
                ttl="1 minute",
                name="who",
            )
            return [
                write(changes, kafka.sink("lineage-out", servers=services.kafka), name="changes"),
                write(found.select("id", "person"), files.sink(tmp_path / "out"), name="found"),
            ]

        stop = StopRequests(threading.Event(), threading.Event())
        with sent(at.url) as observer:
            PipelineRun(both, spark, tmp_path / "checkpoints", stop, observer, once=True).supervise()
        assert at.types("both.changes") == at.types("both.found") == ["START", "COMPLETE"]
        for event in at.events:
            require_valid(event)
        told = {one["job"]["name"]: one for one in at.events}
        named = {job: [names(event["inputs"]), names(event["outputs"])] for job, event in told.items()}
        database, broker = f"cassandra://{services.cql}", f"kafka://{services.kafka}"
        assert named == {
            "both.changes": [{(database, f"{keyspace}.a")}, {(broker, "lineage-out")}],
            "both.found": [{(broker, "lineage-in"), (database, f"{keyspace}.b")}, {("file", f"{tmp_path}/out")}],
        }
        (read,) = told["both.changes"]["inputs"]
        assert [one["name"] for one in read["facets"]["schema"]["fields"]] == ["id", "n"]
        assert [one["facets"] for one in told["both.found"]["inputs"]] == [{}, {}]


# Receivers that do not work.


def event(kind: str = "START") -> dict[str, Any]:
    return {"eventType": kind, "id": uuid.uuid4().hex}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are short."""
    monkeypatch.setattr(lineage, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(lineage, "LONGEST_PAUSE", 0.04)


def timed(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_events_wait_for_a_receiver_that_fails(status: int, at: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    at.status, at.resets = status, 1
    sender = LineageSender(f"{at.url}/a")
    made = [event() for _ in range(3)]
    for one in made:
        sender.put(one)
    until(lambda: at.tries >= 4, "tries")
    at.status = 201
    until(lambda: at.events == made, "all events, in order")
    sender.close()
    pauses = ["0.01", "0.02", "0.04", "0.04"]
    warnings = [record.getMessage() for record in caplog.records]
    # A connection that is reset, as the first one is, is a failure without an answer.
    answered = {place: text for place, text in enumerate(warnings) if "HTTP status" in text}
    for place, text in answered.items():
        assert text == (
            f"lineage is not sent to {at.url}/a: HTTP status {status}; trying again in {pauses[min(place, 3)]} s. "
            "Next: check --lineage, and that the receiver is up; the run goes on"
        )
    assert at.resets == 0 < len(answered) <= at.tries - len(made) <= len(warnings), "a warning for each failure"
    assert [text.split("again in ")[1].split(" s")[0] for text in warnings[:4]] == pauses


@pytest.mark.parametrize("status", [400, 401, 404, 301])
def test_an_event_that_is_refused_is_left_out(status: int, at: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    at.status = status
    sender = LineageSender(f"{at.url}/a")
    sender.put(event("RUNNING"))
    sender.close()
    assert at.tries == 1
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{at.url}/a refuses an event of lineage with HTTP status {status}: because of this; "
        "the event RUNNING is left out"
    )


def test_nobody_waits_for_a_receiver_that_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lineage, "PATIENCE", 3600.0)
    sender = LineageSender("http://127.0.0.1:1/a")
    for _ in range(1000):
        sender.put(event())
    until(lambda: caplog.records, "a warning")
    assert timed(sender.close) < PATIENCE
    assert len(sender._events) == 0
    assert "Connection refused" in caplog.records[0].getMessage()
    assert caplog.records[-1].getMessage() == "1000 events of lineage were not sent to http://127.0.0.1:1/a"


def test_the_oldest_events_are_dropped_while_a_receiver_is_away(monkeypatch: pytest.MonkeyPatch, at: Receiver) -> None:
    monkeypatch.setattr(lineage, "FIRST_PAUSE", 0.2)
    at.status = 500
    sender = LineageSender(f"{at.url}/a")
    sender.put(event())
    until(lambda: at.tries, "the first try")
    made = [event() for _ in range(lineage.ROOM + 5)]
    for one in made:
        sender.put(one)
    at.status = 200
    until(lambda: at.events and at.events[-1] == made[-1], "the last event")
    sender.close()
    assert at.events == made[-lineage.ROOM :]


def test_a_slow_receiver_delays_the_end_only_so_long(monkeypatch: pytest.MonkeyPatch, at: Receiver) -> None:
    monkeypatch.setattr(lineage, "PATIENCE", 0.2)
    at.slow = 3600.0
    sender = LineageSender(f"{at.url}/a")
    sender.put(event())
    until(lambda: at.tries, "a request")
    assert timed(sender.close) < PATIENCE


def test_a_key_that_no_header_can_have_is_told(
    monkeypatch: pytest.MonkeyPatch, at: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(lineage.API_KEY, "a\nb")
    sender = LineageSender(f"{at.url}/a")
    sender.put(event())
    sender.close()
    assert at.tries == 0
    assert caplog.records[0].levelno == logging.WARNING
    assert "an event of lineage cannot be sent: the address or a header has characters" in caplog.text
    assert r"a\nb" not in caplog.text and "a\nb" not in caplog.text


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://h:1", "http://h:1/api/v1/lineage"),
        ("https://h/", "https://h/api/v1/lineage"),
        ("http://h:1/own/path?a=b", "http://h:1/own/path?a=b"),
    ],
)
def test_a_url_without_a_path_gets_the_usual_one(given: str, url: str) -> None:
    assert receiver(given) == url


@pytest.mark.parametrize(
    "given", ["h:1", "ftp://h/a", "http://", "http://h:x", "http://u:p@h", "http://h/a b", "http://h:99999"]
)
def test_what_is_not_a_url_is_refused(given: str) -> None:
    with pytest.raises(PenstockError, match="is not the URL of a receiver of lineage"):
        receiver(given)


def test_events_running_come_at_most_once_a_minute() -> None:
    assert timedelta(seconds=lineage.EVERY) == timedelta(minutes=1)


COMMAND = """
import penstock as ps
from penstock import kafka

@ps.pipeline
def copies(spark):
    read = kafka.read(spark, "{topic}", servers="{servers}", schema="id int", name="in")
    return ps.write(read.select("id"), kafka.sink("{topic}-out", servers="{servers}"))
"""


@pytest.mark.slow
def test_a_run_ends_as_it_would_without_a_receiver(services: Services, tmp_path: Path) -> None:
    name = f"copied-{uuid.uuid4().hex[:8]}"
    (tmp_path / "shop.py").write_text(COMMAND.format(topic=name, servers=services.kafka))
    with new_topics(services.kafka, [name, f"{name}-out"], 1), BlockingProducer(services.kafka) as producer:
        producer.send(name, b'{"id": 1}')
        producer.flush()
        command = [sys.executable, "-m", "penstock", "run", "shop.py:copies", "--once", "--metrics", "none"]
        ran = subprocess.run(
            [*command, "--lineage", "http://127.0.0.1:1"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=patience(300),
        )
        assert ran.returncode == 0, ran.stderr
        assert len(stored(services.kafka, f"{name}-out", 1)[0]) == 1
    lost = [line for line in ran.stderr.splitlines() if "lineage" in line]
    assert "lineage is not sent to http://127.0.0.1:1/api/v1/lineage: Connection refused" in lost[0]
    assert "2 events of lineage were not sent to http://127.0.0.1:1/api/v1/lineage" in lost[-1]
    # Each warning has twice the pause of the one before: not many fit into a run of some seconds.
    assert 2 <= len(lost) <= 8
    refused = subprocess.run(
        [*command, "--lineage", "marquez:5000"], cwd=tmp_path, capture_output=True, text=True, timeout=patience(300)
    )
    assert refused.returncode == 1
    assert "'marquez:5000' is not the URL of a receiver of lineage" in refused.stderr
    assert "Spark" not in refused.stderr
