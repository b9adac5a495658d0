"""Sets of log groups, and the digest of a set that a checkpoint keeps; uses no connection and no clock.

A group is all rows of one stream with one `cdc$time`; its rows appear in the log together. Here a group is its time,
the token of its stream and a 64-bit hash of both ids. A checkpoint must stay small, so it keeps a digest of a set: for
each cell (a bucket of time, split four ways by hash) the number of its groups and the sum of their hashes. Reading the
log again gives the set back: if number and sum of a cell are the same, it holds the groups that are there now; if one
or two groups have appeared since, the sums identify them. Otherwise the cell stays unknown.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.native import Array

UUID_EPOCH = 0x01B21DD213814000
"""Ticks of 100 ns between 1582-10-15, where version-1 UUIDs begin, and 1970-01-01 (RFC 9562, section 5.1)."""
LANES = 4
_CELL = np.dtype([("count", "<u4"), ("sum", "<u8")])
_FINE = (0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
"""Ages in milliseconds at which buckets of the digest end; they are small where rows still appear."""
_COARSE = 30
"""The number of buckets for older groups, each a second or longer."""


@dataclass(frozen=True)
class SentGroups:
    """A set of groups, sorted by time: microseconds since 1970, signed tokens, hashes."""

    times: Array
    tokens: Array
    ids: Array

    def __len__(self) -> int:
        return len(self.ids)

    def at(self, index: Any) -> SentGroups:
        return SentGroups(self.times[index], self.tokens[index], self.ids[index])

    def within(self, after: int, until: int) -> SentGroups:
        """The groups in the time (after, until]."""
        first, end = np.searchsorted(self.times, (after, until), side="right")
        return self.at(slice(first, end))

    def minus(self, other: SentGroups) -> SentGroups:
        if not len(self):
            return self
        near = other.within(int(self.times[0]) - 1, int(self.times[-1]))
        return self.at(~np.isin(self.ids, near.ids))

    def plus(self, other: SentGroups) -> SentGroups:
        """The union with groups that are not in this set."""
        if not len(self) or not len(other):
            return self if len(self) else other
        times = np.concatenate([self.times, other.times])
        order = np.argsort(times, kind="stable")
        tokens, ids = np.concatenate([self.tokens, other.tokens]), np.concatenate([self.ids, other.ids])
        return SentGroups(times[order], tokens[order], ids[order])

    @classmethod
    def of(cls, times: Array, tokens: Array, ids: Array) -> SentGroups:
        """The set of groups that are given in any order, perhaps several times each."""
        ids, first = np.unique(ids, return_index=True)
        order = np.argsort(times[first], kind="stable")
        first = first[order]
        return cls(times[first], tokens[first], ids[order])


NONE = SentGroups(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))


def groups_of(cells: Array) -> SentGroups:
    """The groups of log rows, given as 32 bytes each: stream id and timeuuid."""
    words = np.ascontiguousarray(cells).view(">u8").astype(np.uint64)
    return SentGroups.of(micros_of(words[:, 2]), words[:, 0].view(np.int64), hashes(words))


def micros_of(high: Array) -> Array:
    """The times, in microseconds since 1970, of timeuuids given by their first eight bytes."""
    ticks = (high & np.uint64(0x0FFF)) << np.uint64(48)
    ticks |= (high >> np.uint64(16) & np.uint64(0xFFFF)) << np.uint64(32)
    ticks |= high >> np.uint64(32)
    times: Array = (ticks.astype(np.int64) - UUID_EPOCH) // 10
    return times


def hashes(words: Array) -> Array:
    """A 64-bit hash of each row of four words: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), chained."""
    out = np.zeros(len(words), np.uint64)
    for i in range(words.shape[1]):
        out = (out ^ words[:, i]) + np.uint64(0x9E3779B97F4A7C15)
        out = (out ^ (out >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        out = (out ^ (out >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out ^= out >> np.uint64(31)
    return out


def _edges(after: int, until: int) -> Array:
    """The ends of the buckets of (after, until], in order."""
    ages = [age * 1000 for age in _FINE]
    step = max(1_000_000, -(-(until - after - ages[-1]) // _COARSE))
    ages += [ages[-1] + step * i for i in range(1, _COARSE + 1)]
    return np.array([until - age for age in reversed(ages) if until - age > after], np.int64)


def _cells(groups: SentGroups, edges: Array) -> Array:
    """The number of each group's cell."""
    bucket = np.searchsorted(edges, groups.times, side="left")
    cells: Array = bucket * LANES + (groups.ids & np.uint64(LANES - 1)).astype(np.int64)
    return cells


def digest(sent: SentGroups, after: int, until: int) -> str:
    """The digest of the groups in (after, until] for a checkpoint: a few hundred bytes to three kilobytes of base64."""
    edges = _edges(after, until)
    cells = _cells(sent.within(after, until), edges)
    sums = np.zeros(len(edges) * LANES, _CELL)
    sums["count"] = np.bincount(cells, minlength=len(sums))
    np.add.at(sums["sum"], cells, sent.within(after, until).ids)
    return base64.b64encode(zlib.compress(sums.tobytes())).decode()


def recover(text: str, groups: SentGroups, after: int, until: int) -> tuple[SentGroups, SentGroups]:
    """Split the groups found in (after, until] now: groups that are in the digest, and groups that may be in it."""
    edges = _edges(after, until)
    groups = groups.within(after, until)
    sums = np.frombuffer(zlib.decompress(base64.b64decode(text)), _CELL) if text else np.zeros(0, _CELL)
    if len(sums) != len(edges) * LANES:
        return NONE, groups
    cells = _cells(groups, edges)
    known, unknown = np.zeros(len(groups), np.bool_), np.zeros(len(groups), np.bool_)
    for cell in np.unique(cells):
        rows = np.flatnonzero(cells == cell)
        late = _late(groups.ids[rows], int(sums["count"][cell]), int(sums["sum"][cell]))
        if late is None:
            unknown[rows] = True
        else:
            known[np.delete(rows, late)] = True
    return groups.at(known), groups.at(unknown)


def _late(ids: Array, count: int, total: int) -> list[int] | None:
    """The groups that are not among the `count` whose hashes add up to `total`; None if they cannot be identified."""
    if count == 0:
        return list(range(len(ids)))
    excess = np.uint64((int(ids.sum(dtype=np.uint64)) - total) % 2**64)
    if len(ids) - count == 0 and excess == 0:
        return []
    if len(ids) - count == 1:
        matching = np.flatnonzero(ids == excess)
        return [int(matching[0])] if len(matching) else None
    if len(ids) - count == 2:
        pair = np.flatnonzero(np.isin(excess - ids, ids))
        return [int(i) for i in pair] if len(pair) == 2 else None
    return None
