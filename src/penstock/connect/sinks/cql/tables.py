"""The tables of a sink connector: looked up, created, and given columns, by the schemas of records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

from cassandra import AlreadyExists, Unauthorized

from penstock.codec.connect_schema import Schema
from penstock.connect.records.record import DATA
from penstock.connect.records.semantic_types import COLUMNS, SHAPES
from penstock.connect.sinks.cql.routes import CqlSettings, Route
from penstock.database.cql_connection import connection
from penstock.database.cql_types import CqlTable
from penstock.database.requests import CqlRequest, RequestLimits, send_all
from penstock.database.retrying import REFUSED, retrying
from penstock.database.table_catalog import NoTable, describe, is_scylla, quoted
from penstock.database.token_ring import partition_key
from penstock.errors import PenstockError

T = TypeVar("T")
_TYPES = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": "text",
    "bytes": "blob",
}
_LOGICAL = {"Decimal": "decimal", "Date": "date", "Time": "time", "Timestamp": "timestamp"}


class UnlikeTable(ValueError):
    """A record whose table is missing or lacks a column, and cannot be changed."""


def column_type(schema: Schema) -> str:
    """The CQL type of a column that is made for values of this schema; raises UnlikeTable for structs."""
    name = str(schema.get("name") or "")
    if name.startswith(DATA) and (logical := _LOGICAL.get(name.removeprefix(DATA))):
        return logical
    if name in COLUMNS:
        return COLUMNS[name]
    if name in SHAPES:
        raise UnlikeTable(
            "no column can be made for a geometry: create one of a user type, or as blob or text for its WKB"
        )
    kind = schema["type"]
    if not kind:
        raise UnlikeTable("no column can be made for a field of several types: create it")
    if kind == "array":
        return f"list<{_inside(schema['items'])}>"
    if kind == "map":
        return f"map<{_inside(schema['keys'])}, {_inside(schema['values'])}>"
    if kind not in _TYPES:
        raise UnlikeTable(f"no column can be made for a {kind}: create the table with a user type")
    return _TYPES[kind]


def _inside(schema: Schema) -> str:
    kind = column_type(schema)
    return f"frozen<{kind}>" if "<" in kind else kind


def readable(name: str) -> str:
    """A name as CQL shows it, in quotes only if it needs them."""
    return name if re.fullmatch("[a-z][a-z0-9_]*", name) else quoted(name)


@dataclass(frozen=True)
class NewTable:
    """A table to create: the types of its columns by name, and the names of the partition key's."""

    keyspace: str
    name: str
    columns: Mapping[str, str]
    key: Sequence[str]

    def text(self, compression: str, comment: str, *, plain: bool = False) -> str:
        """The statement, with the map of options `compression`; with `plain` names are in quotes only where needed."""
        write = readable if plain else quoted
        columns = ", ".join(f"{write(name)} {kind}" for name, kind in self.columns.items())
        key = ", ".join(map(write, self.key))
        escaped = comment.replace("'", "''")
        return (
            f"CREATE TABLE {'' if plain else 'IF NOT EXISTS '}{write(self.keyspace)}.{write(self.name)} ({columns}, "
            f"PRIMARY KEY (({key}))) WITH compression = {compression} AND comment = '{escaped}'"
        )


def compression_options(algorithm: str, *, scylla: bool) -> str:
    """The options of a new table; "none" is an algorithm, too. Neither database accepts the other's names."""
    if scylla:
        return f"{{'sstable_compression': '{'' if algorithm == 'none' else algorithm}'}}"
    return "{'enabled': 'false'}" if algorithm == "none" else f"{{'class': '{algorithm}'}}"


