"""The life of connectors, by another project's client, by the paths of Connect's documentation, and in Kafka."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import requests
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka_connect import KafkaConnect
from kafka_topics import messages
from requests.exceptions import HTTPError
from waiting import PATIENCE, until

from penstock.connect.worker.standalone import StandaloneHerder
from penstock.local.services import Services

PARTITIONS = 4  # the broker's default


def values(services: Services, topic: str) -> list[dict[str, Any]]:
    found = (message.value() for message in messages(services.kafka, topic, PARTITIONS))
    return [json.loads(value) for value in found if value is not None]


def ids(services: Services, connect: KafkaConnect, name: str, topic: str) -> set[int]:
    """The ids of rows with events in the topic so far."""
    if topic not in requests.get(f"{connect.url}/connectors/{name}/topics", timeout=PATIENCE).json()[name]["topics"]:
        return set()
    return {value["after"]["id"] for value in values(services, topic) if value["after"]}


def task_states(connect: KafkaConnect, name: str) -> list[str]:
    return [task["state"] for task in connect.get_connector_status(name)["tasks"]]


def _trace(connect: KafkaConnect, name: str) -> str:
    """What the first task says of its failure."""
    tasks = connect.get_connector_status(name)["tasks"]
    return str(tasks[0].get("trace", "")) if tasks and tasks[0]["state"] == "FAILED" else ""


@pytest.fixture
def named(connect: KafkaConnect, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a connector that is deleted at the end."""
    name = request.node.originalname.removeprefix("test_")[:40]
    yield name
    if name in connect.list_connectors():
        connect.delete_connector(name)


def test_somebody_else_s_client_leads_a_connector_through_its_life(
    connect: KafkaConnect, services: Services, cql: Any, tables: Any, config: dict[str, str], named: str
) -> None:
    first, second = tables("life_a"), tables("life_b")
    topic = f"{config['topic.prefix']}.{first}"
    config |= {"scylla.table.names": f"{first},{second}", "tasks.max": "2", "heartbeat.interval.ms": "200"}
    cql.execute(f"INSERT INTO {first} (id, at, v) VALUES (1, 1, 'a')")

    created = connect.create_connector({"name": named, "config": config})
    assert created == {"name": named, "config": {**config, "name": named}, "tasks": [], "type": "source"}
    with pytest.raises(HTTPError, match="409"):
        connect.create_connector({"name": named, "config": config})
    assert named in connect.list_connectors()
    until(lambda: task_states(connect, named) == ["RUNNING", "RUNNING"], "running tasks")
    until(lambda: ids(services, connect, named, topic) == {1}, "event")

    connect.pause_connector(named)
    assert connect.get_connector_status(named)["connector"]["state"] == "PAUSED"
    assert task_states(connect, named) == ["PAUSED", "PAUSED"]
    cql.execute(f"INSERT INTO {first} (id, at, v) VALUES (2, 1, 'b')")
    connect.resume_connector(named)
    until(lambda: ids(services, connect, named, topic) == {1, 2}, "event that was written while it was paused")
    # Each once: pausing and resuming repeats nothing.
    assert len(values(services, topic)) == 2

    changed = {**config, "tasks.max": "1", "tombstones.on.delete": "false"}
    assert connect.update_connector(named, changed)["config"]["tasks.max"] == "1"
    until(lambda: task_states(connect, named) == ["RUNNING"], "one task for both tables")
    connect.restart_connector(named, include_tasks=True)
    until(lambda: task_states(connect, named) == ["RUNNING"], "task after the restart")

    beats = f"__debezium-heartbeat.{config['topic.prefix']}"
    beat = until(lambda: next(iter(messages(services.kafka, beats, PARTITIONS)), None), "heartbeat")
    assert json.loads(beat.key()) == {"serverName": config["topic.prefix"]}
    assert list(json.loads(beat.value())) == ["ts_ms"]

    connect.delete_connector(named)
    with pytest.raises(HTTPError, match="404"):
        connect.get_connector_status(named)


