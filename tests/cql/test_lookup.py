"""`cql.lookup` on a real node: rows by key, requests and the cache, and errors."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock import cql as pcql
from penstock.cql.row_cache import MEASURED
from penstock.cql.row_lookup import KEY, RowLookup
from penstock.database.access import Access
from penstock.database.cql_connection import connection
from penstock.database.requests import RequestLimits
from penstock.database.row_fetch import RowFetch
from penstock.database.table_catalog import describe
from penstock.errors import PenstockError
from penstock.local.services import Services

SECONDS = 3600.0


@pytest.fixture(scope="module")
def users(cql: Any, keyspace: str) -> str:
    """Users 0..99 by id, and their visits by id and number; the name of user 7 is null."""
    cql.execute(f"CREATE TABLE {keyspace}.users (id bigint PRIMARY KEY, name text, tags set<text>)")
    cql.execute(f"CREATE TABLE {keyspace}.visits (id uuid, place text, n int, v double, PRIMARY KEY ((id, place), n))")
    insert = cql.prepare(f"INSERT INTO {keyspace}.users (id, name, tags) VALUES (?, ?, ?)")
    for number in range(100):
        cql.execute(insert, (number, None if number == 7 else f"user {number}", {f"t{number % 3}"}))
    return keyspace


def rows_of(services: Services, table: str, *columns: str) -> RowFetch:
    access = Access(services.cql)
    return RowFetch(access, describe(connection(access).rows, table), columns, RequestLimits())


def run(made: RowLookup, *columns: list[Any], kinds: tuple[pa.DataType, ...] = (pa.int64(),)) -> list[dict[str, Any]]:
    """The rows with the columns found, and the batch's metrics."""
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    key = pa.StructArray.from_arrays(arrays, [f"k{i}" for i in range(len(arrays))])
    (batch,) = made(iter([pa.RecordBatch.from_pydict({"n": pa.array(range(len(key))), KEY: key})]))
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_each_key_is_asked_for_once_and_remembered_found_or_not(services: Services, users: str) -> None:
    made = RowLookup(rows_of(services, f"{users}.users", "name", "tags"), ("name", "of"), 1000, SECONDS)
    assert [(row["name"], row["of"]) for row in run(made, [None, None])] == [(None, None)] * 2
    found = run(made, [3, 3, None, 1000, 7, 3, 1000])
    assert [(row["n"], row["name"], row["of"]) for row in found] == [
        (0, "user 3", ["t0"]),
        (1, "user 3", ["t0"]),
        (2, None, None),
        (3, None, None),
        (4, None, ["t1"]),
        (5, "user 3", ["t0"]),
        (6, None, None),
    ]
    numbers = found[0][MEASURED]
    assert (numbers["rows"], numbers["hits"], numbers["keys"], numbers["found"]) == (7, 0, 3, 4)
    assert (numbers["requests"], numbers["cached"]) == (1, 3)
    again = run(made, [1000, 7, 3, 4])
    assert [row["name"] for row in again] == [None, None, "user 3", "user 4"]
    numbers = again[0][MEASURED]
    assert (numbers["hits"], numbers["keys"], numbers["cached"]) == (3, 1, 4)
    many = run(made, list(range(200)))
    assert [row["name"] for row in many] == [None if n == 7 or n > 99 else f"user {n}" for n in range(200)]
    assert many[0][MEASURED]["requests"] == 7  # 197 keys, 32 in a request


def test_what_is_remembered_is_bounded_in_time_and_number(services: Services, users: str) -> None:
    small = RowLookup(rows_of(services, f"{users}.users", "name"), ("name",), 10, SECONDS)
    assert [row["name"] for row in run(small, list(range(20, 40)))] == [f"user {n}" for n in range(20, 40)]
    again = run(small, list(range(20, 40)))
    assert [row["name"] for row in again] == [f"user {n}" for n in range(20, 40)]
    assert (again[0][MEASURED]["hits"], again[0][MEASURED]["cached"]) == (10, 10)
    brief = RowLookup(rows_of(services, f"{users}.users", "name"), ("name",), 1000, 0.0)
    assert run(brief, [1])[0][MEASURED]["keys"] == run(brief, [1])[0][MEASURED]["keys"] == 1


