"""Servers and brokers that die or are stopped while requests come: acknowledged events are in Kafka."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from confluent_kafka.admin import AdminClient, NewTopic
from ingest_load import Load
from ingest_server import ingest
from kafka_cluster import KafkaCluster, kafka_cluster
from kafka_topics import create_topics, stored
from waiting import PATIENCE, until

pytestmark = pytest.mark.kill


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    with kafka_cluster(tmp_path_factory.mktemp("kafka"), brokers=1) as made:
        yield made


@pytest.fixture
def topic(broker: KafkaCluster, request: pytest.FixtureRequest) -> str:
    broker.start_all()
    name: str = request.node.name.replace("_", "-")[:80]
    admin = AdminClient({"bootstrap.servers": broker.servers, "log_level": 0})
    create_topics(admin, [NewTopic(name, 2, 1)])
    return name


def in_kafka(broker: KafkaCluster, topic: str) -> list[bytes]:
    return list(itertools.chain(*stored(broker.servers, topic, 2)))


def test_kill_9_of_the_server_loses_nothing_acknowledged(broker: KafkaCluster, topic: str, tmp_path: Path) -> None:
    with ingest(tmp_path, "--servers", broker.servers, "--topics", topic) as server, Load(server, topic) as load:
        until(lambda: len(load.acknowledged) > 20_000, "load")
        server.kill()
    came = in_kafka(broker, topic)
    assert set(load.acknowledged) <= set(came) <= set(load.sent)
    assert len(came) == len(set(came))


def test_sigterm_answers_what_is_under_way(broker: KafkaCluster, topic: str, tmp_path: Path) -> None:
    with ingest(tmp_path, "--servers", broker.servers, "--topics", topic) as server, Load(server, topic) as load:
        until(lambda: len(load.acknowledged) > 20_000, "load")
        assert server.stop() == 0
    came = in_kafka(broker, topic)
    assert sorted(came) == sorted(load.acknowledged), "all that was stored was acknowledged, and the other way round"
    assert server.errors.read_text() == ""


def test_kill_9_with_a_spool_loses_nothing_acknowledged(broker: KafkaCluster, topic: str, tmp_path: Path) -> None:
    options = "--servers", broker.servers, "--topics", topic, "--spool", tmp_path / "spool"
    with ingest(tmp_path, *options) as server, Load(server, topic) as load:
        until(lambda: len(load.acknowledged) > 20_000, "load")
        server.kill()
    with ingest(tmp_path, *options) as server:
        until(lambda: set(load.acknowledged) <= set(in_kafka(broker, topic)), "all that was acknowledged")
        assert server.stop() == 0
    assert set(in_kafka(broker, topic)) <= set(load.sent)


def test_without_kafka_callers_are_told_to_come_back(broker: KafkaCluster, topic: str, tmp_path: Path) -> None:
    (tmp_path / "ingest.toml").write_text(
        f'servers = "{broker.servers}"\n[topics.{topic}]\n[timeouts]\nkafka = "2 seconds"'
    )
    with ingest(tmp_path, tmp_path / "ingest.toml") as server, Load(server, topic) as load:
        until(lambda: load.acknowledged, "load")
        broker.kill(1)
        until(lambda: len(load.refused) > 3, "refusals")
        health = requests.get(f"{server.url}/health", timeout=PATIENCE)
        assert (health.status_code, health.json()["kafka"]) == (503, "away")
        broker.start_all()
        before = len(load.acknowledged)
        until(lambda: len(load.acknowledged) > before, "acknowledgements after Kafka is back")
    assert set(load.refused) == {503}
    assert set(load.acknowledged) <= set(in_kafka(broker, topic))


@pytest.mark.slow
def test_a_spool_takes_events_without_kafka_and_replays_them_in_order(
    broker: KafkaCluster, topic: str, tmp_path: Path
) -> None:
    options = "--servers", broker.servers, "--topics", topic, "--spool", tmp_path / "spool"
    events = [json.dumps({"n": n}).encode() for n in range(3000)]
    with ingest(tmp_path, *options) as server:
        url = f"{server.url}/events/{topic}?key=same"
        for at in range(0, 1000, 100):
            assert send(url, events[at : at + 100]) == 202
        until(lambda: len(in_kafka(broker, topic)) == 1000, "the first events")
        broker.kill(1)
        for at in range(1000, 2000, 100):
            assert send(url, events[at : at + 100]) == 202
        server.kill()
    with ingest(tmp_path, *options) as server:
        url = f"{server.url}/events/{topic}?key=same"
        for at in range(2000, 3000, 100):
            assert send(url, events[at : at + 100]) == 202
        assert requests.get(f"{server.url}/health", timeout=PATIENCE).status_code == 200
        broker.start_all()
        until(lambda: len(in_kafka(broker, topic)) >= 3000, "all events")
        assert server.stop() == 0
    came = in_kafka(broker, topic)
    assert list(dict.fromkeys(came)) == events  # a part may have come twice
    assert len(came) <= 4000


@pytest.mark.slow
def test_a_spool_is_bounded_and_replayed_by_the_next_start(broker: KafkaCluster, topic: str, tmp_path: Path) -> None:
    file, event = tmp_path / "ingest.toml", b'{"a":"%s"}' % (b"x" * 9000)
    text = f'spool = "spool"\n[topics.{topic}]\n[limits]\nbody = 20_000\nspool = 100_000'
    file.write_text(text)
    with ingest(tmp_path, file, "--servers", "127.0.0.1:1") as server:
        url = f"{server.url}/events/{topic}"
        statuses = [send(url, [event]) for _ in range(13)]
        accepted = statuses.count(202)
        assert 9 <= accepted <= 11
        assert set(statuses[accepted:]) <= {429, 503}  # 503 once Kafka has been silent for some seconds
        assert sum(one.stat().st_size for one in (tmp_path / "spool").glob("*.spool")) <= 100_000
        assert server.stop() == 0
    with ingest(tmp_path, file, "--servers", broker.servers) as server:
        until(lambda: len(in_kafka(broker, topic)) == accepted, "what was accepted")
        url = f"{server.url}/events/{topic}"
        assert until(lambda: send(url, [event]) == 202, "room again")


def send(url: str, events: list[bytes]) -> int:
    headers = {"Content-Type": "application/x-ndjson"}
    return requests.post(url, b"\n".join(events), headers=headers, timeout=PATIENCE).status_code
