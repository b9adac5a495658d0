"""Records as rows of PostgreSQL, by the writer of the JDBC sink connector, on a real server without a worker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from struct import pack, unpack
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st
from postgres_server import execute, query
from waiting import PATIENCE

from penstock.codec.connect_schema import Schema
from penstock.connect.records.record import DATA, NOTHING, ConnectRecord, Date, Part, TimeOfDay, Timestamp
from penstock.connect.records.semantic_types import (
    DATA as DEBEZIUM,
    TIME,
    Bits,
    MicroTime,
    MicroTimestamp,
    SemanticTypes,
)
from penstock.connect.sinks.destination import Bad, Unfit
from penstock.connect.sinks.jdbc.properties import CLASS, JdbcSettings, settings
from penstock.connect.sinks.jdbc.transaction import RefusedStatement, Transaction
from penstock.connect.sinks.jdbc.values import text_of
from penstock.connect.sinks.jdbc.writer import RowWriter
from penstock.connect.worker.checks import check
from penstock.connect.worker.providers import Provided
from penstock.errors import PenstockError
from penstock.postgres.postgres_columns import TargetColumn
from penstock.postgres.postgres_session import literal
from penstock.spark_runtime.failures import Unavailable

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

    def part(schema: Schema | None, one: Any) -> Part:
        return NOTHING if one is None else meaning(Part(schema, one))

    return ConnectRecord(topic, 0, offset, 1, part(of_key, key), part(of_value, value))


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


def test_rows_are_inserted_or_updated(postgres: str, made: Made, table: str) -> None:
    execute(postgres, f"CREATE TABLE {table} (id int, name text, n int)")
    assert write(made(pk_mode="record_key"), row(0, 1, "a"), row(1, 1, "b"), row(2, 3, "c")) == []
    assert write(made(), row(3, 4, "d")) == []
    assert write(made(pk_mode="record_key", insert_mode="update"), row(4, 1, "x"), row(5, 1, "e"), row(6, 2, "f")) == []
    found = query(postgres, f"SELECT id, name FROM {table} ORDER BY name")
    assert found == [(3, "c"), (None, "d"), (1, "e"), (1, "e")]


EVERY: dict[str, tuple[Schema, Any, str, Any]] = {
    "i8": (of("int8"), -128, "smallint", -128),
    "i16": (of("int16"), 32767, "smallint", 32767),
    "i32": (of("int32"), -(2**31), "integer", -(2**31)),
    "i64": (of("int64"), 2**63 - 1, "bigint", 2**63 - 1),
    "f32": (of("float"), 0.5, "real", 0.5),
    "f64": (of("double"), 0.1, "double precision", 0.1),
    "flag": (of("boolean"), True, "boolean", True),
    "words": (of("string"), 'grüße, "\\\U0001f600', "text", 'grüße, "\\\U0001f600'),
    "raw": (of("bytes"), b"\x00\xff", "bytea", "\\x00ff"),
    "amount": (of("bytes", f"{DATA}Decimal"), Decimal("-12.50"), "numeric", -12.5),
    "day": (of("int32", f"{DATA}Date"), Date(-141427), "date", "1582-10-15"),
    "at": (of("int32", f"{DATA}Time"), TimeOfDay(1), "time without time zone", "00:00:00.001"),
    "when": (of("int64", f"{DATA}Timestamp"), Timestamp(-1), "timestamp without time zone", "1969-12-31T23:59:59.999"),
    "longs": (of("array", items=of("int64")), [1, None, -3], "bigint[]", [1, None, -3]),
    "texts": (of("array", items=of("string")), ['a"\\,{}', "", "NULL"], "text[]", ['a"\\,{}', "", "NULL"]),
    "grid": (of("array", items=of("array", items=of("int32"))), [[1, 2], [3, 4]], "integer[]", [[1, 2], [3, 4]]),
    "tags": (of("map", keys=of("string"), values=of("int32")), {"a": 1}, "jsonb", {"a": 1}),
    "inner": (struct(x=of("bytes")) | {"optional": True}, {"x": b"ab"}, "jsonb", {"x": "YWI="}),
    "micros": (of("int64", f"{TIME}MicroTimestamp"), 1, "timestamp without time zone", "1970-01-01T00:00:00.000001"),
    "nanos": (of("int64", f"{TIME}NanoTimestamp"), -1, "timestamp without time zone", "1969-12-31T23:59:59.999999"),
    "zoned": (
        of("string", f"{TIME}ZonedTimestamp"),
        "2026-01-31T12:00:00+02:00",
        "timestamp with time zone",
        "2026-01-31T10:00:00+00:00",
    ),
    "ddate": (of("int32", f"{TIME}Date"), 19_782, "date", "2024-02-29"),
    "dtime": (of("int64", f"{TIME}MicroTime"), 86_399_999_999, "time without time zone", "23:59:59.999999"),
    "span": (of("int64", f"{TIME}MicroDuration"), -1_500_000, "interval", "-00:00:01.5"),
    "year": (of("int32", f"{TIME}Year"), 2026, "integer", 2026),
    "id2": (of("string", f"{DEBEZIUM}Uuid"), "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "uuid", None),
    "doc": (of("string", f"{DEBEZIUM}Json"), '{"b": [1, null]}', "jsonb", {"b": [1, None]}),
    "set": (of("string", f"{DEBEZIUM}EnumSet"), "a,b", "text[]", ["a", "b"]),
    "scaled": (
        struct(scale=of("int32"), value=of("bytes")) | {"name": f"{DEBEZIUM}VariableScaleDecimal", "optional": True},
        {"scale": 2, "value": b"\x01\x00"},
        "numeric",
        2.56,
    ),
}


def test_tables_are_created_with_a_type_for_each_schema_and_values_arrive(
    postgres: str, made: Made, table: str
) -> None:
    schema = struct(**{name: one for name, (one, _, _, _) in EVERY.items()})
    value = {name: one for name, (_, one, _, _) in EVERY.items()}
    nothing = dict.fromkeys(value)
    of = made(pk_mode="record_key", insert_mode="upsert", auto_create="true")
    full = record(0, {"id": 1}, value, of_value=schema)
    assert write(of, full, record(1, {"id": 2}, nothing, of_value=schema)) == []
    types = query(
        postgres,
        "SELECT attname::text, format_type(atttypid, atttypmod)::text FROM pg_attribute "
        f"WHERE attrelid = '{table}'::regclass AND attnum > 0",
    )
    assert dict(types) == {"id": "integer", **{name: kind for name, (_, _, kind, _) in EVERY.items()}}
    ((text,), (empty,)) = query(postgres, f"SELECT to_json(t)::text FROM {table} t ORDER BY id")
    wanted = {name: one for name, (_, _, _, one) in EVERY.items()} | {"id2": value["id2"].lower()}
    assert json.loads(text) == {"id": 1, **wanted}
    assert json.loads(empty) == {"id": 2, **nothing}


def test_a_row_that_is_refused_does_not_lose_others(postgres: str, made: Made, table: str) -> None:
    execute(postgres, f"CREATE TABLE {table} (id int PRIMARY KEY, name varchar(5), n smallint CHECK (n < 100))")
    rows = [row(number, number, "abc", number % 50) for number in range(40)]
    rows[7] = row(7, 7, "abcdef")
    rows[13] = row(13, 13, "a", 100_000)
    rows[20] = row(20, 20, "a", 100)
    rows[21] = row(21, 21, "a\x00")
    rows[30] = record(30, {"id": None}, {"name": "a", "n": 1})
    found = write(made(**KEYED, batch_size="16"), *rows)
    assert [one.partition(":")[0] for one in found] == ["21", "30", "7", "13", "20"]
    reasons = " ".join(found)
    for why in ("zero character", "no value for id of its key", "too long for type character varying(5)"):
        assert why in reasons
    assert "out of range for type smallint" in reasons and "check constraint" in reasons
    assert query(postgres, f"SELECT count(*) FROM {table}") == [(35,)]


def test_until_a_bad_record_nothing_is_written(postgres: str, made: Made, table: str) -> None:
    execute(postgres, f"CREATE TABLE {table} (id int PRIMARY KEY, name text, n smallint)")
    rows = [row(0, 0, "a"), row(1, 1, "b", 100_000), row(2, 2, "c", 200_000)]
    with pytest.raises(PenstockError, match="as sink_writer does"), RowWriter(made(**KEYED)) as writer:
        assert [bad.record.offset for bad in writer.write(rows, until_bad=True)] == [1]
        raise PenstockError("as sink_writer does")
    assert query(postgres, f"SELECT count(*) FROM {table}") == [(0,)]


def test_keys_come_from_where_pk_mode_says(postgres: str, made: Made, table: str) -> None:
    of = made(pk_mode="kafka", auto_create="true")
    for _ in range(2):  # written again, a record is there already
        assert write(of, row(0, 1, "a"), row(1, 1, "b")) == []
    found = query(postgres, f"SELECT __connect_topic, __connect_partition, __connect_offset, name FROM {table}")
    assert found == [("t", 0, 0, "a"), ("t", 0, 1, "b")]
    execute(postgres, f"DROP TABLE {table}")
    of = made(pk_mode="record_value", pk_fields="name", insert_mode="upsert", auto_create="true", fields_whitelist="x")
    assert write(of, row(0, 1, "a"), row(1, 2, "a"), row(2, 2, "b")) == []
    assert query(postgres, f"SELECT * FROM {table} ORDER BY name") == [("a",), ("b",)]
    execute(postgres, f"DROP TABLE {table}")
    of = made(pk_mode="record_key", pk_fields="id", insert_mode="upsert", auto_create="true")
    number, wrong = {"type": "int64"}, record(2, [1], {"name": "b"}, None)
    assert write(of, record(0, 5, {"name": "a", "n": 1}, number), record(1, 5, {"name": "b", "n": 2}, number)) == []
    assert query(postgres, f"SELECT id, name, n FROM {table}") == [(5, "b", 2)]
    assert "pk.fields must have one name" in write(of, wrong)[0]


@pytest.mark.parametrize(
    ("more", "wrong", "why"),
    [
        ({}, row(0, 1, None), "set delete.enabled=true and pk.mode=record_key"),
        (KEYED, record(0, None, {"name": "a"}), "it has no key, which pk.mode=record_key needs"),
        ({**KEYED, "pk_fields": "no"}, row(0, 1), "its key has no field no, which pk.fields names"),
        ({"pk_mode": "record_value", "pk_fields": "no"}, row(0, 1), "its value has no field no"),
        ({}, record(0, None, [1], None, None), "its value must be a struct or a map, and is array"),
        ({}, record(0, None, {}, None, struct()), "it has no fields to write"),
        ({"fields_whitelist": "n"}, record(0, None, "text", None, of("string")), "its value is text"),
        ({"timestamp_fields_list": "name"}, row(0, 1, "soon"), "its field name of timestamp.fields.list is not"),
        ({"table_name_format": "a.b.${topic}"}, row(0, 1), "'a.b.t' is not the name of a table"),
        ({"quote_sql_identifiers": "never"}, record(0, None, {"a": 1, "A": 2}, None, None), "have the same name"),
        ({}, record(0, None, {"NAME": 1, "Name": 2}, None, None), "two of its fields have the same column"),
        ({"pk_mode": "record_key", "insert_mode": "update"}, record(0, {"id": 1}, {}, KEY, struct()), "nothing to"),
    ],
    ids=str,
)
def test_records_that_cannot_be_written_say_why(
    postgres: str, made: Made, table: str, more: dict[str, str], wrong: ConnectRecord, why: str
) -> None:
    execute(postgres, f"CREATE TABLE {table} (id int PRIMARY KEY, name text, n int)")
    assert why in write(made(**more), wrong)[0]


def test_tables_and_columns_that_are_missing_are_made_or_named(postgres: str, made: Made, table: str) -> None:
    (found,) = write(made(**KEYED), row(0, 1, "a"))
    statement = found.partition("run: ")[2]
    assert found.startswith(f'0: there is no table "{table}"; set auto.create=true, or run: CREATE TABLE')
    execute(postgres, statement)
    assert write(made(**KEYED), row(0, 1, "a")) == []
    default = {"type": "int32", "optional": False, "default": 7}
    wider = struct(name=of("string"), more=of("int64"), some=default, x=of("array", items=of("string")))
    value = {"name": "b", "more": 2**40, "some": 1, "x": ["y"]}
    added = record(1, {"id": 2}, value, of_value=wider)
    (found,) = write(made(**KEYED), added)
    assert f'the table "{table}" has no column more, some, x; set auto.evolve=true, or run: ALTER TABLE' in found
    assert write(made(**KEYED, auto_evolve="true"), added, row(2, 3, "c")) == []
    found_rows = query(postgres, f'SELECT id, more, "some", x[1] FROM {table} ORDER BY id')
    assert found_rows == [(1, None, 7, None), (2, 2**40, 1, "y"), (3, None, 7, None)]
    required = record(3, {"id": 4}, {"z": 1}, of_value=struct(z={"type": "int32", "optional": False}))
    assert "neither optional nor has a default" in write(made(**KEYED, auto_evolve="true"), required)[0]
    bare = record(4, {"id": 4}, {"q": 1}, None, None)
    assert "records without a schema cannot say its type" in write(made(**KEYED, auto_evolve="true"), bare)[0]
    assert write(made(**KEYED), record(5, {"id": 5}, {"name": "schemaless"}, None, None)) == []


def test_upserts_need_a_unique_index_and_views_their_type(postgres: str, made: Made, table: str) -> None:
    execute(postgres, f"CREATE TABLE {table} (id numeric, name text, n int)")
    (found,) = write(made(**KEYED), row(0, 1))
    execute(postgres, found.partition("run: ")[2])
    # Keys that are equal with different texts: the order of the records still counts.
    number = struct(id=of("bytes", f"{DATA}Decimal"))
    keys = [Decimal("1.0"), Decimal("1.00"), Decimal("1"), Decimal("2.0"), Decimal("2")]
    values = [{"name": "a", "n": 1}, None, {"name": "b", "n": 2}, {"name": "c", "n": 3}, None]
    records = [record(n, {"id": key}, one, number) for n, (key, one) in enumerate(zip(keys, values, strict=True))]
    assert write(made(**KEYED), *records, record(9, {"id": Decimal("1.000")}, {"name": "z", "n": 1}, number)) == []
    assert query(postgres, f"SELECT name FROM {table}") == [("z",)]
    execute(postgres, f"CREATE VIEW {table}_v AS SELECT * FROM {table}")
    view = {"table_name_format": f"{table}_v"}
    assert "add VIEW to table.types" in write(made(**KEYED, **view), row(0, 1))[0]
    assert write(made(**KEYED, **view, table_types="table,VIEW"), row(0, 1, "v")) == []
    assert query(postgres, f"SELECT name FROM {table}") == [("v",)]


def test_a_transaction_begins_again_when_its_connection_is_lost(postgres: str, made: Made, table: str) -> None:
    of = made(**KEYED, auto_create="true")
    with RowWriter(of) as writer:
        for number, id in enumerate((1, 2, 1)):
            assert writer.write([row(number, id, f"{number}")]) == []
            transaction = writer._transaction
            assert transaction
            ((pid,),) = transaction.rows("SELECT pg_backend_pid()")
            query(postgres, f"SELECT pg_terminate_backend({pid}, 60000)")
    assert query(postgres, f"SELECT id, name FROM {table} ORDER BY id") == [(1, "2"), (2, "1")]
    with pytest.raises(Unavailable, match="is unavailable"), RowWriter(made(**KEYED, max_retries="0")) as writer:
        writer.write([row(0, 1, "x")])
        assert writer._transaction
        ((pid,),) = writer._transaction.rows("SELECT pg_backend_pid()")
        query(postgres, f"SELECT pg_terminate_backend({pid}, 60000)")
    assert query(postgres, f"SELECT id, name FROM {table} ORDER BY id") == [(1, "2"), (2, "1")]


def test_transactions_that_change_a_table_at_once_all_succeed(postgres: str, made: Made, table: str) -> None:
    execute(postgres, f"CREATE TABLE {table} (id int PRIMARY KEY, name text, n int)")
    of, both = made(**KEYED, auto_evolve="true"), Barrier(2)
    wider = struct(name={"type": "string", "optional": True}, more={"type": "string", "optional": True})

    def add(id: int) -> list[Bad]:
        with RowWriter(of) as writer:
            bad = writer.write([row(id, id, "a")])
            both.wait(PATIENCE)
            # Each waits for the other's rows, until PostgreSQL ends one of them.
            return bad + writer.write([record(id, {"id": id + 10}, {"name": "b", "more": "c"}, of_value=wider)])

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(add, (1, 2))) == [[], []]
    found = query(postgres, f"SELECT id, more FROM {table} ORDER BY id")
    assert found == [(1, None), (2, None), (11, "c"), (12, "c")]


def test_faults_that_are_not_of_records_end_the_task(postgres: str, made: Made, table: str) -> None:
    with pytest.raises(PenstockError, match=r"correct connection\.url, connection\.user and "):
        write(made(connection_password="wrong", connection_user="nobody"), row(0, 1))
    execute(postgres, f"CREATE TABLE {table} (id int, name text, n int)")
    body = f"BEGIN DELETE FROM missing_{table}; RETURN NEW; END"
    execute(postgres, f"CREATE FUNCTION of_{table}() RETURNS trigger LANGUAGE plpgsql AS $${body}$$")
    execute(postgres, f"CREATE TRIGGER t BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION of_{table}()")
    with pytest.raises(PenstockError, match=r"refuses a statement: .*missing_.* does not exist"):
        write(made(pk_mode="record_key"), row(0, 1))
    execute(postgres, f"DROP FUNCTION of_{table} CASCADE")


@pytest.mark.parametrize("computed", ["int GENERATED ALWAYS AS IDENTITY", "int GENERATED ALWAYS AS (id + 1) STORED"])
def test_a_field_for_a_column_that_postgres_computes_is_a_bad_record(
    postgres: str, made: Made, table: str, computed: str
) -> None:
    execute(postgres, f"CREATE TABLE {table} (id int, name text, n {computed})")
    named = struct(name=of("string"))
    good = [record(offset, {"id": offset}, {"name": "a"}, KEY, named) for offset in (0, 2)]
    found = write(made(pk_mode="record_key"), good[0], row(1, 1), good[1])
    assert len(found) == 1 and found[0].startswith("1: PostgreSQL itself computes n of"), found
    assert query(postgres, f"SELECT id FROM {table} ORDER BY id") == [(0,), (2,)]


def test_timestamps_in_columns_without_a_zone_are_those_of_the_database(postgres: str, made: Made, table: str) -> None:
    columns = "a timestamp, b timestamptz, c date, d time, e timestamp, f timestamp, g text, h timestamp"
    execute(postgres, f"CREATE TABLE {table} ({columns})")
    stamp, day, clock = of("int64", f"{DATA}Timestamp"), of("int32", f"{DATA}Date"), of("int32", f"{DATA}Time")
    schema = struct(a=stamp, b=stamp, c=day, d=clock, e=of("string"), f=of("int64"), g=stamp, h=day)
    millis = 1_769_860_800_123  # 2026-01-31T12:00:00.123Z
    value = {
        "a": Timestamp(millis),
        "b": Timestamp(millis),
        "c": Date(20_484),
        "d": TimeOfDay(0),
        "e": "2026-01-31 12:00:00+01:00",
        "f": millis * 1_000_000 + 999,
        "g": Timestamp(millis),
        "h": Date(20_484),
    }
    of_zone = made(db_timezone="America/New_York", timestamp_fields_list="f", timestamp_precision_mode="nanoseconds")
    assert write(of_zone, record(0, None, value, None, schema)) == []
    ((found,),) = query(postgres, f"SELECT to_json(t)::text FROM {table} t")
    assert json.loads(found) == {
        "a": "2026-01-31T07:00:00.123",
        "b": "2026-01-31T12:00:00.123+00:00",
        "c": "2026-01-31",
        "d": "00:00:00",
        "e": "2026-01-31T06:00:00",
        "f": "2026-01-31T07:00:00.123",
        "g": "2026-01-31T12:00:00.123Z",
        "h": "2026-01-31T00:00:00",
    }


def test_names_and_defaults_follow_the_configuration(postgres: str, made: Made, table: str) -> None:
    execute(postgres, f'CREATE TABLE {table} (id int, "Name" text, total int DEFAULT 1)')
    schema = struct(NAME=of("string"), TOTAL=of("int32", default=5))
    mixed = record(0, {"ID": 1}, {"NAME": "a", "TOTAL": None}, struct(ID=of("int32")), schema)
    assert write(made(pk_mode="record_key"), mixed) == []
    assert write(made(pk_mode="record_key", replace_null_with_default="false"), mixed) == []
    upper = {"table_name_format": table.upper(), "quote_sql_identifiers": "never"}
    assert write(made(pk_mode="record_key", **upper), mixed) == []
    dotted = made(table_name_format=f"{table}.${{topic}}", table_name_normalize="true", auto_create="true")
    assert write(dotted, record(0, None, "hello", None, of("string"))) == []
    assert (
        write(made(topics_to_tables_mapping=f"t:{table}_t"), record(1, None, {"record_value": "b"}, None, None)) == []
    )
    assert query(postgres, f'SELECT id, "Name", total FROM {table} ORDER BY total') == [
        (1, "a", 5),
        (1, "a", 5),
        (1, "a", None),
    ]
    assert query(postgres, f"SELECT record_value FROM {table}_t") == [("hello",), ("b",)]
    execute(postgres, f"DROP TABLE {table}_t")


VALUES = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-40_000, 40_000),
    st.floats(),
    st.floats(width=32),
    st.decimals(allow_nan=False),
    st.booleans(),
    st.binary(),
    st.text(),
    st.sampled_from(["12", "+7", "0x1F", "1_0", "NaN", "TRUE", "f", "\\\\x41", "{}", "NULL", " 1"]),
)


def rounded(form: str) -> Callable[[Any, str], bool]:
    """Whether both are the same float."""

    def same(value: Any, found: str) -> bool:
        return repr(unpack(form, pack(form, float(value)))) == repr(unpack(form, pack(form, float(found))))

    return same


def is_number(value: Any, found: str) -> bool:
    wanted, got = Decimal(str(value)), Decimal(found)
    return got in (wanted, value) or (wanted.is_nan() and got.is_nan())


SAME: dict[str, Callable[[Any, str], bool]] = {
    **dict.fromkeys(("smallint", "integer", "bigint", "numeric"), is_number),
    "real": rounded(">f"),
    "double precision": rounded(">d"),
    "boolean": lambda value, found: found in (str(value).lower(), {0: "false", 1: "true"}.get(value)),
    "text": lambda value, found: found in (value, str(value).lower()) or is_number(value, found),
    "bytea": lambda value, found: bytes.fromhex(found.removeprefix("\\x")) == value,
}


@pytest.fixture(scope="module")
def shown(postgres: str) -> Iterator[Callable[[str, Any], str | None]]:
    """What PostgreSQL shows of a column of a type with a value; None if the value is refused."""
    transaction = Transaction(postgres, "a test")
    transaction.run("SET TIME ZONE 'UTC'")

    def shown(kind: str, value: Any) -> str | None:
        column = TargetColumn("c", kinds[kind.partition("(")[0]], kind, kind, required=False, generated=False)
        try:
            text = literal(text_of(column, value, UTC) or "")
        except Unfit:
            return None
        transaction.run("SAVEPOINT shown")
        try:
            return str(transaction.rows(f"SELECT {text}::{kind}::text")[0][0])
        except RefusedStatement:
            return None
        finally:
            for statement in ("ROLLBACK TO SAVEPOINT shown", "RELEASE SAVEPOINT shown"):
                transaction.run(statement)

    names = transaction.rows("SELECT format_type(oid, NULL)::text, typname::text FROM pg_type")
    kinds = dict(names) | {"timestamp": "timestamp", "time": "time", "timestamptz": "timestamptz"}
    yield shown
    transaction.close()


@given(kind=st.sampled_from(sorted(SAME)), values=st.lists(VALUES, min_size=1, max_size=10))
@hypothesis_settings(max_examples=60, deadline=None)
def test_a_column_has_the_value_or_refuses_it(
    shown: Callable[[str, Any], str | None], kind: str, values: list[Any]
) -> None:
    for value in values:
        found = shown(kind, value)
        assert found is None or SAME[kind](value, found), (kind, value, found)


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAYS = st.integers(-719_162, 2_932_896)
"""The years 1 to 9999, which Python knows."""


@given(st.lists(st.tuples(DAYS, st.integers(0, 86_399_999_999)), min_size=1, max_size=10))
@hypothesis_settings(max_examples=20, deadline=None)
def test_times_are_what_they_were(shown: Callable[[str, Any], str | None], times: list[tuple[int, int]]) -> None:
    for days, micros in times:
        at = EPOCH + timedelta(days=days, microseconds=micros)
        count = days * 86_400_000_000 + micros
        assert shown("date", Date(days)) == f"{at:%Y-%m-%d}".rjust(10, "0")
        assert datetime.fromisoformat(str(shown("timestamp", MicroTimestamp(count)))) == at.replace(tzinfo=None)
        assert datetime.fromisoformat(str(shown("timestamptz", MicroTimestamp(count)))) == at
        assert time.fromisoformat(str(shown("time", MicroTime(micros)))) == at.time()
        wanted = None if micros else f"{at:%Y-%m-%d}".rjust(10, "0")
        assert shown("date", MicroTimestamp(count)) == wanted


def test_times_outside_of_what_a_column_has_are_refused(shown: Callable[[str, Any], str | None]) -> None:
    assert shown("date", Date(-719_163)) == "0001-12-31 BC"
    assert shown("timestamp", Timestamp(-62_167_219_200_001)) == "0002-12-31 23:59:59.999 BC"
    assert shown("date", Date(2**31 - 1)) is None
    for wrong in (TimeOfDay(-1), TimeOfDay(86_400_000), "10:00+02"):
        assert shown("time", wrong) is None
    assert shown("interval", TimeOfDay(-3_600_000)) == "-01:00:00"
    assert shown("date", "2026-01-31 10:00") is None
    assert shown("bit(4)", Bits(b"\x05")) == "0101" and shown("bit(4)", Bits(b"\x15")) is None
    assert shown("bytea", "text") is None and shown("integer", Bits(b"\x05")) == "5"
