"""Writes that touch several rows of a partition: deletes of clustering ranges, and small unlogged batches."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from penstock_demo.model import Bound
from penstock_demo.operations import Operation, Statement, Target, Write
from penstock_demo.shop import KEYSPACE, Table
from penstock_demo.values import CLUSTERING, POOLS, Pair, draw

Choice = tuple[Bound, Bound, int, int, list[Any]]
"""Start and end of a range, its indexes in the pool of clustering keys (from, to), and the values to bind."""


def _delete_range(table: Table, condition: str, choose: Callable[[Random, list[Pair]], Choice]) -> Operation:
    partition = " AND ".join(f"{column} = ?" for column in table.partition)
    statement = Statement(f"DELETE FROM {KEYSPACE}.{table.name} USING TIMESTAMP ? WHERE {partition} AND {condition}")
    pool = CLUSTERING[table.name]
    place = {ck.image: number for number, ck in enumerate(pool)}

    def write(rng: Random, target: Target) -> Write:
        start, end, first, last, bound = choose(rng, pool)
        event = target.partition.delete_range(start, end, lambda ck: first <= place[ck] < last)
        return Write(statement, statement.values(*target.key, *bound), [event], target.partition)

    return write


def _two(rng: Random, count: int) -> tuple[int, int]:
    first = int(rng.random() * (count - 1))
    return first, first + 1 + int(rng.random() * min(3, count - 1 - first))


def delete_between(table: Table) -> Operation:
    """`ck >= a AND ck < b` on the only clustering column."""

    def choose(rng: Random, pool: list[Pair]) -> Choice:
        first, last = _two(rng, len(pool))
        a, b = pool[first], pool[last]
        return Bound(a.image), Bound(b.image, inclusive=False), first, last, [*a.bound, *b.bound]

    column = table.clustering[0]
    return _delete_range(table, f"{column} >= ? AND {column} < ?", choose)


def delete_after(table: Table) -> Operation:
    """`ck > a` on the only clustering column: the range has no end."""

    def choose(rng: Random, pool: list[Pair]) -> Choice:
        first = len(pool) - 1 - int(rng.random() * 3)
        a = pool[first]
        return Bound(a.image, inclusive=False), Bound(()), first + 1, len(pool), [*a.bound]

    return _delete_range(table, f"{table.clustering[0]} > ?", choose)


def delete_prefix(table: Table) -> Operation:
    """Equality on the first of two clustering columns: both bounds are that prefix."""

    def choose(rng: Random, pool: list[Pair]) -> Choice:
        a = draw(rng, pool)
        inside = [place for place, ck in enumerate(pool) if ck.image[0] == a.image[0]]
        bound = Bound(a.image[:1])
        return bound, bound, inside[0], inside[-1] + 1, [a.bound[0]]

    return _delete_range(table, f"{table.clustering[0]} = ?", choose)


def delete_descending(table: Table) -> Operation:
    """`ck > a AND ck <= b` on a first clustering column in descending order: the range starts at the greater value."""

    def choose(rng: Random, pool: list[Pair]) -> Choice:
        firsts = sorted({(ck.image[0], ck.bound[0]) for ck in pool}, reverse=True)
        high, low = _two(rng, len(firsts))
        start, end = Bound((firsts[high][0],)), Bound((firsts[low][0],), inclusive=False)
        inside = [place for place, ck in enumerate(pool) if firsts[low][0] < ck.image[0] <= firsts[high][0]]
        return start, end, inside[0], inside[-1] + 1, [firsts[low][1], firsts[high][1]]

    column = table.clustering[0]
    return _delete_range(table, f"{column} > ? AND {column} <= ?", choose)


def batch(table: Table, inserted: str, updated: str) -> Operation:
    """Three rows of a partition in one request: an insert, an update and a delete."""
    name, where = f"{KEYSPACE}.{table.name}", " AND ".join(f"{column} = ?" for column in table.key)
    markers = ", ".join("?" for _ in (*table.key, inserted))
    statement = Statement(
        "BEGIN UNLOGGED BATCH USING TIMESTAMP ? "
        f"INSERT INTO {name} ({', '.join(table.key)}, {inserted}) VALUES ({markers}); "
        f"UPDATE {name} SET {updated} = ? WHERE {where}; DELETE FROM {name} WHERE {where}; APPLY BATCH"
    )

    def write(rng: Random, target: Target) -> Write:
        new, changed, gone = rng.sample(CLUSTERING[table.name], 3)
        one, other = draw(rng, POOLS[inserted]), draw(rng, POOLS[updated])
        partition = target.partition
        events = [
            partition.insert(new.image, {inserted: one.image}),
            partition.update(changed.image, {updated: other.image}),
            partition.delete_row(gone.image),
        ]
        key = target.key
        inserts = [*key, *new.bound, one.bound]
        updates = [other.bound, *key, *changed.bound]
        values = statement.values(*inserts, *updates, *key, *gone.bound)
        return Write(statement, values, events, partition)

    return write
