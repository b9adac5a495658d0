"""Where ScyllaDB's own connector has stopped, of the records that Kafka Connect has in `offset.storage.topic`.

There is a record for each vnode of a table's log in each generation of its streams. The key is JSON,
["<connector>", {"keyspace_name", "table_name", "vnode_id", "generation_start"}], all of them strings; the value has
`window_start`, a timeuuid: all before it was sent. What was sent after it, `change_id_stream_id` and `change_id_time`,
is not enough to leave it out here: the connector writes that at the first of several rows of one write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

from penstock.cdc.generations import time_of
from penstock.database.table_catalog import split_name

KEYS = frozenset(("keyspace_name", "table_name", "vnode_id", "generation_start"))


class Vnode(NamedTuple):
    """A vnode of a table's log; `generation` is the start of its generation, in milliseconds since 1970."""

    keyspace: str
    table: str
    generation: int
    number: int

    @classmethod
    def of(cls, partition: Mapping[str, Any]) -> Vnode:
        """The vnode of a record's key; raises ValueError or KeyError."""
        keyspace, table, generation, number = (
            str(partition[name]) for name in ("keyspace_name", "table_name", "generation_start", "vnode_id")
        )
        return cls(keyspace, table, int(generation), int(number))


class StoppedAt(NamedTuple):
    """Where a connector has stopped: what a reader has to begin with, in microseconds since 1970.

    `missing` of the `vnodes` have no record: for them it is the start of their generation. All vnodes that have one
    were read up to `sent`.
    """

    begin: int
    sent: int
    vnodes: int
    missing: int


def sent_before(value: Mapping[str, Any]) -> int:
    """The microsecond since 1970 before which all was sent; raises ValueError or KeyError."""
    window = str(value["window_start"])
    if (micros := time_of(window)) is None:
        raise ValueError(f"{window} is not a timeuuid")
    return micros


class VnodeOffsets:
    """The records of one connector: the key of each, and the time before which all was sent."""

    def __init__(self) -> None:
        self._known: dict[Vnode, tuple[str, int]] = {}

    def put(self, vnode: Vnode, key: str, micros: int | None) -> None:
        """Keep what a record says; None for a removed one."""
        if micros is None:
            self._known.pop(vnode, None)
        else:
            self._known[vnode] = key, micros

    def keys(self, table: str | None = None) -> list[str]:
        """The keys of the records, or of those of a table."""
        name = table and split_name(table)
        return [key for vnode, (key, _) in self._known.items() if name in (None, vnode[:2])]

    def of(self, table: str) -> dict[Vnode, int]:
        """The times of a table's vnodes."""
        name = split_name(table)
        return {vnode: micros for vnode, (_, micros) in self._known.items() if vnode[:2] == name}


def stop_of(times: Mapping[Vnode, int], vnodes: Callable[[int], Set[int] | None]) -> StoppedAt | None:
    """Where the connector has stopped in a table; None without records.

    It reads one generation after the other, so the newest one counts. `vnodes` are those of a generation, None if the
    database does not know it. The connector would begin one without a record again, too.
    """
    if not times:
        return None
    newest = max(vnode.generation for vnode in times)
    sent_by_vnode = {vnode.number: micros for vnode, micros in times.items() if vnode.generation == newest}
    wanted = vnodes(newest) or sent_by_vnode.keys()
    missing, sent = len(wanted - sent_by_vnode.keys()), min(sent_by_vnode.values())
    return StoppedAt(newest * 1000 if missing else sent, sent, len(wanted), missing)
