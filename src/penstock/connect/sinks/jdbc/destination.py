"""PostgreSQL as the destination of Confluent's JDBC sink connector."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import ClassVar

from penstock.connect.sinks.destination import RecordsWriter, Tolerance
from penstock.connect.sinks.jdbc.properties import JdbcSettings
from penstock.connect.sinks.properties import Problems

CHECK_SECONDS = 5
"""How long a check of a configuration waits for the server; callers of the REST API wait meanwhile."""


@dataclass(frozen=True)
class JdbcDestination:
    """The tables of a connector's topics."""

    settings: JdbcSettings
    chunks: ClassVar[None] = None

    @property
    def tolerance(self) -> Tolerance:
        return self.settings.tolerance

    @property
    def address(self) -> str:
        return self.settings.place

    def identity(self, topic: str, *, any_topic: bool) -> tuple[str, str]:
        return "postgres", self.settings.table_format if any_topic else self.settings.table(topic)

    def prepare(self, patience: timedelta) -> None:
        """Nothing: tables are created for records."""

    def keep_offsets(self, offsets: Mapping[tuple[str, int], int], patience: timedelta) -> None:
        """Nothing: the connector does not keep them in the database."""

    def writer(self, patience: timedelta, *, again: bool) -> AbstractContextManager[RecordsWriter]:
        # The driver is an extra, which other connectors do not need.
        from penstock.connect.sinks.jdbc.writer import RowWriter

        return RowWriter(self.settings)


def problems(settings: JdbcSettings) -> Problems:
    """None: raises PenstockError if PostgreSQL cannot be reached."""
    from penstock.connect.sinks.jdbc.transaction import opened

    patient = "" if "connect_timeout=" in settings.url else f"connect_timeout={CHECK_SECONDS}"
    url = f"{settings.url}{'&' if '?' in settings.url else '?'}{patient}"
    opened(replace(settings, url=url, attempts=1)).close()
    return iter(())
