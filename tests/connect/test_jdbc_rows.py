"""Records as rows of PostgreSQL, by the writer of the JDBC sink connector, on a real server without a worker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings as hypothesis_settings, strategies as st
from postgres_server import execute, query

from penstock.codec.connect_schema import Schema
from penstock.connect.checks import check
from penstock.connect.jdbc_sink.jdbc_properties import CLASS, JdbcSettings, settings
from penstock.connect.jdbc_sink.row_writer import RowWriter
from penstock.connect.jdbc_sink.transaction import Transaction
from penstock.connect.providers import Provided
from penstock.connect.sink.connect_data import DATA, NOTHING, ConnectRecord, Date, Part, TimeOfDay, Timestamp
from penstock.connect.sink.semantic_types import DATA as DEBEZIUM, TIME, SemanticTypes
from penstock.errors import PenstockError

JSON = "org.apache.kafka.connect.json.JsonConverter"
KEYED = {"pk_mode": "record_key", "insert_mode": "upsert", "delete_enabled": "true"}
Made = Callable[..., JdbcSettings]


def of(kind: str, name: str = "", **more: Any) -> Schema:
    return {"type": kind, "optional": True, **({"name": name} if name else {}), **more}


def struct(**fields: Schema) -> Schema:
    return {"type": "struct", "optional": False, "fields": [{"field": name, **one} for name, one in fields.items()]}


KEY = struct(id={"type": "int32", "optional": False})
VALUE = struct(name=of("string"), n=of("int32"))


def record(
    offset: int, key: Any, value: Any, of_key: Schema | None = KEY, of_value: Schema | None = VALUE, topic: str = "t"
) -> ConnectRecord:
    meaning = SemanticTypes()
    parts = [NOTHING if one is None else meaning(Part(schema, one)) for schema, one in ((of_key, key), (of_value, value))]
    return ConnectRecord(topic, 0, offset, 1, *parts)


def row(offset: int, id: int, name: str | None = "", n: int = 0) -> ConnectRecord:
    return record(offset, {"id": id}, None if name is None else {"name": name, "n": n})


@pytest.fixture
def table(postgres: str) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:8]}"
    yield name
    execute(postgres, f"DROP TABLE IF EXISTS {name} CASCADE")


@pytest.fixture
def made(postgres: str, table: str) -> Made:
    address = postgres.removeprefix("postgresql://")
    user, _, place = address.rpartition("@")
    name, _, password = user.partition(":")

    def made(**more: str) -> JdbcSettings:
        config = {
            "name": "x",
            "connector.class": CLASS,
            "topics": "t",
            "key.converter": JSON,
            "value.converter": JSON,
            "connection.url": f"jdbc:postgresql://{place}",
            "connection.user": name,
            "connection.password": password,
            "connection.backoff.ms": "1",
            "retry.backoff.ms": "1",
            "table.name.format": table,
            **{name.replace("_", "."): text for name, text in more.items()},
        }
        found = check(config, Provided(), ask=False)
        assert not found.messages, found.messages
        return settings(found.values, config)

    return made


def write(of: JdbcSettings, *records: ConnectRecord) -> list[str]:
    """Write the records in one transaction; the reasons of those that are left out."""
    with RowWriter(of) as writer:
        return [f"{bad.record.offset}: {bad.reason}" for bad in writer.write(records)]


def test_upserts_and_deletes_leave_what_the_last_records_say(postgres: str, made: Made, table: str) -> None:
    of = made(**KEYED, auto_create="true")
    records = [row(0, 1, "a"), row(1, 2, "b"), row(2, 1, "c"), row(3, 2, None), row(4, 3, None), row(5, 3, "d", 7)]
    for _ in range(2):
        assert write(of, *records) == []
        assert query(postgres, f"SELECT id, name, n FROM {table} ORDER BY id") == [(1, "c", 0), (3, "d", 7)]