@pytest.mark.slow
def test_positions_are_shown_altered_and_forgotten(
    connect: KafkaConnect, services: Services, cql: Any, tables: Any, config: dict[str, str], named: str
) -> None:
    table = tables("positions")
    topic, place = f"{config['topic.prefix']}.{table}", f"{connect.url}/connectors/{named}/offsets"
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (1, 1, 'a')")
    connect.create_connector({"name": named, "config": {**config, "scylla.table.names": table}})
    until(lambda: ids(services, connect, named, topic) == {1}, "event")
    (position,) = until(lambda: requests.get(place, timeout=PATIENCE).json()["offsets"], "position")
    keyspace, name = table.split(".")
    assert position["partition"] == {"keyspace_name": keyspace, "table_name": name}

    altered = {"offsets": [{**position, "offset": {"time": position["offset"]["time"]}}]}
    refused = requests.patch(place, json=altered, timeout=PATIENCE)
    assert (refused.status_code, "STOPPED state" in refused.json()["message"]) == (400, True)
    assert requests.put(f"{connect.url}/connectors/{named}/stop", timeout=PATIENCE).status_code == 204
    assert connect.get_connector_status(named)["tasks"] == []
    nonsense: list[Any] = [
        [],
        [{"offset": 1}],
        [{**position, "offset": {"time": "x"}}],
        [{**position, "partition": {}}],
    ]
    for wrong in ({"offsets": entries} for entries in nonsense):
        assert requests.patch(place, json=wrong, timeout=PATIENCE).status_code == 400
    assert requests.patch(place, json=altered, timeout=PATIENCE).status_code == 200
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (2, 1, 'b')")
    connect.resume_connector(named)
    until(lambda: ids(services, connect, named, topic) == {1, 2}, "event after the position")
    assert len(values(services, topic)) == 2

    requests.put(f"{connect.url}/connectors/{named}/stop", timeout=PATIENCE)
    assert requests.delete(place, timeout=PATIENCE).status_code == 200
    assert requests.get(place, timeout=PATIENCE).json() == {"offsets": []}
    connect.resume_connector(named)
    until(lambda: len(values(services, topic)) == 4, "all events once more")


@pytest.mark.slow
def test_patterns_and_quoted_names_stand_for_tables(
    connect: KafkaConnect, services: Services, cql: Any, tables: Any, config: dict[str, str], named: str
) -> None:
    first, second, quoted = tables("many_a"), tables("many_b"), tables('"Case"')
    for table in (first, second, quoted):
        cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (7, 1, 'a')")
    pattern = first.replace("many_a", "many_?")
    connect.create_connector({"name": named, "config": {**config, "scylla.table.names": f"{pattern},{quoted}"}})
    for table in (first, second, quoted.replace('"', "")):
        topic = f"{config['topic.prefix']}.{table}"
        until(partial(lambda name: ids(services, connect, named, name) == {7}, topic), f"event in {topic}")


def test_a_task_that_cannot_go_on_fails_and_starts_again_when_it_can(
    connect: KafkaConnect, services: Services, cql: Any, tables: Any, config: dict[str, str], named: str
) -> None:
    table = tables("dropped")
    connect.create_connector({"name": named, "config": {**config, "scylla.table.names": table}})
    until(lambda: task_states(connect, named) == ["RUNNING"], "running task")
    cql.execute(f"DROP TABLE {table}")
    until(lambda: task_states(connect, named) == ["FAILED"], "failure")
    (task,) = connect.get_connector_status(named)["tasks"]
    assert table.split(".")[1] in task["trace"]
    tables("dropped")
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (3, 1, 'a')")
    assert requests.post(f"{connect.url}/connectors/{named}/tasks/0/restart", timeout=PATIENCE).status_code == 204
    # The position is one of the old table.
    until(lambda: "DELETE its offsets" in _trace(connect, named), "failure that names the next step")
    place = f"{connect.url}/connectors/{named}"
    partition = dict(zip(("keyspace_name", "table_name"), table.split("."), strict=True))
    assert requests.put(f"{place}/stop", timeout=PATIENCE).status_code == 204
    forgotten = {"offsets": [{"partition": partition, "offset": None}]}
    assert requests.patch(f"{place}/offsets", json=forgotten, timeout=PATIENCE).status_code == 200
    connect.resume_connector(named)
    until(lambda: ids(services, connect, named, f"{config['topic.prefix']}.{table}") == {3}, "event of the new table")


@pytest.mark.slow
def test_a_change_that_nobody_can_read_fails_the_task_or_is_left_out(
    connect: KafkaConnect, services: Services, cql: Any, tables: Any, config: dict[str, str], named: str
) -> None:
    table = tables("poisoned")
    cql.execute(f"ALTER TABLE {table} ADD m map<int, text>")
    cql.execute(f"INSERT INTO {table} (id, at, m) VALUES (1, 1, {{blob_as_int(0x): 'x'}})")
    cql.execute(f"INSERT INTO {table} (id, at, m) VALUES (2, 1, {{7: 'x'}})")
    config |= {"scylla.table.names": table}
    connect.create_connector({"name": named, "config": config})
    until(lambda: task_states(connect, named) == ["FAILED"], "failure")
    (task,) = connect.get_connector_status(named)["tasks"]
    assert f"column m of {table} has a value that cannot be read" in task["trace"]
    assert "errors.tolerance=all" in task["trace"]
    connect.update_connector(named, config | {"errors.tolerance": "all"})
    topic = f"{config['topic.prefix']}.{table}"
    until(lambda: ids(services, connect, named, topic) == {2}, "event of the row that can be read")
    until(lambda: task_states(connect, named) == ["RUNNING"], "finished batch")


