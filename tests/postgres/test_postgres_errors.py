"""PostgreSQL's errors in our words, and names and strings in SQL; no server runs here."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql import types as sql

from penstock.errors import PenstockError
from penstock.postgres.postgres_batch import PostgresBatch, _numbered, _upsert
from penstock.postgres.postgres_columns import (
    PLAIN,
    StagingLayout,
    TargetColumn,
    Travel,
    WrittenColumn,
    _transport,
    misfit,
    scale_of,
)
from penstock.postgres.postgres_session import failure, literal, quoted
from penstock.query.query import Batch
from penstock.spark_runtime.failures import Unavailable

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=10)


class Refused(Exception):
    """An error of the driver."""

    def __init__(self, text: str, sqlstate: str | None = None) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


def told(text: str, sqlstate: str | None = None) -> PenstockError:
    return failure(Refused(text, sqlstate), "table t")


@pytest.mark.parametrize(
    "state", ["08006", "53300", "57P01", "57P03", "58030", "40001", "40P01", "55P03", "25006", None, ""]
)
def test_what_may_pass_is_worth_another_try(state: str | None) -> None:
    error = told("IO: [libpq] FATAL:  the database system is starting up", state)
    assert isinstance(error, Unavailable) and error.retriable
    assert error.what == "PostgreSQL is unavailable or out of resources: the database system is starting up"
    step = "check its log" if state else "check that PostgreSQL runs at the address of url=, then its log"
    assert (error.where, error.next) == ("table t", step)


@pytest.mark.parametrize(
    ("state", "next"),
    [
        ("42501", "grant the user this right"),
        ("23505", "fix the data or the table; nothing was written"),
        ("22P02", "fix the data or the table; nothing was written"),
        ("42P01", "fix the data or the table; nothing was written"),
        ("57014", "fix the data or the table; nothing was written"),
        ("25001", "fix the data or the table; nothing was written"),
    ],
)
def test_what_the_database_refuses_is_not_tried_again(state: str, next: str) -> None:
    error = told("[libpq] ERROR:  duplicate key\nDETAIL:  Key (id)=(1) exists.\nCONTEXT:  COPY s, line 2\n", state)
    assert not error.retriable and error.next == next
    assert error.what == "PostgreSQL refused: duplicate key (Key (id)=(1) exists.) (COPY s, line 2)"


def test_the_statement_is_not_part_of_the_message() -> None:
    error = told("[libpq] Failed to execute query: ERROR:  syntax error\n\nQuery was:INSERT INTO secrets", "42601")
    assert error.what == "PostgreSQL refused: syntax error"


@pytest.mark.parametrize(
    "said",
    [
        'FATAL:  database "x" does not exist',
        'FATAL:  role "ann" does not exist',
        'FATAL:  password authentication failed for user "ann"',
        "fe_sendauth: no password supplied",
        'FATAL:  no pg_hba.conf entry for host "10.0.0.1"',
        'root certificate file "/x" does not exist',
        "server does not support SSL, but SSL was required",
        'invalid connection option "sslmod"',
        'invalid sslmode value: "on"',
        'invalid percent-encoded token: "%zz"',
    ],
)
def test_a_wrong_address_or_user_is_not_tried_again(said: str) -> None:
    error = told(f"[libpq] Failed to connect: {said}")
    assert not error.retriable and error.what.startswith("PostgreSQL cannot be reached with this url: ")
    assert "fix url= or libpq's environment" in error.next


@pytest.mark.parametrize(
    "said",
    [
        'end of string reached when looking for matching "]" in IPv6 host address in URI: "postgresql://u:hush@["',
        "unexpected spaces found, use percent-encoded spaces (%20) instead: hush hush",
        'invalid percent-encoded token: "hush%zz"',
        'forbidden value %00 in percent-encoded value: "hush%00"',
    ],
)
def test_a_part_of_the_url_is_not_shown(said: str) -> None:
    assert "hush" not in str(told(f"[libpq] Failed to connect: {said}"))


def test_a_server_that_is_away_is_waited_for() -> None:
    text = '[libpq] Failed to connect: connection to server at "10.0.0.1", port 5432 failed: Connection refused'
    assert isinstance(told(text), Unavailable)


def test_errors_go_through_processes() -> None:
    error = told("[libpq] ERROR:  no", "23505")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@given(NAMES)
def test_names_and_strings_end_where_they_should(text: str) -> None:
    for made, quote in ((quoted(text), '"'), (literal(text), "'")):
        assert made[0] == made[-1] == quote and made[1:-1].replace(quote * 2, quote) == text
        assert re.fullmatch(f"(?:[^{quote}]|{quote}{quote})*", made[1:-1], re.DOTALL)


SPARK: dict[str, sql.DataType] = {
    "boolean": sql.BooleanType(),
    "tinyint": sql.ByteType(),
    "smallint": sql.ShortType(),
    "int": sql.IntegerType(),
    "bigint": sql.LongType(),
    "float": sql.FloatType(),
    "double": sql.DoubleType(),
    "binary": sql.BinaryType(),
    "date": sql.DateType(),
    "timestamp": sql.TimestampType(),
    "timestamp_ntz": sql.TimestampNTZType(),
    "string": sql.StringType(),
    "decimal(6,2)": sql.DecimalType(6, 2),
    "decimal(6,0)": sql.DecimalType(6, 0),
}


@pytest.mark.parametrize(
    ("target", "cast", "fitting"),
    [
        ("bool", "boolean", "boolean"),
        ("int2", "smallint", "tinyint smallint"),
        ("int4", "integer", "tinyint smallint int"),
        ("int8", "bigint", "tinyint smallint int bigint"),
        ("float4", "real", "float"),
        ("float8", "double precision", "float double"),
        ("bytea", "bytea", "binary"),
        ("date", "date", "date"),
        ("timestamptz", "timestamp with time zone", "timestamp"),
        ("timestamp", "timestamp without time zone", "timestamp_ntz"),
        ("numeric", "numeric", "tinyint smallint int bigint string decimal(6,2) decimal(6,0)"),
        ("numeric", "numeric(8,2)", "tinyint smallint int bigint string decimal(6,2) decimal(6,0)"),
        ("numeric", "numeric(8,1)", "tinyint smallint int bigint string decimal(6,0)"),
        ("numeric", "numeric(8,-1)", "string"),
        ("text", "text", "string"),
        ("uuid", "uuid", "string"),
        ("jsonb", "jsonb", "string"),
        ("mood", "mood", "string"),
    ],
)
def test_only_types_that_lose_no_digit_fit(target: str, cast: str, fitting: str) -> None:
    found = [name for name, kind in SPARK.items() if _transport(kind, target, cast)]
    assert found == [name for name in SPARK if name in fitting.split()]
    for name in found:
        expected = PLAIN[target][1] if target in PLAIN else sql.StringType()
        assert _transport(SPARK[name], target, cast) == expected


@pytest.mark.parametrize(
    ("cast", "scale"),
    [("numeric(8,2)", 2), ("numeric(8,0)[]", 0), ("numeric(8,-3)", -3), ("numeric", None), ("text", None)],
)
def test_thescale_of_of_a_declared_number(cast: str, scale: int | None) -> None:
    assert scale_of(cast) == scale


@pytest.mark.parametrize(
    ("kind", "type", "full", "next"),
    [
        ("double", "int4", "integer", 'convert it: frame.withColumn("c", F.round(F.col("c")).cast("int")); or change'),
        ("decimal(6,2)", "numeric", "numeric(8,1)", 'cast it: frame.withColumn("c", F.col("c").cast("decimal(38,1)"))'),
        (
            "timestamp",
            "timestamp",
            "timestamp without time zone",
            'cast it: frame.withColumn("c", F.col("c").cast("timestamp_ntz"))',
        ),
        ("int", "uuid", "uuid", 'cast it: frame.withColumn("c", F.col("c").cast("string"))'),
    ],
)
def test_a_column_that_does_not_fit_is_told_with_the_cast(kind: str, type: str, full: str, next: str) -> None:
    error = misfit("c", SPARK[kind], TargetColumn("c", type, full, full, False, False), "orders")
    assert error.what == f"the column c is {kind} and does not fit into {full}"
    assert error.next.startswith(next) and error.where == "PostgreSQL table orders"


def work(
    *, key: tuple[str, ...] = (), version: str | None = None, kept: bool = False, deleted: bool = False
) -> PostgresBatch:
    """A batch of the columns id and v; the version is a column of the table if it is `kept`."""
    nothing: Travel = Travel(None, "bigint")  # type: ignore[arg-type]
    columns = tuple(WrittenColumn(name, f"c{n}", nothing, "int8") for n, name in enumerate(("id", "v")))
    plan = StagingLayout(columns, None if kept or not version else nothing, deleted)
    return PostgresBatch("t", '"t"', plan, key, version, Batch("q", 3))


def test_a_staging_table_belongs_to_a_query_a_table_and_its_columns() -> None:
    assert work().columns == "c0 bigint, c1 bigint, load bigint"
    keyed = work(key=("id",), version="at", deleted=True)
    assert keyed.columns == "c0 bigint, c1 bigint, version bigint, deleted boolean, load bigint, row bigint"
    assert re.fullmatch("stage_[0-9a-f]{20}", keyed.stage)
    assert work().stage == work().stage != keyed.stage


def test_the_newest_row_of_a_key_is_written_and_no_newer_one_replaced() -> None:
    plain = _upsert(work(key=("id",)), "s")
    assert "ORDER BY c0::int8, row DESC" in plain and "DELETE" not in plain and " WHERE " not in plain
    versioned = _upsert(work(key=("id",), version="v", kept=True, deleted=True), "s")
    assert "ORDER BY c0::int8, c1::int8 DESC NULLS LAST, row DESC" in versioned
    assert 'DO UPDATE SET "v" = excluded."v" WHERE (t."v" IS NULL OR t."v" <= excluded."v")' in versioned
    assert 's.deleted AND t."id" = s.c0::int8 AND (t."v" IS NULL OR t."v" <= s.c1::int8)' in versioned
    assert "FROM latest WHERE NOT deleted ON CONFLICT" in versioned
    assert _upsert(work(key=("id", "v")), "s").endswith("DO NOTHING")


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**40))
def test_rows_are_numbered_through_all_batches_of_a_task(sizes: list[int], first: int) -> None:
    batches = [pa.record_batch({"c0": pa.array(np.zeros(size))}) for size in sizes]
    made = list(_numbered(iter(batches), 7, first))
    assert [row for batch in made for row in batch["row"].to_pylist()] == list(range(first, first + sum(sizes)))
    assert {load for batch in made for load in batch["load"].to_pylist()} == {7}
    assert all(batch.schema.names == ["c0", "load"] for batch in _numbered(iter(batches), 7, None))
