"""What `penstock connect` tells of its tasks: by REST, in its metrics and its status, also after a fault."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from kafka_connect import KafkaConnect
from prometheus_client.parser import text_string_to_metric_families
from promtool import promtool
from waiting import PATIENCE, patience, until

from penstock.local.services import Services

START = patience(180)
"""Seconds for the start of Spark on a busy machine."""
ADDRESS = re.compile(r"serving Kafka Connect's REST API at (\S+)\nserving metrics at (\S+)/metrics\n")


@dataclass(frozen=True)
class Running:
    """A worker's process, and the addresses of its API and of its metrics."""

    process: subprocess.Popen[str]
    connect: KafkaConnect
    metrics: str
    log: Path

    def scrape(self) -> str:
        return requests.get(f"{self.metrics}/metrics", timeout=PATIENCE).text

    def values(self) -> dict[tuple[str, ...], float]:
        """The values of a scrape by name and label values."""
        samples = [one for family in text_string_to_metric_families(self.scrape()) for one in family.samples]
        return {(one.name, *one.labels.values()): one.value for one in samples}

    def task(self, name: str) -> dict[str, Any]:
        found: list[dict[str, Any]] = self.connect.get_connector_status(name)["tasks"]
        return found[0] if found else {"state": ""}


@pytest.fixture(scope="module")
def running(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("worker")
    properties = folder / "worker.properties"
    properties.write_text(
        f"bootstrap.servers={services.kafka}\nlisteners=http://127.0.0.1:0\nconfig.storage.topic=configs-{uuid.uuid4().hex[:8]}\n"
        "key.converter=org.apache.kafka.connect.json.JsonConverter\n"
        "value.converter=org.apache.kafka.connect.json.JsonConverter\n"
    )
    out, log = folder / "out.txt", folder / "log.txt"
    command = [sys.executable, "-m", "penstock", "connect", properties, "--data", folder / "data"]
    with pytest.MonkeyPatch.context() as patch, out.open("w") as lines, log.open("w") as errors:
        patch.setenv("PENSTOCK_RUNS", str(folder / "runs"))
        words = [*map(str, command), "--metrics", "127.0.0.1:0"]
        with subprocess.Popen(words, stdout=lines, stderr=errors, text=True) as process:
            try:
                found = until(lambda: ADDRESS.search(out.read_text()) or process.poll(), "worker", START)
                assert isinstance(found, re.Match), log.read_text()
                yield Running(process, KafkaConnect(found[1]), found[2], log)
            finally:
                process.terminate()


@pytest.mark.slow
def test_a_worker_without_connectors_is_ready(running: Running) -> None:
    assert requests.get(f"{running.metrics}/ready", timeout=PATIENCE).json() == {"status": "ok", "problems": []}
    status = requests.get(f"{running.metrics}/status", timeout=PATIENCE).json()
    assert (status["kind"], status["state"], status["connectors"]) == ("connect", "running", [])


@pytest.mark.slow
def test_a_task_says_what_it_waits_for_and_runs_when_its_idle_table_was_asked(
    running: Running, tables: Any, config: dict[str, str]
) -> None:
    table = tables("idle")
    running.connect.create_connector({"name": "idle", "config": {**config, "scylla.table.names": table}})
    seen: list[tuple[str, str]] = []

    def runs() -> bool:
        task = running.task("idle")
        seen.append((task["state"], task.get("waits_for", "")))
        assert "trace" not in task
        return bool(task["state"] == "RUNNING")

    until(runs, "running task")
    states = [state for state, _ in seen]
    assert "UNASSIGNED" in states and set(states) <= {"", "UNASSIGNED", "RUNNING"}
    assert sorted(states) == sorted(states, key=["", "RUNNING", "UNASSIGNED"].index) and states[-1] == "RUNNING"
    waits = {text for state, text in seen if state == "UNASSIGNED"}
    assert waits <= {"its queries to start", f"the first batch of {table}"} and waits
    assert running.task("idle")["state"] == "RUNNING" and "waits_for" not in running.task("idle")
    values = running.values()
    assert values["penstock_connector_tasks", "idle", "RUNNING"] == 1
    assert values["penstock_connector_tasks", "idle", "UNASSIGNED"] == 0
    assert values["penstock_query_starts_total", "idle", f"idle.{table}", "first"] == 1
    running.connect.delete_connector("idle")
    until(lambda: ("penstock_connector_tasks", "idle", "RUNNING") not in running.values(), "end of the metrics")


def test_what_spark_s_processes_say_is_in_the_log_and_counted(running: Running) -> None:
    """The JVM of tests says which options it took from the environment."""
    assert running.values()[("penstock_spark_lines_total",)] >= 1
    assert " Spark: NOTE: Picked up JDK_JAVA_OPTIONS" in running.log.read_text()


@pytest.mark.kill
@pytest.mark.slow
def test_a_task_whose_worker_was_killed_shows_the_fault_until_it_works_again(
    running: Running, cql: Any, tables: Any, config: dict[str, str]
) -> None:
    table = tables("killed")
    running.connect.create_connector({"name": "killed", "config": {**config, "scylla.table.names": table}})
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (1, 1, 'a')")
    until(lambda: running.task("killed")["state"] == "RUNNING", "running task")

    for one in psutil.Process(running.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "java" not in one.name():
                one.kill()
    task = until(lambda: _with_trace(running), "fault")
    assert task["state"] == "RESTARTING" and not task["trace"].startswith("[STREAM_FAILED]")
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (2, 1, 'b')")
    until(lambda: running.task("killed")["state"] == "RUNNING", "task after the fault")
    assert "trace" not in running.task("killed")
    values = running.values()
    assert values["penstock_query_starts_total", "killed", f"killed.{table}", "fault"] >= 1
    status = requests.get(f"{running.metrics}/status", timeout=PATIENCE).json()
    assert f"killed.{table}" in {error["query"] for error in status["errors"]}


def _with_trace(running: Running) -> dict[str, Any] | None:
    task = running.task("killed")
    return task if task.get("trace") else None


@pytest.mark.slow
def test_promtool_has_nothing_to_say_about_a_scrape_of_the_worker(
    running: Running, cql: Any, tables: Any, config: dict[str, str]
) -> None:
    table = tables("scraped")
    running.connect.create_connector({"name": "scraped", "config": {**config, "scylla.table.names": table}})
    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (1, 1, 'a')")
    written = ("penstock_sink_rows_total", "scraped", f"scraped.{table}")
    until(lambda: any(name[:3] == written and value > 0 for name, value in running.values().items()), "written row")
    checked = promtool("check", "metrics", given=running.scrape())
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
