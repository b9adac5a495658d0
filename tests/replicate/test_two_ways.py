"""Two tables that are replicated to each other end equal, and no change goes round."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra.concurrent import execute_concurrent
from hypothesis import given, strategies as st
from keyspaces import new_keyspace
from log_copies import Reader, apply, place
from pyspark.sql import SparkSession

from penstock import replicate
from penstock.database.cql_types import Column, CqlTable, CqlType
from penstock.database.requests import Statement
from penstock.local.services import Services
from penstock.replicate.applied_groups import mark
from penstock.replicate.table_statements import TableStatements, added, to

INT = CqlType("int")
COLUMNS = (Column("k", INT, "partition_key", 0), Column("v", INT, "regular"))
HERE, THERE = CqlTable("a", 'or"ders', COLUMNS), CqlTable("other", "t", COLUMNS)
TIME, NO_TTL = (7).to_bytes(8, "big"), bytes(4)


def statements(table: CqlTable, ttl: bytes = NO_TTL, value: bytes = b"v") -> list[Statement]:
    texts = TableStatements(table)
    return [
        (texts.insert(["v"]), [b"k", value, TIME, ttl]),
        (texts.update([to("v")], static=False), [TIME, ttl, value, b"k"]),
        (texts.update([added("v")], static=True), [TIME, ttl, value, b"k"]),
        (texts.delete([texts.of_row]), [TIME, b"k"]),
    ]


def test_a_group_is_known_again_on_the_other_side() -> None:
    here = b"k", statements(HERE)
    assert mark(here)[0] == 7
    assert mark(here) == mark((b"k", statements(THERE)))
    assert mark(here) == mark((b"k", statements(THERE, (600).to_bytes(4, "big"))))
    assert mark(here) == mark((b"k", statements(THERE)[::-1]))
    assert mark(here) != mark((b"k", statements(THERE, value=b"w")))
    assert mark(here) != mark((b"j", statements(THERE)))
    assert mark(here) != mark((b"k", statements(THERE)[1:]))


@given(st.lists(st.text(min_size=1, max_size=8).filter(lambda name: "\0" not in name), min_size=4, max_size=4))
def test_names_of_tables_do_not_count(names: list[str]) -> None:
    one, other = CqlTable(names[0], names[1], COLUMNS), CqlTable(names[2], names[3], COLUMNS)
    assert mark((b"k", statements(one))) == mark((b"k", statements(other)))


TABLE = (
    "CREATE TABLE {ks}.t (pk int, ck int, s int static, v int, m map<int, int>, e set<int>, PRIMARY KEY (pk, ck)) "
    "WITH cdc = {'enabled': true}"
)


@pytest.fixture
def keyspaces(cql: Any) -> Iterator[tuple[str, str]]:
    with new_keyspace(cql, "one") as one, new_keyspace(cql, "other") as other:
        for keyspace in (one, other):
            cql.execute(TABLE.replace("{ks}", keyspace))
        yield one, other


def drawn(draw: random.Random, began: int) -> str:
    """A statement on one of a few rows, at one of a few times."""
    row = f"pk = {draw.randrange(4)} AND ck = {draw.randrange(3)}"
    number = draw.randrange(9)
    value = draw.choice(
        [
            f"v = {number}",
            "v = null",
            f"m = m + {{{number}: 1}}",
            f"m = {{{number}: 2}}",
            f"e = e - {{{number}}}, v = 1",
        ]
    )
    at = f"USING TIMESTAMP {began + draw.randrange(300)}"
    using = at + (f" AND TTL {draw.randrange(8000, 9000)}" if draw.randrange(5) == 0 else "")
    return draw.choice(
        [
            *[f"UPDATE {{t}} {using} SET {value} WHERE {row}"] * 4,
            f"INSERT INTO {{t}} (pk, ck, v, m) VALUES ({draw.randrange(4)}, 1, 5, {{1: 1}}) {using}",
            f"UPDATE {{t}} {using} SET s = {number} WHERE pk = {draw.randrange(4)}",
            f"DELETE FROM {{t}} {at} WHERE {row}",
            f"DELETE FROM {{t}} {at} WHERE pk = {draw.randrange(4)} AND ck > {draw.randrange(3)}",
        ]
    )


def test_both_sides_end_equal_and_nothing_goes_round(
    keyspaces: tuple[str, str], cql: Any, services: Services, spark: SparkSession
) -> None:
    seed = random.randrange(1 << 32)
    draw, began = random.Random(seed), time.time_ns() // 1000 - 2_000_000
    tables = [f"{keyspace}.t" for keyspace in keyspaces]
    for table in tables:
        written = [(drawn(draw, began).replace("{t}", table), ()) for _ in range(300)]
        execute_concurrent(cql, written, concurrency=32)
    readers = {table: Reader.of(services.cql, table) for table in tables}
    seen: set[Any] = set()
    rounds = 0
    while True:
        carried = 0
        for here, there in (tables, tables[::-1]):
            new = [group for group in readers[here].groups(began - 1) if place(group) not in seen]
            seen.update(map(place, new))
            apply(services.cql, there, new, two_ways_with=here)
            carried += len(new)
        rounds += 1
        if not carried:
            break
        assert rounds < 6, (seed, carried)
    sides = (replicate.side(table, hosts=services.cql) for table in tables)
    report = replicate.verify(spark, *sides, settle=0)
    assert report.result == "equal", (seed, report.described)
