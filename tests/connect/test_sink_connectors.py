"""Sink connectors by another project's client: records become rows, bad ones dead letters, and positions are kept."""

from __future__ import annotations

import datetime as dt
import json
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
import requests
from cassandra import InvalidRequest
from cassandra.cluster import NoHostAvailable
from cassandra.util import Duration, Time
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka_connect import KafkaConnect
from kafka_topics import messages, new_topic, new_topics
from keyspaces import new_keyspace
from protobuf_files import message_class
from pyspark.sql import SparkSession
from requests.exceptions import HTTPError
from sharded_proxy import sharded
from tls_proxy import tcp_proxy
from waiting import PATIENCE, until

from penstock.connect.records.deserializers import JsonBytes, RawRecord
from penstock.connect.records.record import ConnectRecord, Part
from penstock.connect.records.semantic_types import SemanticTypes
from penstock.connect.sinks.cql import properties as sink_properties
from penstock.connect.sinks.cql.properties import CLASS
from penstock.connect.sinks.cql.routes import CqlSettings
from penstock.connect.sinks.cql.tables import compression_options
from penstock.connect.sinks.cql.writer import RecordWriter
from penstock.connect.sinks.task import decoded, meant
from penstock.connect.transforms.sink_chain import chain
from penstock.connect.worker.checks import check
from penstock.connect.worker.providers import Provided
from penstock.connect.worker.standalone import StandaloneHerder
from penstock.connect.worker.status import status_of
from penstock.database.cql_connection import close, connection
from penstock.database.requests import RequestLimits
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.watch.probe import Prober
from penstock.watch.program import Program

ID = {"type": "int32", "optional": False, "field": "id"}
NAME = {"type": "string", "optional": True, "field": "name"}
KEY = {"type": "struct", "fields": [ID], "optional": False}
VALUE = {"type": "struct", "fields": [ID, NAME], "optional": True}
Send = Callable[..., None]


@pytest.fixture(scope="module")
def keyspace(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "sink") as name:
        yield name


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "orders", 2) as name:
        yield name


@pytest.fixture
def send(services: Services, topic: str) -> Send:
    """Sends a record for the row with this id; without a name it is a tombstone."""
    producer = Producer({"bootstrap.servers": services.kafka})

    def send(id: int, name: str | None = None, value: bytes | None = None, topic: str = topic) -> None:
        key = json.dumps({"schema": KEY, "payload": {"id": id}})
        made = json.dumps({"schema": VALUE, "payload": {"id": id, "name": name}}).encode()
        producer.produce(topic, value or (None if name is None else made), key=key)
        producer.flush()

    return send


@pytest.fixture
def config(services: Services, keyspace: str, topic: str) -> dict[str, str]:
    return {
        "connector.class": CLASS,
        "topics": topic,
        "scylladb.contact.points": services.cql,
        "scylladb.keyspace": keyspace,
        "scylladb.consistency.level": "ONE",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "true",
    }


@pytest.fixture
def named(connect: KafkaConnect) -> Iterator[str]:
    """The name of a connector that is deleted at the end."""
    name = f"sink-{uuid.uuid4().hex[:8]}"
    yield name
    if name in connect.list_connectors():
        connect.delete_connector(name)


def settings_of(config: dict[str, str]) -> CqlSettings:
    checked = check(config, Provided(), ask=False)
    assert not checked.messages
    return sink_properties.settings(checked.values, config)


def into(services: Services, keyspace: str, topics: str) -> dict[str, str]:
    """A connector that writes these topics into the keyspace."""
    return {
        "name": "x",
        "connector.class": CLASS,
        "topics": topics,
        "scylladb.contact.points": services.cql,
        "scylladb.keyspace": keyspace,
        "scylladb.consistency.level": "ONE",
    }


def rows(cql: Any, keyspace: str, topic: str) -> dict[int, str]:
    try:
        return dict(cql.execute(f"SELECT id, name FROM {keyspace}.{topic.replace('-', '_')}"))
    except (InvalidRequest, NoHostAvailable):  # there is no table yet, or the node is about to know it
        return {}


def states(connect: KafkaConnect, name: str) -> list[str]:
    return [task["state"] for task in connect.get_connector_status(name)["tasks"]]


def trace(connect: KafkaConnect, name: str) -> str:
    tasks = connect.get_connector_status(name)["tasks"]
    return str(tasks[0].get("trace", "")) if tasks and tasks[0]["state"] == "FAILED" else ""


def positions(connect: KafkaConnect, name: str) -> int:
    """The sum of the offsets."""
    found = requests.get(f"{connect.url}/connectors/{name}/offsets", timeout=PATIENCE).json()["offsets"]
    return sum(one["offset"]["kafka_offset"] for one in found)


def test_records_become_rows_of_a_table_that_is_made_and_tombstones_delete_them(
    connect: KafkaConnect, cql: Any, config: dict[str, str], named: str, send: Send, topic: str
) -> None:
    keyspace = config["scylladb.keyspace"]
    for id in range(1, 4):
        send(id, f"name {id}")
    created = connect.create_connector({"name": named, "config": config})
    assert created["type"] == "sink"
    until(lambda: rows(cql, keyspace, topic) == {1: "name 1", 2: "name 2", 3: "name 3"}, "rows")
    until(lambda: states(connect, named) == ["RUNNING"], "running task")
    send(2)
    send(1, "other")
    until(lambda: rows(cql, keyspace, topic) == {1: "other", 3: "name 3"}, "changed rows")
    until(lambda: positions(connect, named) == 5, "positions")
    stored = cql.execute(f'SELECT topic, "offset" FROM {keyspace}.kafka_connect_offsets')
    assert sum(offset for name, offset in stored if name == topic) == 5
    # A connector that is paused reads on from where it was.
    connect.pause_connector(named)
    send(4, "later")
    connect.resume_connector(named)
    until(lambda: rows(cql, keyspace, topic) == {1: "other", 3: "name 3", 4: "later"}, "row of later")
    until(lambda: positions(connect, named) == 6, "positions")


