"""Remembers what a replication has applied, so that the replication in the other direction does not send it back.

Where both tables have a change log, a change that was applied is in the log of its target, too. Sent back it would
change nothing, but be logged again, without end. So before a group is applied, its time and a hash of its statements
are written to the table `penstock_applied` in the target's keyspace; the other direction leaves out what it finds
there. The hash does not depend on times to live, which get shorter on the way. A write of a client that is equal to
one that was applied, at the same microsecond, is left out rightly: it changes nothing either.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import TypeAlias

from penstock.database import Page
from penstock.database.access import Access
from penstock.database.cells import indexed
from penstock.database.cql_connection import connection
from penstock.database.requests import CqlRequest, RequestLimits, Statement, send_all, together
from penstock.database.retrying import retrying
from penstock.database.table_catalog import quoted
from penstock.database.token_ring import partition_key

TABLE = "penstock_applied"
HELD = 86_400
"""Seconds for which a group is remembered: as long as a change log holds its rows by default."""
SPAN = 60_000_000
"""Microseconds of the groups of a partition, which is one of SHARDS."""
SHARDS = 8
Mutation: TypeAlias = tuple[bytes, list[Statement]]
"""Statements of one partition, after the bytes of its key."""
Mark: TypeAlias = tuple[int, int]
"""The time of a group, in microseconds, and the hash of its statements."""


@dataclass(frozen=True)
class TwoWays:
    """What two directions know of each other: groups that the other one `applied_here`, to the table that changes are
    read from; and groups that this one `applied_there`."""

    applied_here: AppliedGroups
    applied_there: AppliedGroups

    def new(self, mutations: Sequence[Mutation]) -> list[Mutation]:
        """The mutations that did not come from the other side, which are remembered as applied there."""
        marks = [mark(mutation) for mutation in mutations]
        echoes = self.applied_here.among(marks)
        without_echoes = [
            (mutation, marked) for mutation, marked in zip(mutations, marks, strict=True) if marked not in echoes
        ]
        self.applied_there.add(marked for _, marked in without_echoes)
        return [mutation for mutation, _ in without_echoes]


@dataclass(frozen=True)
class AppliedGroups:
    """The groups that were applied to one table; `table` is its name without the keyspace."""

    access: Access
    keyspace: str
    table: str
    limits: RequestLimits

    @property
    def _name(self) -> str:
        return f"{quoted(self.keyspace)}.{TABLE}"

    def create(self, patience: timedelta) -> None:
        """Create the table, if it is not there.

        Raises DatabaseUnavailable if no node answers within `patience`.
        """
        text = (
            f"CREATE TABLE IF NOT EXISTS {self._name} (base text, span bigint, shard int, time bigint, hash bigint, "
            f"PRIMARY KEY ((base, span, shard), time, hash)) WITH default_time_to_live = {HELD}"
        )
        retrying(
            lambda: connection(self.access).rows.execute(text),
            what="creating the table of applied changes",
            where=f"{self.keyspace}.{TABLE} at {self.access.hosts}",
            patience=patience,
        )

    def add(self, marks: Iterable[Mark]) -> None:
        """Remember groups by their times and hashes."""
        text = f"INSERT INTO {self._name} (base, span, shard, time, hash) VALUES (?, ?, ?, ?, ?)"
        writes = [
            (partition_key(self._partition(time, hashed)), [(text, self._row(time, hashed))]) for time, hashed in marks
        ]
        self._send(together(self.access, self.keyspace, writes, self.limits), "remembering applied changes")

    def among(self, marks: Sequence[Mark]) -> set[Mark]:
        """Those of the groups that were applied."""
        parts: dict[tuple[bytes, ...], list[int]] = defaultdict(list)
        for time, hashed in marks:
            parts[self._partition(time, hashed)].append(time)
        text = (
            f"SELECT time, hash FROM {self._name} WHERE base = ? AND span = ? AND shard = ? AND time >= ? AND time <= ?"
        )
        requests = [
            CqlRequest(((text, [*part, _long(min(times)), _long(max(times))]),), partition_key(part))
            for part, times in parts.items()
        ]
        applied: set[Mark] = set()
        for page in self._send(requests, "looking up applied changes"):
            buffer, starts, _ = indexed(page.data, page.rows, 2, where=f"{self.keyspace}.{TABLE}")
            data = buffer.tobytes()
            for time_at, hash_at in starts.tolist():
                applied.add((*struct.unpack_from(">q", data, time_at), *struct.unpack_from(">q", data, hash_at)))
        return applied.intersection(marks)

    def _partition(self, time: int, hashed: int) -> tuple[bytes, ...]:
        return self.table.encode(), _long(time // SPAN), (hashed % SHARDS).to_bytes(4, "big")

    def _row(self, time: int, hashed: int) -> list[bytes | None]:
        return [*self._partition(time, hashed), _long(time), _long(hashed)]

    def _send(self, requests: list[CqlRequest], what: str) -> list[Page]:
        return send_all(self.access, self.keyspace, requests, self.limits, what=what, where=f"{self.keyspace}.{TABLE}")


def _long(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def mark(mutation: Mutation) -> Mark:
    """The time of a mutation, in microseconds, and its hash, in which the order of the statements does not matter."""
    partition, statements = mutation
    total, newest = 0, 0
    for text, values in statements:
        verb = text[:6]
        if verb == "INSERT":
            without_ttl, time = values[:-1], values[-2]
        elif verb == "UPDATE":
            without_ttl, time = [values[0], *values[2:]], values[0]
        else:
            without_ttl, time = values, values[0]
        assert isinstance(time, bytes)
        newest = max(newest, int.from_bytes(time, "big", signed=True))
        # The text without the name of its table, which is another one on the other side.
        hashed = blake2b(_without_name(text).encode(), digest_size=8)
        for value in without_ttl:
            assert value is None or isinstance(value, bytes)
            hashed.update(struct.pack(">i", -1 if value is None else len(value)) + (value or b""))
        total += int.from_bytes(hashed.digest(), "big")
    total += int.from_bytes(blake2b(partition, digest_size=8).digest(), "big")
    return newest, int.from_bytes((total % (1 << 64)).to_bytes(8, "big"), "big", signed=True)


def _without_name(text: str) -> str:
    """The text after the first quoted name of a keyspace and a table."""
    start = text.index('"')
    return text[:start] + text[_after_name(text, _after_name(text, start) + 1) :]


def _after_name(text: str, at: int) -> int:
    """Where a name in double quotes, which begins here, has ended."""
    at += 1
    while True:
        at = text.index('"', at) + 1
        if text[at : at + 1] != '"':
            return at
        at += 1
