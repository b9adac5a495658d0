"""The kinds of write in the load: each draws its values, changes the model and returns the statement to run.

Every statement has its own timestamp, and every write changes one partition, so that the events of a key have the
order of the writes. No write is split into several groups of the log.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from penstock_demo.model import Event, Image, Partition
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


class Target(NamedTuple):
    """A partition of the load, with its key as the driver binds it."""

    key: tuple[Any, ...]
    partition: Partition


Operation = Callable[[Random, Target], Write]


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

    def write(rng: Random, target: Target) -> Write:
        ck = draw(rng, CLUSTERING[table.name])
        bound, image = _columns(rng, columns)
        statics = {column: image.pop(column) for column in table.statics if column in image}
        events = [target.partition.update_static(statics)] if statics else []
        events.append(target.partition.insert(ck.image, image))
        return Write(statement, statement.values(*target.key, *ck.bound, *bound), events, target.partition)

    return write


def update(table: Table, columns: tuple[str, ...], *, ttl: bool = False) -> Operation:
    lifetime = f" AND TTL {TTL}" if ttl else ""
    assignments = ", ".join(f"{column} = ?" for column in columns)
    statement = Statement(f"UPDATE {_name(table)} USING TIMESTAMP ?{lifetime} SET {assignments} {_where(table.key)}")

    def write(rng: Random, target: Target) -> Write:
        ck = _live(rng, target.partition)
        bound, image = _columns(rng, columns)
        event = target.partition.update(ck.image, image)
        return Write(statement, statement.values(*bound, *target.key, *ck.bound), [event], target.partition)

    return write


def update_static(table: Table, column: str) -> Operation:
    statement = Statement(f"UPDATE {_name(table)} USING TIMESTAMP ? SET {column} = ? {_where(table.partition)}")

    def write(rng: Random, target: Target) -> Write:
        bound, image = _columns(rng, (column,))
        event = target.partition.update_static(image)
        return Write(statement, statement.values(*bound, *target.key), [event], target.partition)

    return write


def _one_column(
    table: Table, column: str, statement: Statement, change: Callable[[Random, Any], tuple[list[Any], Any]]
) -> Operation:
    """An update of one collection or UDT: `change` returns the values to bind and the column's new image."""
    appends = column if "+ ?" in statement.cql and column not in table.unordered else None

    def write(rng: Random, target: Target) -> Write:
        ck = _live(rng, target.partition)
        row = target.partition.rows.get(ck.image)
        bound, image = change(rng, row.image[column] if row else None)
        event = target.partition.update(ck.image, {column: image or None})
        values = statement.values(*bound, *target.key, *ck.bound)
        return Write(statement, values, [event], target.partition, appends)

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

    def write(rng: Random, target: Target) -> Write:
        ck = _live(rng, target.partition)
        event = target.partition.delete_row(ck.image)
        return Write(statement, statement.values(*target.key, *ck.bound), [event], target.partition)

    return write


def delete_partition(table: Table) -> Operation:
    statement = Statement(f"DELETE FROM {_name(table)} USING TIMESTAMP ? {_where(table.partition)}")

    def write(rng: Random, target: Target) -> Write:
        event = target.partition.delete_partition()
        return Write(statement, statement.values(*target.key), [event], target.partition)

    return write
