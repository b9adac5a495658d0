"""PostgreSQL as the destination of Confluent's JDBC sink connector."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta

from penstock.connect.sinks.destination import Destination, RecordsWriter
from penstock.connect.sinks.jdbc.properties import JdbcSettings
from penstock.connect.sinks.properties import Problems

CHECK_SECONDS = 5
"""How long a check of a configuration waits for the server; callers of the REST API wait meanwhile."""


@dataclass(frozen=True)
class JdbcDestination(Destination):
    """The tables of a connector's topics."""

    settings: JdbcSettings

    @property
    def address(self) -> str:
        return self.settings.place

    def identity(self, topic: str, *, any_topic: bool) -> tuple[str, str]:
        return "postgres", self.settings.table_format if any_topic else self.settings.table(topic)

    def problems(self) -> Problems:
        """None: raises PenstockError if PostgreSQL cannot be reached."""
        from penstock.connect.sinks.jdbc.transaction import opened

        url = self.settings.url
        patient = "" if "connect_timeout=" in url else f"connect_timeout={CHECK_SECONDS}"
        settings = replace(self.settings, url=f"{url}{'&' if '?' in url else '?'}{patient}", attempts=1)
        opened(settings).close()
        return iter(())

    def writer(self, patience: timedelta, *, again: bool) -> AbstractContextManager[RecordsWriter]:
        # The driver is an extra, which other connectors do not need.
        from penstock.connect.sinks.jdbc.writer import RowWriter

        return RowWriter(self.settings)