def test_hidden_secrets_stay_when_what_was_shown_is_sent_back(
    connect: KafkaConnect, worker: StandaloneHerder, tables: Any, config: dict[str, str], named: str
) -> None:
    config |= {"scylla.table.names": tables("secrets"), "scylla.user": "cassandra", "scylla.password": "cassandra"}
    connect.create_connector({"name": named, "config": config, "initial_state": "STOPPED"})
    shown = connect.get_connector_config(named)
    assert shown["scylla.password"] == "[hidden]"
    connect.update_connector(named, shown)
    patched = requests.patch(f"{connect.url}/connectors/{named}/config", json={"tasks.max": 3}, timeout=PATIENCE)
    assert (patched.status_code, patched.json()["config"]["tasks.max"]) == (200, "3")
    assert worker.get(named).stored.config["scylla.password"] == "cassandra"
    assert worker.get(named).state == "STOPPED"


@pytest.mark.slow
def test_transforms_make_rows_of_events(
    connect: KafkaConnect, services: Services, cql: Any, tables: Any, config: dict[str, str], named: str
) -> None:
    table = tables("flat")
    config |= {
        "scylla.table.names": table,
        "transforms": "unwrap,route",
        "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
        "transforms.unwrap.add.fields": "op",
        "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.route.regex": r"(\w+)\..*\.(\w+)",
        "transforms.route.replacement": "$1-$2",
    }
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (1, 2, 'a')")
    cql.execute(f"DELETE FROM {table} WHERE id = 1 AND at = 2")
    connect.create_connector({"name": named, "config": config})
    topic = f"{config['topic.prefix']}-flat"
    row = {"id": 1, "at": 2, "v": "a"}

    def rows() -> list[dict[str, Any]]:
        known = requests.get(f"{connect.url}/connectors/{named}/topics", timeout=PATIENCE).json()[named]["topics"]
        return values(services, topic) if known else []

    assert until(rows, "rows") == [
        {**row, "__deleted": "false", "__op": "c"},
        {**row, "__deleted": "true", "__op": "d"},
    ]
    wrong = {**config, "transforms.unwrap.type": "org.example.Unwrap"}
    with pytest.raises(HTTPError, match="400"):
        connect.update_connector(named, wrong)


@pytest.mark.slow
def test_rows_from_before_the_log_come_first(
    connect: KafkaConnect, services: Services, cql: Any, tables: Any, config: dict[str, str], named: str
) -> None:
    table = tables("older", None)
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (1, 1, 'old')")
    cql.execute(f"ALTER TABLE {table} WITH cdc = {{'enabled': true, 'preimage': true, 'postimage': true}}")
    topic = f"{config['topic.prefix']}.{table}"
    config |= {"scylla.table.names": table, "penstock.snapshot": "initial", "penstock.latency": "low"}
    config |= {"cdc.output.format": "extended", "heartbeat.interval.ms": "200", "poll.interval.ms": "0"}
    connect.create_connector({"name": named, "config": config})
    until(lambda: ids(services, connect, named, topic) == {1}, "row of the snapshot")
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (2, 1, 'new')")
    until(lambda: ids(services, connect, named, topic) == {1, 2}, "change")
    found = {value["after"]["id"]: (value["op"], value["source"]["snapshot"]) for value in values(services, topic)}
    assert found == {1: ("r", "true"), 2: ("c", "false")}

    def beats() -> list[dict[str, Any]]:
        return values(services, f"__debezium-heartbeat.{config['topic.prefix']}")

    # The lag is known after the first batch is committed, a moment after its events are in Kafka.
    known = until(lambda: [beat["lag_ms"] for beat in beats() if beat["lag_ms"] is not None], "heartbeat with a lag")
    assert all(list(beat) == ["ts_ms", "lag_ms"] for beat in beats())
    # The snapshot's changes start a confidence window back, and an idle table's position moves every ten seconds.
    assert all(0 <= lag < 60_000 for lag in known)


