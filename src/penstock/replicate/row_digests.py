"""Digests of a table's rows, by ranges of their tokens: two tables whose digests are equal have equal rows.

A row's hash comes from the bytes of its cells as the database sends them, with their write times. A bucket keeps the
number of its rows, and of two independent hashes of 64 bits the XOR and the sum: XOR alone would not see two equal rows
more, nor the sum of one hash two differences that cancel each other. The key is in the hash, so values that were
swapped are seen.

A time to live moves while two tables are read. So the hash knows only whether a value expires, and the bucket sums the
times of expiry, with signs that the key decides: where both tables differ by the second that each of them rounds, the
signs cancel most of it; one value that expires at another time stays visible (`tolerance`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.cdc.generations import FIRST_TOKEN, LAST_TOKEN
from penstock.database.cells import inside
from penstock.native import Array
from penstock.native.jit import compiled

BITS = 16
"""A table has 2^BITS buckets."""
BUCKETS = 1 << BITS
PROJECTIONS = 4
COUNT, XOR_A, XOR_B, SUM_A, SUM_B = range(5)
EXPIRING, FIRST_SUM = 5, 6
WIDTH = FIRST_SUM + PROJECTIONS
"""Numbers of a bucket, each of 64 bits."""
TOKEN, KEY, CELL, TIME_TO_LIVE, TIMES_TO_LIVE = range(5)
"""What a column of a scan is: a time to live is hashed only for its presence."""


def bounds(first: int, end: int) -> tuple[int, int]:
    """The tokens (after, until] of the buckets from `first` to before `end`."""
    size = 1 << (64 - BITS)
    return FIRST_TOKEN + first * size, min(FIRST_TOKEN + end * size, LAST_TOKEN)


def digests(buffer: Array, starts: Array, lengths: Array, kinds: Array, now: int, buckets: Array) -> int:
    """Add the rows of a page to `buckets` (BUCKETS x WIDTH, unsigned); `now` is in seconds since 1970.

    Returns the row of a cell that is outside the page, or -1.
    """
    return int(_digest(buffer, starts, lengths, kinds, np.int64(now), buckets))


@compiled
def _mixed(h: np.uint64) -> np.uint64:
    # The finaliser of SplitMix64 (Steele, Lea, Flood).
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@compiled
def _number(buffer: Array, at: int, width: int) -> np.int64:
    value = np.uint64(0)
    for i in range(width):
        value = (value << np.uint64(8)) | np.uint64(buffer[at + i])
    return np.int64(value)


@compiled
def _hash(buffer: Array, start: int, length: int, h: np.uint64, factor: np.uint64) -> np.uint64:
    # FNV-1a (Fowler, Noll, Vo) over the length and the bytes; the factor makes two hashes of it.
    h = (h ^ np.uint64(length + 1)) * factor
    for i in range(length):
        h = (h ^ np.uint64(buffer[start + i])) * factor
    return h


@compiled
def _expiries(
    buffer: Array, start: int, length: int, single: bool, now: np.int64, signs: np.uint64, bucket: Array
) -> np.uint64:
    """Add when a value, or each element, expires; return a hash of which of them do."""
    count = 1 if single else int(_number(buffer, start, 4)) if length >= 4 else 0
    at, h = start if single else start + 4, np.uint64(count)
    for element in range(count):
        size = length if single else -1
        if not single:
            if at + 4 > start + length:
                break
            size = int(np.int32(_number(buffer, at, 4)))
            at += 4
        h = h * np.uint64(3) + np.uint64(size == 4)
        if size == 4 and at + 4 <= start + length:
            expiry = now + _number(buffer, at, 4)
            sign = _mixed(signs + np.uint64(element))
            bucket[EXPIRING] += np.uint64(1)
            for i in range(PROJECTIONS):
                if (sign >> np.uint64(i)) & np.uint64(1):
                    bucket[FIRST_SUM + i] += np.uint64(expiry)
                else:
                    bucket[FIRST_SUM + i] -= np.uint64(expiry)
            at += 4
    return h


@compiled
def _digest(buffer: Array, starts: Array, lengths: Array, kinds: Array, now: np.int64, buckets: Array) -> int:
    for row in range(len(starts)):
        a, b, key = np.uint64(0xCBF29CE484222325), np.uint64(0x9AE16A3B2F90404F), np.uint64(0)
        bucket = buckets[0]
        for column in range(len(kinds)):
            start, length = int(starts[row, column]), int(lengths[row, column])
            if not inside(len(buffer), start, length):
                return row
            kind = kinds[column]
            if kind == TOKEN:
                if length != 8:
                    return row
                place = np.uint64(_number(buffer, start, 8) - FIRST_TOKEN - 1) >> np.uint64(64 - BITS)
                bucket = buckets[np.int64(place)]
            elif kind in (KEY, CELL):
                a = _hash(buffer, start, length, a, np.uint64(0x100000001B3))
                b = _hash(buffer, start, length, b, np.uint64(0x9E3779B97F4A7C15))
                if kind == KEY:
                    key = a
            else:
                expires = np.uint64(0)
                if length >= 0:
                    signs = _mixed(key + np.uint64(column))
                    expires = np.uint64(1) + _expiries(buffer, start, length, kind == TIME_TO_LIVE, now, signs, bucket)
                a = (a ^ expires) * np.uint64(0x100000001B3)
                b = (b ^ expires) * np.uint64(0x9E3779B97F4A7C15)
        a, b = _mixed(a), _mixed(b)
        bucket[COUNT] += np.uint64(1)
        bucket[XOR_A] ^= a
        bucket[XOR_B] ^= b
        bucket[SUM_A] += a
        bucket[SUM_B] += b
    return -1


@dataclass(frozen=True)
class Compared:
    """The buckets that differ, and the rows that both tables have in total."""

    different: list[int]
    rows: tuple[int, int]


def compare(source: Array, target: Array) -> Compared:
    """Compare the buckets of two tables."""
    exact = (source[:, : EXPIRING + 1] == target[:, : EXPIRING + 1]).all(axis=1)
    apart = np.abs((source[:, FIRST_SUM:] - target[:, FIRST_SUM:]).view(np.int64)).max(axis=1)
    near = apart <= tolerance(source[:, EXPIRING])
    rows = int(source[:, COUNT].sum()), int(target[:, COUNT].sum())
    return Compared(np.flatnonzero(~(exact & near)).tolist(), rows)


def tolerance(values: Array) -> Array:
    """By how many seconds the sums of times of expiry of so many values may differ."""
    return (2 + 4 * np.sqrt(values.astype(np.float64))).astype(np.int64)
