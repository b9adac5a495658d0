"""The tables of PostgreSQL that records go to: looked up, created, and given columns, by the schemas of records."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from penstock.codec.connect_schema import Schema
from penstock.connect.records.json_data import default_of
from penstock.connect.records.record import DATA, Part
from penstock.connect.records.semantic_types import DATA as DEBEZIUM, PROTOBUF_TIMESTAMP, TIME, SemanticTypes
from penstock.connect.sinks.destination import BadRecord
from penstock.connect.sinks.jdbc.properties import KINDS, JdbcSettings
from penstock.connect.sinks.jdbc.transaction import Transaction
from penstock.connect.sinks.jdbc.values import text_of
from penstock.postgres.postgres_columns import COLUMNS, UNIQUE, TargetColumn
from penstock.postgres.postgres_session import literal, quoted

LOCK = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'connect')})::text"
"""Without the lock, two transactions that create a table at once would fail."""
LONGEST = 63
"""Bytes of a name; PostgreSQL cuts longer ones."""
_TYPES = {
    "int8": "smallint",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "string": "text",
    "bytes": "bytea",
    "map": "jsonb",
    "struct": "jsonb",
}
_NAMED = {
    f"{DATA}Decimal": "numeric",
    f"{DATA}Date": "date",
    f"{DATA}Time": "time",
    f"{DATA}Timestamp": "timestamp",
    **{f"{TIME}{name}": "date" for name in ("Date", "IsoDate")},
    **{f"{TIME}{name}": "time" for name in ("Time", "MicroTime", "NanoTime", "IsoTime")},
    **{f"{TIME}{name}": "timestamp" for name in ("Timestamp", "MicroTimestamp", "NanoTimestamp", "IsoTimestamp")},
    PROTOBUF_TIMESTAMP: "timestamp",
    f"{TIME}ZonedTime": "timetz",
    f"{TIME}ZonedTimestamp": "timestamptz",
    **{f"{TIME}{name}": "interval" for name in ("Interval", "MicroDuration", "NanoDuration")},
    f"{TIME}Year": "integer",
    f"{DEBEZIUM}Uuid": "uuid",
    f"{DEBEZIUM}Json": "jsonb",
    f"{DEBEZIUM}EnumSet": "text[]",
    f"{DEBEZIUM}VariableScaleDecimal": "numeric",
}
"""Types of columns that are made for schemas with these names."""


def column_type(schema: Schema) -> str:
    """The type of a column that is made for values of this schema; raises BadRecord."""
    if named := _NAMED.get(str(schema.get("name") or "")):
        return named
    kind = schema["type"]
    if kind == "array":
        inside = column_type(schema["items"])
        return inside if inside == "jsonb" else f"{inside}[]"
    if kind not in _TYPES:
        raise BadRecord("no column can be made for a field of several types: create it")
    return _TYPES[kind]


_SHORT = {
    "smallint": "int2",
    "integer": "int4",
    "bigint": "int8",
    "real": "float4",
    "double precision": "float8",
    "boolean": "bool",
}


def _short(kind: str) -> str:
    """The catalog's name of a type."""
    inside = kind.removesuffix("[]")
    return f"{'_' if kind.endswith('[]') else ''}{_SHORT.get(inside, inside)}"


@lru_cache(maxsize=10_000)
def column_name(name: str, *, folds: bool) -> str:
    """The name of the column of a field, as PostgreSQL has it."""
    return (name.lower() if folds else name).encode()[:LONGEST].decode(errors="ignore")


@dataclass(frozen=True)
class TargetTable:
    """A table; `name` is its name in SQL, `kind` that of the catalog."""

    name: str
    kind: str
    columns: Mapping[str, TargetColumn]
    unique: frozenset[frozenset[str]]
    """The columns of its unique indexes."""

    def column(self, name: str, others: Sequence[str]) -> TargetColumn | None:
        """The column of a field: of its name, or else the only one whose name differs only by case."""
        if name in self.columns:
            return self.columns[name]
        alike = [column for column in self.columns if column.lower() == name.lower() and column not in others]
        return self.columns[alike[0]] if len(alike) == 1 else None