@pytest.mark.slow
def test_topics_are_made_as_their_group_says(
    connect: KafkaConnect, services: Services, cql: Any, tables: Any, config: dict[str, str], named: str
) -> None:
    few, many = tables("few"), tables("many")
    prefix = config["topic.prefix"]
    config |= {
        "scylla.table.names": f"{few},{many}",
        "transforms": "short",
        "transforms.short.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.short.regex": ".*[.](few|many)",
        "transforms.short.replacement": f"{prefix}-$1",
        "topic.creation.groups": "large",
        "topic.creation.default.replication.factor": "-1",
        "topic.creation.default.partitions": "1",
        "topic.creation.large.include": ".*-many,.*-more",
        "topic.creation.large.partitions": "3",
        "topic.creation.large.cleanup.policy": "compact",
    }
    for table in (few, many):
        cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (1, 1, 'a')")
    connect.create_connector({"name": named, "config": config})
    shown = f"{connect.url}/connectors/{named}/topics"
    made = [f"{prefix}-few", f"{prefix}-many"]
    until(lambda: requests.get(shown, timeout=PATIENCE).json()[named]["topics"] == made, "events of both")
    admin = AdminClient({"bootstrap.servers": services.kafka})
    assert [len(admin.list_topics(topic).topics[topic].partitions) for topic in made] == [1, 3]
    asked = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in made]
    described = [future.result()["cleanup.policy"].value for future in admin.describe_configs(asked).values()]
    assert described == ["delete", "compact"]


@pytest.mark.slow
def test_a_topic_that_is_deleted_is_made_anew_as_its_group_says(
    connect: KafkaConnect, services: Services, cql: Any, tables: Any, config: dict[str, str], named: str
) -> None:
    table = tables("anew")
    topic = f"{config['topic.prefix']}.{table}"
    config |= {
        "scylla.table.names": table,
        "topic.creation.default.replication.factor": "-1",
        "topic.creation.default.partitions": "3",
        "producer.override.delivery.timeout.ms": "5000",
        "heartbeat.interval.ms": "200",
    }
    connect.create_connector({"name": named, "config": config})
    beats = f"__debezium-heartbeat.{config['topic.prefix']}"
    admin = AdminClient({"bootstrap.servers": services.kafka})
    until(lambda: beats in admin.list_topics(timeout=PATIENCE).topics, "heartbeats")
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (1, 1, 'a')")
    until(lambda: rows(services, topic, 3) == [1], "the event")
    admin.delete_topics([topic])[topic].result()
    until(lambda: topic not in admin.list_topics(timeout=PATIENCE).topics, "the end of the topic")
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (2, 1, 'a')")
    until(lambda: 2 in rows(services, topic, 3), "the next event in a topic made anew")
    assert [len(admin.list_topics(one).topics[one].partitions) for one in (topic, beats)] == [3, 3]


@pytest.mark.slow
def test_a_row_that_is_too_large_waits_until_the_limits_are_raised(
    connect: KafkaConnect, services: Services, cql: Any, tables: Any, config: dict[str, str], named: str
) -> None:
    table = tables("large")
    topic, limit = f"{config['topic.prefix']}.{table}", "producer.override.max.request.size"
    config |= {"scylla.table.names": table, "heartbeat.interval.ms": "600000", limit: "1500000"}
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (1, 1, 'a')")
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (2, 1, %s)", ("x" * 2_000_000,))
    connect.create_connector({"name": named, "config": config})
    until(
        lambda: f"raise max.request.size in the sink's options, of a connector {limit}" in _trace(connect, named),
        "refusal",
    )
    connect.update_connector(named, {**config, limit: "3000000"})
    until(lambda: "raise max.message.bytes of the topic" in _trace(connect, named), "refusal by the broker")
    # Without the option the records go by another client, which names the topic.
    config.pop(limit)
    connect.update_connector(named, config)
    text = rf"MESSAGE_TOO_LARGE \(topic {topic}, partition \d\): .*raise its max\.message\.bytes"
    until(lambda: re.search(text, _trace(connect, named)), "refusal by the broker")
    size = ConfigEntry("max.message.bytes", "3000000", incremental_operation=AlterConfigOpType.SET)
    raised = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[size])
    admin = AdminClient({"bootstrap.servers": services.kafka})
    admin.incremental_alter_configs([raised])[raised].result()
    connect.restart_connector_task(named, 0)
    until(lambda: ids(services, connect, named, topic) == {1, 2}, "both rows")


def rows(services: Services, topic: str, partitions: int) -> list[int]:
    """The ids of the rows in a topic; none if it is not there."""
    if topic not in AdminClient({"bootstrap.servers": services.kafka}).list_topics(timeout=PATIENCE).topics:
        return []
    values = (json.loads(one.value()) for one in messages(services.kafka, topic, partitions) if one.value())
    return [(value.get("payload") or value)["after"]["id"] for value in values]


