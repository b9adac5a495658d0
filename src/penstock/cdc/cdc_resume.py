"""Where a query continues in a change log: at its checkpoint, if that belongs to this log and nothing was lost.

Two things can be lost: the log, if the table was dropped and created again (its id differs then), and rows that have
expired. Rows expire by the ttl that was set when they were written: an offset keeps the shortest ttl seen since its
position. Every loss is reported with the span of time that was not read. A query that continues without the lost rows
starts with an empty batch, so that its checkpoint has the new position.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.cdc.generations import Position, now_micros, time_of
from penstock.cdc.planner import Planner
from penstock.errors import DataLost

log = logging.getLogger(__name__)

SEEK, EARLIEST, REQUIRED = "seek", "earliest", "required"
"""Keys of an offset that was not read: search for its `time`, or start at the log's beginning; see `sought`."""
MOVED = "moved"
"""Key of an offset that was not reached by reading from the previous one."""
AWAY = 60_000_000
"""Microseconds; a running query moves its offset more often, and notices an ALTER itself."""


def sought(time: int | None, *, required: int | None = None) -> dict[str, Any]:
    """An offset from which a query begins at a time (microseconds since 1970), or at the log's beginning.

    The log must still have all from `required` on, by default from `time` on: otherwise the query ends with DataLost.
    """
    offset = {"generation": 0, "time": time or 0, "planned": 0, SEEK: EARLIEST if time is None else "time"}
    return offset if required is None else offset | {REQUIRED: required}


class CdcResume:
    """Checks and moves the offsets of one query."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self._stored_ttl: int | None = None
        self._warned: set[str] = set()

    def offset(self, position: Position, *, moved: bool = False) -> dict[str, Any]:
        """A position as a Spark offset, with the id of its log and the number of tasks that read up to it."""
        offset = replace(position, tasks=self.planner.settings.partitions).offset()
        if self.planner.table.log:
            offset |= {"log": self.planner.table.log, "ttl": self._ttl(position)}
        return offset | {MOVED: True} if moved else offset

    def moved(self, start: dict[str, Any]) -> dict[str, Any] | None:
        """Return the offset to continue from instead of `start`, or None to continue from `start`.

        Raises DataLost if changes are gone.
        """
        at = Position.of(start)
        if SEEK in start:
            return self.offset(self._sought(start), moved=True)
        # Before the first batch nothing can be lost.
        if not at.planned:
            return None
        self._stored_ttl = start.get("ttl")
        if self._other_log(start):
            self._lost(*self._made_again(at))
            self._stored_ttl = None
            return self.offset(replace(self.planner.begin(None), planned=now_micros()), moved=True)
        self._check_age(at)
        return None if "log" in start or not self.planner.table.log else self.offset(at, moved=True)

    def check(self, start: dict[str, Any], end: dict[str, Any]) -> bool:
        """Whether to read the rows of a planned batch; raises DataLost if they are gone."""
        if end.get(MOVED):
            return False
        if self._other_log(end):
            self._lost(*self._made_again(Position.of(start)))
            return False
        self._stored_ttl = start.get("ttl")
        self._check_age(Position.of(start))
        return True

    def _other_log(self, offset: dict[str, Any]) -> bool:
        return bool(self.planner.table.log) and offset.get("log", self.planner.table.log) != self.planner.table.log

    def _made_again(self, at: Position) -> tuple[str, str]:
        created = time_of(self.planner.table.log)
        until = "the end of the old log" if created is None else _text(created)
        return (
            "the table or its change log was dropped and created again: its id has changed",
            f"changes from {_text(at.time)} to {until}",
        )

    def _check_age(self, at: Position) -> None:
        """Report rows that expired before they were read; for a snapshot only once it has ended."""
        ttl = self._ttl(at) * 1_000_000
        if not at.planned or at.snapshot is not None or not ttl:
            return
        held = now_micros() - ttl
        if at.time < held:
            self._lost(
                f"rows of the log expired before they were read: its ttl is {ttl // 1_000_000} s",
                f"changes from {_text(at.time)} to {_text(held)}",
            )
        elif self._stored_ttl and at.planned + AWAY < self.planner.table.altered:
            self._warn(
                f"the table was altered at {_text(self.planner.table.altered)}, while this query did not run: if its "
                f"cdc ttl was shortened, changes since {_text(at.time)} may have expired"
            )

    def _ttl(self, at: Position) -> int:
        """How long the log holds the rows after a position, in seconds; 0 means for ever."""
        now = int(self.planner.table.option("ttl") or 0)
        if self._stored_ttl is None or at.time >= self.planner.table.altered:
            return now
        return min(filter(None, (now, self._stored_ttl)), default=0)

    def _sought(self, start: dict[str, Any]) -> Position:
        time = None if start[SEEK] == EARLIEST else int(start["time"])
        held, required = self.planner.held_from(), start.get(REQUIRED, time)
        if required is not None and required < held:
            ttl = self.planner.table.option("ttl")
            self._lost(
                f"the log does not go back to {_text(required)}, the position that was set: its ttl is {ttl} s",
                f"changes from {_text(required)} to {_text(held)}",
            )
        position = replace(self.planner.begin(time), planned=now_micros())
        log.warning("%s continues at %s, the position that was set", self._where, _text(position.time + 1))
        return position

    def _lost(self, what: str, span: str) -> None:
        """Raise DataLost, or log a warning if the query continues without the lost rows."""
        if self.planner.settings.lossy:
            self._warn(f"continues although {what}; not read: {span}", of=what)
            return
        raise DataLost(
            f"{what}; not read: {span}",
            where=self._where,
            next="read the remaining changes with fail_on_data_loss=False, or start over: "
            "`penstock checkpoints reset NAME`, for a connector DELETE its offsets",
        )

    def _warn(self, text: str, *, of: str = "") -> None:
        """Log a warning once per run of the query."""
        if (of or text) not in self._warned:
            self._warned.add(of or text)
            log.warning("%s: %s", self._where, text)

    @property
    def _where(self) -> str:
        return f"{self.planner.settings.name} of {self.planner.table.full_name}"


def _text(micros: int) -> str:
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    except OverflowError:
        return f"{micros} microseconds since 1970"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
