"""Real-time mode on a standalone cluster: rows arrive at once, and none is lost at a stop or with a killed worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_runs import ClusterRuns
from confluent_kafka import Producer
from kafka_topics import messages, new_topics
from spark_cluster import SparkCluster, spark_cluster
from waiting import PATIENCE, patience

from penstock.local.services import Services

pytestmark = [pytest.mark.kill, pytest.mark.slow]

FILE = """
import os

import penstock as ps
from penstock import kafka

KAFKA, CLICKS, COPY = (os.environ[name] for name in ("KAFKA", "CLICKS", "COPY"))


@ps.pipeline(every="real-time")
def shop(spark):
    clicks = kafka.read(spark, CLICKS, servers=KAFKA, schema="id long", name="clicks", client="spark")
    return ps.write(clicks.where("id >= 0").select("id"), kafka.sink(COPY, servers=KAFKA))
"""
PARTITIONS = 2


class Copy:
    """Numbers that are sent to one topic, and those that the pipeline has sent on."""

    def __init__(self, kafka: str, topics: list[str]) -> None:
        self.kafka, (self.clicks, self.copy), self.sent = kafka, topics, 0

    def send(self, count: int = 100) -> None:
        producer = Producer({"bootstrap.servers": self.kafka})
        for number in range(self.sent, self.sent + count):
            producer.produce(self.clicks, f'{{"id": {number}}}', partition=number % PARTITIONS)
        assert producer.flush(PATIENCE) == 0
        self.sent += count

    def is_whole(self) -> bool:
        found = {int(one.value()[6:-1]) for one in messages(self.kafka, self.copy, PARTITIONS)}
        assert found <= set(range(self.sent))
        return len(found) == self.sent


@pytest.fixture
def copy(tmp_path: Path, services: Services) -> Iterator[Copy]:
    names = [f"real-time-{name}-{tmp_path.name}" for name in ("clicks", "copy")]
    with new_topics(services.kafka, names, PARTITIONS):
        yield Copy(services.kafka, names)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path) as made:
        yield made


def test_rows_arrive_at_once_and_survive_a_stop_and_a_killed_worker(
    copy: Copy, cluster: SparkCluster, tmp_path: Path
) -> None:
    runs = ClusterRuns(tmp_path, cluster.url, FILE, KAFKA=copy.kafka, CLICKS=copy.clicks, COPY=copy.copy)
    try:
        copy.send()
        runs.start("machine1")
        runs.wait(copy.is_whole)
        copy.send()
        sent = time.monotonic()
        runs.wait(copy.is_whole)
        # A batch of this mode ends after minutes.
        assert time.monotonic() - sent < patience(20)
        runs.stop()
        copy.send()
        runs.start("machine2")
        runs.wait(copy.is_whole)
        cluster.kill(0)
        cluster.add_worker()
        copy.send()
        runs.wait(copy.is_whole)
        runs.stop()
    finally:
        runs.kill()
