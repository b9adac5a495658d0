"""`kafka.read`: its errors when the frame is built, and good and bad records of a real topic."""

from __future__ import annotations

import datetime as dt
import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka_topics import messages, new_topic
from pyspark.sql import DataFrame, SparkSession

from penstock import kafka, write
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.metrics import delays
from penstock.query.delivery import Client

HERE = "127.0.0.1:9092"
CLICK = "id int NOT NULL, page string, price double, ts timestamp"
GOOD = {"id": 1, "page": "é", "price": 2.5, "ts": "2024-02-29T12:00:00Z"}
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"schema": None}, "no schema .*kafka.read of t.*give the columns"),
        ({"schema": "id integr"}, "the schema cannot be read"),
        ({"format": "xml"}, "unknown format 'xml'.*use 'json' or"),
        ({"at": "ts"}, "at and late must be given together"),
        ({"at": "price", "late": "1 minute"}, 'price is double, not a timestamp.*at="timestamp_millis'),
        ({"schema": "id int, offset long"}, "two columns have the name offset.*prefix="),
        ({"format": "avro"}, "the format 'avro' needs a schema registry"),
        ({"registry": "http://x:1"}, "'json' does not use a schema registry"),
        ({"client": "java"}, "unknown client 'java'.*'penstock' or 'spark'"),
        ({"client": "spark", "start": "yesterday"}, "start 'yesterday' is not valid"),
        ({"start": "yesterday"}, "start 'yesterday' is not valid.*'earliest'"),
        ({"options": {"kafka.bootstrap.servers": "x"}}, "kafka.bootstrap.servers cannot be set.*give servers="),
    ],
)
def test_a_wrong_setting_is_refused_when_the_frame_is_built(
    spark: SparkSession, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(PenstockError, match=said):
        kafka.read(spark, "t", **{"servers": HERE, "name": "t", "schema": CLICK, **wrong})


def test_dead_letters_need_the_problem_of_a_read_frame(spark: SparkSession) -> None:
    with pytest.raises(PenstockError, match=r"need the column `problem` of kafka.read"):
        kafka.dead_letters("dead", servers=HERE).records(spark.range(1))


def produce(servers: str, topic: str, values: list[bytes | None]) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, key=b"k", headers=[("h", b"\xff")])
    assert producer.flush(20) == 0


def run(frame: DataFrame, spark: SparkSession, name: str) -> list[Any]:
    """All rows of a topic so far, in the order of their offsets."""
    frame.writeStream.format("memory").queryName(name).trigger(availableNow=True).start().awaitTermination()
    return spark.table(name).orderBy("offset").collect()


BAD = {
    b"no json": "not a JSON object: 'no json'",
    b'{"id": "x", "page": 5}': "id is not a valid int: 'x'",
    b'{"page": "p", "ts": "2024-02-29T12:00:00Z"}': "missing or null: id",
    b'{"id": 2, "page": "p"}': "no time in ts",
    b'{"id": 2, "ts": "2999-01-01T00:00:00Z"}': "the time ts is ahead of its arrival: 2999-01-01 00:00:00",
    b'[{"id": 1}]': "an array, not an object: '[{\"id\": 1}]'",
    b'{"id": 3, "page": "\xff"}': "not valid UTF-8",
    b"": "not a JSON object: ''",
    None: "no value (a tombstone)",
}


