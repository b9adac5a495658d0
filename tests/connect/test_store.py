"""What connectors send to Kafka beside events: their configurations, which another worker reads, and heartbeats."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from connect_memory import JSON, RIGHT
from pyspark.sql import DataFrame, SparkSession
from waiting import PATIENCE

from penstock.connect.source import heartbeat
from penstock.connect.source.heartbeat import Heartbeats, beat
from penstock.connect.source.task import Setup
from penstock.connect.worker.checks import check
from penstock.connect.worker.connector_store import PAUSED, STARTED, STOPPED, ConnectorStore, StoredConnector
from penstock.connect.worker.providers import Provided
from penstock.errors import PenstockError
from penstock.kafka.kafka_sink import KafkaSink
from penstock.local.services import Services


@pytest.fixture
def topic() -> str:
    return f"configs-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def store(services: Services, topic: str) -> Iterator[ConnectorStore]:
    made = ConnectorStore(services.kafka, topic, {})
    yield made
    made.close()


def test_another_worker_reads_what_one_has_stored(services: Services, store: ConnectorStore, topic: str) -> None:
    assert store.load() == {} and store.cluster_id
    configs = {"a": {"ä": "\n\0", "large": "x" * 100_000}, "b": {"k": "1"}, "name with/slash": {}, "gone": {"k": "v"}}
    for name, config in configs.items():
        store.put(name, config)
    store.put("b", {"k": "2"})
    for name, state in (("a", PAUSED), ("b", PAUSED), ("b", STOPPED), ("gone", STOPPED)):
        store.set_state(name, state)
    store.remove("gone")
    other = ConnectorStore(services.kafka, topic, {})
    try:
        assert other.load() == {
            "a": StoredConnector(configs["a"], PAUSED),
            "b": StoredConnector({"k": "2"}, STOPPED),
            "name with/slash": StoredConnector({}, STARTED),
        }
        # A connector that is created again after it was deleted has no old state.
        other.put("gone", {"k": "new"})
        assert store.load()["gone"] == StoredConnector({"k": "new"}, STARTED)
    finally:
        other.close()
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    admin = AdminClient({"bootstrap.servers": services.kafka})
    (described,) = admin.describe_configs([resource]).values()
    assert described.result()["cleanup.policy"].value == "compact"


def test_records_that_connect_itself_writes_are_read_and_ignored(
    services: Services, store: ConnectorStore, topic: str
) -> None:
    store.load()
    producer = Producer({"bootstrap.servers": services.kafka})
    records: dict[bytes, Any] = {
        b"connector-c": {"properties": {"topic.prefix": "p", "absent": None}},
        b"target-state-c": {"state": "PAUSED"},
        b"task-c-0": {"properties": {"task.class": "T"}},
        b"commit-c": {"tasks": 1},
        b"session-key": {"key": "s", "algorithm": "HmacSHA256", "creation-timestamp": 1},
        b"logger-cluster-x": {"level": "DEBUG"},
        b"restart-connector-c": {"include-tasks": True, "only-failed": False},
        b"\xff": {"properties": {}},
    }
    for key, value in records.items():
        producer.produce(topic, json.dumps(value), key)
    assert producer.flush(30) == 0
    assert store.load() == {"c": StoredConnector({"topic.prefix": "p"}, PAUSED)}


def test_a_topic_whose_records_have_no_order_is_refused(services: Services, store: ConnectorStore, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": services.kafka})
    for future in admin.create_topics([NewTopic(topic, 2, 1)]).values():
        future.result()
    with pytest.raises(PenstockError, match=rf"has several partitions.*topic {topic} at.*config.storage.topic"):
        store.load()


def test_configurations_that_need_too_much_memory_name_the_setting(
    services: Services, store: ConnectorStore, topic: str
) -> None:
    store.load()
    producer = Producer({"bootstrap.servers": services.kafka, "compression.type": "gzip"})
    producer.produce(topic, json.dumps({"properties": {"k": "x" * 100_000}}), b"connector-c")
    assert producer.flush(30) == 0
    small = ConnectorStore(services.kafka, topic, {}, max_decompressed=1000)
    with pytest.raises(PenstockError, match=r"cannot be read: .*set fetch.max.decompressed.bytes"):
        small.load()
    small.close()


class Written(KafkaSink):
    """Keeps the records that a heartbeat would send."""

    frames: list[DataFrame]

    def save(self, frame: DataFrame, batch: Any = None) -> None:
        self.frames.append(frame)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[DataFrame]:
    frames: list[DataFrame] = []
    monkeypatch.setattr(Written, "frames", frames, raising=False)

    def sink(setup: Setup, delivery: str | None = None) -> KafkaSink:
        assert delivery == "at-least-once", "a heartbeat is not part of a batch's transaction"
        return Written("t", setup.servers, "json", None, None, {})  # type: ignore[arg-type]

    monkeypatch.setattr(Setup, "sink", sink)
    return frames


def setup(**changes: str) -> Setup:
    config = {**RIGHT, "name": "c", **{name.replace("_", "."): text for name, text in changes.items()}}
    provided = Provided({}, {"key.converter": JSON, "value.converter": JSON})
    checked = check(config, provided, ask=False)
    assert not checked.messages
    return Setup("c", "localhost:9", checked.values, checked.config)


def test_heartbeats_are_debezium_s_and_the_extended_ones_have_a_lag(
    spark: SparkSession, written: list[DataFrame]
) -> None:
    beat(spark, setup(), 1_700_000_000_000, 5)
    extended = setup(cdc_output_format="extended", key_converter=JSON, key_converter_schemas_enable="false")
    extended = replace(extended, values={**extended.values, "topic.delimiter": "_", "heartbeat.topics.prefix": "hb ä"})
    beat(spark, extended, 1_700_000_000_000, 1_699_999_999_000_999)
    beat(spark, extended, 1_700_000_000_000, None)
    found = [row for frame in written for row in frame.collect()]
    assert [row.topic for row in found] == ["__debezium-heartbeat.p", "hb___p", "hb___p"]
    assert json.loads(found[0].key) == {
        "schema": {
            "type": "struct",
            "fields": [{"type": "string", "optional": False, "field": "serverName"}],
            "optional": False,
            "name": "io.debezium.connector.common.ServerNameKey",
            "version": 1,
        },
        "payload": {"serverName": "p"},
    }
    assert json.loads(found[1].key) == {"serverName": "p"}
    plain, *others = [json.loads(row.value) for row in found]
    assert plain["payload"] == {"ts_ms": 1_700_000_000_000}
    assert plain["schema"]["name"] == "io.debezium.connector.common.Heartbeat"
    assert [each["payload"] for each in others] == [
        {"ts_ms": 1_700_000_000_000, "lag_ms": 1000},
        {"ts_ms": 1_700_000_000_000, "lag_ms": None},
    ]


def test_heartbeats_go_on_after_an_error_until_they_are_stopped(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    beats, enough = 0, threading.Event()

    def broken(*args: Any) -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            enough.set()
        raise PenstockError("Kafka does not answer", next="start it")

    monkeypatch.setattr(heartbeat, "beat", broken)
    spark: Any = None
    made = Heartbeats(spark, setup(heartbeat_interval_ms="1"), lambda: None)
    assert enough.wait(PATIENCE)
    made.stop()
    after = beats
    assert not made._thread.is_alive() and beats == after
    assert "no heartbeat from c: Kafka does not answer. Next: start it" in caplog.text


def test_heartbeats_of_a_long_interval_stop_at_once() -> None:
    spark: Any = None
    made = Heartbeats(spark, setup(heartbeat_interval_ms=str(2**31 - 1)), lambda: None)
    made.stop()
    assert not made._thread.is_alive()
