"""Turns rows that were read from a table, with the times of their writes, into statements that write them so again.

A statement has one time and one time to live, so each row takes one statement for each that its values have. What was
written with the row's marker (`inserted`) becomes the INSERT, the others UPDATEs: a row that was only updated must be
gone with its last value. Where the database does not show markers, the oldest write of a row counts as its INSERT, and
a row without any value was inserted at an unknown time: that of the change (`ts`), which is before all changes that
follow. Where the database does not show the times of a collection's elements, these have the same time, less a
microsecond.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.database.cql_types import Column, CqlTable, CqlType
from penstock.database.encode_cells import as_bytes, encode, list_bytes
from penstock.database.requests import Statement, Value as Bound
from penstock.replicate.change_statements import field, has_field, key_cells
from penstock.replicate.table_statements import (
    Cells,
    TableStatements,
    added,
    removed,
    time_to_live,
    to,
    to_field,
)


class WriteTime(NamedTuple):
    """When a value was written, in microseconds, and when it expires, in seconds since 1970; None for never."""

    time: int
    expires: int | None

    def is_over(self, now: int) -> bool:
        return self.expires is not None and self.expires <= now

    def is_with(self, other: WriteTime) -> bool:
        """Whether one statement can have written both: what is left of a time to live is known to a second."""
        if self.expires is None or other.expires is None:
            return self == other
        return self.time == other.time and abs(self.expires - other.expires) <= 1


@dataclass(frozen=True)
class Value:
    """A value to assign; `gone` is the assignment that deletes it, if it has expired in the meantime.

    `column` is the name of a column that INSERT can set. Elements of a collection that were written together are
    joined: `entry` is one of them, its key and perhaps its value.
    """

    text: str
    cell: bytes | None
    gone: str
    column: str | None = None
    entry: tuple[bytes, ...] = ()


def row_statements(texts: TableStatements, batch: pa.RecordBatch, now: int, *, markers: bool) -> list[list[Statement]]:
    """The statements of each row of a batch with the columns of `cdc.read`; `now` is in seconds since 1970.

    Without `markers`, none of them is an INSERT.
    """
    rows, writer = _Rows(texts.table, batch), _RowWriter(texts, markers)
    return [list(writer.row(rows, row, now)) for row in range(batch.num_rows)]


class _RowWriter:
    """Makes the statements of rows."""

    def __init__(self, texts: TableStatements, markers: bool) -> None:
        self.texts, self.table, self.markers = texts, texts.table, markers

    def row(self, rows: _Rows, row: int, now: int) -> Iterator[Statement]:
        """The statements of one row."""
        key = rows.key(row)
        static = bool(self.table.clustering_key) and key[len(self.table.partition_key)] is None
        written: dict[WriteTime, list[Value]] = defaultdict(list)
        for column in rows.columns:
            for at, value in rows.values(column, row):
                written[at].append(value)
        inserted = rows.inserted(row, written) if self.markers and not static else None
        first = next((at for at in written if inserted and at.is_with(inserted)), None)
        if inserted and first is None and not inserted.is_over(now):
            yield self.texts.insert([]), [*key, *_bound(inserted, now)]
        for at, values in written.items():
            if at.is_over(now):
                yield from self._deleted(at, values, key, static)
            else:
                yield from self._put(at, values, key, now, insert=at == first, static=static)

    def _put(
        self, at: WriteTime, values: list[Value], key: Cells, now: int, *, insert: bool, static: bool
    ) -> Iterator[Statement]:
        bound, joined = _bound(at, now), list(_joined(values))
        if insert:
            whole = [value for value in joined if value.column]
            joined = [value for value in joined if not value.column]
            text = self.texts.insert([value.column for value in whole if value.column])
            yield text, [*key, *(value.cell for value in whole), *bound]
        if joined:
            yield self._update(joined, [value.text for value in joined], bound, key, static)

    def _deleted(self, at: WriteTime, values: list[Value], key: Cells, static: bool) -> Iterator[Statement]:
        gone = [
            Value(value.gone, list_bytes([value.entry[0]]) if value.entry else None, value.gone) for value in values
        ]
        bound = _bound(WriteTime(at.time, None), 0)
        for value in gone:
            yield self._update([value], [value.text], bound, key, static)

    def _update(
        self, values: list[Value], assignments: list[str], bound: list[Bound], key: Cells, static: bool
    ) -> Statement:
        own = key[: len(self.table.partition_key)] if static else key
        return self.texts.update(assignments, static=static), [*bound, *(value.cell for value in values), *own]


def _bound(at: WriteTime, now: int) -> list[Bound]:
    """The time and the time to live that a statement binds."""
    return [at.time.to_bytes(8, "big", signed=True), time_to_live(at.expires, now)]


def _joined(values: list[Value]) -> Iterator[Value]:
    """The values, with the elements of each collection as one."""
    entries: dict[str, list[tuple[bytes, ...]]] = defaultdict(list)
    for value in values:
        if value.entry:
            entries[value.text].append(value.entry)
        else:
            yield value
    for text, some in entries.items():
        cells = [cell for entry in some for cell in entry]
        yield Value(text, len(some).to_bytes(4, "big") + list_bytes(cells)[4:], text)


class _Rows:
    """One batch of rows."""

    def __init__(self, table: CqlTable, batch: pa.RecordBatch) -> None:
        self.columns = [column for column in table.values if has_field(batch, "after", column.name)]
        self.times: list[int] = batch.column("ts").cast(pa.int64()).to_pylist()
        self.keys = key_cells((*table.partition_key, *table.clustering_key), batch)
        self.markers = (
            batch.column("inserted").to_pylist() if "inserted" in batch.schema.names else [None] * batch.num_rows
        )
        images = {column.name: field(batch.column("after"), column.name) for column in self.columns}
        self.written = {name: field(batch.column("write_times"), name).to_pylist() for name in images}
        self.expiries = {name: field(batch.column("expiries"), name).to_pylist() for name in images}
        self.cells = {
            column.name: as_bytes(encode(column.type, images[column.name]))
            for column in self.columns
            if not column.type.multi_cell
        }
        self.elements = {
            column.name: _elements(column.type, images[column.name])
            for column in self.columns
            if column.type.multi_cell
        }

    def key(self, row: int) -> Cells:
        return [cells[row] for cells in self.keys]

    def inserted(self, row: int, written: Iterable[WriteTime]) -> WriteTime | None:
        """The row's marker; None if only UPDATEs made the row, which has these writes."""
        marker = self.markers[row]
        if marker is None:
            return min(written, key=lambda at: at.time, default=WriteTime(self.times[row], None))
        return None if marker["time"] is None else WriteTime(marker["time"], marker["expires"])

    def values(self, column: Column, row: int) -> Iterator[tuple[WriteTime, Value]]:
        """The values of a column, each with its time."""
        name, times, expiries = column.name, self.written[column.name][row], self.expiries[column.name][row]
        if not column.type.multi_cell:
            if self.cells[name][row] is not None:
                yield WriteTime(times, expiries), Value(to(name), self.cells[name][row], to(name), name)
            return
        for number, entry in self.elements[name][row]:
            at = WriteTime(self.times[row] - 1, None) if times is None else WriteTime(times[number], expiries[number])
            if column.type.name == "udt":
                text = to_field(name, column.type.fields[number])
                yield at, Value(text, entry[0], text)
            else:
                yield at, Value(added(name), None, removed(name), entry=entry)


def _elements(kind: CqlType, values: pa.Array) -> list[list[tuple[int, tuple[bytes, ...]]]]:
    """The elements of each row's collection with their numbers, or the fields that are not null."""
    if kind.name == "list":
        return [[] for _ in range(len(values))]
    if kind.name == "udt":
        parts = [as_bytes(encode(arg, part)) for arg, part in zip(kind.args, values.flatten(), strict=True)]
        return [
            [(number, (cells[row],)) for number, cells in enumerate(parts) if cells[row] is not None]  # type: ignore[misc]
            for row in range(len(values))
        ]
    inner: list[Any] = [values.keys, values.items] if kind.name == "map" else [values.values]
    parts = [as_bytes(encode(arg, part)) for arg, part in zip(kind.args, inner, strict=True)]
    entries: list[Any] = list(zip(*parts, strict=True))
    bounds, valid = values.offsets.to_pylist(), values.is_valid().to_pylist()
    return [list(enumerate(entries[bounds[row] : bounds[row + 1]])) if valid[row] else [] for row in range(len(values))]
