"""Two drivers of one pipeline whose checkpoint is on HDFS: one runs it, and one that was paused finds that it lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from hdfs import hdfs
from kafka_topics import messages, new_topics
from waiting import PATIENCE, patience, until

from penstock.local.services import Services
from penstock_demo import child

pytestmark = [pytest.mark.kill, pytest.mark.slow]

FILE = """
import os

import penstock as ps
from penstock import kafka

KAFKA, CLICKS, COPY = (os.environ[name] for name in ("KAFKA", "CLICKS", "COPY"))


@ps.pipeline(every="500 milliseconds")
def shop(spark):
    clicks = kafka.read(spark, CLICKS, servers=KAFKA, schema="id long", name="clicks", format="json")
    return ps.write(clicks.dropDuplicates(["id"]), kafka.sink(COPY, servers=KAFKA, delivery="exactly-once"))
"""
WAVE = 500


class Driver:
    """A run of the pipeline."""

    def __init__(self, folder: Path, checkpoints: str, **environment: str) -> None:
        folder.mkdir()
        (folder / "shop.py").write_text(FILE)
        self.said = folder / "said"
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "run", "shop.py:shop", "--checkpoints", checkpoints],
                cwd=folder,
                env=os.environ | environment,
                stderr=said,
                start_new_session=True,
            )

    def all(self) -> list[psutil.Process]:
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    def stop(self) -> None:
        """End it, and all its processes."""
        child.kill(self.process)


class Shop:
    """The topics of the pipeline, and its drivers."""

    def __init__(self, folder: Path, checkpoints: str, kafka: str, topics: tuple[str, str]) -> None:
        self._folder, self._checkpoints, self._kafka = folder, checkpoints, kafka
        self._clicks, self._copy = topics
        self.drivers: list[Driver] = []
        self.sent = 0

    def drive(self, machine: str) -> Driver:
        places = {"KAFKA": self._kafka, "CLICKS": self._clicks, "COPY": self._copy}
        self.drivers.append(Driver(self._folder / machine, self._checkpoints, **places))
        return self.drivers[-1]

    def send(self) -> None:
        producer = Producer({"bootstrap.servers": self._kafka})
        for number in range(self.sent, self.sent + WAVE):
            producer.produce(self._clicks, json.dumps({"id": number}))
        assert producer.flush(PATIENCE) == 0
        self.sent += WAVE

    def copied(self) -> list[int]:
        return [json.loads(one.value())["id"] for one in messages(self._kafka, self._copy, 1)]

    def wait(self, driver: Driver) -> None:
        def there() -> bool:
            assert driver.process.poll() is None, driver.said.read_text()
            return len(self.copied()) >= self.sent

        until(there, "copies", patience(180))


@pytest.fixture
def shop(tmp_path: Path, services: Services) -> Iterator[Shop]:
    topics = f"fenced-clicks-{tmp_path.name}", f"fenced-copy-{tmp_path.name}"
    with hdfs(tmp_path) as uri, new_topics(services.kafka, [*topics], 1):
        made = Shop(tmp_path, f"{uri}/checkpoints", services.kafka, topics)
        try:
            yield made
        finally:
            for driver in made.drivers:
                driver.stop()


def test_a_driver_that_comes_back_after_a_pause_finds_that_it_lost(shop: Shop) -> None:
    paused = shop.drive("machine1")
    shop.send()
    shop.wait(paused)
    second = shop.drive("machine2")
    assert second.process.wait(patience(120)) == 1
    assert "already runs this pipeline (checkpoint hdfs://" in second.said.read_text()
    stopped = paused.all()
    for one in stopped:
        one.suspend()
    shop.send()
    other = shop.drive("machine3")
    shop.wait(other)
    for one in reversed(stopped):
        one.resume()
    shop.send()
    assert paused.process.wait(patience(60)) == 1
    assert "this run has lost the lease of its checkpoint" in paused.said.read_text().splitlines()[-1]
    assert "Traceback" not in paused.said.read_text()
    shop.wait(other)
    other.process.send_signal(signal.SIGTERM)
    assert other.process.wait(PATIENCE) == 0, other.said.read_text()
    assert sorted(shop.copied()) == list(range(shop.sent))
