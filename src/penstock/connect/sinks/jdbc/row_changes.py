"""The rows of a table that records change, as few statements that leave what the records would one after another.

Of several records for one row only the last counts, as a statement cannot upsert a row twice. Deletes come before the
rows that are written: those that a delete would have removed are left out. Where that could differ from the records'
order, as for rows with other columns, a further step begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import NamedTuple, TypeAlias

from penstock.connect.records.record import ConnectRecord
from penstock.connect.sinks.jdbc.tables import TargetTable
from penstock.connect.sinks.jdbc.values import EXACT
from penstock.postgres.postgres_columns import TargetColumn
from penstock.postgres.postgres_session import quoted

MOST_CHARACTERS = 1 << 26
"""Characters of a statement's rows; PostgreSQL takes at most 1 GB of a message."""
Texts: TypeAlias = tuple[str | None, ...]


@dataclass(frozen=True)
class StatementShape:
    """What the rows of a statement have in common: the table, its columns for keys and values, and what is done."""

    table: TargetTable
    keys: tuple[TargetColumn, ...]
    values: tuple[TargetColumn, ...]
    mode: str
    """insert, upsert, update or delete."""
    skips: bool = False
    """Whether a row that is there already is left as it is."""

    @property
    def columns(self) -> tuple[TargetColumn, ...]:
        return (*self.keys, *self.values)

    @cached_property
    def is_exact(self) -> bool:
        """Whether rows are the same exactly if the texts of their keys are."""
        return all(column.type in EXACT for column in self.keys)

    @cached_property
    def statement(self) -> str:
        """The statement, with an array of text for each column."""
        marks = ", ".join(f"${place}::text[]" for place, _ in enumerate(self.columns, 1))
        names = ", ".join(f"c{place}" for place, _ in enumerate(self.columns))
        rows = f"unnest({marks}) AS s({names})"
        casts = {column.name: f"s.c{place}::{column.cast}" for place, column in enumerate(self.columns)}
        same = " AND ".join(f"t.{quoted(column.name)} = {casts[column.name]}" for column in self.keys)
        if self.mode == "delete":
            return f"DELETE FROM {self.table.name} AS t USING {rows} WHERE {same}"
        if self.mode == "update":
            sets = ", ".join(f"{quoted(column.name)} = {casts[column.name]}" for column in self.values)
            return f"UPDATE {self.table.name} AS t SET {sets} FROM {rows} WHERE {same}"
        return (
            f"INSERT INTO {self.table.name} ({', '.join(map(quoted, casts))}) "
            f"SELECT {', '.join(casts.values())} FROM {rows}{self._conflict()}"
        )

    def _conflict(self) -> str:
        if self.mode == "insert" and not self.skips:
            return ""
        key = ", ".join(quoted(column.name) for column in self.keys)
        sets = ", ".join(f"{quoted(column.name)} = excluded.{quoted(column.name)}" for column in self.values)
        change = f"UPDATE SET {sets}" if self.mode == "upsert" and sets else "NOTHING"
        return f" ON CONFLICT ({key}) DO {change}"


class RowChange(NamedTuple):
    """What a record does to a row: the texts of the key, and of the values unless it deletes."""

    record: ConnectRecord
    shape: StatementShape
    key: Texts
    values: Texts


@dataclass
class RowStep:
    """Rows of the same shape: first those that are deleted, then those that are written."""

    deleted: dict[Texts, RowChange] = field(default_factory=dict)
    written: dict[object, RowChange] = field(default_factory=dict)
    """By key; inserted rows each by a number, as the database is to see them all."""
    _inserted: dict[Texts, list[int]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def takes(self, change: RowChange) -> bool:
        """Whether the change may be part of this step."""
        if change.shape.mode == "delete":
            return change.shape.is_exact or not self.written
        first = next(iter(self.written.values()), None)
        return first is None or first.shape is change.shape

    def add(self, change: RowChange) -> None:
        if change.shape.mode == "delete":
            for number in self._inserted.pop(change.key, ()):
                del self.written[number]
            self.written.pop(change.key, None)
            self.deleted[change.key] = change
        elif change.shape.mode == "insert":
            number = next(self._numbers)
            self._inserted.setdefault(change.key, []).append(number)
            self.written[number] = change
        else:
            # At its end: rows of other keys may depend on the order.
            self.written.pop(change.key, None)
            self.written[change.key] = change


def in_steps(changes: Sequence[RowChange], most: int) -> Iterator[list[RowChange]]:
    """The changes for one statement after another, each of at most `most` rows of one shape."""
    tables: dict[str, list[RowStep]] = {}
    for change in changes:
        steps = tables.setdefault(change.shape.table.name, [RowStep()])
        if not steps[-1].takes(change):
            steps.append(RowStep())
        steps[-1].add(change)
    for steps in tables.values():
        for step in steps:
            yield from _parts([*step.deleted.values()], most)
            yield from _parts([*step.written.values()], most)


def _parts(changes: Sequence[RowChange], most: int) -> Iterator[list[RowChange]]:
    part: list[RowChange] = []
    size = 0
    for change in changes:
        length = sum(len(text) for text in (*change.key, *change.values) if text)
        if part and (len(part) == most or size + length > MOST_CHARACTERS or part[0].shape is not change.shape):
            yield part
            part, size = [], 0
        part.append(change)
        size += length
    if part:
        yield part
