"""The rules of matching: which identities belong to one person. They yield steps, which the caller executes.

An identity is a node: the hash of its kind and value. Identities seen together are linked. A person is a connected set
of nodes, named by its smallest node: the name depends only on the links, not on their order. Links are stored only
downwards, from a node to a smaller node of its set, and are only added, so two writers cannot undo each other. The
person of a node is found by following links down to the smallest node.

A writer attaches a node to the smallest node it knows: first it writes the row that lists the node under that person,
then the link. Then it reads the links of both again. If two writers attach one node to different persons at once, the
last to write reads both links and joins the two. If one writer attaches w to u while another attaches u to v, either
the first reads the link from u and continues to v; or the second finds w in u's list, and notes in v's list that u's
list belongs to it. So a person's lists lead to all its nodes, and no writer waits for another. Last, the link is
confirmed. If its writer died before that, the next reader of the link attaches it again.

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
"""The fraction of a link's time to live that is left, from 0 to 1; 0 if the link is not confirmed."""

PROLONG = 0.9
"""A link that is seen again with less than this left is written again."""
KEEP = 0.5
"""The same for links of nodes on the way to a person that were not seen themselves."""


@dataclass(frozen=True)
class ReadLinks:
    """Asks for the links of nodes: for each node with links, the smaller nodes and the time left of each link."""

    nodes: tuple[Node, ...]


@dataclass(frozen=True)
class Attach:
    """Asks to write, for pairs of a node and its person, the node to the person's list, then the link.

    A node that is its own person has a link to itself, which makes it known. The answer is that of `ReadLinks` for
    `again`, read after the writes. If a node that is not its person now has a list of its own, the person's list gets a
    note that leads to it. After that the links are confirmed.
    """

    pairs: tuple[tuple[Node, Node], ...]
    again: tuple[Node, ...]


Links: TypeAlias = dict[Node, dict[Node, Left]]
Steps: TypeAlias = Generator[ReadLinks | Attach, Mapping[Node, Mapping[Node, Left]], "Resolved"]


@dataclass(frozen=True)
class Resolved:
    """The person of each node; `created` and `merged` count persons; `known` are the nodes that had links."""

    persons: Mapping[Node, Node]
    created: int = 0
    merged: int = 0
    known: frozenset[Node] = field(default_factory=frozenset)


def node_of(kind: str, value: str) -> Node:
    return sha256(f"{kind}\0{value}".encode()).digest()[:16]


def resolve(groups: Sequence[tuple[Node, ...]], *, create: bool) -> Steps:
    """Find the persons of nodes seen together, one group per event; without `create` nothing is written."""
    links: Links = {}
    seen = tuple(sorted({node for group in groups for node in group}))
    yield from _learn(links, seen)
    known = frozenset(node for node in seen if links[node])
    if not create:
        return Resolved(persons(_known_only(groups, known), links), known=known)
    before = {person for node, person in persons([], links).items() if node not in seen or node in known}
    done: set[tuple[Node, Node]] = set()
    while True:
        person_of = persons(groups, links)
        pairs = tuple(
            pair for pair in missing(seen, links, person_of) if pair not in done or pair[1] not in links[pair[0]]
        )
        if not pairs:
            surviving = {person_of[person] for person in before}
            return Resolved(
                person_of, len({person_of[node] for node in seen} - surviving), len(before) - len(surviving), known
            )
        done.update(pairs)
        again = tuple(sorted({node for pair in pairs for node in pair}))
        answer = yield Attach(pairs, again)
        links.update({node: dict(answer.get(node, {})) for node in again})
        yield from _learn(links, [lower for node in again for lower in links[node]])


def _known_only(groups: Iterable[tuple[Node, ...]], known: frozenset[Node]) -> list[tuple[Node, ...]]:
    return [tuple(node for node in group if node in known) for group in groups]


def _learn(links: Links, nodes: Iterable[Node]) -> Generator[ReadLinks, Mapping[Node, Mapping[Node, Left]], None]:
    """Read the links of nodes, and of all nodes that they lead to."""
    new = tuple(sorted({node for node in nodes if node not in links}))
    while new:
        answer = yield ReadLinks(new)
        links.update({node: dict(answer.get(node, {})) for node in new})
        new = tuple(sorted({lower for node in new for lower in links[node] if lower not in links}))


def persons(groups: Iterable[tuple[Node, ...]], links: Mapping[Node, Mapping[Node, Left]]) -> dict[Node, Node]:
    """The smallest node of each node's set, connected by links and groups."""
    parents: dict[Node, Node] = {node: node for node in links}

    def smallest(node: Node) -> Node:
        while parents[node] != node:
            parents[node] = parents[parents[node]]
            node = parents[node]
        return node

    def join(first: Node, other: Node) -> None:
        low, high = sorted((smallest(first), smallest(other)))
        parents[high] = low

    for node, lowers in links.items():
        for lower in lowers:
            join(node, lower)
    for group in groups:
        for node in group[1:]:
            join(group[0], node)
    return {node: smallest(node) for node in parents}


def missing(
    seen: Iterable[Node], links: Mapping[Node, Mapping[Node, Left]], person_of: Mapping[Node, Node]
) -> tuple[tuple[Node, Node], ...]:
    """The pairs of node and person to attach: seen nodes directly, others if their links down are missing or expire."""
    direct = set(seen)
    pairs = [(node, person_of[node]) for node in direct if links[node].get(person_of[node], 0.0) < PROLONG]
    for node, lowers in links.items():
        down = [left for lower, left in lowers.items() if lower != node]
        if node not in direct and person_of[node] != node and max(down, default=0.0) < KEEP:
            pairs.append((node, person_of[node]))
    return tuple(sorted(pairs))
