"""`penstock run --master` on a standalone cluster: right results after a worker and then the driver were killed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from checkpoints import put_back
from cluster_runs import ClusterRuns
from confluent_kafka import Producer
from kafka_topics import messages, new_topics
from spark_cluster import SparkCluster, spark_cluster
from waiting import PATIENCE

from penstock.local.services import Services
from penstock.native.spill_files import PREFIX

pytestmark = [pytest.mark.kill, pytest.mark.slow]

FILE = """
import os

import penstock as ps
from pyspark.sql import functions as F
from penstock import kafka, window

KAFKA, CLICKS, COPY, MINUTES = (os.environ[name] for name in ("KAFKA", "CLICKS", "COPY", "MINUTES"))


@ps.pipeline(every="500 milliseconds")
def shop(spark):
    schema = "id long, page string, at timestamp"
    clicks = kafka.read(spark, CLICKS, servers=KAFKA, schema=schema, name="clicks", format="json")
    copy = kafka.sink(COPY, servers=KAFKA, key="page", delivery="exactly-once")
    late = clicks.withWatermark("at", "1 hour")
    minutes = window.tumbling(late, "1 minute", at="at", key="page", name="minutes", n="count(*)", emit="changes")
    minutes = minutes.where("NOT late").select("page", F.date_format('window_start', 'HH:mm').alias('start'), "n")
    totals = kafka.sink(MINUTES, servers=KAFKA, key=["page", "start"], delivery="exactly-once")
    return [ps.write(clicks, copy, name="copy"), ps.write(minutes, totals, name="minutes")]
"""
START = datetime(2026, 1, 31, 12, tzinfo=UTC)
PARTITIONS = 2
WAVE = 3000


def click(number: int) -> dict[str, object]:
    return {"id": number, "page": f"p{number % 7}", "at": (START + timedelta(seconds=number % 150)).isoformat()}


class Shop:
    """The topics of the pipeline, and what they have."""

    def __init__(self, cluster: SparkCluster, runs: ClusterRuns, kafka: str, topics: list[str]) -> None:
        self.cluster, self.runs, self.kafka = cluster, runs, kafka
        self.clicks, self.copy, self.minutes = topics
        self.sent = 0

    def send(self) -> None:
        """Send the next clicks."""
        producer = Producer({"bootstrap.servers": self.kafka})
        for number in range(self.sent, self.sent + WAVE):
            producer.produce(self.clicks, json.dumps(click(number)), partition=number % PARTITIONS)
            producer.poll(0)
        assert producer.flush(PATIENCE) == 0
        self.sent += WAVE

    def wait(self) -> None:
        """Wait until both topics have the results of all clicks."""
        self.runs.wait(lambda: len(self.copied()) >= self.sent and self.counted() == self.wanted())

    def copied(self) -> list[int]:
        return [json.loads(one.value())["id"] for one in messages(self.kafka, self.copy, PARTITIONS)]

    def counted(self) -> dict[tuple[str, str], int]:
        """The last count of each page and minute."""
        rows = [json.loads(one.value()) for one in messages(self.kafka, self.minutes, PARTITIONS)]
        return {(row["page"], row["start"]): row["n"] for row in rows}

    def wanted(self) -> dict[tuple[str, str], int]:
        clicks = map(click, range(self.sent))
        return Counter((str(one["page"]), str(one["at"])[11:16]) for one in clicks)


@pytest.fixture
def shop(tmp_path: Path, services: Services) -> Iterator[Shop]:
    names = [f"cluster-{name}-{tmp_path.name}" for name in ("clicks", "copy", "minutes")]
    with spark_cluster(tmp_path) as cluster, new_topics(services.kafka, names, PARTITIONS):
        places = dict(zip(("CLICKS", "COPY", "MINUTES"), names, strict=True))
        runs = ClusterRuns(tmp_path, cluster.url, FILE, KAFKA=services.kafka, **places)
        try:
            yield Shop(cluster, runs, services.kafka, names)
        finally:
            runs.kill()


def has_state_on_disk(cluster: SparkCluster) -> bool:
    """Whether Python daemons of executors have files in the executors' own folders."""
    daemons = {daemon.pid for number in range(2) for one in cluster.executors(number) for daemon in one.children()}
    files = Path(tempfile.gettempdir()).glob(f"spark-*/executor-*/blockmgr-*/{PREFIX}*/*")
    return any(int(file.parent.name.removeprefix(PREFIX)) in daemons for file in files)


def test_a_killed_worker_and_a_killed_driver_lose_and_double_nothing(shop: Shop) -> None:
    shop.runs.start("machine1")
    shop.send()
    shop.wait()
    assert shop.cluster.executors(0) and shop.cluster.executors(1)
    assert has_state_on_disk(shop.cluster)
    shop.send()
    shop.cluster.kill(0)
    shop.wait()
    shop.send()
    shop.runs.kill()
    shop.cluster.add_worker()
    shop.runs.start("machine2")
    shop.wait()
    shop.runs.stop()
    assert sorted(shop.copied()) == list(range(shop.sent))
    assert shop.counted() == shop.wanted()


def test_a_restored_checkpoint_is_told_on_another_machine_too(shop: Shop, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for machine in ("machine1", "machine2"):
        shop.runs.start(machine)
        shop.send()
        shop.wait()
        shop.runs.stop()
        if machine == "machine1":
            shutil.copytree(kept, tmp_path / "older")
    put_back(kept, tmp_path / "older")
    shop.send()
    shop.runs.start("machine3")
    assert "Was an older checkpoint restored" in shop.runs.refused()
    assert sorted(shop.copied()) == list(range(shop.sent - WAVE))
