"""What a connector reads, how that is divided among tasks, and the tasks of its checked configuration."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest

from penstock.connect import topics
from penstock.connect.sinks import starts as sink_starts
from penstock.connect.sinks.record_sink import AGE, SinkTask, overrides
from penstock.connect.sinks.replication.task import ReplicationTask
from penstock.connect.source import database
from penstock.connect.source.task import Setup, Task
from penstock.connect.worker.checks import CheckedConfig
from penstock.connect.worker.plugins import ConnectorPlugin, plugin_of
from penstock.errors import PenstockError
from penstock.kafka.security import SETTINGS as SECURITY

log = logging.getLogger(__name__)

REGEX, LETTERS = "topics.regex", "errors.deadletterqueue.topic.name"
PAUSE = 5.0
"""Seconds until the next attempt to find what is read."""
AnyTask = Task | SinkTask
Shares = Sequence[tuple[str, ...]]
"""The tables or topics of each task."""


@dataclass(frozen=True)
class TaskMaker:
    """Makes the tasks of a connector; `producer` are the worker's settings of Kafka's producer."""

    connector: str
    servers: str
    checked: CheckedConfig
    producer: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[str, str] = field(default_factory=dict)
    """Start by table or topic, for those without a checkpoint."""
    signals: str = ""
    """The file of signals for the queries of a source."""

    @cached_property
    def setup(self) -> Setup | None:
        """What the tasks of a source share; None for a sink."""
        if plugin_of(self.checked.config).type == "sink":
            return None
        values, config = self.checked.values, self.checked.config
        return Setup(self.connector, self.servers, values, config, self.producer, signals=self.signals)

    @property
    def every(self) -> float | None:
        """Seconds between two looks for topics that match; None if what is read does not change while it runs."""
        values = self.checked.values
        return values[AGE] / 1000 if self.setup is None and values[REGEX] else None

    @property
    def looks_for(self) -> str:
        """What a connector waits for that has nothing to read; "" if that is no reason to wait."""
        return "" if self.every is None else f"a topic that matches {self.checked.values[REGEX]}"

    def sources(self) -> list[str]:
        """The tables that the database has now, or the topics; raises PenstockError."""
        values = self.checked.values
        if self.setup is not None:
            return database.tables(values)
        if not values[REGEX]:
            return list(dict.fromkeys(values["topics"]))
        matching = topics.matching(self.servers, self._security | overrides(self.checked.config), values[REGEX])
        return [topic for topic in matching if topic != values[LETTERS]]

    def shares(self, sources: Sequence[str]) -> Shares:
        """What each task reads: `tasks.max` tasks, or fewer if there is less to read."""
        count = min(self.checked.values["tasks.max"], len(sources))
        return [tuple(sources[number::count]) for number in range(count)]

    def forget_group(self) -> None:
        """Remove the positions of a sink's consumer group; raises PenstockError."""
        if self.setup is None:
            sink_starts.forget(self.servers, self._security | overrides(self.checked.config), self.connector)

    def task(self, number: int, share: tuple[str, ...]) -> AnyTask:
        """The task that reads these."""
        if self.setup is not None:
            return Task(self.setup, number, share, self.starts)
        checked, client = self.checked, self._security
        kind = ReplicationTask if plugin_of(checked.config).destination is None else SinkTask
        return kind(self.connector, number, share, self.servers, checked.values, checked.config, client, self.starts)

    @property
    def _security(self) -> dict[str, str]:
        """The worker's settings of Kafka's consumers."""
        return {name: text for name, text in self.producer.items() if name in SECURITY}

    def topic_of(self, query: str) -> str:
        """The topic of a query, whose name contains its table or its topic."""
        part = query.removeprefix(f"{self.connector}.")
        return (self.setup.routed.get(part) or self.setup.topic(part)) if self.setup else part


def awaited(maker: TaskMaker, stopping: threading.Event, wait_for: Callable[[str], str]) -> list[str]:
    """What the connector reads; waits for a database or a Kafka that does not answer, until `stopping`.

    `wait_for` gets what the connector waits for, and returns it without secrets.
    """
    of_source = maker.setup is not None
    where = "its database" if of_source else "Kafka"
    wait_for("the tables of its database" if of_source else "the topics that it reads")
    while not stopping.is_set():
        try:
            return maker.sources()
        except PenstockError as error:
            if not error.retriable:
                raise
            log.warning(
                "connector %s waits for %s",
                maker.connector,
                wait_for(f"{where}: {error}"),
            )
        stopping.wait(PAUSE)
    return []


def changed(available: Sequence[str], shares: Shares) -> list[str] | None:
    """What is available, in an order in which most of it stays in its share; None if it is what the shares have."""
    # In the order in which tasks share them.
    read = [part for row in zip_longest(*shares) for part in row if part is not None]
    if set(available) == set(read):
        return None
    return list(dict.fromkeys([*(part for part in read if part in available), *available]))


def own(plugin: ConnectorPlugin, share: Sequence[str]) -> dict[str, str]:
    """What the configuration of a task has instead of the connector's."""
    return {database.TABLES if plugin.type == "source" else "topics": ",".join(share)}
