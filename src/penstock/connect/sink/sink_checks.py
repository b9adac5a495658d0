"""Checks a sink connector's configuration against its database: keyspaces, tables, mapped columns, statements."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from cassandra import InvalidRequest

from penstock.connect.sink.mapping import columns
from penstock.connect.sink.sink_properties import Problems, Route, SinkSettings
from penstock.connect.sink.sink_tables import SinkTables
from penstock.database.access import NoTls
from penstock.database.cql_connection import connection
from penstock.database.requests import RequestLimits
from penstock.database.retrying import DatabaseUnavailable, retrying
from penstock.database.table_catalog import did_you_mean, table_names
from penstock.errors import PenstockError
from penstock.schema import CqlTable

# Callers of the REST API wait during this time.
LIMITS = RequestLimits(patience=timedelta(seconds=5))
HOSTS, KEYSPACE = "scylladb.contact.points", "scylladb.keyspace"
KEYSPACES = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = %s"


def problems(settings: SinkSettings) -> Problems:
    """Errors as pairs of property and message; the settings are of values that passed their own checks."""
    try:
        yield from _problems(settings)
    except DatabaseUnavailable as error:
        yield HOSTS, f"Unable to connect to the cluster: {error}"
    except NoTls as error:
        yield "scylladb.ssl.enabled", str(error)
    except PenstockError as error:
        yield "scylladb.username", str(error)


def _problems(settings: SinkSettings) -> Problems:
    for keyspace in {settings.keyspace, *(route.keyspace for route in settings.given)}:
        created = settings.create_keyspace and keyspace == settings.keyspace
        if not created and not _ask(settings, KEYSPACES, keyspace):
            yield KEYSPACE, f"there is no keyspace {keyspace}; create it, or set scylladb.keyspace.create.enabled=true"
            return
    tables = SinkTables(settings, LIMITS)
    for route in settings.given:
        name = f"topic.{route.topic}.{route.keyspace}.{route.table}"
        if route.query:
            yield from _of_query(settings, route, name)
        elif (table := tables.get(route)) is None:
            if not settings.manage:
                yield f"{name}.mapping", f"there is no table {route.name}. {_near(settings, route)}"
        else:
            yield from ((f"{name}.{option}", text) for option, text in _of_table(settings, route, table))


def _ask(settings: SinkSettings, text: str, *values: str) -> list[object]:
    return retrying(
        lambda: list(connection(settings.access).rows.execute(text, values)),
        what="looking up the keyspace",
        where=settings.access.hosts,
        patience=LIMITS.patience,
    )


def _near(settings: SinkSettings, route: Route) -> str:
    names = table_names(connection(settings.access).rows, route.keyspace)
    return did_you_mean(route.keyspace, route.table, names) or "Create it, or set scylladb.table.manage.enabled=true"


def _of_table(settings: SinkSettings, route: Route, table: CqlTable) -> Iterator[tuple[str, str]]:
    counted = any(column.type.name == "counter" for column in table.values)
    if counted and route.ttl:
        yield "ttlSeconds", f"{table.full_name} has counters, which have no time to live"
    if route.mapping is None:
        return
    mapped, known = {name for name, _ in columns(route.mapping)}, {column.name for column in table.columns}
    if missing := [one.name for one in (*table.partition_key, *table.clustering_key) if one.name not in mapped]:
        yield "mapping", f"it does not map {', '.join(missing)}, of the primary key of {table.full_name}"
    if (unknown := sorted(mapped - known)) and not settings.manage:
        yield "mapping", f"{table.full_name} has no column {', '.join(unknown)}; it has {', '.join(sorted(known))}"


def _of_query(settings: SinkSettings, route: Route, name: str) -> Problems:
    try:
        prepared = connection(settings.access).prepare(route.query)
    except InvalidRequest as error:
        yield f"{name}.query", str(error)
        return
    mapped = {column for column, _ in columns(route.mapping or {})}
    if missing := [one.name for one in prepared.column_metadata if one.name not in mapped]:
        yield f"{name}.query", f"its markers {', '.join(missing)} are not in the mapping"