REASONS = {"not_json": 3, "wrong_type": 1, "missing_field": 1, "wrong_time": 2, "not_utf8": 1, "no_value": 1}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("client", ["penstock", "spark"])
def test_bad_records_stay_with_their_problem_and_go_to_a_topic_as_they_came(
    spark: SparkSession, services: Services, tmp_path: Path, client: Client
) -> None:
    values = [json.dumps(GOOD).encode(), *BAD, json.dumps({"id": 9, "ts": "2024-02-29T12:00:00Z"}).encode()]
    with new_topic(services.kafka, "clicks", 1) as topic, new_topic(services.kafka, "dead", 1) as dead:
        produce(services.kafka, topic, values)
        frame = kafka.read(
            spark, topic, servers=services.kafka, schema=CLICK, at="ts", late="10 minutes", name="clicks", client=client
        )
        assert frame.columns == [
            *("id", "page", "price", "ts"),
            *("key", "topic", "partition", "offset", "timestamp", "problem"),
        ]
        query = write(frame, kafka.dead_letters(dead, servers=services.kafka)).start(
            checkpoint=tmp_path / "dead", trigger="once"
        )
        query.awaitTermination()
        last = query.lastProgress
        assert last is not None
        observed = last["observedMetrics"]
        assert observed["clicks"][:2] == (len(values), len(BAD))
        delays.add_observed(str(query.id), observed)
        assert delays.bad_records(observed)["clicks"] == REASONS
        told = json.loads(last.json)["observedMetrics"]  # as meters read it
        assert delays.bad_records(told)["clicks"] == REASONS
        assert delays.counts_of(str(query.id))[0].letters == REASONS
        # A day ahead: the year 2999 would have moved it.
        assert last["eventTime"]["max"].startswith("2024-02-29T12:00")
        letters = list(messages(services.kafka, dead, 1))
        assert [letter.value() for letter in letters] == list(BAD)
        told = [dict(letter.headers()) for letter in letters]
        assert [one["__connect.errors.exception.message"].decode() for one in told] == list(BAD.values())
        assert {one["__connect.errors.topic"] for one in told} == {topic.encode()} and told[0]["h"] == b"\xff"
        assert [one["__connect.errors.offset"] for one in told] == [b"%d" % n for n in range(1, len(BAD) + 1)]
        assert {letter.key() for letter in letters} == {b"k"}
        rows = run(frame, spark, f"clicks_{client}")
    first, last = rows[0], rows[-1]
    assert (first.id, first.page, first.price, first.offset, first.topic) == (1, "é", 2.5, 0, topic)
    assert first.problem is None and last.problem is None and (last.id, last.page) == (9, None)
    assert [row.problem.offset for row in rows[1:-1]] == list(range(1, len(BAD) + 1))


HOUR = 3_600
SECONDS = [0, -1, 1, 978_307_200, 32_503_680_000, 62_135_596_800, 62_135_596_801, -62_135_596_801, 1 << 62, -(1 << 63)]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("at", "unit"),
    [
        (None, 1),
        pytest.param("ts", 1, marks=pytest.mark.slow),
        pytest.param("timestamp_seconds(n)", 1, marks=pytest.mark.slow),
        ("timestamp_millis( n )", 1_000),
        pytest.param("TIMESTAMP_MICROS(n)", 1_000_000, marks=pytest.mark.slow),
        pytest.param("timestamp_millis(m)", 1_000, marks=pytest.mark.slow),
        pytest.param("try_to_timestamp(text)", 1, marks=pytest.mark.slow),
    ],
)
def test_both_clients_find_the_same_problems_with_the_same_bytes(
    spark: SparkSession, services: Services, at: str | None, unit: int
) -> None:
    arrivals = [int(time.time()) - apart for apart in (0, 7, 86_400)]
    near = [arrival + apart for arrival in arrivals for apart in (-1, 0, HOUR, HOUR + 1)]
    events: list[dict[str, Any] | None] = [{"id": 1, "n": seconds * unit, "m": 5} for seconds in [*near, *SECONDS]]
    events += [{"id": 1, "m": m, "n": 0} for m in (0, -1, None, 2_147_483_647)]
    events += [{"id": 1, "ts": text, "text": text} for text in ("1969-12-31T23:59:59Z", "3001-01-01T00:00:00Z", "x")]
    events += [{"id": None, "n": 1, "m": 1}, {"n": 1, "m": 1}, {"id": 1}, {"id": "x", "n": 1, "m": 1}, None]
    kind = "id int NOT NULL, n long, m int, ts timestamp, text string"
    with new_topic(services.kafka, "times", 1) as topic:
        producer = Producer({"bootstrap.servers": services.kafka})
        for number, event in enumerate(events):
            value = None if event is None else json.dumps(event)
            for arrival in arrivals:
                headers = [("h", b"\xff")] if number % 2 else []
                producer.produce(topic, value, headers=headers, timestamp=arrival * 1000)
        assert producer.flush(20) == 0
        found = []
        for client in ("penstock", "spark"):
            times: dict[str, Any] = {} if at is None else {"at": at, "late": "10 minutes", "ahead": "1 hour"}
            given = {"servers": services.kafka, "schema": kind, "name": "times", "client": client, **times}
            rows = run(kafka.read(spark, topic, **given), spark, f"times_{client}")
            found.append([row.asDict(recursive=True) for row in rows])
    assert len(found[0]) == len(events) * len(arrivals)
    assert found[0] == found[1]
    problems = [row["problem"] for row in found[0] if row["problem"]]
    assert any(one["value"] and one["headers"] for one in problems)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("client", ["penstock", "spark"])
