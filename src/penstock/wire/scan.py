"""Compiled loops that find keys, values and headers in the records of a batch (layout: see `kernels`) and gather them.

The bytes may be anything: no loop reads outside them, and a loop over a count that they claim ends where they end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.native import Array
from penstock.native.jit import compiled, copy

# The numbers noted of each record, and of each header.
OFFSET, TIME, KEY, KEY_LENGTH, VALUE, VALUE_LENGTH, HEADERS, HEADER_COUNT = range(8)
FIELDS = 8

# Length, attributes, two deltas, two lengths and the number of headers take a byte each at least.
SMALLEST = 7


@compiled
def get_varint(data: Array, at: int, end: int) -> tuple[Any, int]:
    """A zig-zag varint of at most ten bytes and where it ends, -1 if it is not whole."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return 0, -1


@compiled
def skip_bytes(data: Array, at: int, end: int) -> tuple[int, int]:
    """The length of what stands at `at` after its length, -1 for null, and where it ends, -1 if it is not whole.

    Any length below 0 is null, as for Java's client.
    """
    length, at = get_varint(data, at, end)
    if at < 0 or length > end - at:
        return 0, -1
    return max(length, -1), at + max(length, 0)


@compiled
def skip_headers(data: Array, at: int, end: int, count: int) -> int:
    """Where `count` headers end, -1 if they are not whole."""
    for _ in range(count):
        length, at = skip_bytes(data, at, end)
        if at < 0 or length < 0:
            return -1
        length, at = skip_bytes(data, at, end)
        if at < 0:
            return -1
    return at


@compiled
def index_records(data: Array, at: int, least: int, most: int, out: Array) -> tuple[int, int]:
    """Note where the parts of the records from `at` on stand, FIELDS x records: where these end, and -1.

    If one of them is damaged, its number instead of -1. Offset deltas ascend from `least` to `most`.
    """
    count = out.shape[1]
    for i in range(count):
        size, at = get_varint(data, at, len(data))
        if at < 0 or size < 1 or size > len(data) - at:
            return 0, i
        end = at + size
        out[OFFSET, i] = out[TIME, i] = out[HEADER_COUNT, i] = 0
        out[TIME, i], at = get_varint(data, at + 1, end)
        if at >= 0:
            out[OFFSET, i], at = get_varint(data, at, end)
        if at >= 0:
            out[KEY_LENGTH, i], at = skip_bytes(data, at, end)
            out[KEY, i] = at - max(out[KEY_LENGTH, i], 0)
        if at >= 0:
            out[VALUE_LENGTH, i], at = skip_bytes(data, at, end)
            out[VALUE, i] = at - max(out[VALUE_LENGTH, i], 0)
        if at >= 0:
            out[HEADER_COUNT, i], at = get_varint(data, at, end)
            out[HEADERS, i] = at
        if at >= 0:
            at = skip_headers(data, at, end, out[HEADER_COUNT, i]) if out[HEADER_COUNT, i] >= 0 else -1
        if at != end or out[OFFSET, i] < least or out[OFFSET, i] > most:
            return 0, i
        least = out[OFFSET, i]
    return at, -1


@compiled
def index_headers(data: Array, starts: Array, counts: Array, out: Array) -> None:
    """Note key, its length, value and its length of each header; `index_records` has checked them.

    `out` has a column for each header, which bounds what is written.
    """
    n = 0
    for i in range(len(starts)):
        at = starts[i]
        for _ in range(min(counts[i], out.shape[1] - n)):
            for part in range(2):
                length, at = skip_bytes(data, at, len(data))
                out[2 * part, n], out[2 * part + 1, n] = at - max(length, 0), length
            n += 1


@compiled
def gather(data: Array, starts: Array, lengths: Array, out: Array) -> None:
    """Lay cells end to end, as many as `out` has room for."""
    at = 0
    for i in range(len(starts)):
        if lengths[i] > len(out) - at:
            return
        if lengths[i] > 0:
            copy(out, at, data, starts[i], lengths[i])
            at += lengths[i]
