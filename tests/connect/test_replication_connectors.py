"""A source and a sink connector, as configured in docs/replicate.md, keep a table equal to another: also its times."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import requests
from confluent_kafka import Producer
from kafka_connect import KafkaConnect
from kafka_topics import messages, new_topics
from keyspaces import new_keyspace
from pyspark.sql import SparkSession
from waiting import PATIENCE, until

from penstock import replicate
from penstock.connect.sinks.replication.task import BadEvents
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.run.faults import RetriableFailure

PAGE = Path(__file__).parents[2] / "docs/replicate.md"
OUT, IN = map(json.loads, re.findall(r"/connectors -d '(\{.*?\})'", PAGE.read_text(), re.DOTALL))
JSON = "org.apache.kafka.connect.json.JsonConverter"
REGISTRY = "value.converter.schema.registry.url"
CONVERTERS = {
    "as in the docs": {},
    "json with schemas": {"value.converter.schemas.enable": "true"},
    "avro": {"value.converter": "io.confluent.connect.avro.AvroConverter", REGISTRY: ""},
    "protobuf": {"value.converter": "io.confluent.connect.protobuf.ProtobufConverter", REGISTRY: ""},
}
"""What is different from the docs."""
CREATED = (
    "CREATE TYPE {ks}.home (street text, zip int)",
    "CREATE TABLE {ks}.orders (pk int, a int, b text, s text static, v int, m map<text, timestamp>, e set<blob>, "
    "l list<text>, h home, f frozen<list<int>>, PRIMARY KEY (pk, a, b)) WITH CLUSTERING ORDER BY (a DESC, b ASC){and}",
)
KEY = "(pk, a, b"
ALL = f"{KEY}, v, m, e, l, h, f) VALUES"
VALUES = "1, {'x': '2026-01-01', 'y': '1969-01-01'}, {0x, 0x01}, ['p', 'q'], {street: 's'}, []"
BEFORE = (
    f"INSERT INTO {{ks}}.orders {ALL} (1, 1, 'x', {VALUES}) USING TTL 90000",
    f"INSERT INTO {{ks}}.orders {ALL} (1, 2, 'x', {VALUES})",
    "UPDATE {ks}.orders SET s = 'before' WHERE pk = 1",
    *(f"INSERT INTO {{ks}}.orders {ALL} (2, {a}, '{b}', {VALUES})" for a in (1, 2, 3) for b in "xyz"),
    f"INSERT INTO {{ks}}.orders {ALL} (3, 1, 'x', {VALUES})",
)
"""Rows of the snapshot."""
AFTER = (
    f"INSERT INTO {{ks}}.orders {ALL} (4, 1, 'x', {VALUES})",
    f"INSERT INTO {{ks}}.orders {KEY}) VALUES (4, 2, 'x')",
    "UPDATE {ks}.orders USING TTL 80000 SET v = 2, m = m + {'z': '2026-05-05'}, h.zip = 7 "
    "WHERE pk = 1 AND a = 1 AND b = 'x'",
    "UPDATE {ks}.orders SET m = m - {'x'}, e = e - {0x}, l = l + ['r'], h.street = null, f = [1, 2] "
    "WHERE pk = 1 AND a = 2 AND b = 'x'",
    "UPDATE {ks}.orders USING TTL 70000 SET e = {0x07}, s = 'after' WHERE pk = 4 AND a = 1 AND b = 'x'",
    "DELETE v, l FROM {ks}.orders WHERE pk = 4 AND a = 1 AND b = 'x'",
    "DELETE FROM {ks}.orders WHERE pk = 2 AND a = 1 AND b > 'x'",
    "DELETE FROM {ks}.orders WHERE pk = 2 AND a > 2",
    "DELETE FROM {ks}.orders WHERE pk = 2 AND a = 2 AND b = 'y'",
    "DELETE FROM {ks}.orders WHERE pk = 3",
)
"""Changes of every kind; the last row is in neither."""
LAST = f"INSERT INTO {{ks}}.orders {KEY}) VALUES (9, 1, 'last')"
Sides = tuple[str, str]


@pytest.fixture
def keyspaces(cql: Any) -> Iterator[Sides]:
    """The keyspaces of the source and of the target, with a table each."""
    with new_keyspace(cql, "pair_from") as source, new_keyspace(cql, "pair_to") as target:
        for keyspace, more in ((source, " AND cdc = {'enabled': true}"), (target, "")):
            for statement in CREATED:
                cql.execute(statement.replace("{ks}", keyspace).replace("{and}", more))
        yield source, target


@pytest.fixture
def topic(services: Services, keyspaces: Sides) -> Iterator[str]:
    """The topic of the source's table; it is deleted after the connectors."""
    name = f"pair-{uuid.uuid4().hex[:8]}.{keyspaces[0]}.orders"
    with new_topics(services.kafka, [name, f"{name}.dead"], 1):
        yield name


