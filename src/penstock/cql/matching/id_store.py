"""The tables of matching, with their reads and writes; every row has a time to live.

`links` has, for a node, the few smaller nodes that it leads to. `identities` has the list of a person. Its first `HUB`
rows are in bucket 0, later rows in one of `BUCKETS` by their hash. So a person with a million identities has some
thousand in a partition, and the list of a small one is read at once. A row without a kind is a note: its value names a
person whose list belongs to this one, or is empty if there are rows beyond bucket 0.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from penstock.cql.matching.linking import Links, Node
from penstock.database import Page
from penstock.database.access import Access
from penstock.database.cells import indexed
from penstock.database.columns import Cells
from penstock.database.cql_connection import connection
from penstock.database.encode_cells import as_bytes, list_bytes
from penstock.database.requests import Request, RequestLimits, Values, send_all, together
from penstock.database.table_catalog import quoted
from penstock.database.token_ring import by_owner, partition_key
from penstock.errors import PenstockError

WHERE = "cql.match"
HUB, BUCKETS = 1000, 256
TOGETHER = 32
"""Partitions per read request."""
SAFE = ("QUORUM", "LOCAL_QUORUM", "EACH_QUORUM", "ALL")
"""Consistency levels at which a read sees earlier writes."""

TABLES = {
    "links": "node uuid, lower uuid, seen timestamp, PRIMARY KEY (node, lower)",
    "identities": "person uuid, bucket smallint, kind text, value text, seen timestamp, "
    "PRIMARY KEY ((person, bucket), kind, value)",
}

Identity = tuple[str, str]


@dataclass(frozen=True)
class IdStore:
    """The location of the tables of matching; created by `ids`."""

    keyspace: str
    access: Access
    limits: RequestLimits

    def table(self, name: str) -> str:
        return f"{quoted(self.keyspace)}.{name}"


def ids(keyspace: str, *, hosts: str, **access: Any) -> IdStore:
    """The tables of matching in a keyspace, for `match` and `erase`; `create` creates them.

    `access` are `user`, `password`, `local_dc`, `consistency` and the TLS arguments. Concurrent writers are safe only
    if reads see earlier writes: raises PenstockError for consistency levels below a quorum.
    """
    reach = Access.of(hosts, access, where="cql.ids")
    if reach.consistency.upper() not in SAFE:
        raise PenstockError(
            f"matching is not safe with consistency {reach.consistency}",
            where="cql.ids",
            next=f"use one of {', '.join(SAFE)}",
        )
    return IdStore(keyspace, reach, RequestLimits())


def create(store: IdStore, *, replication: Mapping[str, str | int]) -> None:
    """Create the keyspace with this replication, and the tables, if they do not exist."""
    options = ", ".join(f"'{name}': '{value}'" for name, value in replication.items())
    session = connection(store.access).rows
    session.execute(
        f"CREATE KEYSPACE IF NOT EXISTS {quoted(store.keyspace)} WITH replication = {{{options}}}", timeout=60
    )
    for name, columns in TABLES.items():
        session.execute(f"CREATE TABLE IF NOT EXISTS {store.table(name)} ({columns})", timeout=60)


@dataclass
class PersonList:
    """The rows in bucket 0 of a person's list; `whole` if there are no other buckets."""

    identities: list[Identity] = field(default_factory=list)
    notes: list[Node] = field(default_factory=list)
    whole: bool = True

    def __len__(self) -> int:
        return len(self.identities) + len(self.notes)


