"""All identities of persons, read along the notes from list to list."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.stream.match import Node
from penstock.stream.match_store import HUB, Identity, PersonList, Tables


def read_lists(tables: Tables, persons: Sequence[Node]) -> list[list[Identity]]:
    """The identities of each person in order of kind and value; of a person with more than `HUB`, some of them."""
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
