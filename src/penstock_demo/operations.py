"""The kinds of write in the load: each draws its values, changes the model and returns the statement to run.

Every statement has its own timestamp, and every write changes one partition, so that the events of a key have the
order of the writes. No write is split into several groups of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from penstock_demo.model import Bound, Event, Image, Partition
from penstock_demo.shop import KEYSPACE, Table
from penstock_demo.values import CLUSTERING, ELEMENTS, FIELDS, POOLS, Pair, draw, entries

TTL = 7 * 86_400
"""Seconds; far longer than a demo, because the expiry of single columns leaves no trace in a CDC log."""


class Statement:
    """A statement to prepare; `stamp` is the index of the timestamp among its bind markers."""

    def __init__(self, cql: str) -> None:
        self.cql = cql
        self.stamp = cql.partition("TIMESTAMP ?")[0].count("?")

    def values(self, *values: Any) -> list[Any]:
        return [*values[: self.stamp], None, *values[self.stamp :]]


class Write(NamedTuple):
    """A request: its values (None for the timestamp), the events it must become, and the partition it changes."""

    statement: Statement
    values: list[Any]
    events: list[Event]
    partition: Partition
    appends_to: str | None = None
    """The list column to which a second run of this statement appends again."""


Operation = Callable[[Random, Partition], Write]
"""Draws a write to a partition, and changes the partition as the write will."""


def _name(table: Table) -> str:
    return f"{KEYSPACE}.{table.name}"


def _where(columns: tuple[str, ...]) -> str:
    return "WHERE " + " AND ".join(f"{column} = ?" for column in columns)


def _columns(rng: Random, columns: tuple[str, ...]) -> tuple[list[Any], Image]:
    pairs = [draw(rng, POOLS[column]) for column in columns]
    return [pair.bound for pair in pairs], {c: pair.image for c, pair in zip(columns, pairs, strict=True)}


def _live(rng: Random, partition: Partition) -> Pair:
    """A clustering key of an existing row; one time in sixteen, or without rows, any clustering key."""
    pool = CLUSTERING[partition.table.name]
    start = int(rng.random() * len(pool))
    if rng.random() < 1 / 16:
        return pool[start]
    return next((ck for ck in pool[start:] + pool[:start] if ck.image in partition.rows), pool[start])


def insert(table: Table, columns: tuple[str, ...], *, ttl: bool = False) -> Operation:
    names = table.key + columns
    markers = ", ".join("?" for _ in names)
    lifetime = f" AND TTL {TTL}" if ttl else ""
    statement = Statement(
        f"INSERT INTO {_name(table)} ({', '.join(names)}) VALUES ({markers}) USING TIMESTAMP ?{lifetime}"
    )

    def write(rng: Random, partition: Partition) -> Write:
        ck = draw(rng, CLUSTERING[table.name])
        bound, image = _columns(rng, columns)
        statics = {column: image.pop(column) for column in table.statics if column in image}
        events = [partition.update_static(statics)] if statics else []
        events.append(partition.insert(ck.image, image))
        return Write(statement, statement.values(*partition.bound, *ck.bound, *bound), events, partition)

    return write


def update(table: Table, columns: tuple[str, ...], *, ttl: bool = False) -> Operation:
    lifetime = f" AND TTL {TTL}" if ttl else ""
    assignments = ", ".join(f"{column} = ?" for column in columns)
    statement = Statement(f"UPDATE {_name(table)} USING TIMESTAMP ?{lifetime} SET {assignments} {_where(table.key)}")

    def write(rng: Random, partition: Partition) -> Write:
        ck = _live(rng, partition)
        bound, image = _columns(rng, columns)
        event = partition.update(ck.image, image)
        return Write(statement, statement.values(*bound, *partition.bound, *ck.bound), [event], partition)

    return write


def update_static(table: Table, column: str) -> Operation:
    statement = Statement(f"UPDATE {_name(table)} USING TIMESTAMP ? SET {column} = ? {_where(table.partition)}")

    def write(rng: Random, partition: Partition) -> Write:
        bound, image = _columns(rng, (column,))
        event = partition.update_static(image)
        return Write(statement, statement.values(*bound, *partition.bound), [event], partition)

    return write


def _one_column(
    table: Table, column: str, statement: Statement, change: Callable[[Random, Any], tuple[list[Any], Any]]
) -> Operation:
    """An update of one collection or UDT: `change` returns the values to bind and the column's new image."""
    appends = column if "+ ?" in statement.cql and column not in table.unordered else None

    def write(rng: Random, partition: Partition) -> Write:
        ck = _live(rng, partition)
        row = partition.rows.get(ck.image)
        bound, image = change(rng, row.image[column] if row else None)
        event = partition.update(ck.image, {column: image or None})
        values = statement.values(*bound, *partition.bound, *ck.bound)
        return Write(statement, values, [event], partition, appends)

    return write


def _setting(table: Table, assignment: str) -> Statement:
    return Statement(f"UPDATE {_name(table)} USING TIMESTAMP ? SET {assignment} {_where(table.key)}")