def test_a_field_of_the_key_is_for_the_same_column_of_inserts_and_deletes(
    connect: KafkaConnect, cql: Any, services: Services, config: dict[str, str], named: str, topic: str
) -> None:
    keyspace, table, letters = config["scylladb.keyspace"], topic.replace("-", "_"), f"{topic}-dead"
    cql.execute(f"CREATE TABLE {keyspace}.{table} (id int PRIMARY KEY, name text)")
    cql.execute(f"INSERT INTO {keyspace}.{table} (id, name) VALUES (9, 'there before') USING TIMESTAMP 1")
    producer = Producer({"bootstrap.servers": services.kafka})

    def send(key: dict[str, int], value: dict[str, str] | None) -> None:
        producer.produce(topic, value and json.dumps(value), key=json.dumps(key), partition=0)
        producer.flush()

    more = {
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": letters,
        "errors.deadletterqueue.topic.replication.factor": "1",
    }
    for id in (1, 2):
        send({"ID": id}, {"NAME": f"name {id}"})
    connect.create_connector({"name": named, "config": config | more})
    until(lambda: rows(cql, keyspace, topic) == {1: "name 1", 2: "name 2", 9: "there before"}, "rows")
    send({"ID": 1}, None)
    # Of two fields whose names differ from the column's by case, neither is it: no row is written, and none deleted.
    for value in (None, {"name": "changed"}):
        send({"ID": 9, "Id": 8}, value)
    send({"id": 3}, {"name": "last"})
    until(lambda: rows(cql, keyspace, topic) == {2: "name 2", 3: "last", 9: "there before"}, "rows after the deletes")
    until(lambda: len(list(messages(services.kafka, letters, 1))) == 2, "dead letters of both")


def test_a_bad_record_ends_the_task_and_says_which_or_becomes_a_dead_letter(
    connect: KafkaConnect, cql: Any, services: Services, config: dict[str, str], named: str, send: Send, topic: str
) -> None:
    keyspace = config["scylladb.keyspace"]
    send(1, "good")
    connect.create_connector({"name": named, "config": config})
    until(lambda: rows(cql, keyspace, topic) == {1: "good"}, "row")
    send(1, value=b"{no json")
    said = until(lambda: trace(connect, named), "failed task")
    assert f"topic {topic}, partition" in said and "its value cannot be read: it is not JSON" in said
    assert "set errors.tolerance=all" in said
    letters = f"{topic}-dead"
    more = {
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": letters,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
    }
    connect.update_connector(named, config | more)
    send(2, "after")
    until(lambda: rows(cql, keyspace, topic) == {1: "good", 2: "after"}, "row after the bad one")
    (letter,) = until(lambda: list(messages(services.kafka, letters, 1)), "dead letter")
    assert letter.value() == b"{no json"
    headers = {name: value.decode() for name, value in letter.headers()}
    assert headers["__connect.errors.topic"] == topic
    assert "is not JSON" in headers["__connect.errors.exception.message"]


def test_transforms_change_records_and_choose_their_tables(
    connect: KafkaConnect,
    worker: StandaloneHerder,
    cql: Any,
    services: Services,
    config: dict[str, str],
    named: str,
    topic: str,
) -> None:
    keyspace, letters, table = config["scylladb.keyspace"], f"{topic}-dead", f"rows-{topic}"
    transforms = {
        "transforms": "row,key,table",
        "transforms.row.type": "org.apache.kafka.connect.transforms.ExtractField$Value",
        "transforms.row.field": "row",
        "transforms.key.type": "org.apache.kafka.connect.transforms.ValueToKey",
        "transforms.key.fields": "id",
        "transforms.table.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.table.regex": "(?<name>.*)",
        "transforms.table.replacement": "rows-${name}",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": letters,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
    }
    producer = Producer({"bootstrap.servers": services.kafka})

    def send(schema: dict[str, Any], payload: Any) -> None:
        producer.produce(topic, json.dumps({"schema": schema, "payload": payload}), partition=0)
        producer.flush()

    nested = {"type": "struct", "fields": [{**VALUE, "field": "row"}]}
    send(nested, {"row": {"id": 1, "name": "first"}})
    send(VALUE, {"id": 2, "name": "no row"})
    send(nested, {"row": {"id": 3, "name": "third"}})
    connect.create_connector({"name": named, "config": config | transforms})
    until(lambda: rows(cql, keyspace, table) == {1: "first", 3: "third"}, "rows")
    (letter,) = until(lambda: list(messages(services.kafka, letters, 1)), "dead letter")
    headers = {name.removeprefix("__connect.errors."): value.decode() for name, value in letter.headers()}
    assert (headers["topic"], headers["offset"], headers["stage"]) == (topic, "1", "TRANSFORMATION")
    assert "the transform row (org.apache.kafka" in headers["exception.message"]
    assert "it has no field row; it has id, name" in headers["exception.message"]

    def counted() -> tuple[int, int]:
        status = status_of(Program("connect", "w"), worker.context.meters, worker)
        (task,) = next(one["tasks"] for one in status["connectors"] if one["name"] == named)
        return task["records_total"], task["dead_letters_total"]

    # Spark tells of a batch a moment after its records are written.
    until(lambda: counted() == (3, 1), "counts of the task")


