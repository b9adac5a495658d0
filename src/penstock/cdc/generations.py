"""Generations of change log streams, and the positions of readers.

A generation holds the streams of the writes with a timestamp from its time up to the time of the next generation. The
streams belong to the cluster's ring (`system_distributed.cdc_generation_timestamps` and
`cdc_streams_descriptions_v2`). In a ScyllaDB keyspace with tablets they belong to the tablets of one table
(`system.cdc_timestamps` and `cdc_streams`), and a new generation replaces them when tablets are split or merged.

A reader's position is a time within one generation: the rows of all streams up to and including it have been read.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.query import SimpleStatement

from penstock.cdc.sent_groups import UUID_EPOCH
from penstock.database.cql_types import CqlTable
from penstock.errors import PenstockError

# Times are microseconds since 1970; the log has them as timeuuids.

MICROSECOND = timedelta(microseconds=1)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_LOW_HALF = 0x7F7F7F7F7F7F7F7F
"""The greatest last eight bytes of a timeuuid: timeuuids of one tick are ordered by them, each byte signed."""


def micros(at: datetime) -> int:
    """The time in microseconds since 1970; a time without a zone is UTC."""
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // MICROSECOND


def now_micros() -> int:
    return micros(datetime.now(UTC))


def upper_bound(time: int) -> uuid.UUID:
    """The greatest timeuuid of a microsecond: `> upper_bound(a) AND <= upper_bound(b)` selects the time (a, b]."""
    ticks = time * 10 + 9 + UUID_EPOCH
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | 0x1000 | ticks >> 48 & 0x0FFF
    return uuid.UUID(int=high << 64 | _LARGEST_LOW_HALF)


def time_of(timeuuid: str) -> int | None:
    """The time of a timeuuid in microseconds since 1970; None for a UUID of another version, which has none."""
    id = uuid.UUID(timeuuid)
    return (id.time - UUID_EPOCH) // 10 if id.version == 1 else None


@dataclass(frozen=True)
class Published:
    """Queries for published generations: all their starts, the start of the next one, and the streams of one.

    The generation's start, in milliseconds since 1970, must be appended to `after` and `streams`.
    """

    table: str
    starts: str
    after: str
    streams: str
    missing: str


_TIMESTAMPS = "system_distributed.cdc_generation_timestamps WHERE key = 'timestamps'"
RING = Published(
    "system_distributed.cdc_generation_timestamps",
    f"SELECT time FROM {_TIMESTAMPS}",
    f"SELECT min(time) FROM {_TIMESTAMPS} AND time > ",
    "SELECT range_end, streams FROM system_distributed.cdc_streams_descriptions_v2 WHERE time = ",
    "on ScyllaDB run nodetool checkAndRepairCdcStreams",
)


def tablets(table: CqlTable, system: str = "system") -> Published:
    """Where ScyllaDB publishes the streams of one table's tablets; `stream_state` 0 selects the streams in use."""
    where = f"WHERE keyspace_name = '{_text(table.keyspace)}' AND table_name = '{_text(table.name)}'"
    return Published(
        f"{system}.cdc_timestamps of {table.full_name}",
        f"SELECT timestamp FROM {system}.cdc_timestamps {where}",
        f"SELECT min(timestamp) FROM {system}.cdc_timestamps {where} AND timestamp > ",
        f"SELECT stream_id FROM {system}.cdc_streams {where} AND stream_state = 0 AND timestamp = ",
        "wait until the table's log is created, or check that the table still has a log",
    )


def _text(name: str) -> str:
    return name.replace("'", "''")


def published(session: Any, table: CqlTable) -> Published:
    """Where the generations of this table's log are published: for its tablets or for the ring."""
    try:
        row = session.execute(
            "SELECT initial_tablets FROM system_schema.scylla_keyspaces WHERE keyspace_name = %s", (table.keyspace,)
        ).one()
    except InvalidRequest:
        # Cassandra, and ScyllaDB versions without tablets.
        return RING
    return tablets(table) if row is not None and row[0] is not None else RING


@dataclass(frozen=True)
class Position:
    """A Spark offset: milliseconds since 1970 of the generation's start, and microseconds of the last time read.

    `planned` (microseconds) is when the position was chosen: a batch that runs again has the same `read_ts`. With low
    latency, rows up to `fresh` were read too, but late rows may still appear there; `sent` is the digest of the groups
    read in (time, fresh] (see `sent_groups`). During a snapshot, `snapshot` is the token up to which the table's rows
    were read, and `time` is where its changes will begin. `tasks` is the greatest number of tasks of the batch that
    ends here, so that each task gets the same rows if the batch runs again with more cores; 0 if an older version
    did not store it.
    """

    generation: int
    time: int
    planned: int = 0
    fresh: int = 0
    sent: str = ""
    snapshot: int | None = None
    tasks: int = field(default=0, compare=False)

    @property
    def newest(self) -> int:
        """The last time read, complete or not."""
        return max(self.time, self.fresh)

    def offset(self) -> dict[str, Any]:
        safe = {"generation": self.generation, "time": self.time, "planned": self.planned}
        if self.tasks:
            safe["tasks"] = self.tasks
        if self.snapshot is not None:
            return safe | {"snapshot": self.snapshot}
        return safe | {"fresh": self.fresh, "sent": self.sent} if self.fresh > self.time else safe

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Position:
        try:
            complete = int(offset["generation"]), int(offset["time"]), int(offset["planned"])
            token = offset.get("snapshot")
            fresh = int(offset.get("fresh", 0)), str(offset.get("sent", ""))
            return cls(*complete, *fresh, None if token is None else int(token), int(offset.get("tasks", 0)))
        except (KeyError, TypeError, ValueError) as error:
            raise PenstockError(
                f"{offset!r} is not a position in a change log",
                where="the checkpoint",
                next="start the query with its own checkpoint",
            ) from error


