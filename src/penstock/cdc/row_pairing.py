"""Compiled loops over the rows of a change log: which rows form one mutation, and which images belong to which change.

All rows of one stream with one `cdc$time` are the group of one mutation and are adjacent in a page: preimages
(operation 0), changes (1..8, -3, -4), postimages (9). A change's images are the rows of its group with the same
clustering key (byte for byte; both null for the static row). A range delete is a pair of rows, start (5, 6) and end
(7, 8). All inputs and outputs are row numbers; -1 means none.

The columns that separate groups are checked before they are read: a row whose fixed columns have wrong lengths, or
whose cells lie outside the page, is an error.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.cdc.sent_groups import UUID_EPOCH
from penstock.database.cells import inside
from penstock.errors import PenstockError
from penstock.native import Array
from penstock.native.jit import compiled

# A 64-bit hash of some cells of each row, to compare keys.


@compiled
def _row_hashes(buffer: Array, starts: Array, lengths: Array, columns: Array, out: Array) -> None:
    for row in range(min(len(starts), len(lengths), len(out))):
        # FNV-1a (Fowler, Noll, Vo) over each cell's length and bytes, then the finaliser of SplitMix64.
        h = np.uint64(0xCBF29CE484222325)
        for column in columns:
            length = lengths[row, column]
            h = (h ^ np.uint64(length + 1)) * np.uint64(0x100000001B3)
            for i in range(length if inside(len(buffer), starts[row, column], length) else 0):
                h = (h ^ np.uint64(buffer[starts[row, column] + i])) * np.uint64(0x100000001B3)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[row] = h ^ (h >> np.uint64(31))


def row_hashes(buffer: Array, starts: Array, lengths: Array, columns: list[int]) -> Array:
    """A hash of each row's cells in `columns`; null differs from an empty value."""
    out = np.empty(len(starts), np.uint64)
    _row_hashes(buffer, starts, lengths, np.array(columns, np.int64), out)
    return out


STREAM, TIME, SEQUENCE, OPERATION, TTL = range(5)
"""Numbers of the fixed columns in a page of log rows; the other columns follow."""

_WIDTHS = np.array([16, 16, 4, 1], np.int64)
"""Lengths of `STREAM`, `TIME`, `SEQUENCE` and `OPERATION` in bytes; a ttl may be null."""


class ChangeRows(NamedTuple):
    """One entry per change: its row, the row of a range's end, the rows of its images, its write time in microseconds,
    and whether it is the last of its group."""

    change: Array
    range_end: Array
    preimage: Array
    postimage: Array
    micros: Array
    last: Array


@compiled
def _same(buffer: Array, starts: Array, lengths: Array, a: int, b: int, column: int) -> bool:
    if lengths[a, column] != lengths[b, column]:
        return False
    same = True
    for i in range(lengths[a, column]):
        same &= buffer[starts[a, column] + i] == buffer[starts[b, column] + i]
    return same


@compiled
def _same_row(buffer: Array, starts: Array, lengths: Array, a: int, b: int, key: Array) -> bool:
    same = True
    for column in key:
        same = same and _same(buffer, starts, lengths, a, b, column)
    return same


@compiled
def _misfit(buffer: Array, starts: Array, lengths: Array, key: Array, widths: Array) -> int:
    """The first row whose fixed columns have wrong lengths, or whose key lies outside the page; -1 if none."""
    for row in range(len(starts)):
        for column in range(len(widths)):
            if lengths[row, column] != widths[column] or not inside(len(buffer), starts[row, column], widths[column]):
                return row
        for column in key:
            if not inside(len(buffer), starts[row, column], lengths[row, column]):
                return row
    return -1


@compiled
def _operation(buffer: Array, starts: Array, row: int) -> np.int8:
    return np.int8(buffer[starts[row, OPERATION]])


@compiled
def _image(
    buffer: Array, starts: Array, lengths: Array, key: Array, row: int, kind: int, first: int, end: int, hint: int
) -> int:
    # Images and changes of a group are both in clustering order, so the search continues where the last one ended.
    for step in range(end - first):
        candidate = hint + step
        if candidate >= end:
            candidate -= end - first
        if _operation(buffer, starts, candidate) == kind and _same_row(buffer, starts, lengths, row, candidate, key):
            return candidate
    return -1


@compiled
def _micros(buffer: Array, starts: Array, row: int) -> np.int64:
    at = starts[row, TIME]
    ticks = np.int64(buffer[at + 6] & 0x0F)
    for i in (7, 4, 5, 0, 1, 2, 3):
        ticks = (ticks << 8) | np.int64(buffer[at + i])
    return (ticks - UUID_EPOCH) // 10


@compiled
def _group_end(buffer: Array, starts: Array, lengths: Array, first: int) -> int:
    row = first + 1
    while (
        row < len(starts)
        and _same(buffer, starts, lengths, first, row, TIME)
        and _same(buffer, starts, lengths, first, row, STREAM)
    ):
        row += 1
    return row


@compiled
def _pair(
    buffer: Array, starts: Array, lengths: Array, key: Array, final: bool, pre: bool, post: bool, out: Array
) -> tuple[int, int]:
    rows, first, n = len(starts), 0, 0
    while first < rows:
        end = _group_end(buffer, starts, lengths, first)
        if end == rows and not final:
            break
        begin, micros = n, _micros(buffer, starts, first)
        before, after = first, first
        row = first
        while row < end:
            operation = _operation(buffer, starts, row)
            if operation != 0 and operation != 9:
                out[:, n] = -1
                out[0, n], out[4, n], out[5, n] = row, micros, 0
                if operation == 5 or operation == 6:
                    if row + 1 < end and 7 <= _operation(buffer, starts, row + 1) <= 8:
                        row += 1
                        out[1, n] = row
                elif operation < 5:
                    if pre:
                        out[2, n] = _image(buffer, starts, lengths, key, out[0, n], 0, first, end, before)
                        before = max(before, out[2, n])
                    if post:
                        out[3, n] = _image(buffer, starts, lengths, key, out[0, n], 9, first, end, after)
                        after = max(after, out[3, n])
                n += 1
            row += 1
        if n > begin:
            out[5, n - 1] = 1
        first = end
    return n, first


def pair(
    buffer: Array, starts: Array, lengths: Array, key: Array, *, final: bool, preimages: bool, postimages: bool
) -> tuple[ChangeRows, int]:
    """The changes of the page's complete groups, and the first row that is left over.

    Unless the page is `final`, its last group is left over, because it may continue on the next page. Raises
    PenstockError if a row's stream, time, number or operation does not have the length that the log uses.
    """
    bad = _misfit(buffer, starts, lengths, key, _WIDTHS)
    if bad >= 0:
        raise PenstockError(
            f"row {bad} of a page is not a row of a change log: its stream, time, number and operation have "
            f"{', '.join(map(str, lengths[bad, : len(_WIDTHS)]))} bytes, not {', '.join(map(str, _WIDTHS))}",
            next="look at the row with penstock cql: the database's change log did not write it",
        )
    out = np.empty((6, len(starts)), np.int64)
    count, rest = _pair(buffer, starts, lengths, key, final, preimages, postimages, out)
    return ChangeRows(*(out[i, :count] for i in range(6))), rest
