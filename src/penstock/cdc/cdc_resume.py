"""Where a query goes on in a change log: where its checkpoint says, if that is of this log and nothing is gone.

What can be gone: the log, whose table was dropped and made again (it has another id then), and rows that have expired.
Rows expire by the ttl of the time when they were written: an offset keeps the shortest that the log was seen with since
its position. All of it is told with the span of time that was not read. A query that is to go on without them begins
with a batch of no rows, so that its checkpoint knows.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from penstock.cdc.generations import Position
from penstock.cdc.planner import Planner
from penstock.cdc.timeuuid import UUID_EPOCH, now_micros
from penstock.errors import DataLost

log = logging.getLogger(__name__)

SEEK, EARLIEST = "seek", "earliest"
"""In an offset that a user has set: its `time` is to be looked for; or the log's beginning."""
MOVED = "moved"
"""In an offset that was not reached by reading from the one before."""
AWAY = 60_000_000
"""Microseconds: a running query moves its offset more often, and notices an ALTER itself."""


class CdcResume:
    """For one query."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self._kept: int | None = None
        self._told: set[str] = set()

    def offset(self, position: Position, *, moved: bool = False) -> dict[str, Any]:
        """A position as Spark keeps it, with the log that it is of, and how many tasks read up to it."""
        told = replace(position, tasks=self.planner.settings.partitions).offset()
        if self.planner.table.log:
            told |= {"log": self.planner.table.log, "ttl": self._ttl(position)}
        return told | {MOVED: True} if moved else told

    def moved(self, start: dict[str, Any]) -> dict[str, Any] | None:
        """The offset from which to go on instead of `start`; None if it is `start`. Raises `DataLost`."""
        at = Position.of(start)
        if SEEK in start:
            return self.offset(self._sought(start), moved=True)
        # Nothing was promised before the first batch.
        if not at.planned:
            return None
        self._kept = start.get("ttl")
        if self._other_log(start):
            self._lost(*self._made_again(at))
            self._kept = None
            return self.offset(replace(self.planner.begin(None), planned=now_micros()), moved=True)
        self._check_age(at)
        return None if "log" in start or not self.planner.table.log else self.offset(at, moved=True)

    def check(self, start: dict[str, Any], end: dict[str, Any]) -> bool:
        """Whether the rows of a planned batch are to be read; raises `DataLost` if they are gone."""
        if end.get(MOVED):
            return False
        if self._other_log(end):
            self._lost(*self._made_again(Position.of(start)))
            return False
        self._kept = start.get("ttl")
        self._check_age(Position.of(start))
        return True

    def _other_log(self, offset: dict[str, Any]) -> bool:
        return bool(self.planner.table.log) and offset.get("log", self.planner.table.log) != self.planner.table.log

    def _made_again(self, at: Position) -> tuple[str, str]:
        made = _made(self.planner.table.log)
        until = "the end of the old log" if made is None else _text(made)
        return (
            "the table was dropped and made again, or its change log was: its id is another one",
            f"changes from {_text(at.time)} to {until}",
        )

    def _check_age(self, at: Position) -> None:
        """A snapshot, which reads no changes yet, is told after its end."""
        ttl = self._ttl(at) * 1_000_000
        if not at.planned or at.snapshot is not None or not ttl:
            return
        held = now_micros() - ttl
        if at.time < held:
            self._lost(
                f"the log has let rows expire that were not read: it holds {ttl // 1_000_000} s",
                f"changes from {_text(at.time)} to {_text(held)}",
            )
        elif self._kept and at.planned + AWAY < self.planner.table.altered:
            self._warn(
                f"the table was altered at {_text(self.planner.table.altered)}, while this query was away: if its cdc "
                f"ttl was shortened meanwhile, changes since {_text(at.time)} may have expired"
            )

    def _ttl(self, at: Position) -> int:
        """How long the log holds the rows behind a position, in seconds; 0 is for ever."""
        now = int(self.planner.table.option("ttl") or 0)
        if self._kept is None or at.time >= self.planner.table.altered:
            return now
        return min(filter(None, (now, self._kept)), default=0)

    def _sought(self, start: dict[str, Any]) -> Position:
        time = None if start[SEEK] == EARLIEST else int(start["time"])
        held = self.planner.held_from()
        if time is not None and time < held:
            ttl = self.planner.table.option("ttl")
            self._lost(
                f"the log does not go back to {_text(time)}, which was set: it holds {ttl} s",
                f"changes from {_text(time)} to {_text(held)}",
            )
        found = replace(self.planner.begin(time), planned=now_micros())
        log.warning("%s goes on at %s, as was set", self._where, _text(found.time + 1))
        return found

    def _lost(self, what: str, span: str) -> None:
        """Tell what is lost: as an error, unless the query is to go on."""
        if self.planner.settings.lossy:
            self._warn(f"goes on though {what}; not read: {span}", of=what)
            return
        raise DataLost(
            f"{what}; not read: {span}",
            where=self._where,
            next="read what there is with fail_on_data_loss=False, or begin anew: `penstock checkpoints reset NAME`, "
            "for a connector DELETE its offsets",
        )

    def _warn(self, text: str, *, of: str = "") -> None:
        """Once while the query runs."""
        if (of or text) not in self._told:
            self._told.add(of or text)
            log.warning("%s: %s", self._where, text)

    @property
    def _where(self) -> str:
        return f"{self.planner.settings.name} of {self.planner.table.full_name}"


def _made(id: str) -> int | None:
    """When a table with this id was made, in microseconds; databases make ids of the time."""
    made = UUID(id)
    return (made.time - UUID_EPOCH) // 10 if made.version == 1 else None


def _text(micros: int) -> str:
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros} microseconds since 1970"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
