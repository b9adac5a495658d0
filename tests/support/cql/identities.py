"""Persons as a plain union-find finds them, written down a second time: what matching must agree with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from penstock.cql.matching.linking import node_of

Identity = tuple[str, str]


def persons_of(
    kinds: Sequence[str], events: Iterable[Sequence[str | None]]
) -> dict[Identity, tuple[str, dict[str, list[str]]]]:
    """Of each identity its person, and all that the person has by kind."""
    sets: list[set[Identity]] = []
    for event in events:
        own = {(kind, value) for kind, value in zip(kinds, event, strict=True) if value}
        touched = [each for each in sets if each & own]
        sets = [each for each in sets if not each & own] + [own.union(*touched)]
    found = {}
    for each in sets:
        name = str(UUID(bytes=min(node_of(*identity) for identity in each))) if each else ""
        ids: dict[str, list[str]] = {}
        for kind, value in sorted(each):
            ids.setdefault(kind, []).append(value)
        found.update(dict.fromkeys(each, (name, ids)))
    return found