FIRST_TOKEN = -(2**63)
"""Less than the token of any key."""
LAST_TOKEN = 2**63 - 1


def first_micros(generation: int) -> int:
    """The last microsecond before a generation, where a reader of the generation begins."""
    return generation * 1000 - 1


@dataclass(frozen=True)
class Span:
    """Some streams of a log in the time (after, until], in microseconds; `planned` is when the span was chosen.

    `only`, if given, holds the hashes of the groups to read (see `sent_groups`).
    """

    streams: tuple[bytes, ...]
    after: int
    until: int
    planned: int = 0
    only: Any = None


@dataclass(frozen=True)
class TokenRange:
    """Rows with a token in (after, until], the streams of their changes, and the start `low` of these changes.

    A range of an ad-hoc snapshot has the time `ts` of its rows (microseconds), and the condition `filter` for them.
    """

    after: int
    until: int
    streams: tuple[bytes, ...]
    low: int
    planned: int
    ts: int | None = None
    filter: str = ""


class Generations:
    """The generations of a log; the streams of a generation never change and are cached."""

    def __init__(self, session: Any, where: Published = RING) -> None:
        self.session, self.where = session, where
        # With several nodes only a quorum is sure to have what the coordinator published.
        self.level = ConsistencyLevel.QUORUM if len(session.hosts) > 1 else ConsistencyLevel.ONE
        self.ranges_by_generation: dict[int, dict[int, tuple[bytes, ...]]] = {}

    def starts(self) -> list[int]:
        """The starts of all generations in milliseconds, oldest first."""
        starts = sorted(_millis(time) for (time,) in self._execute(self.where.starts))
        if not starts:
            raise PenstockError(
                "no generation of change log streams is published", where=self.where.table, next=self.where.missing
            )
        return starts

    def after(self, generation: int) -> int | None:
        """The start of the next generation, or None if it is not published yet."""
        rows = self._execute(f"{self.where.after}{generation}")
        return _millis(rows[0][0]) if rows and rows[0][0] else None

    def streams(self, generation: int) -> tuple[bytes, ...]:
        """The stream ids of a generation in the order of their tokens."""
        ranges = self._ranges(generation).values()
        return tuple(sorted((stream for streams in ranges for stream in streams), key=token_of))

    def shares(self, generation: int) -> dict[bytes, float]:
        """Each stream's share of all keys, assuming that keys are spread evenly over the ring."""
        ranges, shares = self._ranges(generation), dict[bytes, float]()
        ends = sorted(ranges)
        for begin, end in zip([ends[-1] - 2**64, *ends], ends, strict=False):
            shares |= dict.fromkeys(ranges[end], (end - begin) / 2**64 / max(len(ranges[end]), 1))
        return shares

    def streams_within(self, since: int, after: int, until: int) -> tuple[bytes, ...]:
        """The streams with changes since `since` (microseconds) of keys with a token in (after, until]."""
        starts = self.starts()
        streams: list[bytes] = []
        for generation, end in zip(starts, [*starts[1:], None], strict=True):
            if end is not None and end * 1000 <= since:
                continue
            ends = sorted(self._ranges(generation))
            # A range begins where the previous one ends; the first range also has the tokens above the last one.
            for begin, last in zip([FIRST_TOKEN, *ends], [*ends, 2**63], strict=True):
                if begin < until and last > after:
                    streams += self._ranges(generation)[last if last in ends else ends[0]]
        return tuple(dict.fromkeys(streams))

    def _ranges(self, generation: int) -> dict[int, tuple[bytes, ...]]:
        """The streams of a generation by the token at which their range of the ring ends."""
        if generation not in self.ranges_by_generation:
            # A row is a range of the ring with its streams, or the stream of a tablet, whose range ends at its token.
            rows = self._execute(f"{self.where.streams}{generation}")
            ranges = dict(_range(*row) for row in rows)
            if not any(ranges.values()):
                raise PenstockError(
                    f"the generation of {generation} ms has no streams in this cluster",
                    where=self.where.table,
                    next="if the checkpoint belongs to another cluster, start with a new one",
                )
            self.ranges_by_generation[generation] = ranges
        return self.ranges_by_generation[generation]

    def _execute(self, text: str) -> list[tuple[Any, ...]]:
        return list(self.session.execute(SimpleStatement(text, consistency_level=self.level)))


def _range(end: int | bytes, streams: Iterable[bytes] | None = ()) -> tuple[int, tuple[bytes, ...]]:
    """The end of a range, and its streams."""
    return (token_of(end), (end,)) if isinstance(end, bytes) else (end, tuple(streams or ()))


def vnode_of(stream: bytes) -> int:
    """The number of a stream's vnode in its generation; 0 for the stream of a tablet.

    It is in 22 bits above the version, in the last four bits (`cdc/generation.cc` of ScyllaDB).
    """
    return int.from_bytes(stream[8:], "big") >> 4 & 0x3FFFFF


def _millis(time: datetime) -> int:
    return micros(time) // 1000


def token_of(stream: bytes) -> int:
    """The token of a stream's log partition: the first eight bytes of its id."""
    return int.from_bytes(stream[:8], "big", signed=True)
