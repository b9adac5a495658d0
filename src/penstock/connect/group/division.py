"""Divides connectors and tasks among the workers of a group: evenly, and with as few moves as possible.

A task that another worker still has is given to nobody until that worker has stopped it and joined again, so no table
is read twice at the same time (the idea of KIP-415). The tasks of a connector's older distribution count in the same
way: the tables of one of its new tasks may be those of several old ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", str, "TaskId")


class TaskId(NamedTuple):
    """A task of a connector; `generation` is the offset of the record that distributed the connector's sources."""

    connector: str
    generation: int
    number: int


@dataclass(frozen=True)
class Claim:
    """What a worker says when it joins: its address, and what it has, or has not stopped yet."""

    url: str
    connectors: frozenset[str] = frozenset()
    tasks: frozenset[TaskId] = frozenset()

    def encoded(self) -> bytes:
        return _encoded(url=self.url, connectors=sorted(self.connectors), tasks=sorted(self.tasks))

    @staticmethod
    def decoded(data: bytes) -> Claim:
        """Raises ValueError for bytes that are no claim."""
        found = _decoded(data)
        return Claim(str(found.get("url", "")), *_work(found))


@dataclass(frozen=True)
class Share:
    """What a worker is given: its part of the work, and the addresses of all workers.

    `offset` is how far the leader had read the topic of configurations.
    """

    offset: int = 0
    connectors: frozenset[str] = frozenset()
    tasks: frozenset[TaskId] = frozenset()
    workers: frozenset[str] = frozenset()

    def encoded(self) -> bytes:
        about = {"offset": self.offset, "workers": sorted(self.workers)}
        return _encoded(**about, connectors=sorted(self.connectors), tasks=sorted(self.tasks))

    @staticmethod
    def decoded(data: bytes) -> Share:
        """Raises ValueError for bytes that are no share."""
        found = _decoded(data)
        return Share(int(found.get("offset", 0)), *_work(found), frozenset(map(str, found.get("workers", ()))))


def divide(
    claims: Mapping[str, Claim], connectors: Iterable[str], tasks: Iterable[TaskId], offset: int
) -> dict[str, Share]:
    """The share of each member, by its id."""
    of_connectors = spread(connectors, {member: claim.connectors for member, claim in claims.items()})
    of_tasks = spread(tasks, {member: claim.tasks for member, claim in claims.items()})
    workers = frozenset(claim.url for claim in claims.values())
    return {
        member: Share(
            offset,
            frozenset(one for one in of_connectors[member] if not _elsewhere(one, member, claims)),
            frozenset(one for one in of_tasks[member] if not _in_use(one, member, claims)),
            workers,
        )
        for member in claims
    }


def spread(items: Iterable[T], held: Mapping[str, Iterable[T]]) -> dict[str, set[T]]:
    """The items of each member: numbers of items differ by at most one, and members keep what they hold."""
    left = set(items)
    low, more = divmod(len(left), len(held))
    found: dict[str, set[T]] = {}
    # Who holds most is first: it may keep one more.
    for member in sorted(held, key=lambda one: (-len(set(held[one]) & left), one)):
        kept = sorted(set(held[member]) & left)[: low + (more > 0)]
        more -= len(kept) > low
        found[member] = set(kept)
        left -= found[member]
    rest = sorted(left)
    for least in (low, low + 1):
        for member in sorted(found):
            while rest and len(found[member]) < least:
                found[member].add(rest.pop(0))
    return found


def _elsewhere(connector: str, member: str, claims: Mapping[str, Claim]) -> bool:
    return any(connector in claim.connectors for other, claim in claims.items() if other != member)


def _in_use(task: TaskId, member: str, claims: Mapping[str, Claim]) -> bool:
    return any(
        one.generation != task.generation or (one == task and other != member)
        for other, claim in claims.items()
        for one in claim.tasks
        if one.connector == task.connector
    )


def _encoded(**about: Any) -> bytes:
    return json.dumps(about).encode()


def _decoded(data: bytes) -> Mapping[str, Any]:
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _work(found: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[TaskId]]:
    """The connectors and tasks of a claim or a share."""
    try:
        tasks = frozenset(TaskId(str(name), int(at), int(number)) for name, at, number in found.get("tasks", ()))
    except TypeError as error:
        raise ValueError(str(error)) from None
    return frozenset(map(str, found.get("connectors", ()))), tasks
