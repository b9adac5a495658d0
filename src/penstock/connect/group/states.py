"""The states of a group's connectors and tasks, reported by their workers in a compacted topic, `status.storage.topic`.

The records are Kafka Connect's: `status-connector-<name>` and `status-task-<name>-<number>` with a state, a trace and
the worker's address; besides `waits_for`. `status-topic-<topic>:connector-<name>` is a topic that a connector has used.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from penstock.connect.worker.connector_store import object_of
from penstock.connect.worker.running_task import UNASSIGNED
from penstock.kafka.compacted_topic import CompactedTopic, Seen

log = logging.getLogger(__name__)

PAUSE = 5.0
"""Seconds until a state is reported again of which only the wait has changed."""
LONGEST_TRACE, LONGEST_WAIT = 100_000, 10_000
"""The most characters of a trace, and of what a part waits for."""
TOPIC, OF = "status-topic-", ":connector-"


@dataclass(frozen=True)
class ReportedStatus:
    """A state, and the address of the worker that reports it."""

    state: str
    worker: str
    trace: str = ""
    waits_for: str = ""

    def cut(self) -> ReportedStatus:
        """As much of it as is written and read: anybody may have written a record that is larger."""
        return ReportedStatus(
            self.state[:100], self.worker[:500], self.trace[:LONGEST_TRACE], self.waits_for[:LONGEST_WAIT]
        )


class GroupStates:
    """The topic, with the newest states, by "<connector>" or "<connector>-<number of the task>"."""

    def __init__(self, topic: Callable[[Seen], CompactedTopic]) -> None:
        self._topic = topic(self._seen)
        self._lock = threading.Lock()
        self._known: dict[str, ReportedStatus] = {}
        self._topics: set[tuple[str, str]] = set()
        self._reported: dict[str, tuple[ReportedStatus, float]] = {}
        self._contradicted: set[str] = set()
        """The keys of states that this worker has reported, and of which the topic says otherwise since then."""

    def start(self) -> None:
        """Read all, and follow the topic from now on."""
        self._topic.start()

    def close(self) -> None:
        self._topic.close()

    def of(self, key: str) -> ReportedStatus | None:
        """The newest state of a connector or a task, by its key."""
        with self._lock:
            return self._known.get(key)

    def running(self, connector: str, workers: Set[str]) -> set[str]:
        """Those of the workers that still run a task of this connector."""
        prefix = of_task(connector, 0)[:-1]
        with self._lock:
            return {
                status.worker
                for key, status in self._known.items()
                if key.startswith(prefix) and key[len(prefix) :].isdecimal()
                if status.worker in workers and status.state != UNASSIGNED
            }

    def topics(self, connector: str) -> set[str]:
        """The topics that a connector has used."""
        with self._lock:
            return {topic for name, topic in self._topics if name == connector}

    def begin(self, worker: str) -> None:
        """A worker starts, and runs nothing yet, whatever was reported of it."""
        with self._lock:
            old = [key for key, status in self._known.items() if status.worker == worker and status.state != UNASSIGNED]
        for key in old:
            self.report(key, ReportedStatus(UNASSIGNED, worker))

    def report(self, key: str, status: ReportedStatus) -> None:
        """Report a state, if it is news, or if the topic says something else, whoever wrote that."""
        status = status.cut()
        before, at = self._reported.get(key, (None, 0.0))
        soon = time.monotonic() - at < PAUSE
        if before == status and (soon or key not in self._contradicted):
            return
        waits = before is not None and replace(status, waits_for=before.waits_for) == before
        if waits and status.waits_for and soon:
            return
        with self._lock:
            self._reported[key] = status, time.monotonic()
            self._contradicted.discard(key)
        about = {
            "state": status.state,
            "worker_id": status.worker,
            "trace": status.trace,
            "waits_for": status.waits_for,
        }
        self._send(key, about)

    def forget(self, key: str) -> None:
        """A connector or a task is no more."""
        with self._lock:
            self._reported.pop(key, None)
            self._contradicted.discard(key)
        self._send(key, None)

    def used(self, connector: str, topic: str) -> None:
        """A connector has used a topic."""
        if topic not in self.topics(connector):
            self._topic.send(f"{TOPIC}{topic}{OF}{connector}", json.dumps({"topic": {"name": topic}}).encode())

    def forget_topics(self, connector: str) -> None:
        for topic in self.topics(connector):
            self._topic.put(f"{TOPIC}{topic}{OF}{connector}", None)

    def _send(self, key: str, about: Mapping[str, Any] | None) -> None:
        self._topic.send(f"status-{key}", None if about is None else json.dumps(about).encode())

    def _seen(self, key: str, value: bytes | None, offset: int) -> None:
        with self._lock:
            if key.startswith(TOPIC):
                topic, _, connector = key.removeprefix(TOPIC).partition(OF)
                (self._topics.discard if value is None else self._topics.add)((connector, topic))
            elif key.startswith("status-"):
                name, fields = key.removeprefix("status-"), object_of(key, value) if value else None
                if fields is None:
                    self._known.pop(name, None)
                else:
                    texts = (str(fields.get(field) or "") for field in ("state", "worker_id", "trace", "waits_for"))
                    self._known[name] = ReportedStatus(*texts).cut()
                differs = name in self._reported and self._reported[name][0] != self._known.get(name)
                (self._contradicted.add if differs else self._contradicted.discard)(name)


def of_connector(name: str) -> str:
    """The key of a connector's state."""
    return f"connector-{name}"


def of_task(name: str, number: int) -> str:
    """The key of a task's state."""
    return f"task-{name}-{number}"
