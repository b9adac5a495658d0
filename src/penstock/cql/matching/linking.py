"""Which identities are one person: the rules alone, as steps that ask for reads and writes and do none.

An identity is a node: the hash of its kind and value. Identities seen together are linked. A person is a connected
set of nodes, and is named by the smallest of them: by the links alone, whatever order they came in. Links are stored
downwards only, from a node to a smaller one of its set, and are only ever added, so two writers cannot undo each
other. The person of a node is found by following links down to the smallest.

A writer attaches a node to the smallest it knows: first the row that lists the node below that person, then the link.
Then it reads the links of both again. Of two writers that attach one node to different persons at once, the one that
wrote last reads both links, and joins the two. Of two writers where one attaches w to u while the other attaches u to
v, either the first reads the link from u on, and goes on to v; or the second finds w in u's list, and notes in v's
list that u's belongs to it. So a person's lists lead to all its nodes, and nobody waits for anybody. Last, the link is
confirmed; one that is not, because its writer died, is attached anew by whoever reads it.

A step that is repeated, after a crash at any point, only adds what is missing.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeAlias

Node: TypeAlias = bytes
"""16 bytes of the SHA-256 of kind, a zero byte and value: random, so that a person's name rarely changes."""
Left: TypeAlias = float
"""The part of its time to live that a link has left, from 0 to 1; 0 for one that is not confirmed."""

PROLONG = 0.9
"""A link that is seen again with less than this left is written anew."""
KEEP = 0.5
"""The same for links on the way to a person, which others wrote."""


@dataclass(frozen=True)
class ReadLinks:
    """Asks for the links of nodes: for each that has some, the smaller nodes with what is left of the link's time."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Attach:
    """Asks to write, for pairs of a node and its person: the node into the person's list, and then the link.

    A node that is its own person has a link to itself: that is how it is known. The answer is like that of
    `ReadLinks` for `again`, read after the writes. Where a node other than its person has a list of its own by then,
    the person's list gets a note that leads to it. After that the links are confirmed.
    """

    pairs: tuple[tuple[Node, Node], ...]
    again: tuple[Node, ...]


Links: TypeAlias = dict[Node, dict[Node, Left]]
Steps: TypeAlias = Generator[ReadLinks | Attach, Mapping[Node, Mapping[Node, Left]], "Resolved"]


@dataclass(frozen=True)
class Resolved:
    """The person of each node, by name; `created` and `merged` count persons."""

    persons: Mapping[Node, Node]
    created: int = 0
    merged: int = 0
    known: frozenset[Node] = field(default_factory=frozenset)


def node_of(kind: str, value: str) -> Node:
    return sha256(f"{kind}\0{value}".encode()).digest()[:16]


def resolve(groups: Sequence[tuple[Node, ...]], *, create: bool) -> Steps:
    """The persons of nodes seen together, a group for each event; without `create` nothing is written."""
    links: Links = {}
    seen = tuple(sorted({node for group in groups for node in group}))
    yield from _learn(links, seen)
    known = frozenset(node for node in seen if links[node])
    if not create:
        return Resolved(persons(_known_only(groups, known), links), known=known)
    before = {person for node, person in persons([], links).items() if node not in seen or node in known}
    done: set[tuple[Node, Node]] = set()
    while True:
        found = persons(groups, links)
        pairs = tuple(pair for pair in missing(seen, links, found) if pair not in done or pair[1] not in links[pair[0]])
        if not pairs:
            kept = {found[person] for person in before}
            return Resolved(found, len({found[node] for node in seen} - kept), len(before) - len(kept), known)
        done.update(pairs)
        again = tuple(sorted({node for pair in pairs for node in pair}))
        answer = yield Attach(pairs, again)
        links.update({node: dict(answer.get(node, {})) for node in again})
        yield from _learn(links, [lower for node in again for lower in links[node]])


def _known_only(groups: Iterable[tuple[Node, ...]], known: frozenset[Node]) -> list[tuple[Node, ...]]:
    return [tuple(node for node in group if node in known) for group in groups]


def _learn(links: Links, nodes: Iterable[Node]) -> Generator[ReadLinks, Mapping[Node, Mapping[Node, Left]], None]:
    """Read the links of nodes, and of all that they lead to."""
    new = tuple(sorted({node for node in nodes if node not in links}))
    while new:
        answer = yield ReadLinks(new)
        links.update({node: dict(answer.get(node, {})) for node in new})
        new = tuple(sorted({lower for node in new for lower in links[node] if lower not in links}))


def persons(groups: Iterable[tuple[Node, ...]], links: Mapping[Node, Mapping[Node, Left]]) -> dict[Node, Node]:
    """The smallest node of each node's set, by links and by being seen together."""
    parents: dict[Node, Node] = {node: node for node in links}

    def smallest(node: Node) -> Node:
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    def join(one: Node, other: Node) -> None:
        low, high = sorted((smallest(one), smallest(other)))
        parents[high] = low

    for node, lowers in links.items():
        for lower in lowers:
            join(node, lower)
    for group in groups:
        for node in group[1:]:
            join(group[0], node)
    return {node: smallest(node) for node in parents}


def missing(
    seen: Iterable[Node], links: Mapping[Node, Mapping[Node, Left]], found: Mapping[Node, Node]
) -> tuple[tuple[Node, Node], ...]:
    """The pairs of node and person to attach: each node seen, directly; others so that they lead there and last."""
    direct = set(seen)
    pairs = [(node, found[node]) for node in direct if links[node].get(found[node], 0.0) < PROLONG]
    for node, lowers in links.items():
        down = [left for lower, left in lowers.items() if lower != node]
        if node not in direct and found[node] != node and max(down, default=0.0) < KEEP:
            pairs.append((node, found[node]))
    return tuple(sorted(pairs))