@dataclass
class TargetTables:
    """The tables as the open transaction sees them."""

    settings: JdbcSettings
    _known: dict[str, TargetTable] = field(default_factory=dict)
    _meaning: SemanticTypes = field(default_factory=SemanticTypes)

    def forget(self) -> None:
        """The transaction was rolled back, perhaps with changes of tables."""
        self._known.clear()

    def get(self, transaction: Transaction, topic: str) -> TargetTable | None:
        """The table of a topic; None if there is none."""
        name = self.name(topic)
        if name not in self._known and (table := self._look(transaction, name)):
            self._known[name] = table
        return self._known.get(name)

    def name(self, topic: str) -> str:
        """The table's name in SQL; raises BadRecord if it is none."""
        text = self.settings.table(topic)
        parts = [match[1] or match[2] for match in re.finditer(r'"((?:[^"]|"")+)"|([^."]+)', text)]
        if not 1 <= len(parts) <= 2:
            raise BadRecord(
                f"{text[:80]!r} is not the name of a table, or of a schema and a table: set table.name.format, or "
                "table.name.normalize=true"
            )
        return ".".join(quoted(column_name(part.replace('""', '"'), folds=self.settings.folds)) for part in parts)

    def _look(self, transaction: Transaction, name: str) -> TargetTable | None:
        place = literal(name)
        kinds = transaction.rows(f"SELECT relkind::text FROM pg_class WHERE oid = to_regclass({place})")
        if not kinds:
            return None
        kind = kinds[0][0]
        if kind not in self.settings.kinds:
            called = next((called for called, relkind in KINDS.items() if relkind == kind), "")
            step = f": add {called} to table.types" if called else ""
            raise BadRecord(f"{name} is not among the kinds of tables that are written to{step}")
        columns = [TargetColumn(*row) for row in transaction.rows(COLUMNS.format(table=place))]
        unique = transaction.rows(UNIQUE.format(table=place))
        return TargetTable(
            name,
            kind,
            {column.name: column for column in columns},
            frozenset(frozenset(columns_of_index) for columns_of_index, _ in unique),
        )

    def create(
        self, transaction: Transaction, topic: str, schemas: Mapping[str, Schema | None], key: Sequence[str]
    ) -> tuple[TargetTable, str]:
        """Create the table of a topic, and return it and the statement; raises BadRecord if that is not allowed."""
        name = self.name(topic)
        without = [column for column, schema in schemas.items() if schema is None]
        if without:
            raise BadRecord(f"there is no table {name}, and none can be made for records without a schema: create it")
        columns = [self._declared(column, schema) for column, schema in schemas.items() if schema is not None]
        primary = [f"PRIMARY KEY ({', '.join(map(quoted, key))})"] if key else []
        body = ", ".join([*columns, *primary])
        if not self.settings.create:
            raise BadRecord(f"there is no table {name}; set auto.create=true, or run: CREATE TABLE {name} ({body})")
        return self._change(transaction, topic, f"CREATE TABLE IF NOT EXISTS {name} ({body})")

    def add(
        self, transaction: Transaction, topic: str, schemas: Mapping[str, Schema | None]
    ) -> tuple[TargetTable, str]:
        """Add columns to the table of a topic, and return it and the statement; raises BadRecord."""
        name = self.name(topic)
        names = ", ".join(schemas)
        if any(schema is None for schema in schemas.values()):
            raise BadRecord(f"the table {name} has no column {names}, and records without a schema cannot say its type")
        required = [
            column
            for column, schema in schemas.items()
            if schema and not schema.get("optional") and "default" not in schema
        ]
        parts = [
            f"ADD COLUMN IF NOT EXISTS {self._declared(column, schema)}" for column, schema in schemas.items() if schema
        ]
        statement = f"ALTER TABLE {name} {', '.join(parts)}"
        if required:
            raise BadRecord(
                f"the table {name} has no column {', '.join(required)}, whose field is neither optional nor has a "
                "default: its rows need a value; add it yourself"
            )
        if not self.settings.evolve:
            raise BadRecord(f"the table {name} has no column {names}; set auto.evolve=true, or run: {statement}")
        return self._change(transaction, topic, statement)

    def _change(self, transaction: Transaction, topic: str, statement: str) -> tuple[TargetTable, str]:
        transaction.rows(LOCK)
        transaction.run(statement)
        self._known.pop(self.name(topic), None)
        table = self.get(transaction, topic)
        assert table, "it was created"
        return table, statement

    def _declared(self, name: str, schema: Schema) -> str:
        kind = column_type(schema)
        if schema.get("default") is not None:
            value = self._meaning(Part(schema, default_of(schema))).value
            column = TargetColumn(name, _short(kind), kind, kind, required=False, generated=False)
            text = text_of(column, value, self.settings.zone)
            return f"{quoted(name)} {kind} DEFAULT {literal(text or '')}"
        return f"{quoted(name)} {kind}{'' if schema.get('optional') else ' NOT NULL'}"
