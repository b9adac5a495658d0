"""The tables of matching, with their reads and writes; every row has a time to live.

`links` has, for a node, the few smaller nodes that it leads to. `identities` has the list of a person. Its first `HUB`
rows are in bucket 0, later rows in one of `BUCKETS` by their hash. So a person with a million identities has some
thousand in a partition, and the list of a small one is read at once. A row without a kind is a note: its value names a
person whose list belongs to this one, or is empty if there are rows beyond bucket 0.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack
from zlib import crc32

from penstock.border.public import public
from penstock.cql.cql_writer import described
from penstock.cql.matching.linking import Attach, Links, Node, ReadLinks, Resolved, resolve
from penstock.database import Page
from penstock.database.access import Access, AccessOptions
from penstock.database.cells import indexed
from penstock.database.columns import Cells
from penstock.database.cql_connection import connection
from penstock.database.encode_cells import as_bytes, list_bytes
from penstock.database.requests import CqlRequest, RequestLimits, Values, send_all, together
from penstock.database.table_catalog import NoTable, quoted
from penstock.database.token_ring import by_owner, partition_key
from penstock.errors import PenstockError

WHERE = "cql.match"
HUB, BUCKETS = 1000, 256
SIZES_KEPT, LARGE_KEPT = 1_000_000, 1000
TRUSTED = 0.1
"""The fraction of the rows' time to live for which the first bucket of a large list is cached."""
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


@public("cql.ids")
def ids(keyspace: str, *, hosts: str, **access: Unpack[AccessOptions]) -> IdStore:
    """The tables of matching in a keyspace, for `match` and `erase`; `create` creates them.

    `access` are `user`, `password`, `local_dc`, `consistency` and the TLS arguments. Concurrent writers are safe only
    if reads see earlier writes: raises PenstockError for consistency levels below a quorum.
    """
    reach = Access.of(hosts, access, where="cql.ids", function=ids)
    if reach.consistency.upper() not in SAFE:
        raise PenstockError(
            f"matching is not safe with consistency {reach.consistency}",
            where="cql.ids",
            next=f"use one of {', '.join(SAFE)}",
        )
    return IdStore(keyspace, reach, RequestLimits())


@public("cql.create")
def create(store: IdStore, *, replication: Mapping[str, str | int]) -> None:
    """Create the keyspace with this replication, and the tables, if they do not exist."""
    options = ", ".join(f"'{name}': '{value}'" for name, value in replication.items())
    session = connection(store.access).rows
    session.execute(
        f"CREATE KEYSPACE IF NOT EXISTS {quoted(store.keyspace)} WITH replication = {{{options}}}", timeout=60
    )
    for name, columns in TABLES.items():
        session.execute(f"CREATE TABLE IF NOT EXISTS {store.table(name)} ({columns})", timeout=60)


def require_tables(store: IdStore) -> None:
    """Raise unless the store has the tables of `create`."""
    for name, columns in TABLES.items():
        try:
            table = described(store.access, store.table(name), store.limits.patience)
        except NoTable as error:
            step = "create the tables once: cql.create(ids, replication={'class': 'NetworkTopologyStrategy', 'dc1': 3})"
            raise PenstockError(error.what, where=WHERE, next=step) from None
        wanted = {column.split()[0] for column in columns.split(", PRIMARY")[0].split(", ")}
        if {column.name for column in table.columns} != wanted:
            raise PenstockError(
                f"{table.full_name} is not a table of cql.create", where=WHERE, next="use another keyspace for cql.ids"
            )


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
        links: Links = {}
        for node, lower, left in self._select(text, nodes, bytes):
            links.setdefault(node, {})[lower] = int.from_bytes(left or b"", "big") / self.ttl
        return links

    def lists(self, persons: Sequence[Node], limit: int = HUB + 1) -> dict[Node, PersonList]:
        """Bucket 0 of the persons' lists, at most `limit` rows of each."""
        text = (
            f"SELECT person, kind, value FROM {self.store.table('identities')} "
            f"WHERE person IN ? AND bucket = 0 PER PARTITION LIMIT {limit}"
        )
        list_by_person = {person: PersonList() for person in persons}
        for person, kind, value in self._select(text, persons, _first_bucket):
            note(list_by_person[person], kind.decode(), value.decode())
        return list_by_person

    def beyond(self, persons: Sequence[Node]) -> list[PersonList]:
        """All buckets after bucket 0 of the persons' lists."""
        text = f"SELECT kind, value FROM {self.store.table('identities')} WHERE person = ? AND bucket = ?"
        buckets = []
        for person in persons:
            keys = [(person, _bucket_bytes(bucket)) for bucket in range(1, BUCKETS + 1)]
            requests = [CqlRequest(((text, key),), partition_key(key)) for key in keys]
            buckets.append(PersonList())
            for page in self._send(requests):
                for kind, value in rows_of(page, 2):
                    note(buckets[-1], kind.decode(), value.decode())
        return buckets

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
            CqlRequest(((text, [list_bytes(part[i : i + TOGETHER])]),), partition(part[i]))
            for part in by_owner(access, self.store.keyspace, keys, partition, patience=patience)
            for i in range(0, len(part), TOGETHER)
        ]
        for page in self._send(requests):
            yield from rows_of(page, 3)

    def _write(self, rows: Iterable[tuple[bytes, str, Values]]) -> None:
        writes = ((partition, [(text, values)]) for partition, text, values in rows)
        self._send(together(self.store.access, self.store.keyspace, writes, self.store.limits))

    def _send(self, requests: list[CqlRequest]) -> list[Page]:
        self.requests += len(requests)
        store = self.store
        return send_all(store.access, store.keyspace, requests, store.limits, what="matching", where=store.keyspace)

    def _ttl_bytes(self) -> bytes:
        return struct.pack(">i", self.ttl)