def test_an_expression_that_takes_too_long_makes_dead_letters_and_does_not_hold_its_task(
    connect: KafkaConnect, cql: Any, services: Services, config: dict[str, str], named: str, send: Send, topic: str
) -> None:
    keyspace, letters, long = config["scylladb.keyspace"], f"{topic}-dead", f"{'a' * 42}-{topic}"
    more = {
        "topics": f"{topic},{long}",
        "transforms": "to",
        "transforms.to.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.to.regex": "(a|aa)+b",
        "transforms.to.replacement": "b",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": letters,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
    }
    with new_topics(services.kafka, [long], 1):
        for id in range(10):
            send(id, "held", topic=long)
        send(1, "good")
        connect.create_connector({"name": named, "config": config | more})
        until(lambda: rows(cql, keyspace, topic) == {1: "good"}, "row")
        until(lambda: connect.get_connector_status(named)["tasks"][0]["state"] == "RUNNING", "running task")
        connect.delete_connector(named)
    letter, *others = messages(services.kafka, letters, 1)
    assert len(others) == 9
    said = dict(letter.headers())["__connect.errors.exception.message"].decode()
    assert "the transform to (org.apache.kafka" in said and "'(a|aa)+b' takes more than 1 s" in said


def test_events_of_debezium_become_rows_and_deletes(
    connect: KafkaConnect, cql: Any, services: Services, config: dict[str, str], named: str, topic: str
) -> None:
    keyspace = config["scylladb.keyspace"]
    image = {**VALUE, "name": "shop.orders.Value"}
    fields = [{**image, "field": "before"}, {**image, "field": "after"}, {**NAME, "field": "op"}]
    event = {"type": "struct", "fields": fields, "name": "shop.orders.Envelope"}
    producer = Producer({"bootstrap.servers": services.kafka})

    def send(id: int, op: str, before: Any, after: Any) -> None:
        key = json.dumps({"schema": KEY, "payload": {"id": id}})
        body = {"schema": event, "payload": {"before": before, "after": after, "op": op}}
        producer.produce(topic, json.dumps(body), key=key)
        if op == "d":
            producer.produce(topic, None, key=key)
        producer.flush()

    first, other = {"id": 1, "name": "first"}, {"id": 1, "name": "other"}
    send(1, "c", None, first)
    send(2, "r", None, {"id": 2, "name": "second"})
    unwrap = {"transforms": "row", "transforms.row.type": "io.debezium.transforms.ExtractNewRecordState"}
    connect.create_connector({"name": named, "config": config | unwrap})
    until(lambda: rows(cql, keyspace, topic) == {1: "first", 2: "second"}, "rows")
    send(1, "u", first, other)
    send(2, "d", {"id": 2, "name": "second"}, None)
    until(lambda: rows(cql, keyspace, topic) == {1: "other"}, "changed rows")


def test_positions_are_set_and_removed_while_a_connector_is_stopped(
    connect: KafkaConnect, cql: Any, config: dict[str, str], named: str, send: Send, topic: str
) -> None:
    keyspace = config["scylladb.keyspace"]
    send(1, "one")
    connect.create_connector({"name": named, "config": config})
    until(lambda: rows(cql, keyspace, topic) == {1: "one"}, "row")
    until(lambda: positions(connect, named) == 1, "position")
    connect.stop_connector(named)
    cql.execute(f"TRUNCATE {keyspace}.{topic.replace('-', '_')}")
    offsets = f"{connect.url}/connectors/{named}/offsets"
    other = {"offsets": [{"partition": {"kafka_topic": "other", "kafka_partition": 0}, "offset": {"kafka_offset": 0}}]}
    answer = requests.patch(offsets, json=other, timeout=PATIENCE)
    assert answer.status_code == 400 and "does not read the topic other" in answer.json()["message"]
    assert requests.delete(offsets, timeout=PATIENCE).status_code == 200
    connect.resume_connector(named)
    until(lambda: rows(cql, keyspace, topic) == {1: "one"}, "row that is written again")


def test_a_connector_without_positions_begins_where_its_group_was_and_a_user_s_start_comes_first(
    connect: KafkaConnect, cql: Any, services: Services, config: dict[str, str], named: str, topic: str
) -> None:
    """As one that comes from Kafka Connect: its positions are in the group."""
    producer = Producer({"bootstrap.servers": services.kafka})
    for id in range(6):
        key = json.dumps({"schema": KEY, "payload": {"id": id}})
        value = json.dumps({"schema": VALUE, "payload": {"id": id, "name": "n"}})
        producer.produce(topic, value, key=key, partition=id % 2)  # three in each partition
    producer.flush()
    group = {"group.id": f"connect-{named}", "bootstrap.servers": services.kafka}
    consumer = Consumer(group)
    consumer.commit(offsets=[TopicPartition(topic, 0, 2), TopicPartition(topic, 1, 1)], asynchronous=False)
    consumer.close()
    connect.create_connector({"name": named, "config": config, "initial_state": "STOPPED"})
    start = {"partition": {"kafka_topic": topic, "kafka_partition": 1}, "offset": {"kafka_offset": 2}}
    offsets = f"{connect.url}/connectors/{named}/offsets"
    assert requests.patch(offsets, json={"offsets": [start]}, timeout=PATIENCE).status_code == 200
    connect.resume_connector(named)
    keyspace = config["scylladb.keyspace"]
    until(lambda: rows(cql, keyspace, topic) == {4: "n", 5: "n"}, "rows from the group's and the user's offsets")
    until(lambda: positions(connect, named) == 6, "positions")
    connect.stop_connector(named)
    assert requests.delete(offsets, timeout=PATIENCE).status_code == 200
    connect.update_connector(named, config | {"consumer.override.auto.offset.reset": "latest"})
    connect.resume_connector(named)
    until(lambda: states(connect, named) == ["RUNNING"], "running task")
    value = json.dumps({"schema": VALUE, "payload": {"id": 9, "name": "n"}})
    producer.produce(topic, value, key=json.dumps({"schema": KEY, "payload": {"id": 9}}))
    producer.flush()
    until(lambda: rows(cql, keyspace, topic) == {4: "n", 5: "n", 9: "n"}, "only the row that was written later")


