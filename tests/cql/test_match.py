"""The rules of matching against a plain union-find: any order of events, any interleaving of writers, any crash."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from penstock.cql.matching.linking import Attach, Links, Node, ReadLinks, Resolved, missing, node_of, persons, resolve

Event = tuple[Node, ...]


class Store:
    """The contents of the tables, with the time left of each link."""

    def __init__(self) -> None:
        self.links: Links = defaultdict(dict)
        self.lists: dict[Node, set[Node]] = defaultdict(set)
        self.notes: dict[Node, set[Node]] = defaultdict(set)

    def listed(self, person: Node) -> set[Node]:
        """All nodes that the person's lists lead to."""
        found: set[Node] = set()
        ways, gone = [person], set()
        while ways:
            at = ways.pop()
            gone.add(at)
            found |= self.lists[at]
            ways += self.notes[at] - gone
        return found


def writer(store: Store, events: list[Event]) -> Iterator[None]:
    """Resolves the events; stops before each read and write, so that others can run in between."""
    steps = resolve(events, create=True)
    seen = {node for event in events for node in event}
    answer: Links = {}
    try:
        step = next(steps)
        while True:
            nodes = step.nodes if isinstance(step, ReadLinks) else step.again
            if isinstance(step, Attach):
                yield from attach(store, step, seen)
            answer = {}
            for node in nodes:
                yield
                answer[node] = dict(store.links[node])
            if isinstance(step, Attach):
                for node, person in step.pairs:
                    yield
                    if node != person and store.lists[node] | store.notes[node]:
                        store.notes[person].add(node)
                for node, person in step.pairs:
                    yield
                    store.links[node][person] = 1.0
            step = steps.send(answer)
    except StopIteration:
        return


def attach(store: Store, step: Attach, seen: set[Node]) -> Iterator[None]:
    for node, person in step.pairs:
        yield
        (store.lists if node in seen else store.notes)[person].add(node)
    for node, person in step.pairs:
        yield
        store.links[node].setdefault(person, 0.0)


def run_all(writers: list[Iterator[None]]) -> None:
    for each in writers:
        for _ in each:
            pass


def model(events: list[Event]) -> dict[Node, Node]:
    """The smallest node of each set, by plain repeated unions."""
    sets: list[set[Node]] = []
    for event in events:
        touched = [each for each in sets if each & set(event)]
        sets = [each for each in sets if not each & set(event)] + [set(event).union(*touched)]
    return {node: min(each) for each in sets for node in each}


def resolved(store: Store, events: list[Event], *, create: bool = False) -> Resolved:
    steps = resolve(events, create=create)
    answer: Links = {}
    try:
        step = next(steps)
        while True:
            assert isinstance(step, ReadLinks)
            answer = {node: dict(store.links[node]) for node in step.nodes}
            step = steps.send(answer)
    except StopIteration as end:
        found: Resolved = end.value
        return found


NODES = st.integers(0, 9).map(lambda number: bytes([number]) * 16)
EVENTS = st.lists(NODES, min_size=1, max_size=3, unique=True).map(tuple)
BATCHES = st.lists(st.lists(EVENTS, min_size=1, max_size=3), min_size=1, max_size=5)


@settings(max_examples=300)
@given(BATCHES, st.integers(0, 2**32))
def test_writers_at_once_with_crashes_agree_with_union_find(batches: list[list[Event]], seed: int) -> None:
    store, chance = Store(), Random(seed)
    writers = [writer(store, batch) for batch in batches]
    running = list(enumerate(writers))
    while running:
        place = chance.randrange(len(running))
        number, steps = running[place]
        if chance.random() < 0.05:
            running[place] = (number, writer(store, batches[number]))  # it died, and its batch is repeated
            continue
        for _ in range(chance.randint(1, 6)):
            if next(steps, "end") == "end":
                running.pop(place)
                break
    events = [event for batch in batches for event in batch]
    expected = model(events)
    for node, person in expected.items():
        assert resolved(store, [(node,)]).persons[node] == person
        assert node in store.listed(person)
    for person in set(expected.values()):
        assert {expected[node] for node in store.listed(person)} == {person}
    # Nodes seen twice are linked directly; later events write nothing: `resolved` refuses writes.
    run_all([writer(store, events)])
    again = resolved(store, events, create=True)
    assert {node: again.persons[node] for node in expected} == expected
    assert (again.created, again.merged) == (0, 0)


def test_persons_are_counted_as_they_come_and_merge() -> None:
    store = Store()
    a, b, c, d = (bytes([number]) * 16 for number in range(4))
    run_all([writer(store, [(b,), (c, d)])])
    steps = resolve([(b, c), (a,)], create=True)
    step = next(steps)
    assert step == ReadLinks((a, b, c))
    attach_step = steps.send({node: store.links[node] for node in (a, b, c)})
    assert attach_step == Attach(((a, a), (c, b)), (a, b, c))
    with pytest.raises(StopIteration) as end:
        steps.send({a: {a: 1.0}, b: {b: 1.0}, c: {b: 1.0, c: 1.0}})
    assert (end.value.value.created, end.value.value.merged) == (1, 1)


def test_unknown_nodes_get_no_person_when_none_are_made() -> None:
    store = Store()
    a, b, c = (bytes([number]) * 16 for number in range(3))
    run_all([writer(store, [(b,)])])
    found = resolved(store, [(a, b), (c,)])
    assert found.known == {b}
    assert found.persons[b] == b


def test_links_that_age_are_written_anew_before_they_end() -> None:
    a, b, c = (bytes([number]) * 16 for number in range(3))
    way: Links = {c: {b: 0.95, a: 0.95}, b: {a: 0.6}, a: {a: 1.0}}
    assert missing([c], way, persons([], way)) == ()
    assert missing([c], way | {c: {b: 0.95, a: 0.8}}, persons([], way)) == ((c, a),)
    assert missing([c], way | {b: {a: 0.4}}, persons([], way)) == ((b, a),)
    assert missing([c, a], way | {a: {a: 0.8}}, persons([], way)) == ((a, a),)


def test_a_node_tells_kind_and_value_apart() -> None:
    assert len({node_of("a", "bc"), node_of("ab", "c"), node_of("a", "b"), node_of("a", "")}) == 4
