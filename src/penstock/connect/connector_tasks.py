"""What a connector reads, how that is divided among tasks, and the tasks of its checked configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from penstock.connect import database
from penstock.connect.checks import Checked
from penstock.connect.plugins import plugin_of
from penstock.connect.sink.record_sink import SinkTask
from penstock.connect.task import Setup, Task
from penstock.kafka.security import SETTINGS as SECURITY

AnyTask = Task | SinkTask
Shares = Sequence[tuple[str, ...]]
"""The tables or topics of each task."""


@dataclass(frozen=True)
class TaskMaker:
    """Makes the tasks of a connector; `producer` are the worker's settings of Kafka's producer."""

    connector: str
    servers: str
    checked: Checked
    producer: Mapping[str, str] = field(default_factory=dict)
    starts: Mapping[str, str] = field(default_factory=dict)
    """Start by table or topic, for those without a checkpoint."""

    @cached_property
    def setup(self) -> Setup | None:
        """What the tasks of a source share; None for a sink."""
        if plugin_of(self.checked.config).type == "sink":
            return None
        return Setup(self.connector, self.servers, self.checked.values, self.checked.config, self.producer)

    def sources(self) -> list[str]:
        """The tables that the database has now, or the topics; raises PenstockError."""
        values = self.checked.values
        return list(dict.fromkeys(values["topics"])) if self.setup is None else database.tables(values)

    def shares(self, sources: Sequence[str]) -> Shares:
        """What each task reads: `tasks.max` tasks, or fewer if there is less to read."""
        count = min(self.checked.values["tasks.max"], len(sources))
        return [tuple(sources[number::count]) for number in range(count)]

    def task(self, number: int, share: tuple[str, ...]) -> AnyTask:
        """The task that reads these."""
        if self.setup is not None:
            return Task(self.setup, number, share, self.starts)
        client = {name: text for name, text in self.producer.items() if name in SECURITY}
        checked = self.checked
        return SinkTask(
            self.connector, number, share, self.servers, checked.values, checked.config, client, self.starts
        )
