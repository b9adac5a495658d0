"""Executes the steps of matching on the tables, for the events of one Arrow batch."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.cql.matching.id_store import HUB, Identity, IdTables, bucket_of
from penstock.cql.matching.linking import Attach, Links, Node, ReadLinks, Resolved, resolve

SIZES_KEPT, LARGE_KEPT = 1_000_000, 1000
TRUSTED = 0.1
"""The fraction of the rows' time to live for which the first bucket of a large list is cached."""


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
