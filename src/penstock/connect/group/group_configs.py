"""The configurations of a group's connectors, as all its workers read them from the topic, and what else it has.

Besides the records of `connector_store` there are two kinds: `commit-<name>` has how a connector's sources are divided
among its tasks, {"tasks": 2, "shares": [["shop.orders"], ["shop.items"]]}; `restart-connector-<name>` asks for a
restart, and counts only for those who are there when it is written.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from penstock.connect.group.division import TaskId
from penstock.connect.worker.connector_store import ConnectorWriter, StoredConnector, connectors, object_of
from penstock.connect.worker.connector_tasks import Shares
from penstock.durations import whole
from penstock.kafka.compacted_topic import PATIENCE, CompactedTopic, Seen
from penstock.process.log_lines import quoted

log = logging.getLogger(__name__)

MOST_TASKS = 1000
"""The most tasks of a connector whose tasks.max is in another place, to which its configuration refers."""
CONNECTOR, STATE, COMMIT, RESTART = "connector-", "target-state-", "commit-", "restart-connector-"


class Restart(NamedTuple):
    """A wish to restart a connector: also its tasks, or only failed ones, or only the task `number`."""

    connector: str
    tasks: bool = False
    only_failed: bool = False
    number: int | None = None


@dataclass(frozen=True)
class DividedConnector:
    """A connector as the group knows it.

    `configured` is the offset of its configuration, and `generation` that of the newest division of its sources, -1 if
    there is none; a division from before the configuration does not count.
    """

    stored: StoredConnector
    configured: int
    generation: int = -1
    shares: Shares = ()

    @property
    def is_divided(self) -> bool:
        return self.generation > self.configured


class GroupConfigs(ConnectorWriter):
    """The topic of configurations; `changed` is called after each record, `restart` with each wish, in its thread."""

    def __init__(self, topic: Callable[[Seen], CompactedTopic]) -> None:
        self._topic = topic(self._seen)
        self.changed: Callable[[], None] = lambda: None
        self.restart: Callable[[Restart], None] = lambda wish: None
        self._lock = threading.Lock()
        self._records: dict[str, tuple[bytes, int]] = {}
        self._known: dict[str, DividedConnector] = {}
        self.offset = 0
        """Up to where the topic is read."""
        self._reads = False

    @property
    def cluster_id(self) -> str:
        """The id of the Kafka cluster."""
        return self._topic.cluster_id

    def start(self) -> None:
        """Read all, and follow the topic from now on."""
        self._topic.start()
        self._reads = True

    def refresh(self, patience: timedelta = PATIENCE) -> None:
        """Wait until all is known that any worker has written so far; raises what `CompactedTopic.refresh` does."""
        self._topic.refresh(patience)

    def known(self) -> dict[str, DividedConnector]:
        """All connectors by name."""
        with self._lock:
            return dict(self._known)

    def of(self, name: str) -> DividedConnector | None:
        """A connector; None if there is none."""
        with self._lock:
            return self._known.get(name)

    def tasks(self) -> list[TaskId]:
        """The tasks that there should be."""
        return [
            TaskId(name, connector.generation, number)
            for name, connector in self.known().items()
            if connector.is_divided
            for number in range(len(connector.shares))
        ]

    def divide(self, name: str, shares: Shares) -> None:
        """Write for the group how a connector's sources are divided."""
        self._write(COMMIT + name, {"tasks": len(shares), "shares": [list(share) for share in shares]})

    def undivide(self, name: str) -> None:
        """Write for the group that a connector has no tasks, until it is divided again."""
        self._write(COMMIT + name, None)

    def ask_restart(self, wish: Restart) -> None:
        """Ask the group to restart a connector, or some of its tasks."""
        about = {"include-tasks": wish.tasks, "only-failed": wish.only_failed, "task": wish.number}
        self._write(RESTART + wish.connector, about)

    def remove(self, name: str) -> None:
        """Remove a connector for all workers."""
        super().remove(name)
        self.undivide(name)

    def close(self) -> None:
        self._topic.close()

    def _write(self, key: str, value: Mapping[str, Any] | None) -> None:
        self._topic.put(key, None if value is None else json.dumps(value).encode())

    def _seen(self, key: str, value: bytes | None, offset: int) -> None:
        kind = next((prefix for prefix in (CONNECTOR, STATE, COMMIT, RESTART) if key.startswith(prefix)), None)
        with self._lock:
            self.offset = offset + 1
            if kind is not None and kind != RESTART:
                if value is None:
                    self._records.pop(key, None)
                else:
                    self._records[key] = value, offset
                self._renew(key.removeprefix(kind))
        if kind == RESTART and self._reads and value and (wish := _wish(key, value)):
            self.restart(wish)
        if self._reads:
            self.changed()

    def _renew(self, name: str) -> None:
        """What is known of a connector, of its newest records."""
        keys = (CONNECTOR + name, STATE + name)
        stored = connectors((key, self._records[key][0]) for key in keys if key in self._records).get(name)
        if stored is None:
            self._known.pop(name, None)
            return
        value, generation = self._records.get(COMMIT + name, (b"", -1))
        shares = _shares(COMMIT + name, value, _most_tasks(stored)) if value else None
        configured = self._records[CONNECTOR + name][1]
        self._known[name] = DividedConnector(stored, configured, -1 if shares is None else generation, shares or ())


def _most_tasks(stored: StoredConnector) -> int:
    """The most tasks of a connector; `MOST_TASKS` if only a worker that starts it can say it."""
    return whole(stored.config.get("tasks.max", "1").strip(), 1) or MOST_TASKS


def _shares(key: str, value: bytes, most: int) -> Shares | None:
    """How a connector is divided; None if that does not count.

    A record of Kafka Connect's own workers has no shares; one with more than tasks.max is not of a worker.
    """
    shares = (object_of(key, value) or {}).get("shares")
    if not isinstance(shares, list) or not all(isinstance(share, list) for share in shares):
        return None
    if len(shares) > most:
        log.warning("ignored the record %s: it has %d tasks, and tasks.max is %d", quoted(key), len(shares), most)
        return None
    return [tuple(map(str, share)) for share in shares]


def _wish(key: str, value: bytes) -> Restart | None:
    request = object_of(key, value)
    if request is None:
        return None
    number = request.get("task")
    return Restart(
        key.removeprefix(RESTART),
        bool(request.get("include-tasks")),
        bool(request.get("only-failed")),
        number if isinstance(number, int) else None,
    )
