"""Writes the records of a Spark task as rows, in one transaction.

A row that PostgreSQL refuses is found by halves, and the others are written. When the connection is lost, or another
transaction is in the way, all is written again: what the transaction has done is kept until it is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Any, TypeVar

from penstock.codec.connect_schema import Schema
from penstock.connect.records.json_data import default_of
from penstock.connect.records.record import ConnectRecord, NoValue, Part, type_name
from penstock.connect.records.semantic_types import MOST_KNOWN, TIME, MicroTimestamp, NanoTimestamp, SemanticTypes
from penstock.connect.sinks.destination import Bad, BadRecord, Unfit
from penstock.connect.sinks.jdbc.properties import JdbcSettings
from penstock.connect.sinks.jdbc.row_changes import RowChange, StatementShape, in_steps
from penstock.connect.sinks.jdbc.tables import TargetTable, TargetTables, column_name
from penstock.connect.sinks.jdbc.transaction import Columns, RefusedStatement, Transaction, arrays, opened
from penstock.connect.sinks.jdbc.values import text_of
from penstock.postgres.postgres_columns import TargetColumn
from penstock.process.signals import pause
from penstock.spark_runtime.failures import Unavailable

T = TypeVar("T")
Fields = dict[str, Part]
"""The parts of a record by the column that they are for."""
_TEXT: Schema = {"type": "string", "optional": True}


@dataclass
class RowWriter:
    """Writes records; the context commits, or rolls back if it ends with an error."""

    settings: JdbcSettings
    tables: TargetTables = field(init=False)
    _transaction: Transaction | None = None
    _done: list[tuple[str, Columns | None]] = field(default_factory=list)
    """The statements of the transaction."""
    _shapes: dict[tuple[Any, ...], StatementShape] = field(default_factory=dict)
    _fields: dict[int, tuple[Schema, Mapping[str, Schema]]] = field(default_factory=dict)
    _meaning: SemanticTypes = field(default_factory=SemanticTypes)

    def __post_init__(self) -> None:
        self.tables = TargetTables(self.settings)

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        try:
            if kind is None and self._done:
                self._retrying(lambda transaction: transaction.commit())
        finally:
            self._end()

    def write(self, records: Sequence[ConnectRecord], *, until_bad: bool = False) -> list[Bad]:
        """Write the records, and return those that do not fit; with `until_bad` only the first of these."""
        return self._retrying(lambda transaction: self._write(transaction, records, until_bad)) if records else []

    # The transaction.

    def _retrying(self, step: Callable[[Transaction], T]) -> T:
        before = len(self._done)
        for attempt in count():
            try:
                return step(self._transaction or self._begin())
            except Unavailable:
                del self._done[before:]
                self._end()
                if attempt >= self.settings.retries:
                    raise
                pause(self.settings.retry_pause)
        raise AssertionError  # pragma: no cover

    def _begin(self) -> Transaction:
        """A transaction in which all is done again."""
        self._transaction = opened(self.settings)
        for statement, columns in self._done:
            try:
                self._transaction.run(statement, columns)
            except RefusedStatement as error:
                raise Unavailable(
                    f"PostgreSQL refuses what it took before, as the table has changed meanwhile: {error}",
                    where=self.settings.place,
                    next="nothing: the batch begins again",
                ) from None
        return self._transaction

    def _end(self) -> None:
        if self._transaction is not None:
            self._transaction.close()
        self._transaction = None
        self._shapes.clear()
        self.tables.forget()

    # Records as changes of rows.

    def _write(self, transaction: Transaction, records: Sequence[ConnectRecord], until_bad: bool) -> list[Bad]:
        changes, bad = [], []
        for record in records:
            try:
                change = self._change(transaction, record)
            except (BadRecord, Unfit, NoValue) as error:
                bad.append(Bad(record, str(error)))
                if until_bad:
                    return bad
            else:
                if change is not None:
                    changes.append(change)
        for part in in_steps(changes, self.settings.rows):
            bad += self._send(transaction, part, until_bad)
            if bad and until_bad:
                break
        return bad

    def _send(self, transaction: Transaction, part: Sequence[RowChange], until_bad: bool) -> list[Bad]:
        """Execute the statement of some changes; returns the records that are refused."""
        statement = part[0].shape.statement
        columns = arrays(list(zip(*((*change.key, *change.values) for change in part), strict=True)))
        reason = transaction.tried(statement, columns)
        if reason is None:
            self._done.append((statement, columns))
            return []
        if len(part) == 1:
            return [Bad(part[0].record, reason, refused=True)]
        half = len(part) // 2
        bad = self._send(transaction, part[:half], until_bad)
        if bad and until_bad:
            return bad
        return bad + self._send(transaction, part[half:], until_bad)

    def _change(self, transaction: Transaction, record: ConnectRecord) -> RowChange | None:
        deletes = record.value.value is None
        if deletes and not self.settings.deletes:
            raise BadRecord(
                "it has no value: set delete.enabled=true and pk.mode=record_key to delete its row, or leave such "
                "records out with the predicate RecordIsTombstone"
            )
        values = {} if deletes else self._values(record)
        key = self._key(record, values)
        others = {name: part for name, part in values.items() if name not in key}
        shape = self._shape(transaction, record, key, others)
        if shape is None:
            return None
        texts = self._texts(shape.keys, key)
        if None in texts and shape.mode != "insert":
            missing = next(name for name, text in zip(key, texts, strict=True) if text is None)
            raise BadRecord(f"it has no value for {missing} of its key")
        return RowChange(record, shape, texts, self._texts(shape.values, others))

    def _texts(self, columns: Sequence[TargetColumn], parts: Fields) -> tuple[str | None, ...]:
        texts = []
        for column, part in zip(columns, parts.values(), strict=True):
            try:
                texts.append(text_of(column, self._value(part), self.settings.zone))
            except Unfit as error:
                raise BadRecord(f"column {column.name}: {error}") from None
        return tuple(texts)

    def _value(self, part: Part) -> Any:
        if part.value is None and self.settings.null_is_default and part.schema and "default" in part.schema:
            return self._meaning(Part(part.schema, default_of(part.schema))).value
        return part.value

    # Parts of records.

    def _named(self, name: str) -> str:
        return column_name(name, folds=self.settings.folds)

    def _values(self, record: ConnectRecord) -> Fields:
        """The fields of the value that are written, with those of a key in it."""
        value, wanted = record.value.value, self.settings.fields
        if isinstance(value, str):
            if wanted or self.settings.times:
                raise BadRecord("its value is text, which has no fields for fields.whitelist or timestamp.fields.list")
            return {self._named(self.settings.text_column): Part(_TEXT, value)}
        fields = self._parts(record.value, "value")
        of_key = self.settings.key_fields if self.settings.key == "record_value" else fields
        if wanted:
            fields = {name: part for name, part in fields.items() if name in wanted or name in of_key}
        return self._renamed({name: self._time(name, part) for name, part in fields.items()})

    def _key(self, record: ConnectRecord, values: Fields) -> Fields:
        mode, names = self.settings.key, self.settings.key_fields
        if mode == "none":
            return {}
        if mode == "kafka":
            return self._renamed(dict(zip(names, _coordinates(record), strict=True)))
        if mode == "record_value":
            return _only(values, tuple(map(self._named, names)) or tuple(values), "value")
        if record.key.value is None:
            raise BadRecord("it has no key, which pk.mode=record_key needs")
        if isinstance(record.key.value, dict):
            parts = self._parts(record.key, "key")
            return self._renamed(_only(parts, names or tuple(parts), "key"))
        if len(names) != 1 or isinstance(record.key.value, list):
            raise BadRecord("its key is not a struct: pk.fields must have one name, that of the key's column")
        return self._renamed({names[0]: record.key})

    def _renamed(self, parts: Fields) -> Fields:
        renamed = {self._named(name): part for name, part in parts.items()}
        if len(renamed) < len(parts):
            raise BadRecord("two of its fields have the same name in PostgreSQL")
        return renamed

    def _parts(self, part: Part, side: str) -> Fields:
        if not isinstance(part.value, dict):
            raise BadRecord(f"its {side} must be a struct or a map, and is {type_name(part.value)}")
        if wrong := next((name for name in part.value if type(name) is not str), None):
            raise BadRecord(f"its {side} is a map with the key {wrong!r}, which is no name of a column")
        schemas = self._schemas(part.schema)
        return {name: Part(schemas.get(name), value) for name, value in part.value.items()}

    def _schemas(self, schema: Schema | None) -> Mapping[str, Schema]:
        """The schemas of a struct's fields; none for other schemas."""
        if schema is None or schema["type"] != "struct":
            return {}
        if id(schema) not in self._fields:
            if len(self._fields) >= MOST_KNOWN:
                self._fields.clear()
            # With the schema, which keeps its id.
            self._fields[id(schema)] = schema, {one["field"]: one for one in schema["fields"]}
        return self._fields[id(schema)][1]

    def _time(self, name: str, part: Part) -> Part:
        """The part, as a time if timestamp.fields.list has its field."""
        if name not in self.settings.times:
            return part
        kind = NanoTimestamp if self.settings.nanoseconds else MicroTimestamp
        optional = bool((part.schema or {}).get("optional"))
        schema = part.schema and {"type": "int64", "name": f"{TIME}{kind.__name__}", "optional": optional}
        try:
            return Part(schema, None if part.value is None else kind(part.value))
        except (TypeError, ValueError):
            raise BadRecord(f"its field {name} of timestamp.fields.list is not a number") from None

    # Tables.

    def _shape(
        self, transaction: Transaction, record: ConnectRecord, key: Fields, values: Fields
    ) -> StatementShape | None:
        deletes = record.value.value is None
        known = (record.topic, deletes, *key, None, *values)
        if known not in self._shapes:
            table = self.tables.get(transaction, record.topic)
            if table is None and deletes and self.settings.create:
                return None  # without a table there is no row to delete
            table = self._fitting(transaction, record, table, key, values)
            self._shapes[known] = self._made(table, key, values, "delete" if deletes else self.settings.mode)
        return self._shapes[known]

    def _fitting(
        self, transaction: Transaction, record: ConnectRecord, table: TargetTable | None, key: Fields, values: Fields
    ) -> TargetTable:
        """The table, with a column for each part."""
        schemas = {name: part.schema for name, part in {**key, **values}.items()}
        if not schemas:
            raise BadRecord("it has no fields to write")
        if table is None:
            table, statement = self.tables.create(transaction, record.topic, schemas, tuple(key))
            self._done.append((statement, None))
        if missing := {name: schema for name, schema in schemas.items() if not table.column(name, tuple(schemas))}:
            table, statement = self.tables.add(transaction, record.topic, missing)
            self._done.append((statement, None))
        return table

    def _made(self, table: TargetTable, key: Fields, values: Fields, mode: str) -> StatementShape:
        names = (*key, *values)
        columns = {name: column for name in names if (column := table.column(name, names))}
        if len({column.name for column in columns.values()}) < len(names):
            raise BadRecord(f"two of its fields have the same column of {table.name}, as names differ only by case")
        if computed := [column.name for column in columns.values() if column.generated]:
            raise BadRecord(
                f"PostgreSQL itself computes {', '.join(computed)} of {table.name}: leave the field out with "
                "fields.whitelist or the transform ReplaceField"
            )
        keys = tuple(columns[name] for name in key)
        unique = frozenset(column.name for column in keys) in table.unique
        if mode == "update" and not values:
            raise BadRecord("it has only fields of its key, and insert.mode=update nothing to change")
        if mode == "upsert" and not unique and table.kind != "v":
            named = ", ".join(f'"{column.name}"' for column in keys)
            raise BadRecord(
                f"insert.mode=upsert needs a unique index of exactly {named} of {table.name}; run: "
                f"CREATE UNIQUE INDEX ON {table.name} ({named})"
            )
        # A record that was written before is there already, under its own key.
        skips = mode == "insert" and self.settings.key == "kafka" and unique
        return StatementShape(table, keys, tuple(columns[name] for name in values), mode, skips)


def _coordinates(record: ConnectRecord) -> tuple[Part, Part, Part]:
    return (
        Part({"type": "string"}, record.topic),
        Part({"type": "int32"}, record.partition),
        Part({"type": "int64"}, record.offset),
    )


def _only(parts: Fields, names: Sequence[str], side: str) -> Fields:
    if missing := [name for name in names if name not in parts]:
        raise BadRecord(f"its {side} has no field {', '.join(missing)}, which pk.fields names")
    return {name: parts[name] for name in names}
