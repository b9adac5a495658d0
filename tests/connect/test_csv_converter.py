"""Records that are lines of CSV: how they are read, what is a bad one, and rows of CQL and PostgreSQL of them."""

from __future__ import annotations

import csv
import io
import json
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pytest
from file_sinks import file_sink
from hypothesis import given, strategies as st
from keyspaces import new_keyspace
from postgres_server import execute, query

from penstock.connect.records.csv_data import CLASS, OPTIONS
from penstock.connect.records.deserializers import RawRecord, TextBytes
from penstock.connect.records.record import NOTHING, ConnectRecord, NoValue, Part
from penstock.connect.records.sink_converters import deserializer, options
from penstock.connect.sinks.cql import properties as sink_properties
from penstock.connect.sinks.cql.writer import RecordWriter
from penstock.connect.sinks.destination import Bad
from penstock.connect.sinks.jdbc import properties as jdbc_properties
from penstock.connect.sinks.jdbc.writer import RowWriter
from penstock.connect.sinks.task import decoded, transformed
from penstock.connect.source.properties import CLASS as SOURCE
from penstock.connect.transforms.sink_chain import chain
from penstock.connect.worker.checks import CheckedConfig, check
from penstock.connect.worker.providers import Provided
from penstock.database.requests import RequestLimits
from penstock.local.services import Services

BASE = file_sink(value_converter=CLASS)


def configured(more: dict[str, str]) -> CheckedConfig:
    return check(BASE | more, Provided(), ask=False)


def value(text: bytes | None, columns: str = "a,b,c", **more: str) -> Part:
    given = {"columns": columns, **{name.replace("_", "."): option for name, option in more.items()}}
    found = configured({f"value.converter.{name}": option for name, option in given.items()})
    assert not found.messages and not found.unknown, found
    return deserializer("value", found.config)(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (b"1,x,2.5", ["1", "x", "2.5"]),
        (b'"a, ""b""","line\n2",\r\n', ["a, \"b\"", "line\n2", None]),
        ("é,,".encode(), ["é", None, None]),
        (b" a ,b,c", [" a ", "b", "c"]),
    ],
)  # fmt: skip
def test_lines_are_read(text: bytes, wanted: list[str | None]) -> None:
    assert value(text) == Part(None, dict(zip("abc", wanted, strict=True)))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=3, max_size=3))
def test_what_another_writer_writes_is_read(fields: Sequence[str]) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, quoting=csv.QUOTE_ALL).writerow(fields)
    found = value(written.getvalue().encode(), null_text="never-written").value
    assert [*found.values()] == [*fields]


def test_options_choose_delimiters_types_nulls_and_a_schema() -> None:
    assert value(b"1\t'x\ty'\tNULL", delimiter="tab", quote="'", null_text="NULL").value == {
        "a": "1",
        "b": "x\ty",
        "c": None,
    }
    typed = value(b"-7;1e3;TRUE", "n:int8,r:double,b:boolean", delimiter=";", schemas_enable="true")
    assert typed.value == {"n": -7, "r": 1000.0, "b": True}
    assert typed.schema and [(one["field"], one["type"]) for one in typed.schema["fields"]] == [
        ("n", "int8"), ("r", "double"), ("b", "boolean"),
    ]  # fmt: skip
    assert value(None) == NOTHING and value(b"", "a").value == {"a": None}
    assert value(b"x" * 200_000, "a").value == {"a": "x" * 200_000}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"1,2", "it has 2 fields, and columns names 3"),
        (b"1,2,3\n4,5,6", "not a line of CSV: new-line character seen in unquoted field"),
        (b'1,"2', "not a line of CSV: unexpected end of data"),
        (b'1,"2"x,3', "not a line of CSV"),
        (b"1,\xff,3", "not UTF-8"),
        (b"300,2,3", "its column a is '300', which is no int8"),
        (b"1,2,nan or so", "its column c is 'nan or so', which is no double"),
    ],
)
def test_other_lines_are_bad_records(text: bytes, why: str) -> None:
    with pytest.raises(NoValue, match=why):
        value(text, "a:int8,b,c:double")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("columns", "", "the names of the columns"),
        ("columns", "a,b,a", "the column a occurs twice"),
        ("columns", "a:date", "is not a name, or name:type with one of string, boolean, int8"),
        ("delimiter", ",,", "it must be one character, or tab"),
        ("quote", "", "it must be one character"),
        ("quote", ",", "it is the delimiter"),
        ("schemas.enable", "x", "true or false"),
    ],
)
def test_wrong_options_are_refused(name: str, text: str, why: str) -> None:
    errors = configured({"value.converter.columns": "a", f"value.converter.{name}": text}).errors
    assert set(errors) == {f"value.converter.{name}"} and why in errors[f"value.converter.{name}"][0]


