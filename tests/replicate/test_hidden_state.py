"""What reads do not show is the same for two tables with the same writes, whenever their node flushes and compacts."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra.concurrent import execute_concurrent
from drawn_statements import DRAWN, TABLES, of_time
from hidden_facts import differences, hidden_scans_of
from keyspaces import new_keyspace
from waiting import until

from penstock import replicate
from penstock.local.services import Services

STATEMENTS = 400
ROUNDS = 3
MERGE = "{'class': 'SizeTieredCompactionStrategy', 'min_threshold': 2, 'bucket_low': 0.01, 'bucket_high': 100}"
"""Each flush is followed by a compaction."""


@pytest.fixture
def keyspaces(cql: Any) -> Iterator[tuple[str, str]]:
    with new_keyspace(cql, "stored") as source, new_keyspace(cql, "compacted") as target:
        for keyspace in (source, target):
            cql.execute(f"CREATE TYPE {keyspace}.address (street text, zip int)")
        yield source, target


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("table", ["ranges", "elements", "rows", "single"])
def test_flushes_and_compactions_of_one_side_are_no_differences(
    keyspaces: tuple[str, str], cql: Any, services: Services, table: str
) -> None:
    seed = random.randrange(1 << 32)
    draw, began = random.Random(seed), time.time_ns() // 1000 - 2_000_000
    names = [f"{keyspace}.{table}" for keyspace in keyspaces]
    for keyspace in keyspaces:
        cql.execute(TABLES[table].replace("{ks}", keyspace))
    cql.execute(f"ALTER TABLE {names[1]} WITH compaction = {MERGE}")
    for _ in range(ROUNDS):
        drawn = [_statement(draw, table, began) for _ in range(STATEMENTS)]
        for name in names:
            draw.shuffle(drawn)
            execute_concurrent(cql, [(text.replace("{t}", name), ()) for text in drawn], concurrency=32)
        _flush(cql, services, names[1])
    until(lambda: len(_sstables(services, names[1])) == 1, "merged sstable")
    scans = hidden_scans_of(*(replicate.side(name, hosts=services.cql) for name in names))
    assert differences(scans) == [], seed


def _statement(draw: random.Random, table: str, began: int) -> str:
    return of_time(draw, DRAWN[table](draw), f"USING TIMESTAMP {began + draw.randrange(400)}")


def _flush(cql: Any, services: Services, name: str) -> None:
    """Let the node write the table's memtable to disk."""
    before = _sstables(services, name)
    cql.execute(f"ALTER TABLE {name} WITH memtable_flush_period_in_ms = 10")
    until(lambda: _sstables(services, name) - before, "new sstable")
    cql.execute(f"ALTER TABLE {name} WITH memtable_flush_period_in_ms = 0")


def _sstables(services: Services, name: str) -> set[Path]:
    keyspace, table = name.split(".")
    return set((services.root / "cassandra").glob(f"**/{keyspace}/{table}-*/*-Data.db"))