@dataclass
class IdTables:
    """Reads and writes the store's tables; counts its requests."""

    store: IdStore
    ttl: int = 1
    requests: int = 0

    def links(self, nodes: Sequence[Node]) -> Links:
        """The links of each node with links, with the fraction of their time to live that is left."""
        text = f"SELECT node, lower, TTL(seen) FROM {self.store.table('links')} WHERE node IN ?"
        found: Links = {}
        for node, lower, left in self._select(text, nodes, bytes):
            found.setdefault(node, {})[lower] = int.from_bytes(left or b"", "big") / self.ttl
        return found

    def lists(self, persons: Sequence[Node], limit: int = HUB + 1) -> dict[Node, PersonList]:
        """Bucket 0 of the persons' lists, at most `limit` rows of each."""
        text = (
            f"SELECT person, kind, value FROM {self.store.table('identities')} "
            f"WHERE person IN ? AND bucket = 0 PER PARTITION LIMIT {limit}"
        )
        found = {person: PersonList() for person in persons}
        for person, kind, value in self._select(text, persons, _first_bucket):
            note(found[person], kind.decode(), value.decode())
        return found

    def beyond(self, persons: Sequence[Node]) -> list[PersonList]:
        """All buckets after bucket 0 of the persons' lists."""
        text = f"SELECT kind, value FROM {self.store.table('identities')} WHERE person = ? AND bucket = ?"
        found = []
        for person in persons:
            keys = [(person, _bucket_bytes(bucket)) for bucket in range(1, BUCKETS + 1)]
            requests = [Request(((text, key),), partition_key(key)) for key in keys]
            found.append(PersonList())
            for page in self._send(requests):
                for kind, value in rows_of(page, 2):
                    note(found[-1], kind.decode(), value.decode())
        return found

    def delete(self, nodes: Sequence[Node], hubs: Sequence[Node]) -> None:
        """Delete all links and lists of nodes; for `hubs` in all buckets."""
        link = f"DELETE FROM {self.store.table('links')} WHERE node = ?"
        part = f"DELETE FROM {self.store.table('identities')} WHERE person = ? AND bucket = ?"
        rows: list[tuple[bytes, str, Values]] = [(node, link, [node]) for node in nodes]
        buckets = [(node, 0) for node in nodes] + [(hub, bucket) for hub in hubs for bucket in range(1, BUCKETS + 1)]
        keys = [(node, _bucket_bytes(bucket)) for node, bucket in buckets]
        self._write(rows + [(partition_key(key), part, key) for key in keys])

    def write(self, rows: Iterable[tuple[Node, int, str, str]]) -> None:
        """Write rows of persons' lists: person, bucket, kind, value."""
        text = (
            f"INSERT INTO {self.store.table('identities')} (person, bucket, kind, value, seen) "
            "VALUES (?, ?, ?, ?, ?) USING TTL ?"
        )
        seen, ttl = _now(), self._ttl_bytes()
        keys = [
            ((person, _bucket_bytes(bucket)), kind.encode(), value.encode()) for person, bucket, kind, value in rows
        ]
        self._write((partition_key(key), text, [*key, kind, value, seen, ttl]) for key, kind, value in keys)

    def link(self, pairs: Iterable[tuple[Node, Node]], *, confirmed: bool) -> None:
        """Write links from nodes to smaller ones; a link with `seen` is confirmed."""
        names, more = ("node, lower, seen", [_now()]) if confirmed else ("node, lower", [])
        marks = ", ".join("?" * (2 + len(more)))
        text = f"INSERT INTO {self.store.table('links')} ({names}) VALUES ({marks}) USING TTL ?"
        ttl = self._ttl_bytes()
        self._write((node, text, [node, lower, *more, ttl]) for node, lower in pairs)

    def _select(
        self, text: str, keys: Sequence[bytes], partition: Callable[[bytes], bytes]
    ) -> Iterable[Sequence[bytes]]:
        """Rows of three columns; keys share a request if their partitions share a database node."""
        access, patience = self.store.access, self.store.limits.patience
        requests = [
            Request(((text, [list_bytes(part[i : i + TOGETHER])]),), partition(part[i]))
            for part in by_owner(access, self.store.keyspace, keys, partition, patience=patience)
            for i in range(0, len(part), TOGETHER)
        ]
        for page in self._send(requests):
            yield from rows_of(page, 3)

    def _write(self, rows: Iterable[tuple[bytes, str, Values]]) -> None:
        self._send(together(self.store.access, self.store.keyspace, rows, self.store.limits))

    def _send(self, requests: list[Request]) -> list[Page]:
        self.requests += len(requests)
        store = self.store
        return send_all(store.access, store.keyspace, requests, store.limits, what="matching", where=store.keyspace)

    def _ttl_bytes(self) -> bytes:
        return struct.pack(">i", self.ttl)


def note(found: PersonList, kind: str, value: str) -> None:
    """Add a row to a list."""
    if kind:
        found.identities.append((kind, value))
    elif value:
        found.notes.append(bytes.fromhex(value))
    else:
        found.whole = False


def bucket_of(size: int, value: str) -> int:
    """The bucket for a new row of a list with `size` rows in bucket 0."""
    return 0 if size < HUB else 1 + crc32(value.encode()) % BUCKETS


def _first_bucket(person: Node) -> bytes:
    return partition_key((person, _bucket_bytes(0)))


def _bucket_bytes(bucket: int) -> bytes:
    return struct.pack(">h", bucket)


def rows_of(page: Page, width: int) -> Iterable[Sequence[Any]]:
    """The rows of a page as bytes, None for null."""
    buffer, starts, lengths = indexed(page.data, page.rows, width, where=WHERE)
    return zip(*(as_bytes(Cells(buffer, starts[:, i], lengths[:, i])) for i in range(width)), strict=True)


def _now() -> bytes:
    return struct.pack(">q", time.time_ns() // 1_000_000)
