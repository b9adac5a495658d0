"""What a worker says of its connectors besides the REST API: metrics, /status and /ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.connect.worker.connector_store import PAUSED, STOPPED
from penstock.connect.worker.herder import Herder
from penstock.connect.worker.running_task import FAILED, RESTARTING, RUNNING, UNASSIGNED, key_of
from penstock.watch.meters import Meters
from penstock.watch.program import Program
from penstock.watch.status import status

STATES = (UNASSIGNED, RUNNING, PAUSED, RESTARTING, FAILED)
"""The states of tasks."""
AT_REST = (PAUSED, STOPPED)
"""States of connectors in which nothing is expected to run."""


class TaskMetrics(Collector):
    """Counts tasks at each scrape."""

    def __init__(self, worker: Herder) -> None:
        self._worker = worker

    def collect(self) -> Iterator[Metric]:
        gauge = GaugeMetricFamily(
            "penstock_connector_tasks", "Tasks of a connector in a state", labels=("connector", "state")
        )
        for connector in self._worker.here():
            counts = Counter(task["state"] for task in connector["tasks"])
            for state in STATES:
                gauge.add_metric((connector["name"], state), counts[state])
        if gauge.samples:
            yield gauge


def status_of(program: Program, meters: Meters, worker: Herder) -> dict[str, Any]:
    """The /status of the worker."""
    connectors = list(worker.here())
    problems = [(state, text) for connector in connectors for state, text in _problems(connector)]
    failed = next((text for state, text in problems if state == FAILED), "")
    state = "failed" if failed else "waiting" if problems else "running"
    return {
        **status(program, meters),
        "state": state,
        "waits_for": problems[0][1] if problems and not failed else "",
        "connectors": [_connector(connector, meters) for connector in connectors],
    }


def unready(worker: Herder) -> list[str]:
    """Why the worker is not ready: the connectors and tasks that should run and do not; empty if all do."""
    return [f"{state}: {text}" for connector in worker.here() for state, text in _problems(connector)]


def _problems(of: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The state of the connector and of each task that should run and does not, and what is in its way."""
    if of["connector"]["state"] in AT_REST:
        return
    parts = [(f"connector {of['name']}", of["connector"])]
    parts += [(f"task {of['name']}-{task['id']}", task) for task in of["tasks"]]
    for name, part in parts:
        if part["state"] != RUNNING:
            why = part.get("waits_for") or part.get("trace", "").partition("\n")[0]
            yield part["state"], f"{name}: {why}" if why else name


def _connector(of: Mapping[str, Any], meters: Meters) -> dict[str, Any]:
    tasks = [
        {"id": task["id"], **_part(task), **_counts(meters, key_of(of["name"], task["id"]))} for task in of["tasks"]
    ]
    return {"name": of["name"], **_part(of["connector"]), "tasks": tasks}


def _counts(meters: Meters, key: str) -> dict[str, int]:
    """The records that a task has read since its worker started, and those of them that it has left out."""
    with meters.lock:
        pipeline = meters.pipelines.get(key)
        queries = list(pipeline.queries.values()) if pipeline is not None else []
        letters = sum(sum(sink.counts.letters.values()) for query in queries for sink in query.sinks)
        return {"records_total": sum(query.rows for query in queries), "dead_letters_total": letters}


def _part(of: Mapping[str, Any]) -> dict[str, Any]:
    return {"state": of["state"], "waits_for": of.get("waits_for", ""), "trace": of.get("trace", "")}