def test_wrong_configurations_name_their_property(connect: KafkaConnect, config: dict[str, str]) -> None:
    wrong = {
        "scylladb.consistency.level": "MOST",
        "topic.orders.ks.t.mapping": "id=key.id,id=value.id",
        "topic.orders.ks.t.ttlSeconds": "long",
        "value.converter.schema.registry.url": "nowhere",
        "transforms.a.type": "Nothing",
    }
    config["value.converter"] = "io.confluent.connect.protobuf.ProtobufConverter"
    url = f"{connect.url}/connector-plugins/{CLASS}/config/validate"
    given = {"name": "x", "transforms": "a"} | config | wrong
    found = requests.put(url, json=given, timeout=PATIENCE).json()
    errors = {one["value"]["name"]: one["value"]["errors"] for one in found["configs"] if one["value"]["errors"]}
    assert set(errors) == set(wrong)
    assert "column id occurs twice" in errors["topic.orders.ks.t.mapping"][0]


def test_a_connector_keeps_its_class(connect: KafkaConnect, config: dict[str, str], named: str) -> None:
    connect.create_connector({"name": named, "config": config, "initial_state": "STOPPED"})
    with pytest.raises(HTTPError, match="400"):
        connect.update_connector(named, config | {"connector.class": "ScyllaConnector"})
    plugins = requests.get(f"{connect.url}/connector-plugins", timeout=PATIENCE).json()
    assert {(one["class"].rpartition(".")[2], one["type"]) for one in plugins} == {
        ("ScyllaConnector", "source"),
        ("ScyllaDbSinkConnector", "sink"),
        ("CassandraSinkConnector", "sink"),
        ("JdbcSinkConnector", "sink"),
        ("ReplicationSinkConnector", "sink"),
        ("FileStreamSinkConnector", "sink"),
        ("FilesSinkConnector", "sink"),
    }


def test_topics_that_match_are_read_also_those_that_are_made_later(
    connect: KafkaConnect, cql: Any, services: Services, config: dict[str, str], named: str, send: Send, topic: str
) -> None:
    keyspace, unit = config.pop("scylladb.keyspace"), topic.removeprefix("orders-")
    later, letters, other = (f"{kind}-{unit}" for kind in ("later", "letters", "Other"))
    del config["topics"]
    matching = {
        "scylladb.keyspace": keyspace,
        # Python's expressions have no \p{Lower}.
        "topics.regex": rf"(?:__|\p{{Lower}}++-){unit}",
        "consumer.override.metadata.max.age.ms": "100",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": letters,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "tasks.max": "2",
    }

    def reads() -> dict[int, str]:
        tasks = requests.get(f"{connect.url}/connectors/{named}/tasks", timeout=PATIENCE).json()
        return {one["id"]["task"]: one["config"]["topics"] for one in tasks}

    send(1, "first")
    with new_topics(services.kafka, [other, f"__{unit}", later], 1):
        no_later = matching["topics.regex"].replace(r"\p", r"(?!later)\p")
        connect.create_connector({"name": named, "config": config | matching | {"topics.regex": no_later}})
        until(lambda: rows(cql, keyspace, topic) == {1: "first"}, "row")
        assert reads() == {0: topic}
        send(2, value=b"{no json")
        until(lambda: sum(1 for _ in messages(services.kafka, letters, 1)) == 1, "dead letter")
        connect.update_connector(named, config | matching)
        until(lambda: reads() == {0: later, 1: topic}, "tasks")
        newest = f"newest-{unit}"
        with new_topics(services.kafka, [newest], 1):
            send(3, "second", topic=newest)
            until(lambda: rows(cql, keyspace, newest) == {3: "second"}, "row of the new topic")
            assert reads() == {0: f"{later},{newest}", 1: topic}
            connect.stop_connector(named)
            send(4, "third", topic=newest)
            connect.resume_connector(named)
            until(lambda: rows(cql, keyspace, newest) == {3: "second", 4: "third"}, "row after the restart")
            connect.update_connector(named, config | matching | {"topics.regex": "no such topic"})
            reason = "a topic that matches no such topic"
            until(lambda: connect.get_connector_status(named)["connector"].get("waits_for") == reason, "reason")
            assert reads() == {}