def add_to_set(table: Table, column: str) -> Operation:
    def change(rng: Random, old: list[str] | None) -> tuple[list[Any], Any]:
        element = draw(rng, ELEMENTS)
        return [{element}], sorted({element, *(old or ())})

    return _one_column(table, column, _setting(table, f"{column} = {column} + ?"), change)


def remove_from_set(table: Table, column: str) -> Operation:
    def change(rng: Random, old: list[str] | None) -> tuple[list[Any], Any]:
        element = draw(rng, old or ELEMENTS)
        return [{element}], [one for one in old or () if one != element]

    return _one_column(table, column, _setting(table, f"{column} = {column} - ?"), change)


def put_in_map(table: Table, column: str) -> Operation:
    def change(rng: Random, old: list[Image] | None) -> tuple[list[Any], Any]:
        key, value = draw(rng, ELEMENTS), draw(rng, POOLS[column]).image[0]["value"]
        return [key, value], entries({entry["key"]: entry["value"] for entry in old or ()} | {key: value})

    return _one_column(table, column, _setting(table, f"{column}[?] = ?"), change)


def remove_from_map(table: Table, column: str) -> Operation:
    statement = Statement(f"DELETE {column}[?] FROM {_name(table)} USING TIMESTAMP ? {_where(table.key)}")

    def change(rng: Random, old: list[Image] | None) -> tuple[list[Any], Any]:
        key = draw(rng, old)["key"] if old else ELEMENTS[0]
        return [key], [entry for entry in old or () if entry["key"] != key]

    return _one_column(table, column, statement, change)


def append_to_list(table: Table, column: str) -> Operation:
    def change(rng: Random, old: list[str] | None) -> tuple[list[Any], Any]:
        element = draw(rng, ELEMENTS)
        return [[element]], [*(old or ()), element]

    return _one_column(table, column, _setting(table, f"{column} = {column} + ?"), change)


def set_field(table: Table, column: str, fields: tuple[str, ...], field: str) -> Operation:
    def change(rng: Random, old: Image | None) -> tuple[list[Any], Any]:
        value = draw(rng, FIELDS[field])
        return [value], {**(old or dict.fromkeys(fields)), field: value}

    return _one_column(table, column, _setting(table, f"{column}.{field} = ?"), change)


def delete_row(table: Table) -> Operation:
    statement = Statement(f"DELETE FROM {_name(table)} USING TIMESTAMP ? {_where(table.key)}")

    def write(rng: Random, partition: Partition) -> Write:
        ck = _live(rng, partition)
        event = partition.delete_row(ck.image)
        return Write(statement, statement.values(*partition.bound, *ck.bound), [event], partition)

    return write


def delete_partition(table: Table) -> Operation:
    statement = Statement(f"DELETE FROM {_name(table)} USING TIMESTAMP ? {_where(table.partition)}")

    def write(rng: Random, partition: Partition) -> Write:
        event = partition.delete_partition()
        return Write(statement, statement.values(*partition.bound), [event], partition)

    return write


Choice = tuple[Bound, Bound, int, int, list[Any]]
"""Start and end of a range, its indexes in the pool of clustering keys (from, to), and the values to bind."""


def _delete_range(table: Table, condition: str, choose: Callable[[Random, list[Pair]], Choice]) -> Operation:
    statement = Statement(f"DELETE FROM {_name(table)} USING TIMESTAMP ? {_where(table.partition)} AND {condition}")
    pool = CLUSTERING[table.name]
    place = {ck.image: number for number, ck in enumerate(pool)}

    def write(rng: Random, partition: Partition) -> Write:
        start, end, first, last, bound = choose(rng, pool)
        event = partition.delete_range(start, end, lambda ck: first <= place[ck] < last)
        return Write(statement, statement.values(*partition.bound, *bound), [event], partition)

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
    name, where = _name(table), _where(table.key)
    markers = ", ".join("?" for _ in (*table.key, inserted))
    statement = Statement(
        "BEGIN UNLOGGED BATCH USING TIMESTAMP ? "
        f"INSERT INTO {name} ({', '.join(table.key)}, {inserted}) VALUES ({markers}); "
        f"UPDATE {name} SET {updated} = ? {where}; DELETE FROM {name} {where}; APPLY BATCH"
    )

    def write(rng: Random, partition: Partition) -> Write:
        new, changed, gone = rng.sample(CLUSTERING[table.name], 3)
        one, other = draw(rng, POOLS[inserted]), draw(rng, POOLS[updated])
        events = [
            partition.insert(new.image, {inserted: one.image}),
            partition.update(changed.image, {updated: other.image}),
            partition.delete_row(gone.image),
        ]
        key = partition.bound
        inserts = [*key, *new.bound, one.bound]
        updates = [other.bound, *key, *changed.bound]
        values = statement.values(*inserts, *updates, *key, *gone.bound)
        return Write(statement, values, events, partition)

    return write