@dataclass
class SinkTables:
    """The tables as the database has them."""

    settings: CqlSettings
    limits: RequestLimits
    known: dict[str, CqlTable | None] = field(default_factory=dict)

    def get(self, route: Route) -> CqlTable | None:
        """The table of a route; None if there is none."""
        if self.known.get(route.name) is None:
            self.known[route.name] = self._describe(route)
        return self.known[route.name]

    def look_again(self, route: Route) -> CqlTable | None:
        self.known.pop(route.name, None)
        return self.get(route)

    def create(self, new: NewTable, route: Route, comment: str) -> CqlTable:
        """Create a table; raises UnlikeTable if that is not allowed."""
        if not self.settings.manage:
            raise UnlikeTable(
                f"there is no table {route.name}; create it: {new.text(self._compression, comment, plain=True)}"
            )
        self._change(new.text(self._compression, comment), route)
        table = self.look_again(route)
        if table is None:
            raise UnlikeTable(f"the table {route.name} was dropped when it was created")
        return table

    def add(self, route: Route, missing: Mapping[str, Schema | None]) -> CqlTable | None:
        """Add columns; raises UnlikeTable if that is not allowed, or a column has no schema."""
        if unknown := [name for name, schema in missing.items() if schema is None]:
            raise UnlikeTable(f"the table {route.name} has no column {', '.join(unknown)}")
        kinds = {name: column_type(schema) for name, schema in missing.items() if schema is not None}
        if not self.settings.manage:
            name = f"{readable(route.keyspace)}.{readable(route.table)}"
            texts = "; ".join(f"ALTER TABLE {name} ADD {readable(column)} {kind}" for column, kind in kinds.items())
            raise UnlikeTable(f"the table {route.name} lacks columns; add them: {texts}")
        for column, kind in kinds.items():
            self._change(
                f"ALTER TABLE {quoted(route.keyspace)}.{quoted(route.table)} ADD {quoted(column)} {kind}", route
            )
        return self.look_again(route)

    def _describe(self, route: Route) -> CqlTable | None:
        def look() -> CqlTable | None:
            try:
                name = f"{quoted(route.keyspace)}.{quoted(route.table)}"
                return describe(connection(self.settings.access).rows, name)
            except NoTable:
                return None

        return self._retrying(look, "describing the table", route.name)

    @cached_property
    def _compression(self) -> str:
        """The options of new tables; looked up once, for each record may lack its table."""
        scylla = self._retrying(
            lambda: is_scylla(connection(self.settings.access).rows), "looking up the database", "system_schema.tables"
        )
        return compression_options(self.settings.compression, scylla=scylla)

    def _change(self, text: str, route: Route) -> None:
        """Run a statement that changes a table; another task may have done it first."""

        def run() -> None:
            try:
                connection(self.settings.access).rows.execute(text)
            except AlreadyExists:
                return
            except Unauthorized:
                raise
            except REFUSED as error:
                if "conflict" not in str(error) and "already" not in str(error):
                    raise PenstockError(
                        f"the table cannot be changed: {error}",
                        where=f"{route.name}, {text}",
                        next="change it by hand, or set scylladb.table.manage.enabled=false",
                    ) from error

        self._retrying(run, "changing the table", route.name)

    def _retrying(self, call: Callable[[], T], what: str, where: str) -> T:
        place = f"{where} at {self.settings.access.hosts}"
        return retrying(call, what=what, where=place, patience=self.limits.patience)


def prepare_keyspace(settings: CqlSettings, limits: RequestLimits) -> None:
    """Create the keyspace and the table of positions, where the configuration wants them.

    Raises DatabaseUnavailable if no node answers within `limits.patience`.
    """
    texts = []
    if settings.create_keyspace:
        texts.append(
            f"CREATE KEYSPACE IF NOT EXISTS {quoted(settings.keyspace)} WITH replication = "
            f"{{'class': 'NetworkTopologyStrategy', 'replication_factor': {settings.replication}}}"
        )
    if settings.offsets:
        texts.append(
            f"CREATE TABLE IF NOT EXISTS {quoted(settings.keyspace)}.{quoted(settings.offsets)} "
            '(topic text, "partition" int, "offset" bigint, PRIMARY KEY ((topic, "partition")))'
        )
    for text in texts:
        try:
            retrying(
                lambda text=text: connection(settings.access).rows.execute(text),  # type: ignore[misc]
                what="preparing the keyspace",
                where=f"{settings.keyspace} at {settings.access.hosts}",
                patience=limits.patience,
            )
        except REFUSED as error:
            raise PenstockError(
                f"the keyspace cannot be prepared: {error}",
                where=f"{settings.keyspace}, {text}",
                next="correct the configuration",
            ) from error


def keep_offsets(settings: CqlSettings, limits: RequestLimits, offsets: Mapping[tuple[str, int], int]) -> None:
    """Write the next offset of each partition of a topic to the table of positions."""
    if not settings.offsets:
        return
    name = f"{quoted(settings.keyspace)}.{quoted(settings.offsets)}"
    text = f'INSERT INTO {name} (topic, "partition", "offset") VALUES (?, ?, ?) USING TTL 0'
    keys = ((topic.encode(), partition.to_bytes(4, "big"), at) for (topic, partition), at in offsets.items())
    requests = [
        CqlRequest(((text, [topic, partition, at.to_bytes(8, "big")]),), partition_key((topic, partition)))
        for topic, partition, at in keys
    ]
    send_all(settings.access, settings.keyspace, requests, limits, what="writing the positions", where=name)
