"""Erasing a person: every row of matching about it is deleted, and that none is left is read afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from penstock.cql.matching.id_match import require_tables
from penstock.cql.matching.id_store import Identity, IdStore, IdTables
from penstock.cql.matching.linking import Node, node_of
from penstock.errors import PenstockError

ROUNDS = 3
"""How often what events have written meanwhile is deleted as well, before it is given up."""

ALL = 2**31 - 1
"""Rows of a list: bucket 0 may have more than `HUB`, when several writers filled it at once."""


@dataclass(frozen=True)
class Erased:
    """What was erased: the person's names, the latest and those that were merged into it, and its identities.

    Systems that got the person from `match` know it by these.
    """

    persons: tuple[str, ...]
    identities: tuple[Identity, ...]


@dataclass
class _Found:
    """Rows about some nodes: which nodes have any, which have a list, and one beyond bucket 0, and what is in them."""

    nodes: set[Node] = field(default_factory=set)
    persons: set[Node] = field(default_factory=set)
    hubs: set[Node] = field(default_factory=set)
    identities: set[Identity] = field(default_factory=set)


def erase(store: IdStore, kind: str, value: str, *, before: Callable[[Sequence[str]], object] | None = None) -> Erased:
    """Delete the person that has this identity, with all that leads to it and from it; gives what that was.

    `before` gets the person's names before rows are deleted that lead to them, to erase it elsewhere; what it raises
    ends the erasing, which can be done again.
    Before it returns it reads all these rows again and finds none; raises if events keep writing new ones. Queries
    that run may know the person for `fresh` longer, and an event that comes later makes a person anew.
    """
    require_tables(store)
    tables, known = IdTables(store), {node_of(kind, value)}
    persons: set[Node] = set()
    identities: set[Identity] = set()
    for _ in range(ROUNDS + 1):
        found = _explore(tables, known)
        if not found.nodes:
            return Erased(tuple(_names(persons)), tuple(sorted(identities)))
        known |= found.nodes
        persons |= found.persons
        identities |= found.identities
        if before is not None and found.persons:
            before(_names(found.persons))
        tables.delete(sorted(found.nodes), sorted(found.hubs))
    raise PenstockError(
        f"the person with {kind} {value!r} is written as fast as it is erased",
        where=f"{store.keyspace} at {store.access.hosts}",
        next="keep the person's events from the queries that match, and erase it again",
    )


def _names(persons: set[Node]) -> list[str]:
    return sorted(str(UUID(bytes=one)) for one in persons)


def _explore(tables: IdTables, start: set[Node]) -> _Found:
    """All rows that links, lists and notes lead to from some nodes."""
    found, visited, ahead = _Found(), set(start), sorted(start)
    while ahead:
        links, lists = tables.links(ahead), tables.lists(ahead, ALL)
        hubs = [person for person in ahead if not lists[person].whole]
        beyond = tables.beyond(hubs)
        reached: set[Node] = {lower for lowers in links.values() for lower in lowers}
        for some in (*lists.values(), *beyond):
            found.identities.update(some.identities)
            reached.update(some.notes)
            reached.update(node_of(*identity) for identity in some.identities)
        listed = {person for person in ahead if len(lists[person]) or not lists[person].whole}
        found.persons |= listed
        found.hubs.update(hubs)
        found.nodes |= listed | links.keys()
        ahead = sorted(reached - visited)
        visited |= reached
    return found