def test_columns_are_required_and_only_sinks_have_the_converter() -> None:
    assert "value.converter.columns" in configured({}).errors and options(CLASS) == OPTIONS
    errors = check({"name": "x", "connector.class": SOURCE, "value.converter": CLASS}, Provided(), ask=False).errors
    assert "it must be one of" in errors["value.converter"][0]


LINES = b"1,plum,0.25,2024-02-29", b"2,,x", b"3,fig,7,"
COLUMNS = "id,name,price,day"


def made(config: dict[str, str]) -> tuple[list[ConnectRecord], list[Bad]]:
    """The records that a sink makes of the lines, and the bad ones."""
    raw = [RawRecord("fruit", 0, number, 1, None, line, ()) for number, line in enumerate(LINES)]
    read = decoded(raw, TextBytes(), deserializer("value", config))
    found = list(transformed(read, chain(config).start()))
    return [one for one in found if not isinstance(one, Bad)], [one for one in found if isinstance(one, Bad)]


def test_lines_become_rows_of_cql(cql: Any, services: Services) -> None:
    with new_keyspace(cql, "csv") as keyspace:
        cql.execute(f"CREATE TABLE {keyspace}.fruit (id int PRIMARY KEY, name text, price decimal, day date)")
        checked = configured(
            {
                "connector.class": sink_properties.CLASS,
                "topics": "fruit",
                "scylladb.contact.points": services.cql,
                "scylladb.keyspace": keyspace,
                "scylladb.consistency.level": "ONE",
                "value.converter.columns": COLUMNS,
                "transforms": "key",
                "transforms.key.type": "ValueToKey",
                "transforms.key.fields": "id",
            }
        )
        assert not checked.messages
        good, (bad,) = made(checked.config)
        assert bad.reason.endswith("it has 3 fields, and columns names 4") and bad.stage == "VALUE_CONVERTER"
        settings = sink_properties.settings(checked.values, checked.config)
        assert RecordWriter(settings, RequestLimits()).write(good) == []
        rows = sorted(cql.execute(f"SELECT id, name, price, day FROM {keyspace}.fruit"))
        assert [(id, name, price, day and str(day)) for id, name, price, day in rows] == [
            (1, "plum", Decimal("0.25"), "2024-02-29"),
            (3, "fig", Decimal(7), None),
        ]


def test_lines_become_rows_of_postgres_in_a_table_that_is_made(postgres: str) -> None:
    table, (login, _, place) = f"csv_{uuid.uuid4().hex[:8]}", postgres.removeprefix("postgresql://").rpartition("@")
    user, _, password = login.partition(":")
    checked = configured(
        {
            "connector.class": jdbc_properties.CLASS,
            "topics": "fruit",
            "connection.url": f"jdbc:postgresql://{place}",
            "connection.user": user,
            "connection.password": password,
            "table.name.format": table,
            "auto.create": "true",
            "value.converter.columns": "id:int32,name,price:double,day",
            "value.converter.schemas.enable": "true",
        }
    )
    assert not checked.messages, json.dumps(checked.errors)
    good, _ = made(checked.config)
    try:
        with RowWriter(jdbc_properties.settings(checked.values, checked.config)) as writer:
            assert writer.write(good) == []
        assert query(postgres, f"SELECT id, name, price, day FROM {table} ORDER BY id") == [
            (1, "plum", 0.25, "2024-02-29"),
            (3, "fig", 7.0, None),
        ]
    finally:
        execute(postgres, f"DROP TABLE IF EXISTS {table}")