def test_a_task_says_why_its_first_batch_waits(
    worker: StandaloneHerder, connect: KafkaConnect, config: dict[str, str], named: str, send: Send, topic: str
) -> None:
    def tasks() -> list[dict[str, Any]]:
        return [*connect.get_connector_status(named)["tasks"]]

    send(1, "first")
    # Writes alone need it: the checks of the configuration find all they ask for on the one node.
    level = f"topic.{topic}.{config['scylladb.keyspace']}.{topic.replace('-', '_')}.consistencyLevel"
    connect.create_connector({"name": named, "config": config | {level: "THREE"}})
    with Prober(worker.context.meters).started():
        # What the process of Spark logs, which tries to write.
        until(
            lambda: any("consistency level THREE" in one.get("waits_for", "") for one in tasks()), "reason of the wait"
        )
        assert tasks()[0]["waits_for"].startswith("the first batch of ")
    # Else the end of the connector waits for the batch, which waits for minutes.
    for task in worker._connectors[named].tasks:
        task.ask_to_stop(now=True)


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        ({"topics": ""}, "topics", "give the topics to read, or topics.regex"),
        ({"topics.regex": "a"}, "topics", "not both"),
        ({"topics": "", "topics.regex": "a("}, "topics.regex", "Invalid regex: Unclosed group"),
        ({"errors.deadletterqueue.topic.name": "orders"}, "errors.deadletterqueue.topic.name", "are read"),
        ({"consumer.override.metadata.max.age.ms": "0"}, "consumer.override.metadata.max.age.ms", "at least 1"),
    ],
)
def test_topics_and_their_pattern_exclude_each_other(
    spark: SparkSession, changes: dict[str, str], name: str, said: str
) -> None:
    strings = {f"{side}.converter": "org.apache.kafka.connect.storage.StringConverter" for side in ("key", "value")}
    given = {"name": "x", "connector.class": CLASS, "topics": "orders", "scylladb.keyspace": "ks", **strings}
    errors = check(given | changes, Provided(), ask=False).errors
    assert said in errors[name][0] and len(errors) <= 2
    assert not check(given | {"topics": "", "topics.regex": "orders|a++"}, Provided(), ask=False).errors


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ("{", "it is not JSON"),
        ("{" * 100_000, "it is not JSON"),
        ("{}", "of 1 to 1000 nodes"),
        ('{"10.0.0.1:9042": 9042}', "of 1 to 1000 nodes"),
        ('{"10.0.0.1:9042": "a:b"}', "a:b is not a host"),
        ('{"10.0.0.1:99999": "a"}', "10.0.0.1:99999 is not a host"),
        ('{"10.0.0.1": "a, b"}', "a, b is not a host"),
        (json.dumps({f"10.0.{n}:9042": "a" for n in range(1001)}), "of 1 to 1000 nodes"),
    ],
)
def test_contact_points_as_json_are_checked(points: str, said: str) -> None:
    strings = {f"{side}.converter": "org.apache.kafka.connect.storage.StringConverter" for side in ("key", "value")}
    given = {"name": "x", "connector.class": CLASS, "topics": "orders", "scylladb.keyspace": "ks", **strings}
    (error,) = check(given | {"scylladb.contact.points": points}, Provided(), ask=False).messages
    assert said in error
    right = given | {"scylladb.contact.points": ' {"10.0.0.1": "db1", "10.0.0.2:1": "db2:2"}', "scylladb.port": "5"}
    access = settings_of(right).access
    assert access.hosts == "db1:5,db2:2"
    assert access.translated == (("10.0.0.1:5", "db1:5"), ("10.0.0.2:1", "db2:2"))


def test_rows_are_written_through_translated_addresses(cql: Any, services: Services, keyspace: str) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.translated (id int PRIMARY KEY, v int)")
    with tcp_proxy(services.cql) as proxy:
        config = {
            "name": "x",
            "connector.class": CLASS,
            "topics": "translated",
            "scylladb.contact.points": json.dumps({services.cql: proxy}),
            "scylladb.keyspace": keyspace,
            "scylladb.consistency.level": "ONE",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        }
        settings = settings_of(config)
        try:
            record = ConnectRecord("translated", 0, 0, 1000, Part(None, {"id": 1}), Part(None, {"id": 1, "v": 2}))
            assert RecordWriter(settings, RequestLimits()).write([record]) == []
            assert list(cql.execute(f"SELECT id, v FROM {keyspace}.translated")) == [(1, 2)]
            hosts = connection(settings.access).cluster.metadata.all_hosts()
            assert [str(host.endpoint) for host in hosts] == [proxy]
        finally:
            close(settings.access)


def test_avro_records_make_tables_and_add_columns(
    connect: KafkaConnect, cql: Any, services: Services, registry: str, config: dict[str, str], named: str, topic: str
) -> None:
    keyspace = config["scylladb.keyspace"]
    fields = [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ]
    key = {"type": "record", "name": "key", "fields": fields[:1]}
    producer = Producer({"bootstrap.servers": services.kafka})

    def send(row: dict[str, Any], *more: dict[str, Any]) -> None:
        value = {"type": "record", "name": "value", "fields": [*fields, *more]}
        parts = []
        with SchemaRegistryClient({"url": registry}) as client:
            for side, schema, part in (("key", key, {"id": row["id"]}), ("value", value, row)):
                place = SerializationContext(topic, MessageField(side))
                parts.append(AvroSerializer(client, json.dumps(schema))(part, place))
        producer.produce(topic, parts[1], key=parts[0])
        producer.flush()

    avro = {f"{side}.converter": "io.confluent.connect.avro.AvroConverter" for side in ("key", "value")}
    url = {f"{side}.converter.schema.registry.url": registry for side in ("key", "value")}
    at = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)
    send({"id": 1, "price": Decimal("12.30"), "at": at, "tags": ["a", "b"]})
    connect.create_connector({"name": named, "config": config | avro | url})
    table = f"{keyspace}.{topic.replace('-', '_')}"

    def found(columns: str) -> list[Any]:
        try:
            return sorted(cql.execute(f"SELECT {columns} FROM {table}"))
        except (InvalidRequest, NoHostAvailable):
            return []

    first = (1, Decimal("12.30"), at.replace(tzinfo=None), ["a", "b"])
    until(lambda: found("id, price, at, tags") == [first], "row")
    send({"id": 2, "price": Decimal(1), "at": None, "tags": [], "size": 1.5}, {"name": "size", "type": "double"})
    until(lambda: found("id, price, at, tags, size") == [(*first, None), (2, Decimal("1.00"), None, None, 1.5)], "row")


MONEY = 'syntax = "proto3"; package shop; message Money { int64 units = 1; int32 nanos = 2; }'
ORDER = """syntax = "proto3"; package shop;
import "money.proto"; import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
import "google/type/timeofday.proto";
message Order {
  int64 id = 1; google.protobuf.StringValue note = 2; google.protobuf.Timestamp at = 3; repeated string tags = 4;
  Money price = 5; oneof paid { string card = 6; bool cash = 7; } State state = 8; enum State { NEW = 0; SENT = 1; }
  google.type.TimeOfDay opens = 9; google.protobuf.Timestamp seen = 10;
}
"""


