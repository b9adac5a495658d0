"""Persons and their identities, in plain Python, for the proof of the demo; it imports nothing of what it checks.

A person is all identities that are linked, directly or indirectly, by earlier events with several of them. The name is
the smallest of their hashes: the first 16 bytes of the SHA-256 of kind, a zero byte and value, as a UUID.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from uuid import UUID

from penstock_demo.adtech.site import KINDS

Identity = tuple[str, str]
"""Kind and value."""


class Persons:
    """Union-find over identities, by the names of their hashes."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self._identities: dict[str, dict[str, Identity]] = {}

    def link(self, event: Mapping[str, Any]) -> None:
        """Link the identities of an event: they are of one person."""
        for name, identity in names_of(event).items():
            if name not in self._parents:
                self._parents[name], self._identities[name] = name, {name: identity}
        low, *others = sorted({self.person(name) for name in names_of(event)})
        for other in others:
            self._parents[other] = low
            self._identities[low] = self._identities[low] | self._identities.pop(other)

    def all_of(self, person: str) -> dict[str, Identity]:
        """The identities of a person by name."""
        return self._identities[person]

    def person(self, name: str) -> str:
        """The smallest name of all identities that are linked with this one."""
        while (parent := self._parents[name]) != name:
            self._parents[name] = self._parents[parent]
            name = parent
        return name

    def last(self, name: str) -> str | None:
        """As `person`; None for an unknown name."""
        return self.person(name) if name in self._parents else None

    def of(self, event: Mapping[str, Any]) -> str:
        """The person of an event whose identities are linked."""
        return self.person(next(iter(names_of(event))))


def names_of(event: Mapping[str, Any]) -> dict[str, Identity]:
    """The identities of an event by name."""
    values = [(kind, event[kind]) for kind in KINDS if event.get(kind)]
    return {str(UUID(bytes=sha256(f"{kind}\0{value}".encode()).digest()[:16])): (kind, value) for kind, value in values}
