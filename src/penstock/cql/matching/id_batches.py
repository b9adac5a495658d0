"""Matching of Arrow batches, with the caches of a process between them.

Events whose identities are known to belong to one person need no database: whole columns are compared. The other events
of an Arrow batch go through the rules of `linking` together.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from operator import itemgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.cql.matching.id_store import HUB, Identity, IdStore, IdTables, PersonList, bucket_of
from penstock.cql.matching.linking import Attach, Links, Node, ReadLinks, Resolved, node_of, resolve
from penstock.cql.row_cache import RowCache
from penstock.database.columns import decode
from penstock.database.encode_cells import encode
from penstock.keyed_state.arrow_keys import taken
from penstock.keyed_state.query_metrics import MEASURED, Measures
from penstock.native import Array
from penstock.schema import CqlType

SIZES_KEPT, LARGE_KEPT = 1_000_000, 1000
TRUSTED = 0.1
"""The fraction of the rows' time to live for which the first bucket of a large list is cached."""
UNSEEN, NOBODY = -1, -2
"""Numbers instead of a person: for an unknown identity, and for an identity that is known to have no person."""
SEPARATOR = b"\0"
KEY = "penstock$ids"
"""The temporary column of the identities, a struct."""
MEASURES = Measures(("rows", "hits", "identities", "created", "merged", "requests", "wait_ms", "cached"))
_IDS = pa.map_(pa.string(), pa.list_(pa.string()))
_PERSON = pa.schema([("person", pa.binary())])
_LISTS = pa.schema([("ids", _IDS)])


@dataclass(frozen=True)
class Match:
    """Adds the person and its identities to the record batches of a task."""

    store: IdStore
    kinds: tuple[str, ...]
    into: str
    create: bool
    ttl: int
    fresh: timedelta
    limit: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        process = PROCESSES.setdefault(self, IdentityCache(self))
        for batch in batches:
            if batch.num_rows:
                yield process.matched(batch)