def test_what_our_sink_writes_is_read_with_its_own_types(
    spark: SparkSession, services: Services, client: Client
) -> None:
    kind = "id int, ts timestamp, price double, o struct<at timestamp, n bigint>, days array<timestamp>"
    at = dt.datetime(2026, 5, 31, 7, 0, 0, 123_000)  # noqa: DTZ001 (Spark's local time, here UTC)
    rows = [(1, at, 1.5, (at, 2), [at, None]), (2, None, float("inf"), None, []), (3, at, -0.0, (None, None), None)]
    soon = int(time.time() * 1000) + 2 * HOUR * 1000
    others = [b'{"id":4,"ts":%d}' % soon, b'{"id":5,"ts":1780210800123000}', b'{"id":6} x']
    with new_topic(services.kafka, "types", 1) as topic:
        # Written by one task: those of two have no order.
        kafka.sink(topic, servers=services.kafka).save(spark.createDataFrame(rows, kind).coalesce(1))
        produce(services.kafka, topic, list(others))
        given: dict[str, Any] = {"servers": services.kafka, "schema": kind, "name": "types", "client": client}
        found = run(kafka.read(spark, topic, epoch="millis", **given), spark, f"types_{client}")
        near = run(kafka.read(spark, topic, epoch="millis", ahead="1 hour", **given), spark, f"near_{client}")
        seconds = run(kafka.read(spark, topic, **given), spark, f"seconds_{client}")
    assert [tuple(row[: len(rows[0])]) for row in found[: len(rows)]] == rows
    assert [row.problem and row.problem.reason for row in found[len(rows) :]] == [
        None,
        "ts is not a valid timestamp: '1780210800123000'",
        "not a JSON object: '{\"id\":6} x'",
    ]
    assert near[3].problem.reason.startswith("the time ts is ahead of its arrival: ")
    assert [row.problem is None for row in near] == [True, True, True, False, False, False]
    # As seconds these are no years, and 57971 was one.
    assert [row.problem is None for row in seconds] == [False, True, False, False, False, False]


def test_lines_of_csv_and_a_time_that_is_computed(spark: SparkSession, services: Services) -> None:
    values = [b'1,"a, ""b""",1709208000000', b"x,a,1", b"1,a", b"3,,9223372036854775807", b"2,,1709208000000"]
    with new_topic(services.kafka, "lines", 1) as topic:
        produce(services.kafka, topic, list(values))
        made: dict[str, Any] = {"schema": "id int, offset string, ms long", "format": "csv", "prefix": "kafka_"}
        frame = kafka.read(
            spark, topic, servers=services.kafka, name="lines", at="timestamp_millis(ms)", late="1 hour", **made
        ).withColumnRenamed("kafka_offset", "place")
        frame.writeStream.format("memory").queryName("lines").trigger(availableNow=True).start().awaitTermination()
        rows = spark.table("lines").orderBy("place").collect()
    assert [(row.id, row.offset) for row in (rows[0], rows[-1])] == [(1, 'a, "b"'), (2, None)]
    assert rows[0].at.replace(tzinfo=dt.UTC) == NOON
    reasons = [row.problem and row.problem.reason for row in rows]
    assert reasons == [
        None,
        "id is not a valid int: 'x'",
        "not 3 values: '1,a'",
        "no time in timestamp_millis(ms)",
        None,
    ]


