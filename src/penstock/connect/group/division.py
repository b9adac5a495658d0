"""Divides connectors and tasks among the workers of a group: evenly, and with as few moves as possible.

A task that another worker still has is assigned to nobody until that worker has stopped it and joined again, so no
table is read twice at the same time (the idea of KIP-415). The tasks of a connector's older distribution count in the
same way: the tables of one of its new tasks may be those of several old ones.
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
        fields = _decoded(data)
        return Claim(str(fields.get("url", "")), *_work(fields))


@dataclass(frozen=True)
class Share:
    """What a worker is assigned: its part of the work, and the addresses of all workers.

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
        fields = _decoded(data)
        return Share(int(fields.get("offset", 0)), *_work(fields), frozenset(map(str, fields.get("workers", ()))))


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
            frozenset(name for name in of_connectors[member] if not _elsewhere(name, member, claims)),
            frozenset(task for task in of_tasks[member] if not _in_use(task, member, claims)),
            workers,
        )
        for member in claims
    }


def spread(items: Iterable[T], held: Mapping[str, Iterable[T]]) -> dict[str, set[T]]:
    """The items of each member: numbers of items differ by at most one, and members keep what they hold."""
    left = set(items)
    low, more = divmod(len(left), len(held))
    items_of: dict[str, set[T]] = {}
    # Who holds most is first: it may keep one more.
    for member in sorted(held, key=lambda holder: (-len(set(held[holder]) & left), holder)):
        stays = sorted(set(held[member]) & left)[: low + (more > 0)]
        more -= len(stays) > low
        items_of[member] = set(stays)
        left -= items_of[member]
    rest = sorted(left)
    for least in (low, low + 1):
        for member in sorted(items_of):
            while rest and len(items_of[member]) < least:
                items_of[member].add(rest.pop(0))
    return items_of


def _elsewhere(connector: str, member: str, claims: Mapping[str, Claim]) -> bool:
    return any(connector in claim.connectors for other, claim in claims.items() if other != member)


def _in_use(task: TaskId, member: str, claims: Mapping[str, Claim]) -> bool:
    return any(
        claimed.generation != task.generation or (claimed == task and other != member)
        for other, claim in claims.items()
        for claimed in claim.tasks
        if claimed.connector == task.connector
    )


def _encoded(**about: Any) -> bytes:
    return json.dumps(about).encode()


def _decoded(data: bytes) -> Mapping[str, Any]:
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    return fields


def _work(fields: Mapping[str, Any]) -> tuple[frozenset[str], frozenset[TaskId]]:
    """The connectors and tasks of a claim or a share."""
    try:
        tasks = frozenset(TaskId(str(name), int(at), int(number)) for name, at, number in fields.get("tasks", ()))
    except TypeError as error:
        raise ValueError(str(error)) from None
    return frozenset(map(str, fields.get("connectors", ()))), tasks
