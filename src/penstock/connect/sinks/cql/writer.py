"""Writes records to tables as their routes say, each with its own time.

A record that does not fit is distinguished from a fault: the connector's configuration says what happens to it, and the
others are written. Of two records for one row in the same millisecond the later one must win, so it is written a
microsecond later; a record that is read twice is written once.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NamedTuple

from cassandra import InvalidRequest
from cassandra.query import UNSET_VALUE

from penstock.codec.connect_schema import Schema
from penstock.connect.records.column_numbers import NUMBERS, exact
from penstock.connect.records.record import ConnectRecord, Part, Timestamp, type_name
from penstock.connect.sinks.cql.mapping import TIMESTAMP, TTL, ColumnSource, NoField, columns
from penstock.connect.sinks.cql.routes import CqlSettings, Route
from penstock.connect.sinks.cql.tables import NewTable, SinkTables, UnlikeTable, column_type
from penstock.connect.sinks.cql.values import cell
from penstock.connect.sinks.destination import SHOWN, Bad, BadRecord, Unfit
from penstock.cql.cql_writer import MAX_TTL
from penstock.database.access import Access
from penstock.database.cells import indexed
from penstock.database.cql_connection import connection
from penstock.database.cql_tokens import without_quoted
from penstock.database.cql_types import Column, CqlTable, CqlType, parse_type
from penstock.database.requests import (
    CqlRequest,
    ListTime,
    RefusedValue,
    RequestLimits,
    Sending,
    Statement,
    send_all,
    together,
)
from penstock.database.retrying import retrying
from penstock.database.table_catalog import base_name, quoted
from penstock.database.token_ring import LONGEST_KEY, partition_key
from penstock.errors import PenstockError

MOST_TEXTS = 50
"""Statements prepared for one table; records with other columns use one with all of its columns."""
MOST_BINDINGS = 1000
"""Sets of fields whose bindings to their tables are remembered."""
MICROS = 1_000_000
TOGETHER = 1000
"""Records that are converted before they are sent: the database writes while the next ones are converted."""
UNCERTAIN = (
    "the database may have executed its statement, or not, and executed twice it could change the row twice: it is not "
    "sent again. Compare the row with this record"
)
Cells = dict[str, bytes | None]


class Write(NamedTuple):
    """The statement that a record becomes for one of its tables."""

    record: ConnectRecord
    route: Route
    partition: bytes
    statement: Statement
    lists: dict[str, bytes] = {}  # noqa: RUF012 (never changed)
    """The lists that it sets, which would be there twice if they are written twice."""
    select: Statement | None = None
    """Reads these lists."""
    without: Callable[[set[str]], Statement] | None = None
    """The statement without some of them."""
    once: bool = False
    """Whether it must not be executed twice."""
    micros: int | None = None
    """The write time of a statement that is not composed here, in microseconds since 1970."""


class TableBinding(NamedTuple):
    """How the fields of a record are bound to the columns of its table: the same for all records with these fields."""

    table: CqlTable
    columns: list[tuple[str, str, CqlType]]
    """Of each field its name, and the name and the type of its column."""
    key: list[Column]
    lists: list[str]
    """The columns of lists whose elements are stored one by one."""
    counted: bool


class LastWrite(NamedTuple):
    """The last write of a row: when, of which millisecond, and by which record."""

    micros: int
    millis: int
    place: tuple[str, int, int]


NEVER = LastWrite(-(1 << 62), -(1 << 62), ("", -1, -1))
"""The last write of a row without one."""


@dataclass
class RecordWriter:
    """Writes the records of a batch; `write` may be called several times.

    `again` says that the batch may have been written before.
    """

    settings: CqlSettings
    limits: RequestLimits
    again: bool = False
    tables: SinkTables = field(init=False)
    _rows: dict[tuple[Any, ...], LastWrite] = field(default_factory=dict)
    _looked: set[tuple[str, ...]] = field(default_factory=set)
    _routes: dict[str, list[Route]] = field(default_factory=dict)
    _bindings: dict[tuple[Any, ...], TableBinding] = field(default_factory=dict)
    _texts: dict[str, dict[tuple[str, ...], str]] = field(default_factory=dict)
    _queries: dict[str, list[tuple[str, CqlType]]] = field(default_factory=dict)
    _once: dict[str, bool] = field(default_factory=dict)
    _now: int = 0

    def __post_init__(self) -> None:
        self.tables = SinkTables(self.settings, self.limits)

    def write(self, records: Sequence[ConnectRecord], *, until_bad: bool = False) -> list[Bad]:
        """Write the records, and return those that do not fit; with `until_bad` none after the first of these."""
        bad: list[Bad] = []
        sent: dict[tuple[str, str], RouteWrites] = {}
        for first in range(0, len(records), TOGETHER):
            writes: dict[tuple[str, str], list[Write]] = {}
            for record in records[first : first + TOGETHER]:
                try:
                    writes_of_record = self.writes(record)
                except (BadRecord, UnlikeTable, NoField) as error:
                    bad.append(Bad(record, str(error)))
                    if until_bad:
                        break
                else:
                    for write in writes_of_record:
                        writes.setdefault((write.route.topic, write.route.name), []).append(write)
            for place, some in writes.items():
                if place not in sent:
                    sent[place] = RouteWrites(self, some[0].route)
                sent[place].send(some)
            if bad and until_bad:
                break
        return bad + [write for each in sent.values() for write in each.refused()]

    # Sending.

    def sending(self, route: Route) -> Sending:
        return Sending(self._access(route), route.keyspace, self.limits, what="writing", where=route.name)

    def requests(self, route: Route, writes: Sequence[Write]) -> list[CqlRequest]:
        """The requests of some writes; those without a time of their own, of counters, are sent one by one."""
        access = self._access(route)
        writes = self._without_known_lists(access, route, writes) if self.again else writes
        if route.query or any("USING TIMESTAMP" not in write.statement[0] for write in writes):
            return [CqlRequest((write.statement,), write.partition, write.once, write.micros) for write in writes]
        return together(access, route.keyspace, [(write.partition, [write.statement]) for write in writes], self.limits)

    def _without_known_lists(self, access: Access, route: Route, writes: Sequence[Write]) -> list[Write]:
        """The writes, without the lists that their rows have already."""
        known = [write for write in writes if write.select]
        requests = [CqlRequest((write.select,), write.partition) for write in known if write.select]
        pages = send_all(access, route.keyspace, requests, self.limits, what="reading lists", where=route.name)
        changed = {}
        for write, page in zip(known, pages, strict=True):
            buffer, starts, lengths = indexed(page.data, page.rows, len(write.lists), where=route.name)
            data = buffer.tobytes()
            there = {
                name
                for number, (name, cell) in enumerate(write.lists.items())
                if page.rows and data[starts[0, number] :][: max(lengths[0, number], 0)] == cell
            }
            if there and write.without:
                changed[id(write)] = write._replace(statement=write.without(there))
        return [changed.get(id(write), write) for write in writes]

    def _access(self, route: Route) -> Access:
        return replace(self.settings.access, consistency=route.consistency)

    # Records as statements.

    def writes(self, record: ConnectRecord) -> list[Write]:
        """The writes of a record; raises BadRecord, UnlikeTable or NoField."""
        if record.topic not in self._routes:
            self._routes[record.topic] = self.settings.routes(record.topic)
        if not self._routes[record.topic]:
            raise BadRecord(f"its topic has no table: give topic.{record.topic}.<keyspace>.<table>.mapping")
        writes = (
            self._query(record, route) if route.query else self._row(record, route)
            for route in self._routes[record.topic]
        )
        return [write for write in writes if write is not None]

    def _row(self, record: ConnectRecord, route: Route) -> Write | None:
        if not route.mapping:
            _require_object(record.key, "key")
        if record.value.value is None and (route.deletes or not route.nulls_delete):
            return self._deletion(record, route)
        values = _mapped(record, route) if route.mapping else _unmapped(record)
        binding = self._bind(record, route, values)
        table = binding.table
        if route.nulls_delete and route.deletes and _is_null(route, table, values):
            return self._deletion(record, route)
        cells = {column: _cell(kind, values[name], column, record, route) for name, column, kind in binding.columns}
        if route.null_to_unset:
            keys = {column.name for column in binding.key}
            cells = {name: value for name, value in cells.items() if value is not None or name in keys}
        key = self._key(table, binding.key, cells, record, route)
        if binding.counted:
            return self._counted(record, route, table, cells, key)
        at = self._time(record, route, key)
        if at is None:
            return None
        ttl = _ttl(record, route)
        write = Write(record, route, self._partition(table, key), self._insert(table, cells, at, ttl))
        lists = {name: value for name in binding.lists if (value := cells.get(name))}
        if not lists:
            return write
        cells_of = {name: value for name, value in cells.items() if name not in lists}
        time = ListTime(int.from_bytes(at, "big", signed=True))
        return write._replace(
            statement=self._insert(table, cells, time, ttl),
            lists=lists,
            select=_reading(table, key, list(lists)),
            without=lambda there: self._insert(
                table, cells_of | {name: lists[name] for name in lists if name not in there}, time, ttl
            ),
        )

    def _deletion(self, record: ConnectRecord, route: Route) -> Write | None:
        if not route.deletes:
            raise BadRecord("it has no value, and deletes are off (scylladb.deletes.enabled, deletesEnabled)")
        table = self.tables.get(route)
        if table is None:
            if self.settings.manage:
                return None  # without a table there is no row to delete
            raise UnlikeTable(f"there is no table {route.name}")
        keys = [*table.partition_key, *table.clustering_key]
        fields = {}
        if route.mapping:
            of_key = {column.name for column in keys}
            if any(source.side == "now" and name in of_key for name, source in columns(route.mapping)):
                return None  # no row has this key yet
            has_value = record.value.value is not None
            fields = {
                name: source.of(record)
                for name, source in columns(route.mapping)
                if (source.side in ("key", "header") or has_value) and not source.is_missing(record)
            }
        names = _names(table, fields)
        kinds = {column.name: column.type for column in keys}
        cells = {
            names[name]: _cell(kinds[names[name]], value, name, record, route)
            for name, value in fields.items()
            if names.get(name) in kinds
        }
        key = self._key(table, keys, cells, record, route)
        at = self._time(record, route, key)
        if at is None:
            return None
        counted = any(column.type.name == "counter" for column in table.values)
        using, times = ("", []) if counted else (" USING TIMESTAMP ?", [at])
        statement = f"DELETE FROM {base_name(table)}{using} WHERE {_of_row(table)}", [*times, *key]
        return Write(record, route, self._partition(table, key), statement)

    def _bind(self, record: ConnectRecord, route: Route, values: Mapping[str, Any]) -> TableBinding:
        """The binding of a record with these fields to its table, which gets the columns that it lacks."""
        place = (route.name, *values)
        known = self._bindings.get(place)
        if known is None or known.table is not self.tables.get(route):
            if len(self._bindings) >= MOST_BINDINGS:
                self._bindings.clear()
            table, names = self._resolve_columns(record, route, values)
            kinds = {column.name: column.type for column in table.columns}
            self._bindings[place] = known = TableBinding(
                table,
                [(name, names[name], kinds[names[name]]) for name in values],
                [*table.partition_key, *table.clustering_key],
                [column.name for column in table.values if column.type.nonfrozen_list],
                any(column.type.name == "counter" for column in table.values),
            )
        return known

    def _resolve_columns(
        self, record: ConnectRecord, route: Route, values: Mapping[str, Any]
    ) -> tuple[CqlTable, dict[str, str]]:
        """The table, with a column for each value, and the names of these columns."""
        schemas = _schemas_of(record, route, values)
        table = self.tables.get(route) or self._created(record, route, values, schemas)
        names = _names(table, values)
        if (missing := _without(names, values)) and (looked := (route.name, *missing)) not in self._looked:
            # Somebody may have added them. Once is enough: each record may have such a field.
            self._looked.add(looked)
            table = self.tables.look_again(route) or table
            names = _names(table, values)
        if missing := _without(names, values):
            table = self.tables.add(route, {name: schemas.get(name) for name in missing}) or table
            names = _names(table, values)
        if missing := _without(names, values):
            raise UnlikeTable(f"the table {route.name} has no column {', '.join(missing)}")
        return table, names

    def _created(
        self, record: ConnectRecord, route: Route, values: Mapping[str, Any], schemas: Mapping[str, Schema | None]
    ) -> CqlTable:
        if route.mapping:
            key = [name for name, source in columns(route.mapping) if source.side == "key"]
        else:
            fields = _fields(record.key.schema)
            key, schemas = list(fields), {**fields, **schemas}
        if not key or any(schemas.get(name) is None for name in (*key, *values)):
            raise UnlikeTable(
                f"there is no table {route.name}, and none can be made: that needs a key that is a struct, and schemas"
            )
        kinds = {name: column_type(schema) for name, schema in schemas.items() if schema is not None}
        ordered = {name: kinds[name] for name in dict.fromkeys([*key, *kinds])}
        comment = str((record.value.schema or {}).get("doc") or "made by a sink connector")
        return self.tables.create(NewTable(route.keyspace, route.table, ordered, key), route, comment)

    def _key(
        self, table: CqlTable, columns: Sequence[Column], cells: Cells, record: ConnectRecord, route: Route
    ) -> list[bytes]:
        """The cells of the primary key's columns; those that are not among `cells` are taken from the record's key."""
        cells_of_key = []
        if any(column.name not in cells for column in columns):
            cells |= self._cells_of_key(table, columns, record, route, cells)
        for column in columns:
            value = cells.get(column.name)
            if value is None:
                raise BadRecord(f"it has no value for {column.name} of the primary key of {table.full_name}")
            if len(value) > LONGEST_KEY:
                raise BadRecord(f"{column.name} of the primary key has {len(value)} bytes; the most are {LONGEST_KEY}")
            cells_of_key.append(value)
        if len(table.partition_key) == 1 and not cells_of_key[0]:
            raise BadRecord(f"{table.partition_key[0].name}, the partition key, is empty")
        return cells_of_key

    def _cells_of_key(
        self, table: CqlTable, columns: Sequence[Column], record: ConnectRecord, route: Route, known: Cells
    ) -> Cells:
        """The cells of the primary key's columns that are in the record's key, without those that are known."""
        fields = record.key.value if isinstance(record.key.value, dict) else {}
        kinds = {column.name: column.type for column in columns if column.name not in known}
        return {
            column: _cell(kinds[column], fields[name], column, record, route)
            for name, column in _names(table, fields).items()
            if column in kinds
        }

    def _partition(self, table: CqlTable, key: Sequence[bytes]) -> bytes:
        return partition_key(key[: len(table.partition_key)])

    def _insert(self, table: CqlTable, cells: Cells, at: bytes | ListTime, ttl: bytes | None) -> Statement:
        known = self._texts.setdefault(table.full_name, {})
        names, using = tuple(cells), "USING TIMESTAMP ?" if ttl is None else "USING TIMESTAMP ? AND TTL ?"
        if names not in known:
            if len(known) >= MOST_TEXTS:
                names = tuple(column.name for column in table.columns)
            marks = ", ".join("?" * len(names))
            known[names] = f"INSERT INTO {base_name(table)} ({', '.join(map(quoted, names))}) VALUES ({marks}) "
        values: list[Any] = [cells.get(name, UNSET_VALUE) for name in names]
        values.append(at)
        if ttl is not None:
            values.append(ttl)
        return known[names] + using, values

    def _counted(
        self, record: ConnectRecord, route: Route, table: CqlTable, cells: Cells, key: list[bytes]
    ) -> Write | None:
        """Counters have no write time: the database adds."""
        if self._was_written(record, (route.name, *key)):
            return None
        added = [column.name for column in table.values if cells.get(column.name) is not None]
        if not added:
            return None
        sets = ", ".join(f"{quoted(name)} = {quoted(name)} + ?" for name in added)
        values = [*(cells[name] for name in added), *key]
        statement = f"UPDATE {base_name(table)} SET {sets} WHERE {_of_row(table)}", values
        return Write(record, route, self._partition(table, key), statement, once=True)

    # Times.

    def _time(self, record: ConnectRecord, route: Route, key: Sequence[bytes]) -> bytes | None:
        """The time of a write; None if the record was written before."""
        row, place = (route.name, *key), record.place
        last = self._rows.get(row, NEVER)
        if _is_repeated(last, place):
            return None
        newest = last.micros, last.millis
        if (mapped := _given_time(record, route)) is not None:
            micros = mapped
        else:
            millis = time.time_ns() // 1_000_000 if record.millis is None else record.millis
            micros = millis * 1000
            if millis >= last.millis:
                micros = max(micros, last.micros + 1)
                newest = micros, millis
        self._rows[row] = LastWrite(*newest, place)
        return micros.to_bytes(8, "big", signed=True)

    def _was_written(self, record: ConnectRecord, row: tuple[Any, ...]) -> bool:
        """Whether the record was written to this row before; remembers that it is now."""
        last, place = self._rows.get(row, NEVER), record.place
        if repeated := _is_repeated(last, place):
            return repeated
        self._rows[row] = last._replace(place=place)
        return False

    # Own statements.

    def _query(self, record: ConnectRecord, route: Route) -> Write | None:
        """The route's own statement, with the mapped values in its markers."""
        assert route.mapping, "checked with the configuration"
        if self._was_written(record, (route.name, *record.place)):
            return None
        values = _mapped(record, route)
        bound = []
        for name, kind in self._markers(route):
            if name not in route.mapping:
                raise BadRecord(f"the query has the marker :{name}, which is not mapped")
            if name not in values:
                bound.append(UNSET_VALUE)
                continue
            cell = _cell(kind, values[name], name, record, route)
            bound.append(UNSET_VALUE if cell is None and route.null_to_unset else cell)
        once, micros = self._must_be_once(route), self._statement_time(record, route)
        return Write(record, route, b"", (route.query, bound), once=once, micros=micros)

    def _statement_time(self, record: ConnectRecord, route: Route) -> int:
        """The write time of an own statement: the mapped one, or now, and it stays when the statement is sent again.

        Else an older statement that is sent again would win over a newer one.
        """
        if (mapped := _given_time(record, route)) is not None:
            return mapped
        self._now = max(self._now + 1, time.time_ns() // 1000)
        return self._now

    def _must_be_once(self, route: Route) -> bool:
        if route.query not in self._once:
            self._once[route.query] = not is_repeatable(route.query, dict(self._markers(route)))
        return self._once[route.query]

    def _markers(self, route: Route) -> list[tuple[str, CqlType]]:
        if route.query not in self._queries:
            try:
                prepared = retrying(
                    lambda: connection(self._access(route)).prepare(route.query),
                    what="preparing the query",
                    where=route.name,
                    patience=self.limits.patience,
                )
            except InvalidRequest as error:
                raise PenstockError(
                    f"the database refuses the query: {error}", where=route.query, next="correct it"
                ) from error
            self._queries[route.query] = [
                (marker.name, parse_type(marker.type.cql_parameterized_type(), {}))
                for marker in prepared.column_metadata
            ]
        return self._queries[route.query]


class RouteWrites:
    """The writes of a route, which are sent while records become more of them."""

    def __init__(self, writer: RecordWriter, route: Route) -> None:
        self._writer, self._route = writer, route
        self._writes: list[Write] = []
        self._sending = writer.sending(route)
        self._alone = True
        """Whether each write is a request of its own."""

    def send(self, writes: Sequence[Write]) -> None:
        requests = self._writer.requests(self._route, writes)
        self._alone = self._alone and [request.statements for request in requests] == [
            (each.statement,) for each in writes
        ]
        self._writes += writes
        self._sending.add(requests)

    def refused(self) -> list[Bad]:
        """Wait until the writes are done; returns the records that the database refuses, or may have written."""
        refused = self._finished()
        return refused + [
            Bad(self._writes[number].record, f"{UNCERTAIN}: {type(error).__name__}: {error}")
            for number, error in self._sending.uncertain().items()
        ]

    def _finished(self) -> list[Bad]:
        try:
            self._sending.finish()
        except RefusedValue as error:
            writes = self._writes
            if self._alone:
                # What counts must not be written twice.
                writes = [writes[number] for number in self._sending.unanswered()]
            if len(writes) == 1:
                return [Bad(writes[0].record, error.what, refused=True)]
            # One of them is refused: the others are written again, which changes nothing.
            half = len(writes) // 2
            return [bad for some in (writes[:half], writes[half:]) for bad in self._again(some)]
        return []

    def _again(self, writes: Sequence[Write]) -> list[Bad]:
        part = RouteWrites(self._writer, self._route)
        part.send(writes)
        return part.refused()


_NOT_REPEATABLE = re.compile(r"\bIF\b|\b(?:now|uuid|current\w+)\s*\(", re.IGNORECASE)
_ARITHMETIC = re.compile(r"[+-]\s*:?(\w*)")


def is_repeatable(query: str, markers: Mapping[str, CqlType]) -> bool:
    """Whether a statement can be executed twice at the same write time without another result.

    Counters and lists grow each time, sets and maps do not; conditions and the current time may have changed.
    """
    text = without_quoted(query)
    added = [markers.get(name) for name in _ARITHMETIC.findall(text)]
    return not _NOT_REPEATABLE.search(text) and all(kind and kind.name in ("set", "map") for kind in added)


def _is_repeated(last: LastWrite, place: tuple[str, int, int]) -> bool:
    """Whether the record at this place, or a later one of its partition, was the last to be written to a row."""
    return last.place[:2] == place[:2] and last.place >= place


def _reading(table: CqlTable, key: Sequence[bytes], names: Sequence[str]) -> Statement:
    """A statement that reads columns of a row."""
    return f"SELECT {', '.join(map(quoted, names))} FROM {base_name(table)} WHERE {_of_row(table)}", list(key)


def _of_row(table: CqlTable) -> str:
    """The condition for one row."""
    return " AND ".join(f"{quoted(column.name)} = ?" for column in (*table.partition_key, *table.clustering_key))


def _require_object(part: Part, side: str) -> None:
    if not isinstance(part.value, dict):
        raise BadRecord(f"its {side} must be a struct or a map, and is {type_name(part.value)}")


def _unmapped(record: ConnectRecord) -> Mapping[str, Any]:
    """The fields of the value."""
    _require_object(record.value, "value")
    values: Mapping[str, Any] = record.value.value
    for name in values:
        if type(name) is not str:
            raise BadRecord(f"its value is a map with the key {name!r}, which is no name of a column")
    return values


def _mapped(record: ConnectRecord, route: Route) -> Mapping[str, Any]:
    assert route.mapping
    return {name: source.of(record) for name, source in columns(route.mapping) if not source.is_missing(record)}


def _schemas_of(record: ConnectRecord, route: Route, values: Mapping[str, Any]) -> dict[str, Schema | None]:
    """The schemas of the values."""
    if route.mapping:
        return {name: _schema_of(record, source) for name, source in columns(route.mapping)}
    return dict.fromkeys(values) | dict(_fields(record.value.schema))


def _schema_of(record: ConnectRecord, source: ColumnSource) -> Schema | None:
    if source.side not in ("key", "value"):
        return None
    schema: Schema | None = getattr(record, source.side).schema
    for name in source.path:
        schema = _fields(schema).get(name)
    return schema


def _fields(schema: Schema | None) -> Mapping[str, Schema]:
    """The schemas of a struct's fields; none for other schemas."""
    if schema is None or schema["type"] != "struct":
        return {}
    return {field["field"]: field for field in schema["fields"]}


def _names(table: CqlTable, values: Mapping[str, Any]) -> dict[str, str]:
    """The column of each field that has one: of its name, or else the only one whose name differs only by case.

    Raises BadRecord for two fields of one column.
    """
    known = {column.name for column in table.columns}
    columns_by_field: dict[str, str] = {}
    for name in values:
        if name in known:
            columns_by_field[name] = name
            continue
        if type(name) is not str:
            continue  # a key of a map
        alike = [column for column in known if column.lower() == name.lower() and column not in values]
        if len(alike) == 1:
            columns_by_field[name] = alike[0]
    if len(set(columns_by_field.values())) < len(columns_by_field):
        twice = [name for name, column in columns_by_field.items() if list(columns_by_field.values()).count(column) > 1]
        raise BadRecord(
            f"its fields {', '.join(twice)} are for one column of {table.full_name}, {columns_by_field[twice[0]]}"
        )
    return columns_by_field


def _without(names: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    """The fields without a column."""
    return [name for name in values if name not in names]


def _is_null(route: Route, table: CqlTable, values: Mapping[str, Any]) -> bool:
    """Whether all columns of the table are mapped, and those outside the key have only null.

    A mapping of fewer columns says nothing about the others, and a new timeuuid is not a field's value.
    """
    sources, others = route.mapping or {}, {column.name for column in table.values}
    mapped = [value for name, value in values.items() if name in others and sources[name].side != "now"]
    return (
        bool(mapped)
        and not any(value is not None for value in mapped)
        and set(values) == {c.name for c in table.columns}
    )


def _cell(kind: CqlType, value: Any, column: str, record: ConnectRecord, route: Route) -> bytes | None:
    try:
        if route.codec is not None:
            source = (route.mapping or {}).get(column)
            value = route.codec.value(kind, value, typed=source is not None and source.is_typed(record))
        return cell(kind, value)
    except Unfit as error:
        raise BadRecord(f"column {column}: {error}") from None


def _number(value: Any, what: str) -> Decimal:
    if type(value) not in NUMBERS or not abs(value) < 1 << 63:
        raise BadRecord(f"{what} is {str(value)[:SHOWN]!r} ({type_name(value)}), which is not a number of 64 bits")
    return exact(value)


def _ttl(record: ConnectRecord, route: Route) -> bytes | None:
    """The record's time to live, the route's, or none."""
    source = (route.mapping or {}).get(TTL)
    value = None if source is None or source.is_missing(record) else source.of(record)
    if value is None:
        return None if route.ttl is None else route.ttl.to_bytes(4, "big")
    seconds = math.ceil(_number(value, TTL) * route.ttl_unit)
    if route.endless_ttl:
        seconds = max(seconds, 0)
    if not 0 <= seconds <= MAX_TTL:
        raise BadRecord(f"{TTL} is {seconds} seconds; use 0 (no time to live) to {MAX_TTL} (20 years)")
    return seconds.to_bytes(4, "big")


def _given_time(record: ConnectRecord, route: Route) -> int | None:
    """The write time that the mapping names, in microseconds: a time as it is, a number in the route's unit."""
    source = (route.mapping or {}).get(TIMESTAMP)
    known = source is not None and record.value.value is not None and not source.is_missing(record)
    value = source.of(record) if source and known else None
    if value is None:
        return None
    if isinstance(value, Timestamp):
        micros = value.count_of(1000)
    else:
        number = _number(value, TIMESTAMP) * route.time_unit * MICROS
        micros = round(number) if route.time_unit * MICROS >= 1 else math.floor(number)
    if not -(1 << 63) < micros < 1 << 63:
        raise BadRecord(f"{TIMESTAMP} is {value}, which is not a write time of 64 bits")
    return micros
