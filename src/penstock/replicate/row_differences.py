"""Compares the rows of two tables one by one: which differ, in which columns, and whether a difference will pass.

While changes are on their way from one table to the other, rows differ for a while. A difference is proven by two
comparisons, if all changes from before the first one have arrived before the second one: what is the same on both sides
in both comparisons will stay so; and a write that one side had first must be on the other side by then, or a newer
one. What is neither proven nor gone is compared again. The target is read before the source, so that it cannot have
what the source does not know yet. The same holds where changes go both ways.

Deletions and the markers of rows have no times that a database shows. So a row without values that was deleted and
inserted again between two comparisons looks as if it had stayed; and where changes go both ways, so does a value that
one side got and deleted again.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from penstock.database.bad_values import key_text, value_text
from penstock.database.encode_cells import cells_of
from penstock.native import Array
from penstock.replicate.row_digests import CELL, KEY
from penstock.replicate.table_scan import Scanned, TableScan

SLACK = 2
"""Seconds by which times of expiry may differ: both databases and the replication round them."""


class Cell(NamedTuple):
    """A column of a row: its bytes, when it or its elements were written (microseconds), and when they expire
    (seconds since 1970); the times are left out if the database does not show them."""

    value: bytes | None
    times: tuple[int | None, ...] = ()
    expiries: tuple[int | None, ...] = ()
    has_elements: bool = False

    @property
    def newest(self) -> int | None:
        return max((time for time in self.times if time is not None), default=None)

    @property
    def written(self) -> int | None:
        """When the value was written; None if its elements were written one by one, or that is not known."""
        return self.times[0] if self.times and not self.has_elements else None


Row: TypeAlias = tuple[Cell, ...] | None
"""The columns outside the key, in the order of the scan; None if there is no such row."""


Key: TypeAlias = tuple[bytes | None, ...]
"""The cells of a primary key; without a clustering key for a partition that has only static columns."""


class Pair(NamedTuple):
    """A row as the source and as the target has it.

    `sibling` is another row of its partition, of the side that lacks this one: static columns belong to all of them.
    """

    source: Row
    target: Row
    sibling: Row = None


def differing(source: TableScan, target: TableScan, after: int, until: int) -> Iterator[tuple[Key, Pair]]:
    """The rows of the tokens (after, until] that differ, by their keys; not those that expire about now."""
    theirs = _rows(target, after, until)
    ours = _rows(source, after, until)
    soon = int(time.time()) + SLACK
    count = len(source.table.partition_key)
    siblings = [{key[:count]: row for key, row in rows.items()} for rows in (ours, theirs)]
    for key in {**ours, **theirs}:
        pair = Pair(ours.get(key), theirs.get(key))
        if not _same(pair, source.level, soon) and not _whole_ends(key, pair, source, soon):
            lacks = 0 if pair.source is None else 1
            missing = pair.source is None or pair.target is None
            yield key, pair._replace(sibling=siblings[lacks].get(key[:count])) if missing else pair


def _rows(scan: TableScan, after: int, until: int) -> dict[Key, tuple[Cell, ...]]:
    reader = _Reader(scan.columns)
    rows: dict[Key, tuple[Cell, ...]] = {}
    for page in scan.pages(after, until):
        buffer, starts, lengths = scan.cells(page)
        data = buffer.tobytes()
        rows |= (reader.row(data, starts[row], lengths[row], page.asked) for row in range(page.rows))
    return rows


class _Reader:
    """Reads the rows of a page."""

    def __init__(self, columns: Sequence[Scanned]) -> None:
        self.keys = [place for place, column in enumerate(columns) if column.kind == KEY]
        self.values = [
            (place, column) for place, column in enumerate(columns) if column.kind == CELL and column.is_value
        ]

    def row(self, data: bytes, starts: Array, lengths: Array, now: int) -> tuple[Key, tuple[Cell, ...]]:
        cells = [
            data[start : start + length] if length >= 0 else None
            for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)
        ]
        key = tuple(cells[place] for place in self.keys)
        return key, tuple(self._cell(cells, place, column, now) for place, column in self.values)

    def _cell(self, cells: list[bytes | None], place: int, column: Scanned, now: int) -> Cell:
        if not column.timed or cells[place] is None:
            return Cell(cells[place])
        expiries = [None if ttl is None else now + ttl for ttl in _numbers(cells[place + 2], 4)]
        return Cell(cells[place], tuple(_numbers(cells[place + 1], 8)), tuple(expiries), column.has_elements)


def _numbers(cell: bytes | None, width: int) -> list[int | None]:
    """The number of a cell, or those of a list."""
    if cell is None:
        return [None]
    if len(cell) == width:
        return [int.from_bytes(cell, "big", signed=True)]
    numbers: list[int | None] = []
    at = 4
    while at < len(cell):
        (length,) = struct.unpack_from(">i", cell, at)
        at += 4
        numbers.append(int.from_bytes(cell[at : at + length], "big", signed=True) if length == width else None)
        at += max(length, 0)
    return numbers


def _same(pair: Pair, level: int, soon: int) -> bool:
    if pair.source is None or pair.target is None:
        return pair.source is pair.target
    cells = zip(pair.source, pair.target, strict=True)
    return all(_alike(source, target, level) or _ends(source, soon) or _ends(target, soon) for source, target in cells)


def _whole_ends(key: Key, pair: Pair, scan: TableScan, soon: int) -> bool:
    """Whether a row that one side lacks expires by then: all its values, but not those of its partition."""
    if pair.source is not None and pair.target is not None:
        return False
    is_row = len(key) > len(scan.table.partition_key) and key[-1] is not None
    values = [
        cell
        for column, cell in zip(scan.value_columns, pair.source or pair.target or (), strict=True)
        if cell.value is not None and not (is_row and column.kind == "static")
    ]
    return bool(values) and all(_ends(cell, soon) for cell in values)


def _ends(cell: Cell, soon: int) -> bool:
    """Whether the value, or some of its elements, expire by then."""
    return any(expiry is not None and expiry <= soon for expiry in cell.expiries)


def _alike(cell: Cell, other: Cell, level: int) -> bool:
    return cell.value == other.value if level < 2 else _unchanged(cell, other)


def _unchanged(cell: Cell, other: Cell) -> bool:
    """Whether both are the same write, as far as the database shows."""
    return cell.value == other.value and cell.times == other.times and expire_together(cell.expiries, other.expiries)


def expire_together(ours: Sequence[int | None], theirs: Sequence[int | None]) -> bool:
    """Whether values expire at the same seconds, within `SLACK`."""
    if len(ours) != len(theirs):
        return all(expiry is None for expiry in (*ours, *theirs))
    return all(
        a == b or (a is not None and b is not None and abs(a - b) <= SLACK) for a, b in zip(ours, theirs, strict=True)
    )


def proven(first: Pair, second: Pair, level: int) -> bool:
    """Whether two comparisons of a row show that it differs for good; it differed in both."""
    if first.source is None or first.target is None or second.source is None or second.target is None:
        return _stays(first.source, second.source) and _stays(first.target, second.target)
    columns = zip(first.source, first.target, second.source, second.target, strict=True)
    return any(
        _proven(source, target, source_then, target_then, level) for source, target, source_then, target_then in columns
    )


def _stays(first: Row, second: Row) -> bool:
    """Whether a row is the same in both comparisons, or missing in both."""
    if first is None or second is None:
        return first is second
    return all(_unchanged(first_cell, second_cell) for first_cell, second_cell in zip(first, second, strict=True))


def _proven(source: Cell, target: Cell, source_then: Cell, target_then: Cell, level: int) -> bool:
    """The same for one column, as both had it first and then."""
    if _alike(source, target, level) or _alike(source_then, target_then, level):
        return False
    stays = _unchanged(target, target_then)
    if stays and _unchanged(source, source_then):
        return True
    # The source had a write first that the target still does not know.
    if _is_older(target_then, source):
        return True
    return stays and _is_older(source_then, target)


def _is_older(cell: Cell, other: Cell) -> bool:
    return cell.written is not None and other.written is not None and cell.written < other.written


@dataclass(frozen=True)
class Difference:
    """A row that differs: its key as JSON, and what the source and the target have.

    `columns` maps "v", "writetime(v)" or "ttl(v)" to both values as text; it is empty if one side has no such row.
    `missing` is "source" or "target" then. After a repair, `left` says by the name of each column, or as "row" of the
    whole row, why the repair did not change it.
    """

    key: str
    missing: str
    columns: dict[str, tuple[str, str]]
    left: dict[str, str] = field(default_factory=dict)


def described(scan: TableScan, key: Key, pair: Pair, now: int) -> Difference:
    """The difference for people; `now` is in seconds since 1970."""
    text = _key_text(scan, key)
    if pair.source is None or pair.target is None:
        return Difference(text, "source" if pair.source is None else "target", {})
    texts_by_column: dict[str, tuple[str, str]] = {}
    for column, source, target in zip(scan.value_columns, pair.source, pair.target, strict=True):
        name, both = column.name, source.value is not None and target.value is not None
        if source.value != target.value:
            texts_by_column[name] = (
                value_text(column.type, cells_of([source.value])),
                value_text(column.type, cells_of([target.value])),
            )
        if both and scan.level > 1 and source.times != target.times:
            texts_by_column[f"writetime({name})"] = _listed(source.times), _listed(target.times)
        if both and scan.level > 1 and not expire_together(source.expiries, target.expiries):
            texts_by_column[f"ttl({name})"] = _listed(_left(source, now)), _listed(_left(target, now))
    return Difference(text, "", texts_by_column)


def _key_text(scan: TableScan, key: Key) -> str:
    columns = (*scan.table.partition_key, *scan.table.clustering_key)
    cells = {column.name: cells_of([cell]) for column, cell in zip(columns, key, strict=True)}
    return key_text({column.name: column.type for column in columns}, cells, 0)


def _left(cell: Cell, now: int) -> tuple[int | None, ...]:
    return tuple(None if expiry is None else max(expiry - now, 0) for expiry in cell.expiries)


def _listed(numbers: Sequence[int | None]) -> str:
    return json.dumps(numbers[0] if len(numbers) == 1 else numbers)