@pytest.fixture
def named(connect: KafkaConnect, topic: str) -> Iterator[str]:
    """The prefix of the topic, and of the names of connectors, which are deleted at the end."""
    prefix = topic.partition(".")[0]
    yield prefix
    for name in connect.list_connectors():
        if name.startswith(prefix):
            connect.delete_connector(name)


@pytest.fixture
def pair(
    connect: KafkaConnect,
    services: Services,
    keyspaces: Sides,
    named: str,
    topic: str,
    request: pytest.FixtureRequest,
) -> Callable[[dict[str, str]], None]:
    """Starts both connectors as in the docs, with the addresses of here and other converters."""
    source, target = keyspaces
    of_source = {
        "topic.prefix": named,
        "scylla.cluster.ip.addresses": services.cql,
        "scylla.table.names": f"{source}.orders",
        "scylla.consistency.level": "ONE",
    }
    of_sink = {
        "topics": topic,
        "scylladb.contact.points": services.cql,
        "scylladb.keyspace": target,
        "scylladb.consistency.level": "ONE",
    }

    def start(converters: dict[str, str]) -> None:
        if REGISTRY in converters:
            converters = converters | {REGISTRY: request.getfixturevalue("registry")}
        for name, given, own in ((f"{named}-out", OUT, of_source), (f"{named}-in", IN, of_sink)):
            config = {**given["config"], **converters, **own}
            connect.create_connector({"name": name, "config": config})

    return start


def run(cql: Any, keyspace: str, *statements: str) -> None:
    for statement in statements:
        cql.execute(statement.replace("{ks}", keyspace))


def trace(connect: KafkaConnect, name: str) -> str:
    tasks = connect.get_connector_status(name)["tasks"]
    return str(tasks[0].get("trace", "")) if tasks and tasks[0]["state"] == "FAILED" else ""


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("converter", CONVERTERS)
def test_a_table_is_kept_equal_to_another(
    cql: Any,
    services: Services,
    spark: SparkSession,
    keyspaces: Sides,
    pair: Callable[[dict[str, str]], None],
    converter: str,
) -> None:
    source, target = keyspaces
    run(cql, source, *BEFORE)
    pair(CONVERTERS[converter])
    rows = f"SELECT pk FROM {target}.orders"
    until(lambda: len(list(cql.execute(rows))) == 12, "rows of the snapshot")
    run(cql, source, *AFTER, LAST)

    sides = [replicate.side(f"{keyspace}.orders", hosts=services.cql) for keyspace in keyspaces]
    until(lambda: cql.execute(f"{rows} WHERE pk = 9").one(), "last row")

    def equal() -> replicate.Report | None:
        found = replicate.verify(spark, *sides, settle=0)
        return found if found.result == "equal" else None

    assert until(equal, "equal tables").rows == (8, 8)


@pytest.mark.slow
def test_a_new_column_waits_until_the_target_has_it(
    connect: KafkaConnect, cql: Any, keyspaces: Sides, named: str, pair: Callable[[dict[str, str]], None]
) -> None:
    source, target = keyspaces
    run(cql, source, *BEFORE[:1])
    pair(CONVERTERS["avro"])
    until(lambda: list(cql.execute(f"SELECT pk FROM {target}.orders")), "row of the snapshot")
    added, row = "ALTER TABLE {ks}.orders ADD w int", f"INSERT INTO {{ks}}.orders {KEY}, w) VALUES (7, 1, 'x', 5)"
    run(cql, source, added, row)
    said = until(lambda: trace(connect, f"{named}-in"), "failed task")
    assert "the target has no column w, which the events have" in said and "ALTER TABLE" in said
    run(cql, target, added)
    connect.restart_connector_task(f"{named}-in", 0)
    until(lambda: [one[0] for one in cql.execute(f"SELECT w FROM {target}.orders WHERE pk = 7")] == [5], "its value")


