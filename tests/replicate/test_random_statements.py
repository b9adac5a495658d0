"""Random statements on tables of every kind, copied and applied to another table in random order and more than once."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra.concurrent import execute_concurrent
from drawn_statements import DRAWN, TABLES, of_time
from keyspaces import new_keyspace
from log_copies import HOUR, Reader, apply
from pyspark.sql import SparkSession

from penstock import replicate
from penstock.local.services import Services

STATEMENTS, FEW = 1000, 250
"""For each table; few of one table in each run of the tests, with another seed each time."""
AFTER = 15
"""Statements after a copy: few, so that most rows are as they were copied."""


@pytest.fixture
def keyspaces(cql: Any, table: str) -> Iterator[tuple[str, str]]:
    with new_keyspace(cql, "drawn") as source, new_keyspace(cql, "redrawn") as target:
        for keyspace, more in ((source, "cdc = {'enabled': true}"), (target, "comment = ''")):
            cql.execute(f"CREATE TYPE {keyspace}.address (street text, zip int)")
            word = "AND" if "WITH" in TABLES[table] else "WITH"
            cql.execute(f"{TABLES[table].replace('{ks}', keyspace)} {word} {more}")
        yield source, target


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("table", "count"), [(next(iter(TABLES)), FEW), *((table, STATEMENTS) for table in TABLES)])
def test_any_order_and_repeats_end_in_the_same_state(
    keyspaces: tuple[str, str], cql: Any, services: Services, spark: SparkSession, table: str, count: int
) -> None:
    seed = random.randrange(1 << 32)
    draw, began = random.Random(seed), time.time_ns() // 1000 - 2_000_000
    source, target = (f"{name}.{table}" for name in keyspaces)
    statements = []
    for number in range(count):
        # Lists have no write times of their own: changes of one list at the same time are told apart by their order.
        at = f"USING TIMESTAMP {began + (number if table == 'lists' else draw.randrange(400))}"
        text = of_time(draw, DRAWN[table](draw), at).replace("{t}", source)
        statements.append((text, ()))
    execute_concurrent(cql, statements, concurrency=1 if table == "lists" else 32)
    groups = Reader.of(services.cql, source).groups(began - HOUR)
    again = [*groups, *draw.sample(groups, len(groups) // 2)]
    draw.shuffle(again)
    half = len(again) // 2
    for part in (again[:half], again[half:]):
        apply(services.cql, target, part)
    sides = (replicate.side(one, hosts=services.cql) for one in (source, target))
    report = replicate.verify(spark, *sides, settle=0, level=3)
    assert report.result == "equal", (seed, report.described, report.hidden)
    assert report.rows[0]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("table", "count"), [(next(iter(TABLES)), FEW), *((table, STATEMENTS) for table in TABLES)])
def test_a_copy_between_writes_ends_in_the_same_state(
    keyspaces: tuple[str, str], cql: Any, services: Services, spark: SparkSession, table: str, count: int
) -> None:
    seed = random.randrange(1 << 32)
    draw, began = random.Random(seed), time.time_ns() // 1000 - 2_000_000
    source, target = (f"{name}.{table}" for name in keyspaces)
    reader, low = Reader.of(services.cql, source), began + count - 1
    rows: list[Any] = []
    for number in range(count + AFTER):
        if number == count:
            rows = reader.rows(low)
        at = f"USING TIMESTAMP {began + number}"
        cql.execute(of_time(draw, DRAWN[table](draw), at).replace("{t}", source))
    writes = [*rows, *reader.groups(low + 1)]
    draw.shuffle(writes)
    apply(services.cql, target, writes)
    sides = (replicate.side(one, hosts=services.cql) for one in (source, target))
    report = replicate.verify(spark, *sides, settle=0, level=3)
    assert not report.different, (seed, report.described)
    # Deletions from before a copy are not copied.
    assert report.hidden is not None
    assert [one for one in report.hidden.described if one.what == "row marker"] == [], (seed, report.hidden)
