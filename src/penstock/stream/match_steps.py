"""Carries out the steps of matching on the tables, for the events of one Arrow batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.stream.match import Attach, Links, Node, ReadLinks, Resolved, resolve
from penstock.stream.match_store import Identity, Tables, bucket_of

SIZES_KEPT = 1_000_000


@dataclass
class Steps:
    """What a process knows of the sizes of lists, over its batches."""

    tables: Tables
    sizes: dict[Node, int] = field(default_factory=dict)
    touched: set[Node] = field(default_factory=set)
    new: set[Node] = field(default_factory=set)

    def run(self, groups: Sequence[tuple[Node, ...]], identities: Mapping[Node, Identity], create: bool) -> Resolved:
        """The persons of nodes seen together.

        Until `forget`, `touched` are those whose lists have changed by it, `new` those with no more in them than this.
        """
        if len(self.sizes) > SIZES_KEPT:
            self.sizes.clear()
        steps = resolve(groups, create=create)
        answer: Links = {}
        step = next(steps)
        while True:
            if isinstance(step, ReadLinks):
                answer = self.tables.links(step.nodes)
                # What has no links is no person yet, and has no list.
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
        persons = {person for _, person in step.pairs}
        if unknown := sorted(persons - self.sizes.keys()):
            self.sizes.update({person: len(found) for person, found in self.tables.lists(unknown).items()})
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

    def _list(self, rows: Sequence[tuple[Node, str, str]]) -> None:
        placed = []
        for person, kind, value in rows:
            bucket = bucket_of(self.sizes[person], value)
            if bucket or not kind:
                self.new.discard(person)
            placed.append((person, bucket, kind, value))
            if bucket:
                placed.append((person, 0, "", ""))
            self.sizes[person] += 1
        self.tables.write(dict.fromkeys(placed))


def _note(person: Node) -> Identity:
    return "", person.hex()
