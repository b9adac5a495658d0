"""What the sinks of records write to, as the tasks of Spark and the driver see it, whatever the database is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Literal, NamedTuple, Protocol, TypeAlias

from penstock.connect.records.record import ConnectRecord

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


class Destination(Protocol):
    """Where a connector's records go, and how; it is sent to Spark's tasks."""

    @property
    def chunks(self) -> Chunks | None:
        """The chunks that batches consist of; None for batches of whatever there is."""

    @property
    def tolerance(self) -> Tolerance: ...

    @property
    def address(self) -> str:
        """The servers, for people and probes, with the database of PostgreSQL, and without a login."""

    def identity(self, topic: str, *, any_topic: bool) -> tuple[str, str]:
        """The system, and what a topic's records are written to there; with `any_topic` transforms change topics."""

    def prepare(self, patience: timedelta) -> None:
        """Create what must be there before the first record."""

    def keep_offsets(self, offsets: Mapping[tuple[str, int], int], patience: timedelta) -> None:
        """Keep the next offsets by topic and partition, if the connector keeps them in the database."""

    def writer(self, patience: timedelta, *, again: bool) -> AbstractContextManager[RecordsWriter]:
        """The writer of a task; what it has written stands when the context ends without an error.

        `again` says that the records may have been written before, in part or whole.
        """
