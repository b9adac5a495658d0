"""How far a source is behind: in records, and in seconds since all was read that existed then.

Offsets are those of a progress: of topics, from partitions to numbers; of `cdc.read`, times in microseconds. Sources
with other offsets have no lag.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from penstock.kafka.source_format import topics

MOST_ENDS = 256
"""Ends of topics that are remembered for a query that is behind; of more, every second is dropped."""
MICROS = 1_000_000
BACK = 5.0
"""Seconds by which a time is in the future if the clock was set back, at least."""

Places = Mapping[tuple[str, int], int]


def parsed(offset: Any) -> Any:
    """An offset of a progress, which is an object, or the text of one."""
    if isinstance(offset, str):
        try:
            return json.loads(offset)
        except (ValueError, RecursionError):
            return None
    return offset


def places(offset: Any) -> Places | None:
    """The next record of each topic's partitions; None if these are not offsets of topics."""
    offsets = parsed(offset)
    if not isinstance(offsets, dict):
        return None
    try:
        return {(name, int(p)): int(at) for name in topics(offsets) for p, at in offsets[name].items()}
    except (AttributeError, TypeError, ValueError):
        return None


def micros(offset: Any) -> int | None:
    """The time until which a change log was read, in microseconds since 1970; None if this is no such offset."""
    position = parsed(offset)
    if not isinstance(position, dict) or not all(
        isinstance(position.get(name), int) for name in ("generation", "time")
    ):
        return None
    fresh = position.get("fresh", 0)
    return max(position["time"], fresh) if isinstance(fresh, int) else int(position["time"])


def seconds_kept(offset: Any) -> float | None:
    """The time to live of the rows of a change log, in seconds; None if these are no such offsets, or it keeps all."""
    position = parsed(offset)
    ttl = position.get("ttl") if isinstance(position, dict) and micros(position) is not None else None
    return float(ttl) if isinstance(ttl, int) and ttl > 0 else None


def records_between(end: Places, latest: Places) -> int:
    """The records from `end` to `latest`; all of a partition that `end` does not have yet."""
    return sum(max(0, at - end.get(place, 0)) for place, at in latest.items())


class SourceLag:
    """The lag of one source; times are Unix seconds.

    `read_until`: all that existed at this time was read. Before the first such moment it is the time at which the
    source was first seen, and so the lag is at least what `seconds` says.
    """

    def __init__(self) -> None:
        self.records: int | None = None
        self.read_until: float | None = None
        self.is_exact = False
        """Whether all was read at `read_until`, and the lag is not longer."""
        self._ends: deque[tuple[float, Places]] = deque()

    def planned(self, at: float, end: Any, latest: Any) -> None:
        """A batch, or a look for one, began at `at`: it reads until `end`, and the source had data until `latest`."""
        if self.read_until is not None and self.read_until > at + BACK:
            # The clock was set back: without this the lag would be 0 until it shows the old time again.
            self.read_until = at
            self._ends.clear()
        if (to := micros(end)) is not None:
            self._of_times(at, to, micros(latest))
        elif (place := places(end)) is not None:
            self._of_places(at, place, places(latest))

    def _of_times(self, at: float, to: int, latest: int | None) -> None:
        if latest is None:
            return
        # Below zero by a moment if the source was asked for its newest time before it was planned.
        self.read_until, self.is_exact = at - max(0.0, (latest - to) / MICROS), True

    def _of_places(self, at: float, end: Places, latest: Places | None) -> None:
        if latest is None:
            return
        self.records = records_between(end, latest)
        if self.read_until is None:
            self.read_until = at
        if self._ends and records_between(latest, self._ends[-1][1]):
            # The topic was created again, or its leader lost records: nothing reaches the old ends any more.
            self._ends.clear()
        if self._ends and self._ends[-1][1] == latest:
            self._ends.pop()
        self._ends.append((at, latest))
        while self._ends and not records_between(end, self._ends[0][1]):
            self.read_until, self.is_exact = max(self.read_until, self._ends.popleft()[0]), True
        if len(self._ends) > MOST_ENDS:
            # The oldest stays: it is the first that can be reached.
            self._ends = deque(end for number, end in enumerate(self._ends) if number % 2 == 0)

    def idle(self, now: float) -> None:
        """The source was asked a moment ago, and had nothing new."""
        if self.read_until is None:
            return
        went_back = self.read_until > now + BACK
        self.read_until, self.is_exact = now if went_back else max(self.read_until, now), True
        self._ends.clear()
        if self.records is not None:
            self.records = 0

    def seconds(self, now: float, idle: bool) -> float | None:
        """The lag now; 0 for an idle query, which has read all; None if it is not known."""
        if self.read_until is None:
            return None
        return 0.0 if idle else max(0.0, now - self.read_until)