def test_a_record_that_is_not_an_extended_event_ends_the_task_or_becomes_a_dead_letter(
    connect: KafkaConnect, cql: Any, services: Services, keyspaces: Sides, named: str, topic: str
) -> None:
    producer = Producer({"bootstrap.servers": services.kafka})
    producer.produce(topic, b'{"pk": 1, "a": 1, "b": "x", "op": "c"}')
    producer.produce(topic, None, key=b"tombstone")
    producer.flush()
    config = {
        "connector.class": "ReplicationSink",
        "topics": topic,
        f"topic.{topic}.table": f"{keyspaces[1]}.orders",
        "scylladb.contact.points": services.cql,
        "value.converter": JSON,
        "value.converter.schemas.enable": "false",
    }
    connect.create_connector({"name": named, "config": config})
    said = until(lambda: trace(connect, named), "failed task")
    assert f"topic {topic}, partition 0, offset 0" in said
    assert "not an extended event with the times of writes" in said and "penstock.write.times=true" in said
    more = {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": f"{topic}.dead",
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
    }
    connect.update_connector(named, config | more)
    (letter,) = until(lambda: [*messages(services.kafka, f"{topic}.dead", 1)], "dead letter")
    assert json.loads(letter.value()) == {"pk": 1, "a": 1, "b": "x", "op": "c"}
    headers = {name: value.decode() for name, value in letter.headers()}
    assert "extended event" in headers["__connect.errors.exception.message"]
    assert not list(cql.execute(f"SELECT * FROM {keyspaces[1]}.orders"))


def test_an_event_of_a_schema_that_the_registry_got_later_is_not_bad() -> None:
    """A query knows the schemas of its start: it must start again, whatever is tolerated."""
    registry: Any = SimpleNamespace(schemas=lambda subject: [(7, "", "AVRO")] if subject == "t-value" else [])
    bad = BadEvents(True, None, registry, "t-value")
    record = {"reason": "the registry had no schema with the id", "topic": "t", "partition": 0, "offset": 3}
    with pytest.raises(RetriableFailure, match=r"a new schema of events.*topic t, partition 0, offset 3"):
        bad.leave_out(pa.array([record | {"value": b"\0\0\0\0\x07..."}]))
    bad.leave_out(pa.array([record | {"value": b"\0\0\0\0\x08..."}]))
    with pytest.raises(PenstockError, match="a record cannot be applied: the registry had no schema"):
        replace(bad, tolerated=False).leave_out(pa.array([record | {"value": b"\0\0\0\0\x08..."}]))


WRONG = {
    "format": ({"value.converter": "StringConverter"}, "value.converter", "Avro, JSON or Protobuf"),
    "transforms": ({"transforms": "a"}, "transforms", "applied as they are"),
    "topic": ({"topics": "orders"}, "topics", "give topic.orders.table"),
    "table": ({"topics": "orders", "topic.orders.table": "orders"}, "topic.orders.table", "<keyspace>.<table>"),
    "missing": ({"topics": "a.{ks}.order"}, "topics", "there is no table {ks}.order.*did you mean {ks}.orders"),
    "user": ({"scylladb.username": "ann"}, "scylladb.username", "the password is not"),
}


def test_wrong_configurations_name_their_property(connect: KafkaConnect, services: Services, keyspaces: Sides) -> None:
    right = {"name": "x", "connector.class": "ReplicationSink", "topics": f"a.{keyspaces[1]}.orders"}
    right |= {"scylladb.contact.points": services.cql, "value.converter": JSON}
    url = f"{connect.url}/connector-plugins/ReplicationSink/config/validate"
    assert requests.put(url, json=right, timeout=PATIENCE).json()["error_count"] == 0
    for change, name, message in WRONG.values():
        given = {key: text.replace("{ks}", keyspaces[1]) for key, text in (right | change).items()}
        found = requests.put(url, json=given, timeout=PATIENCE).json()
        errors = {one["value"]["name"]: one["value"]["errors"] for one in found["configs"] if one["value"]["errors"]}
        assert set(errors) == {name}
        assert re.search(message.replace("{ks}", keyspaces[1]), errors[name][0]), errors