def test_rows_are_found_by_keys_of_several_columns(services: Services, cql: Any, users: str) -> None:
    ids = [uuid.UUID(int=number) for number in range(3)]
    for number, id in enumerate(ids):
        cql.execute(
            f"INSERT INTO {users}.visits (id, place, n, v) VALUES (%s, %s, %s, %s)", (id, "", number, number / 2)
        )
    made = RowLookup(rows_of(services, f"{users}.visits", "v"), ("v",), 1000, SECONDS)
    kinds = (pa.string(), pa.string(), pa.int32())
    found = run(made, [str(ids[0]), str(ids[2]), str(ids[1]), None], ["", "", "", ""], [0, 2, 7, 1], kinds=kinds)
    assert [row["v"] for row in found] == [0.0, 1.0, None, None]
    assert found[0][MEASURED]["requests"] == 3
    # Keys that differ in one column share requests, whichever column it is.
    of_one = run(made, [str(ids[1])] * 40, [""] * 40, list(range(40)), kinds=kinds)
    assert [row["v"] for row in of_one] == [None, 0.5, *[None] * 38]
    assert of_one[0][MEASURED]["requests"] == 2
    others = [str(uuid.UUID(int=number)) for number in range(20)]
    of_many = run(made, others * 2, [""] * 40, [1] * 20 + [2] * 20, kinds=kinds)
    assert [at for at, row in enumerate(of_many) if row["v"] is not None] == [1, 22]
    assert of_many[0][MEASURED]["requests"] == 2


def test_a_stream_gets_its_columns_and_tells_what_it_cost(
    spark: SparkSession, services: Services, users: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text("\n".join(f'{{"who": {n % 110}, "at": {n}}}' for n in range(330)))
    stream = spark.readStream.schema("who int, at long").json(str(tmp_path / "in"))
    options: dict[str, Any] = {"hosts": services.cql, "on": {"id": "who"}, "ttl": "1 minute", "name": "users"}
    with_name = pcql.lookup(stream, f"{users}.users", columns={"name": "user"}, **options)
    assert with_name.columns == ["who", "at", "user"]
    query = with_name.writeStream.format("memory").queryName("looked_up").trigger(availableNow=True).start()
    query.awaitTermination()
    found = {row.at: row.user for row in spark.table("looked_up").collect()}
    assert found == {n: None if n % 110 in (7, *range(100, 110)) else f"user {n % 110}" for n in range(330)}
    assert query.lastProgress
    numbers = query.lastProgress["observedMetrics"]["users"].asDict()
    assert (numbers["rows"], numbers["hits"], numbers["keys"], numbers["found"]) == (330, 0, 110, 300)
    assert numbers["slowest_ms"] >= 0 and numbers["cached"] == 110
    table = f"{users}.users"
    cases: list[tuple[dict[str, Any], str]] = [
        ({"table": f"{users}.nosuch"}, r"there is no table .*nosuch.*tables in"),
        ({"on": "who"}, r"who is not the primary key.*its key id"),
        ({"on": {"id": "whom"}}, r"the frame has no column whom.*columns who, at"),
        ({"columns": ["nam"]}, r"the table has no column nam.*id, name, tags"),
        ({"columns": {"name": "at"}}, r"already has a column at.*another name"),
        ({"table": f"{users}.visits", "on": ["id", "place", "n"]}, r"the frame has no column id"),
        ({"ttl": "soon"}, "ttl is not a duration"),
        ({"users": "x"}, "unknown argument 'users'"),
    ]
    for wrong, said in cases:
        given = {"table": table, "columns": ["name"], **options, "patience": "5 seconds", **wrong}
        with pytest.raises(PenstockError, match=said):
            pcql.lookup(stream, given.pop("table"), **given)
    with pytest.raises(PenstockError, match=r"column who is string, but in the table it is bigint.*cast"):
        pcql.lookup(stream.selectExpr("string(who) AS who"), table, columns=["name"], **options)
