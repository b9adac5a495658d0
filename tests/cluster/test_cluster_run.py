"""`penstock run --master` on a standalone cluster: right results after a worker and then the driver were killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka_topics import messages, new_topics
from spark_cluster import SparkCluster, spark_cluster
from waiting import patience, until

from penstock.local.services import Services

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
PATIENCE = patience(180)


def click(number: int) -> dict[str, object]:
    return {"id": number, "page": f"p{number % 7}", "at": (START + timedelta(seconds=number % 150)).isoformat()}


class Shop:
    """Runs of the pipeline with one checkpoint, and its topics."""

    def __init__(self, folder: Path, cluster: SparkCluster, kafka: str, topics: list[str]) -> None:
        self.folder, self.cluster, self.kafka = folder, cluster, kafka
        self.clicks, self.copy, self.minutes = topics
        self.sent = 0
        self.file = folder / "shop.py"
        self.file.write_text(FILE)

    def start(self, machine: str) -> subprocess.Popen[bytes]:
        """A driver in a working directory of its own; only the checkpoint is that of the others."""
        own = self.folder / machine
        own.mkdir()
        names = {"KAFKA": self.kafka, "CLICKS": self.clicks, "COPY": self.copy, "MINUTES": self.minutes}
        words = ["--master", self.cluster.url, "--executor-memory", "700m", "--checkpoints", str(self.folder / "kept")]
        python = {"PYSPARK_PYTHON": sys.executable}
        with (own / "said").open("wb") as said:
            return subprocess.Popen(
                [sys.executable, "-m", "penstock", "run", f"{self.file}:shop", *words],
                cwd=own,
                env=os.environ | names | python,
                stderr=said,
                start_new_session=True,
            )

    def send(self) -> None:
        """Send the next clicks."""
        producer = Producer({"bootstrap.servers": self.kafka})
        for number in range(self.sent, self.sent + WAVE):
            producer.produce(self.clicks, json.dumps(click(number)), partition=number % PARTITIONS)
            producer.poll(0)
        assert producer.flush(PATIENCE) == 0
        self.sent += WAVE

    def wait(self, driver: subprocess.Popen[bytes]) -> None:
        """Wait until both topics have the results of all clicks."""

        def reached() -> bool:
            assert driver.poll() is None, max(self.folder.glob("machine*/said")).read_text()
            return len(self.copied()) >= self.sent and self.counted() == self.wanted()

        until(reached, "results", PATIENCE)

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
        yield Shop(tmp_path, cluster, services.kafka, names)


def end(driver: subprocess.Popen[bytes]) -> None:
    if driver.poll() is None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def test_a_killed_worker_and_a_killed_driver_lose_and_double_nothing(shop: Shop) -> None:
    first = shop.start("machine1")
    try:
        shop.send()
        shop.wait(first)
        assert shop.cluster.executors(0) and shop.cluster.executors(1)
        shop.send()
        shop.cluster.kill(0)
        shop.wait(first)
        shop.send()
    finally:
        end(first)
    shop.cluster.add_worker()
    second = shop.start("machine2")
    try:
        shop.wait(second)
        second.send_signal(signal.SIGTERM)
        assert second.wait(PATIENCE) == 0
    finally:
        end(second)
    assert sorted(shop.copied()) == list(range(shop.sent))
    assert shop.counted() == shop.wanted()