class IdentityCache:
    """The caches of a process: the persons of identities, and the identities of persons."""

    def __init__(self, match: Match) -> None:
        self.match = match
        self.tables = IdTables(match.store, match.ttl)
        self.steps = Steps(self.tables)
        self.own: dict[Node, list[Identity]] = {}
        self.persons = RowCache(_PERSON, match.limit, match.fresh.total_seconds())
        self.lists = RowCache(_LISTS, match.limit, match.fresh.total_seconds())

    def matched(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        began, self.tables.requests = time.monotonic(), 0
        events = EventIdentities.of(self.match.kinds, batch.column(KEY).flatten())
        places = self.persons.find(events.identities, began)
        persons = taken(self.persons.table, places).column(0).combine_chunks()
        cold, created, merged = events.unsettled(persons), 0, 0
        if cold.any():
            persons, created, merged = self._resolve(events, persons.to_pylist(), cold, began)
        codes, names = events.persons(persons)
        lists = self._lists(names, began)
        self.steps.forget()
        added = [_uuids(names).take(codes), lists.take(codes)]
        numbers = [
            batch.num_rows,
            int(np.count_nonzero(events.codes.max(axis=1, initial=-1) >= 0)) - int(cold.sum()),
            len(events.identities),
            created,
            merged,
            self.tables.requests,
            round((time.monotonic() - began) * 1000) if self.tables.requests else 0,
            len(self.persons),
        ]
        plain = [(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True) if name != KEY]
        named = [*(name for name, _ in plain), self.match.into, f"{self.match.into}_ids", MEASURED]
        columns = [*(column for _, column in plain), *added, MEASURES.column(numbers, batch.num_rows)]
        return pa.RecordBatch.from_arrays(columns, named)

    def _resolve(
        self, events: EventIdentities, persons: list[bytes | None], cold: Array, now: float
    ) -> tuple[pa.Array, int, int]:
        """Find the persons of the `cold` events; returns all persons, and how many are new and merged."""
        groups = np.unique(events.codes[cold], axis=0).tolist()
        places = sorted({code for group in groups for code in group if code >= 0})
        of_place = {place: events.identity(place) for place in places}
        nodes = {place: node_of(*identity) for place, identity in of_place.items()}
        identities = {nodes[place]: identity for place, identity in of_place.items()}
        together = [tuple(dict.fromkeys(nodes[code] for code in group if code >= 0)) for group in groups]
        found = self.steps.run(together, identities, self.match.create)
        for place, person in enumerate(persons):
            # This may have merged another event's person.
            if person:
                persons[place] = found.persons.get(person, person)
        for place, node in nodes.items():
            persons[place] = found.persons[node] if self.match.create or node in found.known else b""
        self.own = {}
        for node, identity in sorted(identities.items(), key=itemgetter(1)):
            self.own.setdefault(found.persons[node], []).append(identity)
        fresh = pa.table({"person": pa.array([persons[place] for place in places], pa.binary())})
        # As old as the batch: waiting for the database must not make the rows seem newer.
        self.persons.add(events.identities.take(pa.array(places)), fresh, now)
        return pa.array(persons, pa.binary()), found.created, found.merged

    def _lists(self, persons: pa.Array, now: float) -> pa.Array:
        """The identities of each person as a map; read again for persons that this batch changed."""
        places = self.lists.find(persons, now)
        touched = pc.is_in(persons, pa.array(list(self.steps.touched), pa.binary()))
        old = (places < 0) | touched.to_numpy(zero_copy_only=False)
        table = self.lists.table
        if old.any():
            wanted = persons.filter(pa.array(old))
            fresh = pa.table({"ids": _as_maps(self._read_lists(wanted.to_pylist()))})
            places[old] = np.arange(table.num_rows, table.num_rows + len(wanted))
            table = pa.concat_tables([table, fresh])
            self.lists.add(wanted, fresh, now)
        return taken(table, places).column(0).combine_chunks()

    def _read_lists(self, persons: list[Node]) -> list[list[Identity]]:
        """The identities of persons: for persons new in this batch its identities, for others those in the tables."""
        own = {person: self.own[person] for person in persons if person in self.steps.new}
        others = [person for person in persons if person not in own]
        own.update(zip(others, read_lists(self.tables, others), strict=True))
        return [own[person] for person in persons]


def _uuids(persons: pa.Array) -> pa.Array:
    return decode(CqlType("uuid"), encode(CqlType("blob"), persons), pa.string())


def _as_maps(lists: Iterable[Iterable[Identity]]) -> pa.Array:
    """Lists of identities as maps from kind to values."""
    made = []
    for identities in lists:
        kinds: dict[str, list[str]] = {}
        for kind, value in identities:
            kinds.setdefault(kind, []).append(value)
        made.append(list(kinds.items()))
    return pa.array(made, _IDS)


PROCESSES: dict[Match, IdentityCache] = {}
"""The caches of this Python process, shared by its tasks."""


# The events of an Arrow batch by their identities, in whole columns: which events need the rules, and the persons of
# the others.


@dataclass(frozen=True)
class EventIdentities:
    """The events of an Arrow batch: their distinct identities, and for each row the positions of its own (-1: none).

    An identity is the kind, a zero byte and the value. Arguments `persons` have the person of each identity: empty if
    it has none, null if unknown.
    """

    identities: pa.Array
    codes: Array

    @classmethod
    def of(cls, kinds: Sequence[str], columns: Sequence[pa.Array]) -> EventIdentities:
        identities: list[pa.Array] = []
        codes, known = [], 0
        for kind, column in zip(kinds, columns, strict=True):
            coded = column.dictionary_encode()
            found = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
            codes.append(np.where(found < 0, -1, found + known))
            values = coded.dictionary.cast(pa.binary())
            identities.append(pc.binary_join_element_wise(kind.encode(), values, SEPARATOR))
            known += len(values)
        return cls(pa.concat_arrays(identities), np.column_stack(codes))

    def identity(self, place: int) -> Identity:
        kind, _, value = self.identities[place].as_py().decode().partition("\0")
        return kind, value

    def unsettled(self, persons: pa.Array) -> Array:
        """A mask of the events with an unknown identity, or with identities of two persons."""
        of_event = _numbered(persons)[self.codes]
        none = (self.codes < 0) | (of_event == NOBODY)
        low = np.where(none, np.iinfo(np.int64).max, of_event).min(axis=1)
        high = np.where(none, -1, of_event).max(axis=1)
        cold: Array = (of_event == UNSEEN).any(axis=1, where=~none) | ((high >= 0) & (low != high))
        return cold

    def persons(self, persons: pa.Array) -> tuple[pa.Array, pa.Array]:
        """For each event the position of its person, and the distinct persons in order."""
        names = pc.unique(persons.filter(pc.greater(pc.binary_length(persons), 0)))
        names = names.take(pc.sort_indices(names))
        ranks = pc.index_in(persons, names).fill_null(len(names)).to_numpy(zero_copy_only=False)
        rank = np.append(ranks, len(names))[self.codes].min(axis=1)
        return pa.array(rank, mask=rank == len(names)), names


def _numbered(persons: pa.Array) -> Array:
    """A number for each person, equal for equal persons, and one more at the end, for the position -1."""
    coded = persons.dictionary_encode()
    numbers = coded.indices.fill_null(UNSEEN).to_numpy(zero_copy_only=False).astype(np.int64)
    nobody = coded.dictionary.index(b"").as_py()
    return np.append(np.where((numbers == nobody) & (numbers >= 0), NOBODY, numbers), NOBODY)


# All identities of persons: notes lead from list to list.


def read_lists(tables: IdTables, persons: Sequence[Node]) -> list[list[Identity]]:
    """The identities of each person, sorted by kind and value; at most `HUB` of them."""
    known: dict[Node, PersonList] = {}
    wanted = list(persons)
    while wanted:
        known |= tables.lists(wanted)
        wanted = sorted({note for person in wanted for note in known[person].notes if note not in known})
    return [_all(person, known)[:HUB] for person in persons]


def _all(person: Node, known: dict[Node, PersonList]) -> list[Identity]:
    found: set[Identity] = set()
    ways, gone = [person], {person}
    while ways:
        here = known[ways.pop()]
        found.update(here.identities)
        new = [note for note in here.notes if note not in gone]
        gone.update(new)
        ways += new
    return sorted(found)


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
                found: Resolved = end.value
                return found

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
        for person, found in self.tables.lists(unsure).items() if unsure else ():
            self.sizes[person] = len(found)
            rows = frozenset([*found.identities, *map(_note, found.notes)])
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
