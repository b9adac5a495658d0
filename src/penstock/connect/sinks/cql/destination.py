"""ScyllaDB and Cassandra as the destination of a sink connector.

A configuration is checked against its database: keyspaces, tables, mapped columns, statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches

from cassandra import InvalidRequest

from penstock.connect.sinks.cql.mapping import TTL, columns
from penstock.connect.sinks.cql.routes import CqlSettings, Route
from penstock.connect.sinks.cql.tables import SinkTables, keep_offsets, prepare_keyspace
from penstock.connect.sinks.cql.writer import RecordWriter
from penstock.connect.sinks.destination import Destination
from penstock.connect.sinks.properties import Problems
from penstock.database.access import NoTls
from penstock.database.cql_connection import connection
from penstock.database.cql_types import CqlTable
from penstock.database.requests import RequestLimits
from penstock.database.retrying import DatabaseUnavailable, retrying
from penstock.database.table_catalog import did_you_mean, table_names
from penstock.errors import PenstockError

LIMITS = RequestLimits(patience=timedelta(seconds=5))
"""Of checks: callers of the REST API wait meanwhile."""
KEYSPACES = "SELECT keyspace_name FROM system_schema.keyspaces"


@dataclass(frozen=True)
class CqlDestination(Destination):
    """The tables of a connector's routes."""

    settings: CqlSettings

    @property
    def address(self) -> str:
        return self.settings.access.hosts

    def identity(self, topic: str, *, any_topic: bool) -> tuple[str, str]:
        if any_topic and self.settings.default is not None:
            return "cql", self.settings.keyspace
        routes = self.settings.named if any_topic else self.settings.routes(topic)
        return "cql", ", ".join(route.name for route in routes)

    def problems(self) -> Problems:
        return _problems(self.settings)

    def prepare(self, patience: timedelta) -> None:
        """Create the keyspace."""
        prepare_keyspace(self.settings, RequestLimits(patience=patience))

    def keep_offsets(self, offsets: Mapping[tuple[str, int], int], patience: timedelta) -> None:
        keep_offsets(self.settings, RequestLimits(patience=patience), offsets)

    @contextmanager
    def writer(self, patience: timedelta, *, again: bool) -> Iterator[RecordWriter]:
        timeout = timedelta(milliseconds=max(self.settings.timeout_millis, 1))
        yield RecordWriter(self.settings, RequestLimits(self.settings.in_flight, timeout, patience), again)


def _problems(settings: CqlSettings) -> Problems:
    """Errors as pairs of property and message; the settings are of values that passed their own checks."""
    try:
        yield from _of_tables(settings)
    except DatabaseUnavailable as error:
        yield settings.names.hosts, f"Unable to connect to the cluster: {error}"
    except NoTls as error:
        yield settings.names.tls, str(error)
    except PenstockError as error:
        yield settings.names.user, str(error)


def _of_tables(settings: CqlSettings) -> Problems:
    names, known = settings.names, _keyspaces(settings)
    wanted = {route.keyspace: f"{route.prefix}mapping" for route in settings.named}
    if settings.keyspace:
        wanted[settings.keyspace] = names.keyspace
    for keyspace, prop in wanted.items():
        own = keyspace == settings.keyspace
        if keyspace not in known and not (own and settings.create_keyspace):
            near = get_close_matches(keyspace, known, 1)
            hint = f"did you mean {near[0]}? Else create it" if near else "create it"
            yield prop, f"there is no keyspace {keyspace}; {hint}{_or_set(names.create_keyspace if own else '')}"
            return
    tables = SinkTables(settings, LIMITS)
    for route in settings.named:
        if route.query:
            yield from _of_query(settings, route)
        elif (table := tables.get(route)) is None:
            if not settings.manage:
                yield f"{route.prefix}mapping", f"there is no table {route.name}. {_near(settings, route)}"
        else:
            yield from ((f"{route.prefix}{option}", text) for option, text in _of_table(settings, route, table))


def _or_set(switch: str) -> str:
    return f", or set {switch}=true" if switch else ""


def _keyspaces(settings: CqlSettings) -> set[str]:
    return retrying(
        lambda: {name for (name,) in connection(settings.access).rows.execute(KEYSPACES)},
        what="looking up the keyspaces",
        where=settings.access.hosts,
        patience=LIMITS.patience,
    )


def _near(settings: CqlSettings, route: Route) -> str:
    names = table_names(connection(settings.access).rows, route.keyspace)
    return did_you_mean(route.keyspace, route.table, names) or f"Create it{_or_set(settings.names.manage)}"


def _of_table(settings: CqlSettings, route: Route, table: CqlTable) -> Iterator[tuple[str, str]]:
    counted = any(column.type.name == "counter" for column in table.values)
    if counted and (route.ttl or TTL in (route.mapping or {})):
        option = settings.names.ttl if route.ttl else "mapping"
        yield option, f"{table.full_name} has counters, which have no time to live"
    if route.mapping is None:
        return
    mapped, known = {name for name, _ in columns(route.mapping)}, {column.name for column in table.columns}
    if missing := [
        column.name for column in (*table.partition_key, *table.clustering_key) if column.name not in mapped
    ]:
        yield "mapping", f"it does not map {', '.join(missing)}, of the primary key of {table.full_name}"
    if (unknown := sorted(mapped - known)) and not settings.manage:
        yield "mapping", f"{table.full_name} has no column {', '.join(unknown)}; it has {', '.join(sorted(known))}"


def _of_query(settings: CqlSettings, route: Route) -> Problems:
    try:
        prepared = connection(settings.access).prepare(route.query)
    except InvalidRequest as error:
        yield f"{route.prefix}query", str(error)
        return
    mapped = {column for column, _ in columns(route.mapping or {})}
    if missing := [marker.name for marker in prepared.column_metadata if marker.name not in mapped]:
        yield f"{route.prefix}query", f"its markers {', '.join(missing)} are not in the mapping"
