"""Compiled loops over the cells of a CQL result: from protocol bytes to the flat arrays that Arrow uses.

A result page is rows of cells; each cell is a 4-byte big-endian length and that number of bytes, and a negative length
is null (native protocol specification v4, section 6). `index_cells` reads a page once and stores the position of each
cell. All other loops work on two arrays, `starts` and `lengths` (-1 = null), into one buffer: the cells of a column,
the elements of all lists in a column, the fields of all tuples. No loop depends on a CQL type by name.

The bytes are not trusted: databases store some values that their own validation should reject. Each loop checks that a
cell is inside its buffer before it reads the cell, that its output has room, and that a count is possible before it is
added; sums have 64 bits. A loop returns the row of a cell that it cannot read, and never writes outside an array.
"""

from __future__ import annotations

import numpy as np

from penstock.errors import PenstockError
from penstock.native import Array
from penstock.native.jit import compiled

HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
UUID_TEXT_WIDTH = 36
MOST_OFFSET = 2**31 - 1
"""The greatest value of Arrow's 32-bit offsets."""


def indexed(data: bytes, rows: int, columns: int, *, where: str) -> tuple[Array, Array, Array]:
    """The buffer of a page, and the starts and lengths of its cells (rows x columns).

    The buffer is never empty, because loops may read and discard its first byte for a missing cell. Raises
    PenstockError if the page is shorter than its rows.
    """
    buffer: Array = np.frombuffer(data or b"\0", np.uint8)
    if 0 <= rows * columns * 4 <= len(data):
        starts, lengths = np.empty((rows, columns), np.int64), np.empty((rows, columns), np.int32)
        if index_cells(buffer, starts, lengths) >= 0:
            return buffer, starts, lengths
    raise PenstockError(
        "a result page ends inside a row", where=where, next="check the connection to the database, and restart"
    )


@compiled
def _int32(buffer: Array, at: int) -> np.int32:
    return np.int32(
        (np.uint32(buffer[at]) << np.uint32(24))
        | (np.uint32(buffer[at + 1]) << np.uint32(16))
        | (np.uint32(buffer[at + 2]) << np.uint32(8))
        | np.uint32(buffer[at + 3])
    )


@compiled
def inside(size: int, start: int, length: int) -> bool:
    """Whether a cell is null or empty, or inside a buffer of this size."""
    return length <= 0 or 0 <= start <= size - length


@compiled
def index_cells(buffer: Array, starts: Array, lengths: Array) -> int:
    """Fill `starts` and `lengths` (rows x columns); return the end of the rows, or -1 if the bytes end too early."""
    at, size = 0, len(buffer)
    if starts.shape != lengths.shape:
        return -1
    for row in range(starts.shape[0]):
        for column in range(starts.shape[1]):
            if at + 4 > size:
                return -1
            lengths[row, column] = max(_int32(buffer, at), -1)
            starts[row, column] = at + 4
            at += 4 + max(lengths[row, column], 0)
            if at > size:
                return -1
    return at


@compiled
def outside(buffer: Array, starts: Array, lengths: Array) -> int:
    """The row of a cell outside the buffer, or -1."""
    for i in range(len(starts)):
        if not inside(len(buffer), starts[i], lengths[i]):
            return i
    return -1


@compiled
def integers(buffer: Array, starts: Array, lengths: Array, width: int, out: Array, valid: Array) -> int:
    """Read signed big-endian integers; an empty cell is null. Return the row of a cell with a wrong length, or -1."""
    for i in range(min(len(starts), len(out), len(valid))):
        if lengths[i] <= 0:
            out[i] = 0
            valid[i] = False
            continue
        if lengths[i] != width or not inside(len(buffer), starts[i], lengths[i]):
            return i
        valid[i] = True
        value = np.uint64(0)
        for j in range(width):
            value = (value << np.uint64(8)) | np.uint64(buffer[starts[i] + j])
        out[i] = np.int64(value << np.uint64(64 - 8 * width)) >> np.int64(64 - 8 * width)
    return -1


@compiled
def bytes_offsets(lengths: Array, offsets: Array, valid: Array) -> int:
    """Write the offsets of variable-width values stored end to end; return their total length.

    The offsets are not valid if the total is more than they can hold.
    """
    total = 0
    offsets[0] = 0
    for i in range(min(len(lengths), len(offsets) - 1, len(valid))):
        valid[i] = lengths[i] >= 0
        total += max(lengths[i], 0)
        offsets[i + 1] = total
    return total


@compiled
def gather_bytes(buffer: Array, starts: Array, lengths: Array, out: Array) -> tuple[int, int]:
    """Write the cells end to end. Return the row of a cell that is outside the buffer or has no room, or -1; and the OR
    of all bytes, which shows whether a byte is above 127."""
    at = 0
    together = np.uint8(0)
    for i in range(len(starts)):
        length = max(lengths[i], 0)
        if not inside(len(buffer), starts[i], length) or length > len(out) - at:
            return i, 0
        for j in range(length):
            byte = buffer[starts[i] + j]
            out[at + j] = byte
            together |= byte
        at += length
    return -1, int(together)


