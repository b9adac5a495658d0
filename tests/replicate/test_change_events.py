"""Changes go through a topic as extended events, and arrive in another table as they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_topics import new_topic
from keyspaces import new_keyspace
from pyspark.sql import SparkSession

import penstock
from penstock import cdc, kafka, replicate
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.replicate.change_events import EventCodec

TYPES = (
    "CREATE TYPE {ks}.part (name text, sizes list<int>)",
    "CREATE TYPE {ks}.home (street text, since date, zip int)",
)
TABLE = (
    'CREATE TABLE {ks}.t (pk int, a timestamp, "B" text, s date static, i tinyint, d decimal, n varint, u uuid, '
    "x blob, f float, t time, du duration, ip inet, ts timestamp, m map<date, timestamp>, e set<blob>, "
    "l list<timestamp>, h home, "
    "fp frozen<part>, tu tuple<int, frozen<list<int>>>, fm frozen<map<int, date>>, v vector<float, 2>, "
    'PRIMARY KEY (pk, a, "B")) WITH CLUSTERING ORDER BY (a DESC, "B" ASC){and}'
)
ROW = "pk = 1 AND a = '2026-01-01' AND \"B\" = 'x'"
KEY = '(pk, a, "B"'
VALUES = (
    "-1, 1.50, 12345678901234567890, 00000000-0000-4000-8000-000000000001, 0xff00, NaN, '12:00:00.000000001', "
    "1mo2d3ns, "
    "'10.0.0.1', '1969-01-01 00:00:00.001', {'1969-01-01': '2026-01-01'}, {0x, 0x01}, ['2026-01-01', '2026-01-02'], "
    "{street: 's', since: '1900-01-01'}, {name: null, sizes: null}, (1, null), {1: '2026-01-01'}, [1.5, 2.5]"
)
NAMES = "i, d, n, u, x, f, t, du, ip, ts, m, e, l, h, fp, tu, fm, v"
STATEMENTS = (
    f"INSERT INTO {{ks}}.t {KEY}, {NAMES}) VALUES (1, '2026-01-01', 'x', {VALUES})",
    f"INSERT INTO {{ks}}.t {KEY}, {NAMES}) VALUES (1, '2026-01-02', 'y', {VALUES}) USING TTL 80000",
    f"INSERT INTO {{ks}}.t {KEY}) VALUES (2, '2026-01-02', 'y')",
    "UPDATE {ks}.t SET s = '2000-01-01' WHERE pk = 1",
    f"UPDATE {{ks}}.t SET m = m - {{'1969-01-01'}}, m['1970-01-02'] = '2026-01-03', e = e - {{0x}}, h.zip = 5, "
    f"h.street = null WHERE {ROW}",
    f"UPDATE {{ks}}.t SET l = l + ['2026-01-03'], d = null WHERE {ROW}",
    f"UPDATE {{ks}}.t USING TTL 70000 SET l[0] = '2026-05-05', e = {{0x07}} WHERE {ROW}",
    *(f"INSERT INTO {{ks}}.t {KEY}, i) VALUES (3, '2026-01-0{day}', '{b}', 1)" for day in (1, 2, 3) for b in "pqr"),
    "DELETE FROM {ks}.t WHERE pk = 3 AND a = '2026-01-01' AND \"B\" > 'p'",
    "DELETE FROM {ks}.t WHERE pk = 3 AND a > '2026-01-02'",
    "DELETE FROM {ks}.t WHERE pk = 3 AND a = '2026-01-02' AND \"B\" = 'q'",
    *(f"INSERT INTO {{ks}}.t {KEY}, i) VALUES (4, '2026-01-0{day}', 'p', 1)" for day in (1, 2)),
    "DELETE FROM {ks}.t WHERE pk = 4",
    "UPDATE {ks}.t SET i = 1 WHERE pk = 5 AND a = '2026-01-01' AND \"B\" = 'x'",
)


@pytest.fixture(scope="module")
def keyspaces(cql: Any) -> Iterator[tuple[str, str]]:
    with new_keyspace(cql, "events_from") as source, new_keyspace(cql, "events_to") as target:
        for keyspace, more in ((source, " AND cdc = {'enabled': true}"), (target, "")):
            for statement in (*TYPES, TABLE):
                cql.execute(statement.replace("{ks}", keyspace).replace("{and}", more))
        yield source, target


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "copies", 2) as name:
        yield name


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("format", "start"),
    [("json", "snapshot"), ("avro", "earliest"), ("protobuf", "earliest"), ("protobuf", "snapshot")],
)
def test_a_table_is_rebuilt_from_its_topic(
    keyspaces: tuple[str, str],
    cql: Any,
    services: Services,
    registry: str,
    spark: SparkSession,
    tmp_path: Path,
    topic: str,
    format: EventCodec,
    start: str,
) -> None:
    source, target = keyspaces
    for keyspace, log in ((source, "t_scylla_cdc_log"), (source, "t"), (target, "t")):
        cql.execute(f"TRUNCATE {keyspace}.{log}")
    for statement in STATEMENTS:
        cql.execute(statement.replace("{ks}", source))
    url = None if format == "json" else registry
    hosts = services.cql
    changes = cdc.read(spark, f"{source}.t", hosts=hosts, name=topic, start=start, latency="low", write_times=True)
    events = replicate.events(changes, topic=topic, format=format, registry=url)
    written = penstock.write(events, kafka.sink(servers=services.kafka))
    written.start(checkpoint=tmp_path / "to", trigger="once").awaitTermination()
    back = replicate.changes(
        spark, topic, table=f"{target}.t", hosts=hosts, servers=services.kafka, name=topic, format=format, registry=url
    )
    applied = penstock.write(back, replicate.sink(f"{target}.t", hosts=hosts))
    applied.start(checkpoint=tmp_path / "from", trigger="once").awaitTermination()
    sides = (replicate.side(f"{name}.t", hosts=hosts) for name in keyspaces)
    report = replicate.verify(spark, *sides, settle=0, level=3)
    assert not report.different, report.described
    assert report.rows == (7, 7)
    assert report.hidden is not None
    assert [one for one in report.hidden.described if one.what == "row marker"] == []


@pytest.mark.slow
def test_a_record_that_is_no_event_ends_the_query(
    keyspaces: tuple[str, str], services: Services, spark: SparkSession, tmp_path: Path, topic: str
) -> None:
    with penstock.wire.BlockingProducer(services.kafka) as producer:
        producer.send(topic, b"no event").result()
    table = f"{keyspaces[1]}.t"
    frame = replicate.changes(
        spark, topic, table=table, hosts=services.cql, servers=services.kafka, name=topic, format="json"
    )
    query = penstock.write(frame, replicate.sink(table, hosts=services.cql))
    started = query.start(checkpoint=tmp_path / "bad", trigger="once")
    with pytest.raises(Exception, match=f"a record cannot be read: .*topic {topic}, partition [01], offset 0"):
        started.awaitTermination()


def test_an_unknown_format_is_refused(services: Services, spark: SparkSession) -> None:
    with pytest.raises(PenstockError, match="unknown format 'csv'"):
        replicate.changes(
            spark,
            "t",
            table="a.b",
            hosts=services.cql,
            servers=services.kafka,
            name="t",
            format="csv",  # type: ignore[arg-type]
        )