def note(person_list: PersonList, kind: str, value: str) -> None:
    """Add a row to a list."""
    if kind:
        person_list.identities.append((kind, value))
    elif value:
        person_list.notes.append(bytes.fromhex(value))
    else:
        person_list.whole = False


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


# All identities of persons: notes lead from list to list.


@dataclass(frozen=True)
class Listed:
    """At most `HUB` identities of a person, sorted by kind and value; `whole` if it has no others."""

    identities: list[Identity]
    whole: bool


def read_lists(tables: IdTables, persons: Sequence[Node]) -> list[Listed]:
    """The identities of each person."""
    known: dict[Node, PersonList] = {}
    wanted = list(persons)
    while wanted:
        known |= tables.lists(wanted)
        wanted = sorted({note for person in wanted for note in known[person].notes if note not in known})
    return [_all(person, known) for person in persons]


def _all(person: Node, known: dict[Node, PersonList]) -> Listed:
    identities: set[Identity] = set()
    ways, gone, whole = [person], {person}, True
    while ways:
        here = known[ways.pop()]
        identities.update(here.identities)
        # A read has at most one row more than `HUB`.
        whole = whole and here.whole and len(here) <= HUB
        new = [note for note in here.notes if note not in gone]
        gone.update(new)
        ways += new
    return Listed(sorted(identities)[:HUB], whole and len(identities) <= HUB)


def with_own(listed: Iterable[Identity], own: Collection[Identity]) -> list[Identity]:
    """At most `HUB` identities with `own` among them, sorted."""
    others = [identity for identity in listed if identity not in own]
    return sorted([*own, *others[: HUB - len(own)]])


# Executes the steps of matching on the tables, for the events of one Arrow batch.


@dataclass(frozen=True)
class Large:
    """The rows in bucket 0 of a list that may continue in other buckets; valid until a time of the monotonic clock."""

    rows: frozenset[Identity]
    until: float


@dataclass
class Steps:
    """What a process knows about lists, across batches: upper bounds of their sizes, and the first buckets of large
    ones."""

    tables: IdTables
    sizes: dict[Node, int] = field(default_factory=dict)
    large: dict[Node, Large] = field(default_factory=dict)
    touched: set[Node] = field(default_factory=set)
    new: set[Node] = field(default_factory=set)

    def run(self, groups: Sequence[tuple[Node, ...]], identities: Mapping[Node, Identity], create: bool) -> Resolved:
        """The persons of nodes seen together.

        Until `forget`, `touched` are the persons whose lists this changed, `new` those whose lists have nothing else.
        """
        if len(self.sizes) > SIZES_KEPT:
            self.sizes.clear()
        steps = resolve(groups, create=create)
        answer: Links = {}
        step = next(steps)
        while True:
            if isinstance(step, ReadLinks):
                answer = self.tables.links(step.nodes)
                # A node without links is not a person yet, and has no list.
                for node in step.nodes:
                    if node not in answer:
                        self.sizes.setdefault(node, 0)
            else:
                answer = self._attach(step, identities)
            try:
                step = steps.send(answer)
            except StopIteration as end:
                resolved: Resolved = end.value
                return resolved

    def forget(self) -> None:
        self.touched, self.new = set(), set()

    def _attach(self, step: Attach, identities: Mapping[Node, Identity]) -> Links:
        coming = Counter(person for _, person in step.pairs)
        persons = coming.keys()
        self._measure(coming)
        self.new |= {person for person in persons - self.touched if not self.sizes[person]}
        self.touched |= persons
        self._list([(person, *identities.get(node, _note(node))) for node, person in step.pairs])
        others = {node: person for node, person in step.pairs if node != person}
        self.tables.link([pair for pair in step.pairs if pair[0] == pair[1]], confirmed=True)
        self.tables.link(others.items(), confirmed=False)
        answer = self.tables.links(step.again)
        lists = self.tables.lists(sorted(others), limit=1)
        self._list([(person, *_note(node)) for node, person in others.items() if len(lists[node])])
        self.tables.link(others.items(), confirmed=True)
        return answer

    def _measure(self, coming: Mapping[Node, int]) -> None:
        """Make sure that the sizes of lists that get these rows are known. Rows written again count again, and rows
        expire: a list that could become large is read."""
        now = time.monotonic()
        if len(self.large) > LARGE_KEPT:
            self.large.clear()
        unsure = sorted(
            person
            for person, count in coming.items()
            if self.sizes.get(person, HUB) + count > HUB
            and (person not in self.large or self.large[person].until < now)
        )
        for person, person_list in self.tables.lists(unsure).items() if unsure else ():
            self.sizes[person] = len(person_list)
            rows = frozenset([*person_list.identities, *map(_note, person_list.notes)])
            self.large[person] = Large(rows, now + TRUSTED * self.tables.ttl)

    def _list(self, rows: Sequence[tuple[Node, str, str]]) -> None:
        placed = []
        for person, kind, value in rows:
            there = person in self.large and (kind, value) in self.large[person].rows
            bucket = 0 if there else bucket_of(self.sizes[person], value)
            if bucket or not kind:
                self.new.discard(person)
            placed.append((person, bucket, kind, value))
            if bucket:
                placed.append((person, 0, "", ""))
            self.sizes[person] += not there
        self.tables.write(dict.fromkeys(placed))


def _note(person: Node) -> Identity:
    return "", person.hex()
