"""Erases a person: deletes every row of matching about it, then reads the tables again to verify it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from penstock.border.public import public
from penstock.cql.matching.id_store import Identity, IdStore, IdTables, require_tables
from penstock.cql.matching.linking import Node, node_of
from penstock.errors import PenstockError

ROUNDS = 3
"""How often rows that events wrote meanwhile are deleted again before `erase` gives up."""

ALL = 2**31 - 1
"""No limit for the rows of a list: bucket 0 may have more than `HUB` if several writers filled it at once."""


@dataclass(frozen=True)
class Erased:
    """The erased person: its names (the latest, and those merged into it), and its identities as (kind, value).

    Systems that got the person from `match` know it by these names.
    """

    persons: tuple[str, ...]
    identities: tuple[Identity, ...]


@dataclass
class _Found:
    """Rows about some nodes: the nodes with rows, with a list, with a list beyond bucket 0, and the identities."""

    nodes: set[Node] = field(default_factory=set)
    persons: set[Node] = field(default_factory=set)
    hubs: set[Node] = field(default_factory=set)
    identities: set[Identity] = field(default_factory=set)


@public("cql.erase")
def erase(store: IdStore, kind: str, value: str, *, before: Callable[[Sequence[str]], object] | None = None) -> Erased:
    """Delete the person with this identity and everything linked to it; returns what was deleted.

    `before` gets the person's names before the rows that lead to them are deleted, to erase the person elsewhere. If it
    raises, erasing stops and can be repeated.

    Reads all rows again before it returns; raises PenstockError if events keep writing new ones. Running queries may
    know the person for up to `fresh` longer, and a later event creates the person again.
    """
    require_tables(store)
    tables, known = IdTables(store), {node_of(kind, value)}
    persons: set[Node] = set()
    identities: set[Identity] = set()
    for _ in range(ROUNDS + 1):
        explored = _explore(tables, known)
        if not explored.nodes:
            return Erased(tuple(_names(persons)), tuple(sorted(identities)))
        known |= explored.nodes
        persons |= explored.persons
        identities |= explored.identities
        if before is not None and explored.persons:
            before(_names(explored.persons))
        tables.delete(sorted(explored.nodes), sorted(explored.hubs))
    raise PenstockError(
        f"events write the person with {kind} {value!r} as fast as it is erased",
        where=f"{store.keyspace} at {store.access.hosts}",
        next="keep the person's events from the queries that match, then erase it again",
    )


def _names(persons: set[Node]) -> list[str]:
    return sorted(str(UUID(bytes=person)) for person in persons)


def _explore(tables: IdTables, start: set[Node]) -> _Found:
    """All rows that can be reached from some nodes by links, lists and notes."""
    explored, visited, ahead = _Found(), set(start), sorted(start)
    while ahead:
        links, lists = tables.links(ahead), tables.lists(ahead, ALL)
        hubs = [person for person in ahead if not lists[person].whole]
        beyond = tables.beyond(hubs)
        reached: set[Node] = {lower for lowers in links.values() for lower in lowers}
        for some in (*lists.values(), *beyond):
            explored.identities.update(some.identities)
            reached.update(some.notes)
            reached.update(node_of(*identity) for identity in some.identities)
        listed = {person for person in ahead if len(lists[person]) or not lists[person].whole}
        explored.persons |= listed
        explored.hubs.update(hubs)
        explored.nodes |= listed | links.keys()
        ahead = sorted(reached - visited)
        visited |= reached
    return explored
