"""What the sinks of records write to, as the tasks of Spark and the driver see it, whatever the system is.

A sink connector is a folder of `connect/sinks/`, with these modules:

- `properties`: its properties and their checks as `worker.plugins.SinkProperties` has them, and the settings that a
  valid configuration means: a dataclass whose fields name their properties (`definition.of_property`)
- `destination`: a `Destination` of these settings
- `writer`: what a Spark task writes with, a `RecordsWriter`
- `tables`: what the system has for topics (tables, folders, indexes), looked up, created and changed
- `values`: a record's values as the system takes them

`worker.plugins.PLUGINS` has a line for it, and `tests/connect/test_sink_shape.py` what must be true of each sink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from penstock.connect.records.record import ConnectRecord
from penstock.connect.sinks.properties import Problems

Tolerance: TypeAlias = Literal["fail", "driver", "log", "ignore"]
"""What becomes of records that cannot be written: with `driver` those that the database refuses are left out."""


def tolerance_of(errors: str) -> Tolerance:
    """What `errors.tolerance` of Kafka Connect says."""
    return "log" if errors == "all" else "fail"


SHOWN = 80
"""Characters of a value in a message."""


class Unfit(ValueError):
    """A value that a column cannot hold."""


class BadRecord(Exception):
    """A record that cannot be written, and why."""


class Bad(NamedTuple):
    """A record that is not written; `refused` says that it is the database that does not take it."""

    record: ConnectRecord
    reason: str
    stage: str = "TASK_PUT"
    """Kafka Connect's name of what the record does not get through."""
    refused: bool = False


class RecordsWriter(Protocol):
    """Writes the records of a Spark task; `write` may be called several times."""

    def write(self, records: Sequence[ConnectRecord], *, until_bad: bool = False) -> list[Bad]:
        """Write the records, and return those that do not fit; with `until_bad` none after the first of these."""


class Chunks(NamedTuple):
    """Records of a partition that are written together: those from one multiple of `records` to the next."""

    records: int
    wait: timedelta | None
    """How long a chunk waits for its last records; None for ever."""


class SinkSettings(Protocol):
    """What all sinks need to know of a valid configuration."""

    @property
    def tolerance(self) -> Tolerance: ...


@dataclass(frozen=True)
class Destination(ABC):
    """Where a connector's records go, and how; it is sent to Spark's tasks."""

    settings: Any
    """The connector's own `SinkSettings`."""

    @property
    def tolerance(self) -> Tolerance:
        settings: SinkSettings = self.settings
        return settings.tolerance

    @property
    def chunks(self) -> Chunks | None:
        """The chunks that batches consist of; None for batches of whatever there is."""
        return None

    @property
    def address(self) -> str:
        """The servers, for people and probes, with the database of PostgreSQL, and without a login; "" for none."""
        return ""

    @abstractmethod
    def identity(self, topic: str, *, any_topic: bool) -> tuple[str, str]:
        """The system, and what a topic's records are written to there; with `any_topic` transforms change topics."""

    @abstractmethod
    def problems(self) -> Problems:
        """What the system has against these settings; raises PenstockError if it cannot be asked.

        Callers of the REST API wait for it.
        """

    def prepare(self, patience: timedelta) -> None:  # noqa: B027 (most have nothing to create)
        """Create what must be there before the first record."""

    def keep_offsets(self, offsets: Mapping[tuple[str, int], int], patience: timedelta) -> None:  # noqa: B027
        """Keep the next offsets by topic and partition, if the connector keeps them in the system."""

    @abstractmethod
    def writer(self, patience: timedelta, *, again: bool) -> AbstractContextManager[RecordsWriter]:
        """The writer of a task; what it has written stands when the context ends without an error.

        `again` says that the records may have been written before, in part or whole.
        """
