"""Two tables are written at few times, so that many writes have the same one.

What a repair leaves is what CQL keeps, and it says why. With `take_source`, the target reads as the source does.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra.concurrent import execute_concurrent
from drawn_statements import DRAWN, TABLES
from keyspaces import new_keyspace
from pyspark.sql import SparkSession

from penstock import replicate
from penstock.local.services import Services
from penstock.replicate.reconciliation import DELETED, EXPIRES, EXPIRES_LATER, GREATER, LATER, ROW
from penstock.replicate.verification import Level

STATEMENTS = 150
"""For each table of each side."""
ELEMENTS = {"m", "e", "sm", "u", "l"}
"""Columns whose write times only their elements have, or nobody tells."""
STATIC = {"s", "sm"}


@pytest.fixture
def keyspaces(cql: Any) -> Iterator[tuple[str, str]]:
    with new_keyspace(cql, "tied") as source, new_keyspace(cql, "tied") as target:
        for keyspace in (source, target):
            cql.execute(f"CREATE TYPE {keyspace}.address (street text, zip int)")
            for statement in TABLES.values():
                cql.execute(statement.replace("{ks}", keyspace))
        yield source, target


def _drawn(draw: random.Random, table: str, name: str, since: int) -> Iterator[tuple[str, tuple[()]]]:
    for number in range(STATEMENTS):
        # Lists that are written twice at one time have all elements.
        at = f"USING TIMESTAMP {since + (number if table == 'lists' else draw.randrange(6))}"
        ttl = draw.choice(["", "", " AND TTL 8000", " AND TTL 9000"])
        yield DRAWN[table](draw).replace("{t}", name).replace("{using}", at + ttl).replace("{at}", at), ()


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("level", [2, 3])
def test_a_repair_leaves_what_cql_keeps(
    keyspaces: tuple[str, str], cql: Any, services: Services, spark: SparkSession, table: str, level: Level
) -> None:
    seed = random.randrange(1 << 32)
    draw, began = random.Random(seed), time.time_ns() // 1000 - 60_000_000
    names = [f"{keyspace}.{table}" for keyspace in keyspaces]
    for name in names:
        execute_concurrent(cql, list(_drawn(draw, table, name, began)), concurrency=1 if table == "lists" else 32)
    sides = [replicate.side(name, hosts=services.cql) for name in names]
    report = replicate.verify(spark, *sides, settle=0, level=level, repair=True)
    for row in report.described:
        assert row.left.keys() == ({ROW} if row.missing else _columns(row)), (seed, row)
        for column, reason in row.left.items():
            for text in reason.split("; "):
                assert _is_true(cql, names, row, column, text), (seed, row, column)
    if report.hidden:
        assert all(one.left for one in report.hidden.described), (seed, report.hidden)
    report = replicate.verify(spark, *sides, settle=0, level=level, repair=True, take_source=True)
    assert report.taken == report.different, (seed, report.described)
    assert all(name.startswith("writetime(") for row in report.described for name in row.columns), (seed, report)
    assert replicate.verify(spark, *sides, settle=0, level=1).result == "equal", seed


def _columns(row: replicate.Difference) -> set[str]:
    return {name.removeprefix("writetime(").removeprefix("ttl(").rstrip(")") for name in row.columns}


def _is_true(cql: Any, names: list[str], row: replicate.Difference, column: str, reason: str) -> bool:
    """Whether both tables are as a reason says, as CQL shows them; the source first."""
    if column == ROW:
        return reason == (DELETED if row.missing == "target" else LATER)
    key = {name: value for name, value in json.loads(row.key).items() if value is not None}
    if column in STATIC:
        key = {"pk": key["pk"]}
    where = " AND ".join(f"{name} = {value}" for name, value in key.items())
    part, whole = column, True
    if reason.startswith("element "):
        _, name, reason = reason.split(" ", 2)
        part, whole = f"{column}[{name.replace(chr(34), chr(39))}]", False
    elif reason.startswith("field "):
        _, name, reason = reason.split(" ", 2)
        part, whole = f"{column}.{name}", False
    if whole and column in ELEMENTS:
        there = cql.execute(f"SELECT {part} FROM {names[1]} WHERE {where} LIMIT 1").one()
        return reason == (LATER if there and there[0] is not None else DELETED)
    ours, theirs = (
        cql.execute(f"SELECT {part}, WRITETIME({part}), TTL({part}) FROM {name} WHERE {where} LIMIT 1").one()
        for name in names
    )
    if theirs is None or theirs[1] is None:
        return reason == DELETED
    if ours is None or ours[1] is None:
        return reason == LATER
    if ours[1] != theirs[1]:
        return reason == LATER and theirs[1] > ours[1]
    if theirs[2] is not None:
        return reason == (EXPIRES if ours[2] is None else EXPIRES_LATER)
    return reason == GREATER and ours[2] is None and theirs[0] > ours[0]