def test_protobuf_records_of_confluents_serializer_become_rows(
    connect: KafkaConnect, cql: Any, services: Services, registry: str, config: dict[str, str], named: str, topic: str
) -> None:
    keyspace, table = config["scylladb.keyspace"], topic.replace("-", "_")
    cql.execute(f"CREATE TYPE {keyspace}.money (units bigint, nanos int)")
    cql.execute(
        f"CREATE TABLE {keyspace}.{table} (id bigint PRIMARY KEY, note text, at timestamp, tags list<text>, "
        "price frozen<money>, card text, cash boolean, state text, opens time, seen text)"
    )
    key, order = (
        message_class('syntax = "proto3"; message Key { int64 id = 1; }'),
        message_class(ORDER, {"money.proto": MONEY}),
    )
    at = dt.datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=dt.UTC)
    first = order(id=1, tags=["a", "b"], card="4711", state=1)
    first.note.value, first.price.units, first.price.nanos = "fragile", 5, -1
    first.at.FromDatetime(at)
    first.opens.hours, first.opens.nanos = 9, 999_999_999
    first.seen.seconds, first.seen.nanos = int(at.timestamp()), 123_456_789
    producer = Producer({"bootstrap.servers": services.kafka})
    with SchemaRegistryClient({"url": registry}) as client:
        for row in (first, order(id=2, cash=True)):
            parts = []
            for side, part in (("key", key(id=row.id)), ("value", row)):
                serializer = ProtobufSerializer(type(part), client)
                parts.append(serializer(part, SerializationContext(topic, MessageField(side))))
            producer.produce(topic, parts[1], key=parts[0])
    producer.flush()
    protobuf = {f"{side}.converter": "io.confluent.connect.protobuf.ProtobufConverter" for side in ("key", "value")}
    url = {f"{side}.converter.schema.registry.url": registry for side in ("key", "value")}
    flat = {"value.converter.flatten.unions": "true"}
    connect.create_connector({"name": named, "config": config | protobuf | url | flat})
    columns = "id, note, at, tags, price, card, cash, state, opens, seen"
    opens, seen = Time(9 * 3600 * 10**9 + 999_999_999), "2026-01-31T12:00:00.123456789Z"
    until(
        lambda: (
            sorted(cql.execute(f"SELECT {columns} FROM {keyspace}.{table}"))
            == [
                (1, "fragile", at.replace(tzinfo=None), ["a", "b"], (5, -1), "4711", None, "SENT", opens, seen),
                (2, None, None, None, None, None, True, "NEW", None, None),
            ]
        ),
        "rows",
    )


@pytest.mark.parametrize("algorithm", ["none", "LZ4Compressor", "SnappyCompressor", "DeflateCompressor"])
def test_a_new_table_is_compressed_as_the_configuration_says(
    cql: Any, services: Services, keyspace: str, algorithm: str
) -> None:
    settings = settings_of(
        into(services, keyspace, "made") | {"scylladb.table.create.compression.algorithm": algorithm}
    )
    record = ConnectRecord("made", 0, 0, 1000, Part(KEY, {"id": 1}), Part(VALUE, {"id": 1, "name": "x"}))
    assert RecordWriter(settings, RequestLimits()).write([record]) == []
    query = "SELECT compression FROM system_schema.tables WHERE keyspace_name = %s AND table_name = 'made'"
    ((found,),) = cql.execute(query, (keyspace,))
    cql.execute(f"DROP TABLE {keyspace}.made")
    if algorithm == "none":
        assert found == {"enabled": "false"}
    else:
        assert found["class"] == f"org.apache.cassandra.io.compress.{algorithm}"


def test_scylladb_gets_its_own_names_of_compression_options() -> None:
    """It refuses Cassandra's as unknown options."""
    assert compression_options("none", scylla=True) == "{'sstable_compression': ''}"
    assert compression_options("LZ4Compressor", scylla=True) == "{'sstable_compression': 'LZ4Compressor'}"


def test_a_table_that_the_database_refuses_to_make_is_told(services: Services, keyspace: str) -> None:
    settings = replace(settings_of(into(services, keyspace, "made")), compression="NoSuchCompressor")
    record = ConnectRecord("made", 0, 0, 1000, Part(KEY, {"id": 1}), Part(VALUE, {"id": 1, "name": "x"}))
    with pytest.raises(PenstockError, match=r"the table cannot be changed.*NoSuchCompressor"):
        RecordWriter(settings, RequestLimits()).write([record])


def test_a_batch_that_is_written_again_leaves_lists_as_they_are(cql: Any, services: Services, keyspace: str) -> None:
    """Elements that are written again at the same time would be there twice (CASSANDRA-11368)."""
    cql.execute(f"CREATE TABLE {keyspace}.lists (id int PRIMARY KEY, l list<int>, v int)")
    settings = settings_of(into(services, keyspace, "lists"))
    rows = [(1, [1, 2]), (2, [5]), (1, [3]), (2, None)]
    records = [
        ConnectRecord("lists", 0, n, 1000, Part(None, {"id": id}), Part(None, {"id": id, "l": made, "v": n}))
        for n, (id, made) in enumerate(rows)
    ]
    for again in (False, True, True):
        assert RecordWriter(settings, RequestLimits(), again).write(records) == []
        assert sorted(cql.execute(f"SELECT id, l, v FROM {keyspace}.lists")) == [(1, [3], 2), (2, None, 3)]


