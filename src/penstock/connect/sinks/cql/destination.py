"""ScyllaDB and Cassandra as the destination of a sink connector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from penstock.connect.sinks.cql.routes import CqlSettings
from penstock.connect.sinks.cql.tables import keep_offsets, prepare_keyspace
from penstock.connect.sinks.cql.writer import RecordWriter
from penstock.connect.sinks.destination import Tolerance
from penstock.database.requests import RequestLimits


@dataclass(frozen=True)
class CqlDestination:
    """The tables of a connector's routes."""

    settings: CqlSettings
    chunks: ClassVar[None] = None

    @property
    def tolerance(self) -> Tolerance:
        return self.settings.tolerance

    @property
    def address(self) -> str:
        return self.settings.access.hosts

    def identity(self, topic: str, *, any_topic: bool) -> tuple[str, str]:
        if any_topic and self.settings.default is not None:
            return "cql", self.settings.keyspace
        routes = self.settings.given if any_topic else self.settings.routes(topic)
        return "cql", ", ".join(route.name for route in routes)

    def prepare(self, patience: timedelta) -> None:
        """Create the keyspace."""
        prepare_keyspace(self.settings, RequestLimits(patience=patience))

    def keep_offsets(self, offsets: Mapping[tuple[str, int], int], patience: timedelta) -> None:
        keep_offsets(self.settings, RequestLimits(patience=patience), offsets)

    @contextmanager
    def writer(self, patience: timedelta, *, again: bool) -> Iterator[RecordWriter]:
        timeout = timedelta(milliseconds=max(self.settings.timeout_millis, 1))
        yield RecordWriter(self.settings, RequestLimits(self.settings.in_flight, timeout, patience), again)
