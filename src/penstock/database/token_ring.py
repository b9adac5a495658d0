"""Which node owns a partition: the first node on the ring from its token, in `local_dc` if that is set.

Requests for many partitions are grouped by owner first, so that each request goes to one node and no node has to
forward rows of another. The ring is cached until the driver finds another one.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import numpy as np

from penstock.database.access import Access
from penstock.database.cql_connection import CqlConnection, connection
from penstock.database.retrying import retrying
from penstock.errors import PenstockError
from penstock.native import Array

T = TypeVar("T")

Token: TypeAlias = Callable[[bytes], int]
"""The token of a partition key."""
LONGEST_KEY = 0xFFFF
"""The most bytes of a partition key, and of all clustering columns together: their lengths on the wire hold no more."""


@dataclass(frozen=True, eq=False)
class Ring:
    """The nodes that share a keyspace's partitions; without hosts if each node has all partitions.

    `ends` has the last tokens of the ranges, ascending, and `numbers` the index in `hosts` of the owner of each range.
    """

    token_map: Any
    ends: Array
    numbers: Array
    hosts: tuple[Any, ...]

    @property
    def sharding(self) -> Any:
        """How scylla-driver finds the shard of a token, the same on all nodes; None for other drivers and databases."""
        hosts = self.token_map.token_to_host_owner.values() if self.token_map else ()
        return next(filter(None, (getattr(host, "sharding_info", None) for host in hosts)), None)

    def owners(self, partitions: Iterable[bytes], token: Token | None = None) -> Array:
        """The index in `hosts` of each partition's owner; `token` if the table has a partitioner of its own."""
        tokens = np.array([*map(token or self.token_map.token_class.hash_fn, partitions)], self.ends.dtype)
        return self.numbers[np.searchsorted(self.ends, tokens) % len(self.ends)]

    def parted(self, items: Sequence[T], partitions: Iterable[bytes], token: Token | None = None) -> list[list[T]]:
        """Group the items by owner, each group in the order of the items."""
        groups: list[list[T]] = [[] for _ in self.hosts]
        for item, number in zip(items, self.owners(partitions, token).tolist(), strict=True):
            groups[number].append(item)
        return [each for each in groups if each]


def owners(link: CqlConnection, keyspace: str, partitions: Sequence[bytes], token: Token | None = None) -> list[Any]:
    """The owner of each partition; None if any node can answer, or the owner is not known to be up and connected."""
    token_ring = ring(link, keyspace)
    if not token_ring.hosts:
        return [None] * len(partitions)
    # A process that has just connected has a connection to one node only.
    reached = {pool.host for pool in tuple(link.pages.get_pools())}
    named = [host if host.is_up and host in reached else None for host in token_ring.hosts]
    return [named[number] for number in token_ring.owners(partitions, token).tolist()]


def by_owner(
    access: Access, keyspace: str, items: Sequence[T], partition: Callable[[T], bytes], *, patience: timedelta
) -> list[Sequence[T]]:
    """Group the items by the owner of their partition; one group if any node can answer.

    With scylla-driver, the groups are those of the owner's shards.
    """
    token_ring = known_ring(access, keyspace, patience)
    parts: list[Sequence[T]] = [items] if items else []
    if token_ring.hosts:
        parts = list(token_ring.parted(items, map(partition, items)))
    if sharding := token_ring.sharding:
        return [piece for part in parts for piece in _by_shard(sharding, token_ring.token_map, part, partition)]
    return parts


def _by_shard(sharding: Any, token_map: Any, items: Sequence[T], partition: Callable[[T], bytes]) -> Iterable[list[T]]:
    token, pieces = token_map.token_class.hash_fn, dict[int, list[T]]()
    for item in items:
        pieces.setdefault(sharding.shard_id_from_token(token(partition(item))), []).append(item)
    return pieces.values()


def known_ring(access: Access, keyspace: str, patience: timedelta) -> Ring:
    """The ring of a keyspace; waits for the cluster for up to `patience`."""
    return retrying(
        lambda: ring(connection(access), keyspace),
        what="looking up owners of partitions",
        where=access.hosts,
        patience=patience,
    )


def ring(link: CqlConnection, keyspace: str) -> Ring:
    """The ring of a keyspace; the same object until the cluster changes."""
    token_map = link.cluster.metadata.token_map
    cached = link.rings.get(keyspace)
    # The driver builds a new map when a node joins, leaves or moves.
    if cached is None or cached.token_map is not token_map:
        cached = link.rings[keyspace] = _ring(link, keyspace, token_map)
    return cached


def _ring(link: CqlConnection, keyspace: str, token_map: Any) -> Ring:
    hosts = _sharing(link, keyspace, token_map)
    numbers = {host: number for number, host in enumerate(hosts)}
    owned = [
        (token.value, numbers[host])
        for token in (token_map.ring if hosts else ())
        if (host := token_map.token_to_host_owner[token]) in numbers
    ]
    ends, owner = zip(*owned, strict=True) if owned else ((), ())
    return Ring(token_map, np.array(ends), np.array(owner, np.int64), hosts)


def _sharing(link: CqlConnection, keyspace: str, token_map: Any) -> tuple[Any, ...]:
    """The nodes that each hold a part of the keyspace; empty without tokens, or if each node holds all."""
    everyone = set(token_map.token_to_host_owner.values()) if token_map else set()
    if len(everyone) < 2:
        return ()
    select = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s"
    row = link.rows.execute(select, (keyspace,)).one()
    near = {host for host in everyone if link.access.local_dc in ("", host.datacenter)}
    holding = holders(everyone, dict(row[0]) if row else {})
    return tuple(sorted(near & holding, key=lambda host: str(host.endpoint)))


def holders(hosts: set[Any], replication: Mapping[str, str]) -> set[Any]:
    """The nodes that hold a part of a keyspace; empty if each node holds all."""
    copies = {name: _copies(text) for name, text in replication.items() if name != "class"}
    if "replication_factor" in copies:
        return hosts if copies["replication_factor"] < len(hosts) else set()
    sizes = Counter(host.datacenter for host in hosts)
    if all(copies.get(datacenter, 0) >= size for datacenter, size in sizes.items()):
        return set()
    return {host for host in hosts if copies.get(host.datacenter)}


def _copies(text: str) -> int:
    """The number of copies: from "3", from "3/1" with transient copies, or from a list of racks with one copy each."""
    number = re.match(r"\d+", text)
    return int(number[0]) if number else text.count(",") + 1


def partition_key(cells: Sequence[bytes]) -> bytes:
    """The bytes that a token is computed from: the only cell, or each cell between its 2-byte length and a zero."""
    if len(cells) == 1:
        return cells[0]
    try:
        return b"".join(struct.pack(">H", len(cell)) + cell + b"\0" for cell in cells)
    except struct.error:
        raise too_long(max(map(len, cells))) from None


def too_long(size: int) -> PenstockError:
    return PenstockError(
        f"a value of the primary key has {size} bytes; databases accept at most {LONGEST_KEY}",
        next="filter these rows out, or use a shorter key",
    )