def test_records_whose_key_was_changed_are_written_in_their_order(cql: Any, services: Services, keyspace: str) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.ordered (id int PRIMARY KEY, v int)")
    config = {
        **into(services, keyspace, "a,b"),
        "transforms": "key,table",
        "transforms.key.type": "ValueToKey",
        "transforms.key.fields": "id",
        "transforms.table.type": "RegexRouter",
        "transforms.table.regex": ".*",
        "transforms.table.replacement": "ordered",
    }
    change = chain(config).start()
    given = [
        ConnectRecord(topic, 0, n, 1000, Part(None, n), Part(None, {"id": 1, "v": 9 - n}))
        for n, topic in enumerate("aabb")
    ]
    records = [made for one in given if (made := change(one)) is not None]
    writer = RecordWriter(settings_of(config), RequestLimits())
    assert writer.write(records) == []
    assert writer.write(records[2:]) == []  # they are read again
    (found,) = cql.execute(f"SELECT v, writetime(v) FROM {keyspace}.ordered")
    assert tuple(found) == (6, 1_000_003)


def test_a_value_that_the_database_refuses_is_told_apart_from_the_others(
    cql: Any, services: Services, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.connect.sinks.cql.writer.TOGETHER", 3)
    cql.execute(f"CREATE TABLE {keyspace}.refused (id int PRIMARY KEY, m text)")
    cql.execute(f"CREATE INDEX ON {keyspace}.refused (m)")
    settings = settings_of(into(services, keyspace, "refused"))
    records = [
        ConnectRecord("refused", 0, n, 1000, Part(None, {"id": n}), Part(None, {"id": n, "m": "v" * size}))
        for n, size in enumerate([1, 1, 70_000, 1])
    ]
    (bad,) = RecordWriter(settings, RequestLimits(patience=timedelta(seconds=20))).write(records)
    assert bad.record.offset == 2 and "refuses" in bad.reason
    assert sorted(id for (id,) in cql.execute(f"SELECT id FROM {keyspace}.refused")) == [0, 1, 3]
    # Of records that do not fit, only those before the first one are written.
    values = [{"id": 4, "m": "v"}, {"id": 5, "m": "v"}, {"id": 6, "m": 1}, {"id": 7, "m": "v"}]
    records = [records[0]._replace(offset=n, value=Part(None, value)) for n, value in enumerate(values, start=4)]
    (bad,) = RecordWriter(settings, RequestLimits()).write(records, until_bad=True)
    assert "m: '1'" in bad.reason
    assert sorted(id for (id,) in cql.execute(f"SELECT id FROM {keyspace}.refused")) == [0, 1, 3, 4, 5]


def test_counters_are_not_counted_twice_where_the_database_refuses_another_record(
    cql: Any, services: Services, keyspace: str
) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.clicks (page text PRIMARY KEY, n counter)")
    place = f"topic.clicks.{keyspace}.clicks."
    config = {
        "name": "x",
        "connector.class": CLASS,
        "topics": "clicks",
        "scylladb.contact.points": services.cql,
        "scylladb.keyspace": keyspace,
        "scylladb.consistency.level": "ONE",
        f"{place}mapping": "page = value.page, n = value.n",
        f"{place}query": f"UPDATE {keyspace}.clicks SET n = n + :n WHERE page = :page",
        f"{place}deletesEnabled": "false",
    }
    pages = ["a", "b", "x" * 70_000, "c", "a"]
    records = [
        ConnectRecord("clicks", 0, n, 1000, Part(None, None), Part(None, {"page": page, "n": 1}))
        for n, page in enumerate(pages)
    ]
    (bad,) = RecordWriter(settings_of(config), RequestLimits(in_flight=1)).write(records)
    assert bad.record.offset == 2 and "refuses" in bad.reason
    assert sorted(map(tuple, cql.execute(f"SELECT page, n FROM {keyspace}.clicks"))) == [("a", 2), ("b", 1), ("c", 1)]


WRITE_TIMEOUT = struct.pack(">iH4sHiiH6s", 0x1100, 4, b"slow", 1, 0, 1, 6, b"SIMPLE")
"""The body of an ERROR (native_protocol_v4.spec, section 9)."""


@pytest.mark.parametrize(
    ("name", "query", "again"),
    [
        ("added", "UPDATE {table} SET n = n + :n WHERE page = :page", False),
        ("mapped", "", False),
        ("given", "UPDATE {table} SET n = :n WHERE page = :page", True),
    ],
)
def test_a_statement_that_would_count_twice_is_not_sent_again_after_a_timeout(
    cql: Any, services: Services, keyspace: str, name: str, query: str, again: bool
) -> None:
    table = f"{keyspace}.{name}"
    cql.execute(f"CREATE TABLE {table} (page text PRIMARY KEY, n {'int' if again else 'counter'})")
    with sharded(services.cql) as proxy:
        place = f"topic.late.{table}."
        config = into(services, keyspace, "late") | {
            "scylladb.contact.points": f"127.0.0.1:{proxy.port}",
            f"{place}mapping": "page = value.page, n = value.n",
            f"{place}deletesEnabled": "false",
        }
        config |= {f"{place}query": query.format(table=table)} if query else {}
        records = [
            ConnectRecord("late", 0, n, 1000, Part(None, None), Part(None, {"page": page, "n": n + 1}))
            for n, page in enumerate(["a", "a", "b"])
        ]
        settings = settings_of(config)
        writer = RecordWriter(settings, RequestLimits())
        assert writer.write([records[2]]) == []  # prepares its statement
        proxy.late = [WRITE_TIMEOUT]
        bad = writer.write(records[:2])
        close(settings.access)
    found = sorted(map(tuple, cql.execute(f"SELECT page, n FROM {table}")))
    if again:
        assert not bad and found == [("a", 2), ("b", 3)]
    else:
        assert [one.record.offset for one in bad] == [0] and "executed twice" in bad[0].reason
        assert found == [("a", 3), ("b", 3)]


def test_tombstones_of_a_table_that_is_missing_delete_nothing_or_are_told(
    cql: Any, services: Services, keyspace: str
) -> None:
    config = {
        "name": "x",
        "connector.class": CLASS,
        "topics": "missing",
        "scylladb.contact.points": services.cql,
        "scylladb.keyspace": keyspace,
        "scylladb.consistency.level": "ONE",
    }
    gone = [ConnectRecord("missing", 0, 0, 1000, Part(None, {"id": 1}), Part(None, None))]
    for managed, wanted in (("true", []), ("false", [f"there is no table {keyspace}.missing"])):
        given = config | {"scylladb.table.manage.enabled": managed}
        settings = settings_of(given)
        assert [bad.reason for bad in RecordWriter(settings, RequestLimits()).write(gone)] == wanted


def test_events_of_other_databases_make_tables_of_their_types(cql: Any, services: Services, keyspace: str) -> None:
    """Values as Debezium has them for MySQL and PostgreSQL, in records of JsonConverter."""
    time, data = "io.debezium.time.", "io.debezium.data."
    scaled = [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}]
    fields: list[dict[str, Any]] = [
        {"field": "day", "type": "int32", "name": f"{time}Date"},
        {"field": "at", "type": "int64", "name": f"{time}MicroTimestamp"},
        {"field": "zoned", "type": "string", "name": f"{time}ZonedTimestamp"},
        {"field": "clock", "type": "int64", "name": f"{time}MicroTime"},
        {"field": "years", "type": "int32", "name": f"{time}Year"},
        {"field": "span", "type": "string", "name": f"{time}Interval"},
        {"field": "who", "type": "string", "name": f"{data}Uuid"},
        {"field": "price", "type": "struct", "name": f"{data}VariableScaleDecimal", "fields": scaled},
        {"field": "colours", "type": "string", "name": f"{data}EnumSet"},
        {"field": "bits", "type": "bytes", "name": f"{data}Bits"},
    ]
    who = uuid.uuid4()
    values = [20_484, 1_769_860_800_123_456, "2026-01-31T12:00:00.123456Z", 43_200_000_001, 2026, "P0Y1M2DT3H0M0S"]
    values += [str(who), {"scale": 2, "value": "BNI="}, "red,blue", "AgE="]
    payload = dict(zip([one["field"] for one in fields], values, strict=True))
    key = json.dumps({"schema": KEY, "payload": {"id": 1}}).encode()
    value = json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": payload}).encode()
    config = {
        "name": "x",
        "connector.class": CLASS,
        "topics": "events",
        "scylladb.contact.points": services.cql,
        "scylladb.keyspace": keyspace,
        "scylladb.consistency.level": "ONE",
    }
    read = decoded([RawRecord("events", 0, 0, 1000, key, value, ())], JsonBytes(True), JsonBytes(True))
    records = list(meant(read, SemanticTypes()))
    good = [one for one in records if isinstance(one, ConnectRecord)]
    assert RecordWriter(settings_of(config), RequestLimits()).write(good) == []
    (row,) = cql.execute(f"SELECT {', '.join(payload)} FROM {keyspace}.events WHERE id = 1")
    at = dt.datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=dt.UTC).replace(tzinfo=None)
    noon = 43_200_000_001_000
    assert row == (
        *(dt.date(2026, 1, 31), at, at, noon, 2026, Duration(1, 2, 3 * 3600 * 10**9)),
        *(who, Decimal("12.34"), {"red", "blue"}, b"\2\1"),
    )