@pytest.mark.slow
def test_avro_of_all_versions_of_a_subject_comes_in_the_newest(
    spark: SparkSession, services: Services, registry: str
) -> None:
    with new_topic(services.kafka, "avro", 1) as topic:
        sink = kafka.sink(topic, servers=services.kafka, format="avro", registry=registry)
        first = spark.sql("SELECT 'k' AS key, struct(1 AS id, timestamp'2024-02-29 12:00:00Z' AS ts) AS value")
        second = spark.sql("""
            SELECT 'k' AS key, struct(2 AS id, nullif('x', '') AS page, timestamp'2024-02-29 12:00:00Z' AS ts) AS value
        """)
        sink.save(first)
        kafka.Registry(registry).set_compatibility("NONE", f"{topic}-value")
        sink.save(second)
        good = next(messages(services.kafka, topic, 1)).value()
        produce(services.kafka, topic, [b"{}", struct.pack(">bI", 0, 1 << 30) + b"x", good[:6]])
        frame = kafka.read(
            spark,
            topic,
            servers=services.kafka,
            name="avro",
            format="avro",
            registry=registry,
            at="ts",
            late="0 seconds",
        )
        rows = run(frame, spark, "avro_read")
        narrow = kafka.read(
            spark, topic, servers=services.kafka, name="n", format="avro", registry=registry, schema="page string"
        )
        assert narrow.columns[:2] == ["page", "key"]
    assert [(row.id, row.page) for row in rows[:2]] == [(1, None), (2, "x")] and not any(r.problem for r in rows[:2])
    number = int.from_bytes(good[1:5], "big")
    assert [row.problem.reason for row in rows[2:]] == [
        "not in Confluent's wire format: no zero byte with a schema id at the start",
        f"the registry had no schema with the id {1 << 30} when this query started",
        f"not valid Avro for the schema {number}",
    ]


@pytest.mark.slow
def test_protobuf_of_all_versions_of_a_subject_comes_in_the_newest(
    spark: SparkSession, services: Services, registry: str
) -> None:
    with new_topic(services.kafka, "proto", 1) as topic:
        sink = kafka.sink(topic, servers=services.kafka, format="protobuf", registry=registry)
        first = "struct(1 AS id, timestamp'2024-02-29 12:00:00.5Z' AS ts)"
        second = """struct(2 AS id, CAST(NULL AS timestamp) AS ts, date'1969-12-31' AS day, 2.5 AS price,
            map('a', 1L) AS counts, array(struct('x' AS tag), struct('y' AS tag)) AS tags, X'00FF' AS raw)"""
        for value in (first, second):
            sink.save(spark.sql(f"SELECT 'k' AS key, {value} AS value"))
            kafka.Registry(registry).set_compatibility("NONE", f"{topic}-value")
        good = next(messages(services.kafka, topic, 1)).value()
        produce(services.kafka, topic, [b"{}", struct.pack(">bI", 0, 1 << 30) + b"x", good[:6] + b"\xff", None])
        made: dict[str, Any] = {"format": "protobuf", "registry": registry}
        rows = run(kafka.read(spark, topic, servers=services.kafka, name="proto", **made), spark, "proto_read")
    assert (rows[0].id, rows[0].ts.replace(tzinfo=dt.UTC), rows[0].price) == (1, NOON.replace(microsecond=500000), None)
    assert (rows[1].id, rows[1].ts, rows[1].day, rows[1].price) == (2, None, dt.date(1969, 12, 31), "2.5")
    assert rows[1].counts == {"a": 1} and [tag.tag for tag in rows[1].tags] == ["x", "y"] and rows[1].raw == b"\0\xff"
    number = int.from_bytes(good[1:5], "big")
    assert [row.problem and row.problem.reason for row in rows] == [
        None,
        None,
        "not in Confluent's wire format: no zero byte with a schema id at the start",
        f"the registry had no schema with the id {1 << 30} when this query started",
        f"not valid Protobuf for the schema {number}",
        "no value (a tombstone)",
    ]


def test_a_topic_is_a_table_whose_tombstones_delete(spark: SparkSession, services: Services) -> None:
    with new_topic(services.kafka, "users", 1) as topic:
        producer = Producer({"bootstrap.servers": services.kafka})
        for key, value in (("1", '{"name": "ann"}'), ("1", None), ("2", "bad"), ("3", '{"id": 9, "name": "cid"}')):
            producer.produce(topic, value, key=key)
        for nobody in ("four", "", None):
            producer.produce(topic, '{"name": "nobody"}', key=nobody)
        assert producer.flush(20) == 0
        users = kafka.read_table(
            spark, topic, key="id", servers=services.kafka, schema="id int, name string", name="users"
        )
        frame = users.df.withColumnRenamed("version", "offset")
        found = [tuple(row) for row in run(frame, spark, "users_read")]
    assert found == [(1, "ann", 0, False), (1, None, 1, True), (3, "cid", 3, False)]
    assert (users.key, users.version, users.deleted) == (("id",), "version", "deleted")
