"""Generations of change log streams, and the points in time a reader has come to.

A generation holds the streams that writes with a timestamp in [its time, the next one's time) go to (vnode mode of
ScyllaDB: `system_distributed.cdc_generation_timestamps` and `cdc_streams_descriptions_v2`). A reader's position is
one point in time within one generation: all rows up to and including it have been read, in every stream.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from penstock.errors import PenstockError
from penstock.source.log_groups import UUID_EPOCH

GENERATIONS = "system_distributed.cdc_generation_timestamps"
STREAMS = "system_distributed.cdc_streams_descriptions_v2"

_LARGEST_LOW_HALF = 0x7F7F7F7F7F7F7F7F
"""Timeuuids of one tick are ordered by these eight bytes, each signed."""


@dataclass(frozen=True)
class Position:
    """A Spark offset: milliseconds since 1970 of the generation's start, and microseconds of the last time read."""

    generation: int
    time: int

    def offset(self) -> dict[str, int]:
        return {"generation": self.generation, "time": self.time}

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Position:
        try:
            return cls(int(offset["generation"]), int(offset["time"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PenstockError(
                f"{offset!r} is no position in a change log",
                where="the checkpoint",
                next="start the query with a checkpoint of its own",
            ) from error


def first_micros(generation: int) -> int:
    """The last microsecond before a generation: where a reader of it begins."""
    return generation * 1000 - 1


def upper_bound(micros: int) -> uuid.UUID:
    """The greatest timeuuid of a microsecond: `> upper_bound(a) AND <= upper_bound(b)` is the time (a, b]."""
    ticks = micros * 10 + 9 + UUID_EPOCH
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | 0x1000 | ticks >> 48 & 0x0FFF
    return uuid.UUID(int=high << 64 | _LARGEST_LOW_HALF)


class Generations:
    """The cluster's generations, read when asked for; streams of a generation never change and are kept."""

    def __init__(self, session: Any) -> None:
        self.session = session
        # One node alone answers for all; otherwise a quorum has what the coordinator published.
        self.level = "QUORUM" if len(session.hosts) > 1 else "ONE"
        self.kept: dict[int, tuple[bytes, ...]] = {}

    def starts(self) -> list[int]:
        """The starts of all generations in milliseconds, oldest first."""
        rows = self._execute(f"SELECT time FROM {GENERATIONS} WHERE key = 'timestamps'")
        starts = sorted(_millis(time) for (time,) in rows)
        if not starts:
            raise PenstockError(
                "the cluster has published no generation of change log streams",
                where=GENERATIONS,
                next="on ScyllaDB run nodetool checkAndRepairCdcStreams; tablets keyspaces are not read yet",
            )
        return starts

    def after(self, generation: int) -> int | None:
        """The start of the generation that follows, once it is published."""
        rows = self._execute(f"SELECT min(time) FROM {GENERATIONS} WHERE key = 'timestamps' AND time > {generation}")
        return _millis(rows[0][0]) if rows and rows[0][0] else None

    def streams(self, generation: int) -> tuple[bytes, ...]:
        """The stream ids of a generation in the order of their tokens."""
        if generation not in self.kept:
            rows = self._execute(f"SELECT streams FROM {STREAMS} WHERE time = {generation}")
            found = {stream for (streams,) in rows for stream in streams or ()}
            if not found:
                raise PenstockError(
                    f"the generation of {generation} ms has no streams in this cluster",
                    where=STREAMS,
                    next="if the checkpoint belongs to another cluster, start with a new one",
                )
            self.kept[generation] = tuple(sorted(found, key=_token))
        return self.kept[generation]

    def _execute(self, text: str) -> list[tuple[Any, ...]]:
        level = ConsistencyLevel.name_to_value[self.level]
        return list(self.session.execute(SimpleStatement(text, consistency_level=level)))


def _millis(time: datetime) -> int:
    return (time.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _token(stream: bytes) -> int:
    return int.from_bytes(stream[:8], "big", signed=True)