@pytest.mark.slow
def test_avro_goes_through_a_registry(
    connect: KafkaConnect, services: Services, registry: str, cql: Any, tables: Any, config: dict[str, str], named: str
) -> None:
    table = tables("avro")
    topic = f"{config['topic.prefix']}.{table}"
    config |= {
        "scylla.table.names": table,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "transforms": "id",
        "transforms.id.type": "org.apache.kafka.connect.transforms.ExtractField$Key",
        "transforms.id.field": "id",
        "value.converter": "io.confluent.connect.avro.AvroConverter",
    }
    with pytest.raises(HTTPError, match="400"):
        connect.create_connector({"name": named, "config": config})
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (5, 6, 'ä')")
    connect.create_connector({"name": named, "config": {**config, "value.converter.schema.registry.url": registry}})
    until(
        lambda: requests.get(f"{connect.url}/connectors/{named}/topics", timeout=PATIENCE).json()[named]["topics"],
        "batch",
    )
    (message,) = messages(services.kafka, topic, PARTITIONS)
    with SchemaRegistryClient({"url": registry}) as client:
        event = AvroDeserializer(client)(message.value(), SerializationContext(topic, MessageField.VALUE))
    assert (message.key(), event["after"]) == (b"5", {"id": 5, "at": 6, "v": "ä"})


def test_answers_are_those_of_kafka_connect(url: str) -> None:
    """Paths, statuses and errors of Connect's documentation."""
    cases: list[tuple[str, str, Any, int]] = [
        ("GET", "/", None, 200),
        ("GET", "/health", None, 200),
        ("GET", "/connectors/none", None, 404),
        ("GET", "/connectors/none/status", None, 404),
        ("GET", "/connectors/none/tasks", None, 404),
        ("PUT", "/connectors/none/pause", None, 404),
        ("POST", "/connectors/none/restart", None, 404),
        ("DELETE", "/connectors/none", None, 404),
        ("POST", "/connectors", {"name": "x"}, 400),
        ("POST", "/connectors", {"config": {"a": {"b": 1}}, "name": "x"}, 400),
        ("PUT", "/connectors/x/config", [1], 400),
        ("GET", "/nowhere", None, 404),
        ("PUT", "/connectors", {}, 405),
        ("GET", "/connector-plugins", None, 200),
        ("GET", "/connector-plugins/ScyllaConnector/config", None, 200),
        ("PUT", "/connector-plugins/Other/config/validate", {}, 404),
        ("GET", "/admin/loggers", None, 200),
        ("PUT", "/connector-plugins/ScyllaConnector/config/validate", {"connector.class": "Other"}, 400),
        ("GET", "/connector-plugins/JsonConverter/config", None, 200),
        ("GET", "/connector-plugins/RegexRouter/config", None, 200),
        ("GET", "/connector-plugins/Other/config", None, 404),
        ("PUT", "/admin/loggers/penstock", {"level": "LOUD"}, 404),
        ("PUT", "/admin/loggers/penstock", {}, 400),
        ("PUT", "/admin/loggers/penstock?scope=cluster", {"level": "info"}, 204),
        ("PUT", "/admin/loggers/penstock.none?scope=cluster", {"level": "warn"}, 404),
        ("GET", "/admin/loggers/nobody", None, 404),
        ("GET", "/connectors/", None, 200),
        ("POST", "/connectors/", {"name": "x"}, 400),
        ("POST", "/connectors", {"name": "x", "config": {"a": None}}, 400),
        ("POST", "/connectors", {"name": "x", "config": {}, "initial_state": "STARTED"}, 400),
        ("POST", "/connectors", {"name": "x", "config": {"a": "\ud800"}}, 400),
        ("POST", "/connectors", {"name": "a\nb", "config": {"connector.class": "Scylla"}}, 400),
        ("GET", "/connectors/none/tasks/²/status", None, 404),
    ]
    for method, path, body, status in cases:
        answer = requests.request(method, url + path, json=body, timeout=PATIENCE)
        assert answer.status_code == status, (method, path, answer.text)
        if status >= 400:
            assert answer.json()["error_code"] == status
            assert answer.json()["message"]
    form = requests.post(f"{url}/connectors", data="{}", timeout=PATIENCE)
    assert (form.status_code, form.json()["error_code"]) == (415, 415)
    broken = requests.post(
        f"{url}/connectors", data="{", headers={"Content-Type": "application/json"}, timeout=PATIENCE
    )
    assert broken.status_code == 400
