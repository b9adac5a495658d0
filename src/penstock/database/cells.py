"""Compiled loops over the cells of a CQL result: from protocol bytes to the flat arrays that Arrow is made of.

A result page is rows of cells, each a 4-byte big-endian length and that many bytes; a negative length is null
(native protocol specification v4, section 6). `index_cells` walks a page once and notes where each cell stands.
All else works on cells given as two arrays, `starts` and `lengths` (-1 = null) into one buffer: the cells of a
column, the elements of all lists in a column, the fields of all tuples. Nothing here knows a CQL type by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numba import njit

Array: TypeAlias = np.ndarray[Any, Any]

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function in machine code: compiled at its first call, kept on disk for the processes that come after."""
    return cast(F, njit(cache=True, nogil=True)(function))


HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
UUID_TEXT_WIDTH = 36


@compiled
def _int32(buffer: Array, at: int) -> np.int32:
    return np.int32(
        (np.uint32(buffer[at]) << np.uint32(24))
        | (np.uint32(buffer[at + 1]) << np.uint32(16))
        | (np.uint32(buffer[at + 2]) << np.uint32(8))
        | np.uint32(buffer[at + 3])
    )


@compiled
def index_cells(buffer: Array, rows: int, columns: int, starts: Array, lengths: Array) -> int:
    """Fill `starts` and `lengths` (rows x columns); returns where the rows end, or -1 if the bytes end too early."""
    at, size = 0, len(buffer)
    for row in range(rows):
        for column in range(columns):
            if at + 4 > size:
                return -1
            lengths[row, column] = max(_int32(buffer, at), -1)
            starts[row, column] = at + 4
            at += 4 + max(lengths[row, column], 0)
            if at > size:
                return -1
    return at


@compiled
def integers(buffer: Array, starts: Array, lengths: Array, width: int, out: Array, valid: Array) -> int:
    """Read signed big-endian integers; an empty cell is null. Returns the row of a cell of another width, or -1."""
    for i in range(len(starts)):
        if lengths[i] <= 0:
            out[i] = 0
            valid[i] = False
            continue
        if lengths[i] != width:
            return i
        valid[i] = True
        value = np.uint64(0)
        for j in range(width):
            value = (value << np.uint64(8)) | np.uint64(buffer[starts[i] + j])
        out[i] = np.int64(value << np.uint64(64 - 8 * width)) >> np.int64(64 - 8 * width)
    return -1


@compiled
def bytes_offsets(lengths: Array, offsets: Array, valid: Array) -> None:
    """Offsets of variable-width values laid end to end."""
    offsets[0] = 0
    for i in range(len(lengths)):
        valid[i] = lengths[i] >= 0
        offsets[i + 1] = offsets[i] + max(lengths[i], 0)


@compiled
def gather_bytes(buffer: Array, starts: Array, lengths: Array, out: Array) -> None:
    at = 0
    for i in range(len(starts)):
        for j in range(max(lengths[i], 0)):
            out[at + j] = buffer[starts[i] + j]
        at += max(lengths[i], 0)


@compiled
def uuid_text(buffer: Array, starts: Array, lengths: Array, hex_digits: Array, offsets: Array, out: Array) -> int:
    """Write 16-byte uuids as text of 36 characters; returns how many bytes were written, or -1 for a bad width."""
    at = 0
    offsets[0] = 0
    for i in range(len(starts)):
        if lengths[i] > 0:
            if lengths[i] != 16:
                return -1
            for j in range(16):
                if j == 4 or j == 6 or j == 8 or j == 10:
                    out[at] = 45  # a hyphen
                    at += 1
                byte = buffer[starts[i] + j]
                out[at] = hex_digits[byte >> 4]
                out[at + 1] = hex_digits[byte & 15]
                at += 2
        offsets[i + 1] = at
    return at


@compiled
def collection_offsets(buffer: Array, starts: Array, lengths: Array, offsets: Array, valid: Array) -> None:
    """Offsets of the elements (or entries) of collections, each of which begins with a 4-byte count."""
    offsets[0] = 0
    for i in range(len(starts)):
        valid[i] = lengths[i] >= 0
        offsets[i + 1] = offsets[i] + (_int32(buffer, starts[i]) if lengths[i] >= 4 else 0)


@compiled
def collection_elements(
    buffer: Array, starts: Array, lengths: Array, per_entry: int, child_starts: Array, child_lengths: Array
) -> int:
    """Note the cells inside collections; returns the row of a collection that does not fill its cell, or -1."""
    n = 0
    for i in range(len(starts)):
        if lengths[i] < 4:
            continue
        at, end = starts[i] + 4, starts[i] + lengths[i]
        for _ in range(_int32(buffer, starts[i]) * per_entry):
            if at + 4 > end:
                return i
            length = _int32(buffer, at)
            at += 4
            child_starts[n], child_lengths[n] = at, max(length, -1)
            at += max(length, 0)
            n += 1
        if at > end:
            return i
    return -1


@compiled
def fields(
    buffer: Array, starts: Array, lengths: Array, count: int, child_starts: Array, child_lengths: Array, valid: Array
) -> int:
    """Note the field cells of tuples and user types; fields that the value is too short for are null.

    Returns the row of a value that ends inside a field or has more fields than its type, else -1.
    """
    for i in range(len(starts)):
        valid[i] = lengths[i] >= 0
        at, end = starts[i], starts[i] + max(lengths[i], 0)
        for field in range(count):
            child_starts[field, i] = at
            child_lengths[field, i] = -1
            if at + 4 <= end:
                length = _int32(buffer, at)
                at += 4
                child_starts[field, i] = at
                child_lengths[field, i] = max(length, -1)
                at += max(length, 0)
        if at != end:
            return i
    return -1


@compiled
def vector_elements(
    starts: Array, lengths: Array, width: int, size: int, child_starts: Array, child_lengths: Array, offsets: Array
) -> int:
    """Note the elements of fixed-width vectors, which stand without lengths; returns a row of a wrong size, or -1."""
    n = 0
    offsets[0] = 0
    for i in range(len(starts)):
        if lengths[i] > 0:
            if lengths[i] != width * size:
                return i
            for j in range(size):
                child_starts[n], child_lengths[n] = starts[i] + j * width, width
                n += 1
        offsets[i + 1] = n
    return -1


@compiled
def _write_int32(out: Array, at: int, value: int) -> None:
    word = np.uint32(value)
    out[at] = np.uint8(word >> np.uint32(24))
    out[at + 1] = np.uint8((word >> np.uint32(16)) & np.uint32(255))
    out[at + 2] = np.uint8((word >> np.uint32(8)) & np.uint32(255))
    out[at + 3] = np.uint8(word & np.uint32(255))


@compiled
def lay_cells(buffer: Array, starts: Array, lengths: Array, out: Array) -> None:
    """Write the cells of each row (rows x columns) behind their lengths, row after row."""
    at = 0
    for row in range(len(starts)):
        for column in range(starts.shape[1]):
            length = lengths[row, column]
            _write_int32(out, at, length)
            at += 4
            for j in range(max(length, 0)):
                out[at + j] = buffer[starts[row, column] + j]
            at += max(length, 0)


@compiled
def lay_collections(buffer: Array, ends: Array, counts: Array, out: Array) -> None:
    """Write the bytes between each two of `ends` behind the count of what they hold."""
    at = 0
    for row in range(len(counts)):
        _write_int32(out, at, counts[row])
        at += 4
        for j in range(ends[row], ends[row + 1]):
            out[at] = buffer[j]
            at += 1
