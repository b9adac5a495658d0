"""`penstock run` on a real Kafka: its metrics and status while it reads, is idle or stopped, or a broker is gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import psutil
import pytest
from kafka_topics import new_topics
from prometheus_client.parser import text_string_to_metric_families
from waiting import PATIENCE, patience, until

from penstock.local.services import Services, down, status, up
from penstock.watch import run_files
from penstock.wire import BlockingProducer

PIPELINE = """
import penstock as ps
from penstock import kafka

@ps.pipeline(target="30 seconds")
def orders(spark):
    read = kafka.read(spark, "{topic}", servers="{servers}", name="orders", schema="id int")
    return ps.write(read.select("id", "timestamp"), kafka.sink("{topic}-out", servers="{servers}"))
"""
SEEN = 5.0
"""Seconds in which a broker's death is seen: 3, and more on a busy machine."""


class Runs:
    """A pipeline from a topic to another one, which is run several times."""

    def __init__(self, folder: Path, servers: str, topic: str) -> None:
        self.folder, self.servers, self.topic = folder, servers, topic
        self.checkpoints = folder / "checkpoints"
        (folder / "shop.py").write_text(PIPELINE.format(topic=topic, servers=servers))
        self.process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        words = ("run", "shop.py:orders", "--checkpoints", str(self.checkpoints))
        command = [sys.executable, "-m", "penstock", *words]
        self.process = subprocess.Popen(
            command, cwd=self.folder, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        file = until(lambda: next(iter(run_files.running()), None), "run file", PATIENCE)
        assert (file.name, file.checkpoint) == ("orders", str(self.checkpoints / "orders"))
        assert file.command == f"penstock {' '.join(words)}"
        self.url = file.url

    def stop(self) -> str:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        _, said = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, said
        self.process = None
        assert run_files.running() == []
        return said

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()

    def send(self, count: int) -> None:
        with BlockingProducer(self.servers) as producer:
            for number in range(count):
                producer.send(self.topic, json.dumps({"id": number}).encode(), partition=0)
            producer.send(self.topic, b"not JSON", partition=0)
            producer.flush()

    def status(self) -> dict[str, Any]:
        with urlopen(f"{self.url}/status", timeout=PATIENCE) as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def query(self) -> dict[str, Any] | None:
        """The query's part of the status; None before its start."""
        return next(iter(self.status()["queries"]), None)

    def has_read(self, rows: int) -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            query = self.query()
            return query if query and query["rows_total"] == rows else None

        return until(reached, f"{rows} rows", PATIENCE)

    def metrics(self) -> dict[str, float]:
        with urlopen(f"{self.url}/metrics", timeout=PATIENCE) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return {one.name: one.value for family in families for one in family.samples}

    def query_starts(self, reason: str) -> int:
        query = self.query()
        return query["starts"][reason] if query else 0

    def in_terminal(self) -> dict[str, Any]:
        words = ("status", "--checkpoints", str(self.checkpoints), "--servers", self.servers, "--json")
        command = [sys.executable, "-m", "penstock", *words, "--root", str(self.folder)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        told: dict[str, Any] = json.loads(ran.stdout)
        return told | {"code": ran.returncode}


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_RUNS", str(tmp_path / "runs"))


@pytest.mark.slow
def test_lag_is_what_was_written_while_a_pipeline_was_stopped_and_0_when_it_is_idle(
    tmp_path: Path, services: Services
) -> None:
    topic = f"meters-{uuid.uuid4().hex[:8]}"
    with new_topics(services.kafka, [topic, f"{topic}-out"], 1, {"retention.ms": "3600000"}):
        runs = Runs(tmp_path, services.kafka, topic)
        try:
            check_stop_and_start(runs)
        finally:
            runs.kill()


def check_stop_and_start(runs: Runs) -> None:
    runs.send(20)
    runs.start()
    runs.has_read(21)
    check_idle(runs)
    # The batch after a while without data has the number that idle progresses had.
    runs.send(4)
    query = runs.has_read(26)
    assert query["batch"] == query["batches_total"] - 1 >= 1
    (source,) = query["sources"]
    assert (source["bad_records"], source["retention_left_seconds"]) == ({"not_json": 2}, 3600)
    (sink,) = query["sinks"]
    assert sink["rows_total"] == 26 and sink["delay"]["buckets"][-1] == 26 and sink["delay"]["p99"] > 0
    found = runs.metrics()
    assert found["penstock_query_delay_target_seconds"] == 30 and found["penstock_jvm_memory_used_bytes"] > 1e6
    assert runs.in_terminal()["code"] == 0
    said = runs.stop()
    assert "ended after" in said and "and 26 rows" in said
    runs.send(6)
    told = runs.in_terminal()
    (stopped,) = told["runs"]
    (source,) = stopped["queries"][0]["sources"]
    assert (stopped["state"], source["lag_records"], told["code"]) == ("stopped", 7, 1)
    assert source["lag_seconds"] > 0
    runs.start()
    runs.has_read(7)
    check_idle(runs)
    runs.stop()


def check_idle(runs: Runs) -> None:
    """For some looks of the supervisor the lag is 0, in records and in seconds."""
    seen: set[str] = set()

    def stays() -> bool:
        told = runs.status()
        (query,) = told["queries"]
        (source,) = query["sources"]
        lag = source["lag_records"], source["lag_seconds"]
        if lag == (0, 0) and query["state"] == "running":
            seen.add(told["now"][:19])
        else:
            # Only while the batch has just ended.
            assert not seen, query
        return len(seen) >= 5

    until(stays, "idle query", PATIENCE)
    assert runs.metrics()["penstock_source_lag_seconds"] == 0


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A Kafka that a test kills: its root and its address."""
    root = tmp_path / "services"
    yield root, up(root, only=["kafka"]).kafka
    down(root)


@pytest.mark.kill
@pytest.mark.slow
def test_a_killed_broker_is_seen_within_seconds_and_so_is_its_return(
    tmp_path: Path, own_kafka: tuple[Path, str]
) -> None:
    root, servers = own_kafka
    topic = f"meters-{uuid.uuid4().hex[:8]}"
    with BlockingProducer(servers) as producer:
        producer.send(f"{topic}-out", b"{}", partition=0)
        producer.flush()
    runs = Runs(tmp_path, servers, topic)
    try:
        runs.send(3)
        runs.start()
        runs.has_read(4)
        (pid,) = [one.pid for one in status(root) if one.name == "kafka" and one.pid]
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        until(lambda: runs.status()["state"] == "waiting", "wait", PATIENCE)
        assert time.monotonic() - killed < patience(SEEN)
        assert runs.status()["waits_for"].startswith(f"Kafka at {servers} for ")
        with pytest.raises(OSError, match="503"):
            urlopen(f"{runs.url}/ready", timeout=PATIENCE)
        lag = (runs.query() or {})["sources"][0]["lag_seconds"]
        until(lambda: (runs.query() or {})["sources"][0]["lag_seconds"] > lag + 2, "growing lag", PATIENCE)
        assert runs.in_terminal()["code"] == 1
        up(root, only=["kafka"], kafka_port=int(servers.rpartition(":")[2]))
        runs.send(3)
        assert runs.has_read(8)["state"] == "running"
        runs.stop()
    finally:
        runs.kill()


@pytest.mark.kill
@pytest.mark.slow
def test_a_run_goes_on_after_all_its_python_processes_were_killed(tmp_path: Path, services: Services) -> None:
    topic = f"meters-{uuid.uuid4().hex[:8]}"
    with new_topics(services.kafka, [topic, f"{topic}-out"], 1):
        runs = Runs(tmp_path, services.kafka, topic)
        try:
            runs.send(3)
            runs.start()
            runs.has_read(4)
            assert runs.process is not None
            below = psutil.Process(runs.process.pid).children(recursive=True)
            for process in below:
                if process.name() != "java":
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            until(lambda: runs.query_starts("fault") >= 1, "start after the fault", PATIENCE)
            runs.send(3)
            assert runs.has_read(8)["state"] == "running"
            runs.stop()
        finally:
            runs.kill()