def test_a_time_to_live_of_any_size_is_a_bad_record(cql: Any, services: Services, keyspace: str) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.lives (id int PRIMARY KEY, v int)")
    config = {
        "name": "x",
        "connector.class": CLASS,
        "topics": "lives",
        "scylladb.contact.points": services.cql,
        "scylladb.keyspace": keyspace,
        "scylladb.consistency.level": "ONE",
        f"topic.lives.{keyspace}.lives.mapping": "id=key.id, v=value.v, __ttl=value.life",
    }
    lives = [60, -1, 10**400, 1 << 40, float("inf"), "1", None]
    records = [
        ConnectRecord("lives", 0, n, 1000, Part(None, {"id": n}), Part(None, {"v": n, "life": life}))
        for n, life in enumerate(lives)
    ]
    bad = RecordWriter(settings_of(config), RequestLimits()).write(records)
    assert [one.record.offset for one in bad] == [1, 2, 3, 4, 5]
    assert sorted(id for (id,) in cql.execute(f"SELECT id FROM {keyspace}.lives")) == [0, 6]


def test_a_tombstone_deletes_the_row_of_a_table_of_counters(cql: Any, services: Services, keyspace: str) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.counts (id int PRIMARY KEY, n counter)")
    config = {
        "name": "x",
        "connector.class": CLASS,
        "topics": "counts",
        "scylladb.contact.points": services.cql,
        "scylladb.keyspace": keyspace,
        "scylladb.consistency.level": "ONE",
    }
    added = [(1, 3), (2, 4), (1, 5)]
    records = [
        ConnectRecord("counts", 0, n, 1000, Part(None, {"id": id}), Part(None, {"id": id, "n": more}))
        for n, (id, more) in enumerate(added)
    ]
    writer = RecordWriter(settings_of(config), RequestLimits())
    assert writer.write(records) == []
    assert sorted(cql.execute(f"SELECT id, n FROM {keyspace}.counts")) == [(1, 8), (2, 4)]
    assert writer.write([ConnectRecord("counts", 0, 3, 1000, Part(None, {"id": 1}), Part(None, None))]) == []
    assert list(cql.execute(f"SELECT id, n FROM {keyspace}.counts")) == [(2, 4)]
