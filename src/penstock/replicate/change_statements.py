"""Turns changes of a change frame into statements that leave a target table as the changes left their table.

Whole columns are encoded; then the rows that assign the same columns share a statement's text. Assignments:

| column | the change | the assignment |
|---|---|---|
| one cell | a value, a deletion | `c = ?` |
| map, set | all elements, or none | `c = ?`: the database writes its tombstone a microsecond before the elements |
| map, set | elements put or removed | `c = c + ?`, `c = c - ?` |
| user type | a whole value, or none; some fields | `u = ?`; `u.f = ?` |
| list | all of its elements, as its table has them | `l = ?` (see `lists`) |

A column that the change does not name is in no statement. What had expired when the change arrives is deleted at the
change's time: an older value must not show in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from penstock.cdc.change_decoder import SECOND
from penstock.cdc.whole_lists import listed
from penstock.database.cql_types import Column, CqlTable, CqlType, deleted_elements_type, log_value_type
from penstock.database.encode_cells import as_bytes, encode
from penstock.database.requests import Statement, Value
from penstock.database.token_ring import partition_key
from penstock.native import Array
from penstock.replicate.table_statements import (
    Cells,
    TableStatements,
    added,
    removed,
    slices,
    time_to_live,
    to,
    to_field,
)

_BIGINT = CqlType("bigint")
UPDATE, INSERT, ROW_DELETE, PARTITION_DELETE, RANGE_DELETE = 1, 2, 3, 4, 5
"""The log's operations; it has the negative of a deletion's that the end of a time to live made."""


@dataclass(frozen=True)
class Assignment:
    """An assignment in the rows of `mask`.

    `column` is the name of a column that INSERT can set to the same value. `apart` says that an UPDATE of its own has
    it, because one statement cannot set a whole column and remove elements of it.
    """

    text: str
    mask: Array
    cells: Cells
    column: str | None = None
    apart: bool = False


def change_statements(texts: TableStatements, batch: pa.RecordBatch, now: int) -> list[list[Statement]]:
    """The statements of each change of a batch with the columns of `cdc.read`; `now` is in seconds since 1970."""
    return _Changes(texts, batch, now).statements()


def key_cells(columns: Sequence[Column], batch: pa.RecordBatch) -> list[Cells]:
    """These columns of the key, as the cells of each change."""
    return [as_bytes(encode(column.type, field(batch.column("key"), column.name))) for column in columns]


def partitions(table: CqlTable, batch: pa.RecordBatch) -> list[bytes]:
    """The partition of each change, as the bytes that its token is computed from."""
    return [partition_key(key) for key in zip(*key_cells(table.partition_key, batch), strict=True)]


def field(structs: pa.StructArray, name: str) -> pa.Array:
    """A field of structs; null where the struct is null."""
    return structs.flatten()[structs.type.get_field_index(name)]


def has_field(batch: pa.RecordBatch, column: str, name: str) -> bool:
    return column in batch.schema.names and batch.schema.field(column).type.get_field_index(name) >= 0


class _Changes:
    """One batch of changes."""

    def __init__(self, texts: TableStatements, batch: pa.RecordBatch, now: int) -> None:
        self.texts, self.table, self.batch = texts, texts.table, batch
        self.rows = batch.num_rows
        self.keys = key_cells((*self.table.partition_key, *self.table.clustering_key), batch)
        self.times = as_bytes(encode(_BIGINT, batch.column("ts").cast(pa.int64())))
        self.operations = np.abs(batch.column("operation").fill_null(0).to_numpy(zero_copy_only=False))
        expires = batch.column("expires").cast(pa.int64())
        seconds: Array = expires.fill_null(0).to_numpy(zero_copy_only=False) // SECOND
        never = np.asarray(expires.is_null())
        self.expired = ~never & (seconds <= now)
        ends = zip(seconds.tolist(), (never | self.expired).tolist(), strict=True)
        self.ttls = [time_to_live(None if ever else end, now) for end, ever in ends]

    def statements(self) -> list[list[Statement]]:
        by_row: list[list[Statement]] = [[] for _ in range(self.rows)]
        for row, statement in (*self._deletions(), *self._writes()):
            by_row[row].append(statement)
        return by_row

    # Deletions.

    def _deletions(self) -> Iterator[tuple[int, Statement]]:
        count = len(self.texts.partition)
        delete_row, delete_partition = (
            self.texts.delete([where]) for where in (self.texts.of_row, self.texts.of_partition)
        )
        for row in np.flatnonzero(self.operations >= ROW_DELETE).tolist():
            key = [cells[row] for cells in self.keys]
            if self.operations[row] == ROW_DELETE:
                yield row, (delete_row, [self.times[row], *key])
            elif self.operations[row] == PARTITION_DELETE:
                yield row, (delete_partition, [self.times[row], *key[:count]])
            else:
                yield from ((row, statement) for statement in self._range(row, key[:count]))

    def _range(self, row: int, partition: Cells) -> Iterator[Statement]:
        (start, with_start), (end, with_end) = (self._bound(side, row) for side in ("start", "end"))
        orders = self._ranges.get("order")
        descending = [text.endswith(" DESC") for text in orders[row].as_py()] if orders is not None else [False]
        for conditions, values in slices(self.texts.clustering, start, with_start, end, with_end, descending):
            yield self.texts.delete([self.texts.of_partition, *conditions]), [self.times[row], *partition, *values]

    def _bound(self, side: str, row: int) -> tuple[list[bytes], bool]:
        """The values of a bound, of the first clustering columns, and whether it is in the range."""
        values = [cells[row] for cells in self._bounds[side]]
        present = [cell for cell in values if cell is not None]
        return present, not present or bool(self._ranges[f"{side}_inclusive"][row].as_py())

    @cached_property
    def _ranges(self) -> dict[str, pa.Array]:
        """The fields of the deleted ranges."""
        deleted = self.batch.column("range")
        return {name: field(deleted, name) for name in deleted.type.names}

    @cached_property
    def _bounds(self) -> dict[str, list[Cells]]:
        """The values of both bounds, by clustering column."""
        return {
            side: [
                as_bytes(encode(column.type, field(self._ranges[side], column.name)))
                for column in self.table.clustering_key
            ]
            for side in ("start", "end")
        }

    # Writes.

    def _writes(self) -> Iterator[tuple[int, Statement]]:
        writes = (self.operations == UPDATE) | (self.operations == INSERT)
        static = writes & self._without_row()
        # A marker that has expired cannot be written: only its columns are.
        insert = writes & (self.operations == INSERT) & ~static & ~self.expired
        assignments = [assignment for column in self.table.values for assignment in self._assignments(column)]
        yield from self._inserts(insert, [assignment for assignment in assignments if assignment.column])
        inside = [assignment for assignment in assignments if not assignment.apart]
        yield from self._updates(writes & ~insert & ~static, inside, static=False)
        yield from self._updates(static, inside, static=True)
        yield from self._updates(insert, [assignment for assignment in inside if not assignment.column], static=False)
        for assignment in assignments:
            if assignment.apart:
                yield from self._updates(writes & ~static, [assignment], static=False)
                yield from self._updates(static, [assignment], static=True)

    def _without_row(self) -> Array:
        """The changes of a partition's static columns."""
        if not self.table.clustering_key:
            return np.zeros(self.rows, np.bool_)
        return np.array([cell is None for cell in self.keys[len(self.texts.partition)]], np.bool_)

    def _inserts(self, rows: Array, assignments: list[Assignment]) -> Iterator[tuple[int, Statement]]:
        for some, chosen in _alike(rows, assignments):
            text = self.texts.insert([assignment.column for assignment in chosen if assignment.column])
            columns: list[Sequence[Value]] = [
                *self.keys,
                *(assignment.cells for assignment in chosen),
                self.times,
                self.ttls,
            ]
            yield from ((row, (text, [cells[row] for cells in columns])) for row in some)

    def _updates(self, rows: Array, assignments: list[Assignment], *, static: bool) -> Iterator[tuple[int, Statement]]:
        keys = self.keys[: len(self.texts.partition)] if static else self.keys
        for some, chosen in _alike(rows, assignments):
            if chosen:
                text = self.texts.update([assignment.text for assignment in chosen], static=static)
                columns: list[Sequence[Value]] = [
                    self.times,
                    self.ttls,
                    *(assignment.cells for assignment in chosen),
                    *keys,
                ]
                yield from ((row, (text, [cells[row] for cells in columns])) for row in some)

    def _assignments(self, column: Column) -> list[Assignment]:
        if not has_field(self.batch, "delta", column.name):
            return []
        values = field(self.batch.column("delta"), column.name)
        deleted = self._names("deleted", column.name)
        if not column.type.multi_cell:
            cells = self._live(as_bytes(encode(column.type, values)))
            return [Assignment(to(column.name), self._present(values) | deleted, cells, column.name)]
        if column.type.name == "list":
            return []
        removals = field(self.batch.column("deleted_elements"), column.name)
        if column.type.name == "udt":
            return self._of_fields(column, values, deleted, removals)
        return self._of_elements(column, values, deleted, removals)

    def _of_elements(self, column: Column, values: pa.Array, deleted: Array, removals: pa.Array) -> list[Assignment]:
        put, keys = self._present(values), deleted_elements_type(column.type)
        cells = as_bytes(encode(log_value_type(column.type), values))
        gone, gone_keys = self._present(removals), as_bytes(encode(keys, removals))
        assignments = [
            Assignment(to(column.name), deleted, self._live(cells), column.name),
            Assignment(added(column.name), put & ~deleted & ~self.expired, cells),
            Assignment(removed(column.name), gone & ~deleted, gone_keys),
            Assignment(removed(column.name), gone & deleted, gone_keys, apart=True),
        ]
        expired = put & self.expired
        if expired.any():
            elements = pa.ListArray.from_arrays(values.offsets, values.keys) if pa.types.is_map(values.type) else values
            assignments.append(Assignment(removed(column.name), expired, as_bytes(encode(keys, elements)), apart=True))
        return assignments

    def _of_fields(self, column: Column, values: pa.Array, deleted: Array, removals: pa.Array) -> list[Assignment]:
        assignments = [
            Assignment(to(column.name), deleted, self._live(as_bytes(encode(column.type, values))), column.name)
        ]
        parts = values.flatten()
        for number, (name, kind) in enumerate(zip(column.type.fields, column.type.args, strict=True)):
            put, gone = self._present(parts[number]), listed(removals, number)
            cells = self._live(as_bytes(encode(kind, parts[number])))
            assignment = Assignment(to_field(column.name, name), (put | gone) & ~deleted, cells)
            # Beside the whole value, a field has a tombstone of its own.
            assignments += [assignment, replace(assignment, mask=(gone | put & self.expired) & deleted, apart=True)]
        return assignments

    def _live(self, cells: Cells) -> Cells:
        """The cells, with null for those that have expired."""
        if not self.expired.any():
            return cells
        return [None if gone else cell for cell, gone in zip(cells, self.expired.tolist(), strict=True)]

    def _present(self, values: pa.Array) -> Array:
        present: Array = values.is_valid().to_numpy(zero_copy_only=False)
        return present

    def _names(self, column: str, name: str) -> Array:
        """The changes whose list of names in `column` has this one."""
        return listed(self.batch.column(column), name)


def _alike(rows: Array, assignments: list[Assignment]) -> Iterator[tuple[list[int], list[Assignment]]]:
    """Group the rows that have the same of these assignments."""
    places = np.flatnonzero(rows)
    if not len(places):
        return
    marks = np.column_stack(
        [np.empty((len(places), 0), np.bool_), *(assignment.mask[places] for assignment in assignments)]
    )
    kinds, kind_of = np.unique(marks, axis=0, return_inverse=True)
    for number, kind in enumerate(kinds):
        chosen = [assignment for assignment, there in zip(assignments, kind, strict=True) if there]
        yield places[kind_of.ravel() == number].tolist(), chosen