@compiled
def uuid_text(buffer: Array, starts: Array, lengths: Array, hex_digits: Array, offsets: Array, out: Array) -> int:
    """Write 16-byte uuids as strings of 36 characters; return the row of a cell with a wrong length, or -1."""
    at = 0
    offsets[0] = 0
    for i in range(min(len(starts), len(offsets) - 1)):
        if lengths[i] > 0:
            if lengths[i] != 16 or not inside(len(buffer), starts[i], lengths[i]) or at + UUID_TEXT_WIDTH > len(out):
                return i
            for j in range(16):
                if j == 4 or j == 6 or j == 8 or j == 10:
                    out[at] = 45  # a hyphen
                    at += 1
                byte = buffer[starts[i] + j]
                out[at] = hex_digits[byte >> 4]
                out[at + 1] = hex_digits[byte & 15]
                at += 2
        offsets[i + 1] = at
    return -1


@compiled
def collection_offsets(
    buffer: Array, starts: Array, lengths: Array, per_entry: int, offsets: Array, valid: Array
) -> tuple[int, int]:
    """Write the offsets of the elements (or entries) of collections, which begin with a 4-byte count.

    Return the row of a collection that ends inside its count or is too short for it (each cell of an entry takes at
    least four bytes), or -1; and the total number of entries, which may be more than the offsets can hold.
    """
    total = 0
    offsets[0] = 0
    for i in range(min(len(starts), len(offsets) - 1, len(valid))):
        valid[i] = lengths[i] >= 0
        if lengths[i] > 0:
            if lengths[i] < 4 or not inside(len(buffer), starts[i], lengths[i]):
                return i, 0
            count = int(_int32(buffer, starts[i]))
            if count < 0 or count > (lengths[i] - 4) // (4 * per_entry):
                return i, 0
            total += count
        offsets[i + 1] = total
    return -1, total


@compiled
def collection_elements(
    buffer: Array, starts: Array, lengths: Array, per_entry: int, child_starts: Array, child_lengths: Array
) -> int:
    """Store the positions of the cells inside collections; return the row of a collection whose elements do not end at
    the end of its cell, or -1."""
    n, room = 0, min(len(child_starts), len(child_lengths))
    for i in range(len(starts)):
        if lengths[i] < 4:
            continue
        if not inside(len(buffer), starts[i], lengths[i]):
            return i
        at, end = starts[i] + 4, starts[i] + lengths[i]
        count = np.int64(_int32(buffer, starts[i])) * per_entry
        if count < 0 or count > room - n:
            return i
        for _ in range(count):
            if at + 4 > end:
                return i
            length = _int32(buffer, at)
            at += 4
            child_starts[n], child_lengths[n] = at, max(length, -1)
            at += max(length, 0)
            n += 1
        if at != end:
            return i
    return -1


@compiled
def fields(
    buffer: Array, starts: Array, lengths: Array, child_starts: Array, child_lengths: Array, valid: Array
) -> int:
    """Store the positions of the fields (fields x rows) of tuples and user types; missing fields at the end are null.

    Return the row of a value that ends inside a field or has more fields than its type, or -1.
    """
    for i in range(min(len(starts), child_starts.shape[1], child_lengths.shape[1], len(valid))):
        valid[i] = lengths[i] >= 0
        if not inside(len(buffer), starts[i], lengths[i]):
            return i
        at, end = starts[i], starts[i] + max(lengths[i], 0)
        for field in range(min(child_starts.shape[0], child_lengths.shape[0])):
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
    buffer: Array, starts: Array, lengths: Array, width: int, child_starts: Array, child_lengths: Array, offsets: Array
) -> int:
    """Store the positions of the elements of fixed-width vectors, which have no lengths; return the row of a vector
    that is outside the buffer or has no room, or -1."""
    n, room = 0, min(len(child_starts), len(child_lengths))
    offsets[0] = 0
    for i in range(min(len(starts), len(offsets) - 1)):
        if lengths[i] > 0:
            size = lengths[i] // width
            if not inside(len(buffer), starts[i], lengths[i]) or size > room - n:
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
def lay_cells(buffer: Array, starts: Array, lengths: Array, out: Array) -> int:
    """Write the cells of each row (rows x columns), each after its length, row by row.

    Return the row of a cell that is outside the buffer or has no room, or -1.
    """
    at = 0
    for row in range(len(starts)):
        for column in range(starts.shape[1]):
            length = lengths[row, column]
            if not inside(len(buffer), starts[row, column], length) or max(length, 0) > len(out) - at - 4:
                return row
            _write_int32(out, at, length)
            at += 4
            for j in range(max(length, 0)):
                out[at + j] = buffer[starts[row, column] + j]
            at += max(length, 0)
    return -1


@compiled
def lay_collections(buffer: Array, ends: Array, counts: Array, out: Array) -> int:
    """Write collections: the bytes between consecutive `ends`, each after its count.

    Return the row of bytes that are outside the buffer or have no room, or -1.
    """
    at = 0
    for row in range(min(len(counts), len(ends) - 1)):
        begin, end = ends[row], ends[row + 1]
        if begin < 0 or end < begin or end > len(buffer) or end - begin > len(out) - at - 4:
            return row
        _write_int32(out, at, counts[row])
        at += 4
        for j in range(begin, end):
            out[at] = buffer[j]
            at += 1
    return -1
