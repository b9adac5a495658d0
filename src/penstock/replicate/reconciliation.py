"""Which of two writes of a cell CQL keeps, and so why a write with the source's time does not change the target.

The later write wins. Of two writes at the same time, a deletion wins over a value, a value that expires over one that
does not, of two that expire the one that expires later, and else the greater bytes (CASSANDRA-14592). The elements of
collections and the fields of user types are cells of their own.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.database.bad_values import value_text
from penstock.database.cql_types import Column
from penstock.database.encode_cells import cells_of
from penstock.replicate.row_differences import Cell, Pair, expire_together
from penstock.replicate.table_scan import TableScan

LATER = "written later in the target"
GREATER = "written at the same time, and CQL keeps the greater value"
EXPIRES = "written at the same time, and CQL keeps the target's, which expires"
EXPIRES_LATER = "written at the same time, and CQL keeps the one that expires later"
DELETED = "deleted or expired in the target, at the same write time or later"
UNTOLD = "the database does not tell when it was written"
MEANWHILE = "written while it was repaired: compare again"
ROW = "row"
"""What is left of a row that one side lacks."""


class CellState(NamedTuple):
    """What CQL keeps or replaces as a whole: when it was written (microseconds), and when it expires (seconds)."""

    value: bytes
    time: int | None = None
    expires: int | None = None

    def reads_as(self, other: CellState | None) -> bool:
        """Whether reads show the same of both, now and later."""
        return other is not None and self.value == other.value and expire_together((self.expires,), (other.expires,))


def parts_of(column: Column, cell: Cell) -> dict[bytes, CellState]:
    """The elements of a collection by their keys, the fields of a user type by their numbers, any other value by b"".

    A collection whose elements' times are not known is one part.
    """
    if cell.value is None:
        return {}
    if not has_parts(column, cell):
        return {b"": CellState(cell.value, _at(cell.times, 0), _at(cell.expiries, 0))}
    return {
        key: CellState(value, _at(cell.times, number), _at(cell.expiries, number))
        for number, (key, value) in enumerate(_entries(column, cell.value))
        if value is not None
    }


def has_parts(column: Column, cell: Cell) -> bool:
    """Whether this value has parts with times of their own."""
    return column.type.multi_cell and not column.type.nonfrozen_list and bool(cell.times)


def _at(numbers: tuple[int | None, ...], number: int) -> int | None:
    return numbers[number] if number < len(numbers) else None


def _entries(column: Column, cell: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    kind = column.type.name
    cells = _cells(cell, 0 if kind == "udt" else 4)
    if kind == "udt":
        for number, value in enumerate(cells):
            yield b"%d" % number, value
    elif kind == "map":
        for key in cells:
            yield key or b"", next(cells) or b""
    else:
        for key in cells:
            yield key or b"", b""


def _cells(data: bytes, at: int) -> Iterator[bytes | None]:
    while at < len(data):
        (length,) = struct.unpack_from(">i", data, at)
        at += 4
        yield data[at : at + length] if length >= 0 else None
        at += max(length, 0)


def why_kept(source: CellState | None, target: CellState | None) -> str:
    """Why the target has this still, after the source's was written to it with its own time."""
    if target is None:
        return DELETED
    if target.time is None or (source is not None and source.time is None):
        return UNTOLD
    if source is None or source.time is None or target.time > source.time:
        return LATER
    if target.time < source.time:
        return MEANWHILE
    return _why_tied(source, target)


def _why_tied(source: CellState, target: CellState) -> str:
    if target.expires is None:
        return GREATER if source.expires is None and target.value > source.value else MEANWHILE
    if source.expires is None:
        return EXPIRES
    return EXPIRES_LATER


def left_of(scan: TableScan, pair: Pair) -> dict[str, str]:
    """Why a row differs after a repair: by the name of each column that differs, or `ROW` if one side lacks the row."""
    if pair.source is None or pair.target is None:
        return {ROW: DELETED if pair.target is None else LATER}
    columns = zip(scan.value_columns, pair.source, pair.target, strict=True)
    reasons = ((column.name, _of_column(column, source, target)) for column, source, target in columns)
    return {name: reason for name, reason in reasons if reason}


def _of_column(column: Column, source: Cell, target: Cell) -> str:
    ours, theirs = parts_of(column, source), parts_of(column, target)
    if ours and not theirs:
        return DELETED
    if not any(has_parts(column, cell) for cell in (source, target)):
        if source.value == target.value and ours == theirs:
            return ""
        # A list is repaired by the times that the target's elements have.
        listed = column.type.nonfrozen_list and target.value is not None
        return LATER if listed else _reason(ours.get(b""), theirs.get(b""))
    reasons = {key: _reason(ours.get(key), theirs.get(key)) for key in {**ours, **theirs}}
    return "; ".join(f"{_part_name(column, key)} {reason}" for key, reason in reasons.items() if reason)


def _reason(source: CellState | None, target: CellState | None) -> str:
    same = source is not None and source.reads_as(target) and target is not None and source.time == target.time
    return "" if same else why_kept(source, target)


def _part_name(column: Column, key: bytes) -> str:
    if column.type.name == "udt":
        return f"field {column.type.fields[int(key)]}"
    return f"element {value_text(column.type.args[0], cells_of([key]))}"


def reads_alike(scan: TableScan, pair: Pair) -> bool:
    """Whether reads show the same of both rows, now and later, but for their write times."""
    if pair.source is None or pair.target is None:
        return False
    columns = zip(scan.value_columns, pair.source, pair.target, strict=True)
    return all(_read_alike(parts_of(column, source), parts_of(column, target)) for column, source, target in columns)


def _read_alike(ours: dict[bytes, CellState], theirs: dict[bytes, CellState]) -> bool:
    return ours.keys() == theirs.keys() and all(part.reads_as(theirs[name]) for name, part in ours.items())
