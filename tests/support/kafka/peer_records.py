"""Records that clients write for each other: all shapes, in each compression, with and without transactions."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

from penstock.wire.records.compression import Compression

PARTITIONS = 2
End = Literal["commit", "abort"]


class Record(NamedTuple):
    """A record and its partition; its order there is its order in the list."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


class Part(NamedTuple):
    """Records written together with one compression; without `end` outside of a transaction."""

    codec: Compression
    end: End | None
    records: list[Record]


def parts() -> list[Part]:
    """For each compression a part without a transaction, an aborted one, then a committed one."""
    ends: tuple[End | None, ...] = (None, "abort", "commit")
    return [Part(codec, end, _records(f"{codec} {end}")) for codec in get_args(Compression) for end in ends]


def committed(parts: Iterable[Part]) -> list[Record]:
    """The records that readers of committed records see, by partition."""
    return by_partition(record for part in parts if part.end != "abort" for record in part.records)


def by_partition(records: Iterable[Record]) -> list[Record]:
    return sorted(records, key=lambda record: record.partition)


def _records(name: str) -> list[Record]:
    chosen = random.Random(name)
    # Today's: a broker deletes records that are a week old.
    now = time.time_ns() // 1_000_000
    shapes: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
        (b"key", b"value", [("one", b"1")]),
        (None, b"no key", []),
        (b"tombstone", None, []),
        (b"", b"", [("empty", b"")]),
        (bytes(range(256)), b"\x00\xff\n", [("\u00e4\u20ac", b"\x00\xff"), ("twice", b"1"), ("twice", b"2")]),
        # Larger than the blocks that codecs cut their data into, half of it compressible.
        (b"large", chosen.randbytes(100_000) + bytes(100_000), []),
        *((b"%d" % n, f"{name} {n}".encode() * 20, []) for n in range(20)),
    ]
    return [
        Record(n % PARTITIONS, key, value, headers, now - chosen.randrange(100_000))
        for n, (key, value, headers) in enumerate(shapes)
    ]
