"""Lineage of connectors: each table's query is a job with the table and its topic, without secrets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lineage_receiver import Receiver, names, receiving, require_valid
from pyspark.sql import SparkSession
from waiting import patience, until

from penstock.connect.source.task import Setup, Task
from penstock.connect.worker import running_task
from penstock.connect.worker.connector import Connector
from penstock.connect.worker.connector_store import PAUSED, STARTED, StoredConnector
from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.running_task import RUNNING, RunningTask
from penstock.local.services import Services
from penstock.watch.lineage import sending
from penstock.watch.meters import Meters


@pytest.fixture
def at() -> Iterator[Receiver]:
    with receiving() as found:
        yield found


@pytest.mark.slow
def test_each_table_of_a_connector_is_a_job_with_its_topic(
    spark: SparkSession, services: Services, tables: Any, config: dict[str, str], at: Receiver, tmp_path: Path
) -> None:
    first, second = tables("lineage_a"), tables("lineage_b")
    config |= {
        "name": "c",
        "scylla.table.names": f"{first},{second}",
        "tasks.max": "2",
        "transforms": "to",
        "transforms.to.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.to.regex": ".*lineage_b",
        "transforms.to.replacement": f"{config['topic.prefix']}-routed",
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    }
    with sending(at.url) as observer:
        connector = Connector(
            "c", StoredConnector(config, STARTED), WorkerContext(spark, services.kafka, tmp_path, observer=observer)
        )
        connector.start()
        try:
            until(lambda: [one.state for one in connector.tasks] == [RUNNING] * 2 or connector.trace, "running tasks")
            assert connector.trace == ""
            connector.change(StoredConnector(config, PAUSED))
            connector.change(StoredConnector(config, STARTED))
            until(lambda: at.types().count("START") == 4, "the second start")
        finally:
            connector.remove()
    for event in at.events:
        require_valid(event)
    told = {event["job"]["name"]: event for event in at.events}
    database, broker, prefix = f"cassandra://{services.cql}", f"kafka://{services.kafka}", config["topic.prefix"]
    assert {job: (names(event["inputs"]), names(event["outputs"])) for job, event in told.items()} == {
        f"c.{first}": ({(database, first)}, {(broker, f"{prefix}.{first}")}),
        f"c.{second}": ({(database, second)}, {(broker, f"{prefix}-routed")}),
    }
    for job in told:
        assert [kind for kind in at.types(job) if kind != "RUNNING"] == ["START", "COMPLETE"] * 2


class Fails:
    """In place of a run of Spark's queries: one of two fails for good."""

    def __init__(self, task: Task, spark: Any, folder: Path, stop: Any, observer: RunningTask, tries: float) -> None:
        self._observer = observer

    def supervise(self) -> None:
        query: Any = SimpleNamespace()
        for name in ("c.ks.a", "c.ks.b"):
            self._observer.begins(name, query, Path())
        self._observer.fault("no login with secret", query="c.ks.a", trace="  at secret")
        raise ZeroDivisionError("secret")


def test_a_failed_table_fails_without_secrets(at: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_task, "PipelineRun", Fails)
    spark: Any = None
    task = Task(Setup("c", "localhost:9", {"poll.interval.ms": 200}, {}), 0, ("ks.a", "ks.b"))

    def hide(text: str) -> str:
        return text.replace("secret", "[hidden]")

    with sending(at.url) as observer:
        RunningTask(task, spark, tmp_path, lambda name: None, hide, Meters(), observer()).wait()
    assert at.types("c.ks.a") == ["START", "FAIL"]
    assert at.types("c.ks.b") == ["START", "COMPLETE"]
    (failed,) = (event for event in at.events if event["eventType"] == "FAIL")
    error = failed["run"]["facets"]["errorMessage"]
    assert (error["message"], error["stackTrace"]) == ("no login with [hidden]", "  at [hidden]")


def test_a_wrong_url_ends_the_command_before_spark_starts(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "penstock",
        "connect",
        "--servers",
        "127.0.0.1:1",
        "--listen",
        "http://127.0.0.1:0",
    ]
    command += ["--metrics", "none", "--lineage", "marquez:5000"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=patience(300))
    assert ran.returncode == 1
    assert "'marquez:5000' is not the URL of a receiver of lineage" in ran.stderr
    assert "Spark" not in ran.stderr
