"""Checks a sink connector's configuration against its database: keyspaces, tables, mapped columns, statements."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from difflib import get_close_matches

from cassandra import InvalidRequest

from penstock.connect.sinks.cql.mapping import TTL, columns
from penstock.connect.sinks.cql.routes import CqlSettings, Route
from penstock.connect.sinks.cql.tables import SinkTables
from penstock.connect.sinks.properties import Problems
from penstock.database.access import NoTls
from penstock.database.cql_connection import connection
from penstock.database.cql_types import CqlTable
from penstock.database.requests import RequestLimits
from penstock.database.retrying import DatabaseUnavailable, retrying
from penstock.database.table_catalog import did_you_mean, table_names
from penstock.errors import PenstockError

# Callers of the REST API wait during this time.
LIMITS = RequestLimits(patience=timedelta(seconds=5))
KEYSPACES = "SELECT keyspace_name FROM system_schema.keyspaces"


def problems(settings: CqlSettings) -> Problems:
    """Errors as pairs of property and message; the settings are of values that passed their own checks."""
    try:
        yield from _problems(settings)
    except DatabaseUnavailable as error:
        yield settings.names.hosts, f"Unable to connect to the cluster: {error}"
    except NoTls as error:
        yield settings.names.tls, str(error)
    except PenstockError as error:
        yield settings.names.user, str(error)


def _problems(settings: CqlSettings) -> Problems:
    names, known = settings.names, _keyspaces(settings)
    wanted = {route.keyspace: f"{route.prefix}mapping" for route in settings.given}
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
    for route in settings.given:
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
    if missing := [one.name for one in (*table.partition_key, *table.clustering_key) if one.name not in mapped]:
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
    if missing := [one.name for one in prepared.column_metadata if one.name not in mapped]:
        yield f"{route.prefix}query", f"its markers {', '.join(missing)} are not in the mapping"
