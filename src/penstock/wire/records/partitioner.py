"""Selects a record's partition: for records with a key as Java by default, murmur2 modulo the number of partitions.

The hash is Austin Appleby's MurmurHash2 with Kafka's seed, its sign bit masked off (Kafka clients, Utils.murmur2 and
Utils.toPositive). The other partitioners are Java's RoundRobinPartitioner and partitioner.ignore.keys (KIP-794).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.native import Array
from penstock.native.jit import compiled
from penstock.wire.records.encode_kernel import ByteColumn

Partitioner: TypeAlias = Callable[[pa.Array, int], Any]
"""A function of the keys of some records (bytes or strings, null without a key) and the topic's number of partitions.

It returns one integer per record, as an array or a list; -1 for a record that may go to any partition.
"""

PartitionerName: TypeAlias = Literal["key", "sticky", "round-robin"]

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)


@compiled
def _murmur2(data: Array, start: int, length: int) -> np.uint32:
    h = _SEED ^ np.uint32(length)
    at = start
    for _ in range(length >> 2):
        k = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
        k |= np.uint32(data[at + 2]) << np.uint32(16) | np.uint32(data[at + 3]) << np.uint32(24)
        k = np.uint32(k * _M)
        k = np.uint32((k ^ (k >> np.uint32(24))) * _M)
        h = np.uint32(h * _M) ^ k
        at += 4
    rest = length & 3
    if rest == 3:
        h ^= np.uint32(data[at + 2]) << np.uint32(16)
    if rest >= 2:
        h ^= np.uint32(data[at + 1]) << np.uint32(8)
    if rest >= 1:
        h = np.uint32((h ^ np.uint32(data[at])) * _M)
    h = np.uint32((h ^ (h >> np.uint32(13))) * _M)
    return h ^ (h >> np.uint32(15))


@compiled
def _hash(data: Array) -> np.uint32:
    return _murmur2(data, 0, len(data))


@compiled
def _partitions(key: ByteColumn, partitions: int, out: Array) -> None:
    offsets, data, lengths = key
    for row in range(len(lengths)):
        out[row] = -1
        if lengths[row] >= 0:
            hashed = _murmur2(data, offsets[row], lengths[row])
            out[row] = np.int64(hashed & np.uint32(0x7FFFFFFF)) % partitions


def murmur2(key: bytes) -> int:
    """The hash of one key as an unsigned 32-bit number."""
    return int(_hash(np.frombuffer(key, np.uint8)))


def partition_for(key: bytes, partitions: int) -> int:
    """The partition of a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def partitions_for(keys: ByteColumn, partitions: int) -> Array:
    """The partition of each row, -1 where the key is null."""
    out = np.empty(len(keys.lengths), np.int32)
    _partitions(keys, partitions, out)
    return out


def sticky(keys: pa.Array, partitions: int) -> Array:
    """Every record may go to any partition, whatever its key."""
    return np.full(len(keys), -1, np.int32)


class RoundRobin:
    """Each record goes to the partition after the previous record's, whatever its key."""

    def __init__(self) -> None:
        # Starts anywhere, so that many short-lived producers do not all start with partition 0.
        self._next = random.getrandbits(16)

    def __call__(self, keys: pa.Array, partitions: int) -> Array:
        first, self._next = self._next, self._next + len(keys)
        return np.arange(first, self._next) % partitions


_NAMED: dict[str, Callable[[], Partitioner | None]] = {
    "key": lambda: None,
    "sticky": lambda: sticky,
    "round-robin": RoundRobin,
}


def partitioner_of(wanted: str | Partitioner) -> Partitioner | None:
    """A new partitioner of that name, or the given function; None for "key", which `partitions_for` implements."""
    if callable(wanted):
        return wanted
    if wanted not in _NAMED:
        raise ValueError(f"partitioner {wanted!r} is neither a function nor one of {', '.join(_NAMED)}")
    return _NAMED[wanted]()
