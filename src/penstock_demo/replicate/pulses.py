"""Rows that are written to the source several times a second; when each is in the target shows the delay."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from penstock_demo.node import connect
from penstock_demo.shop import KEYSPACE
from penstock_demo.watch import Watch

TABLE = "pulse"
CQL = f"CREATE TABLE {KEYSPACE}.{TABLE} (id int PRIMARY KEY, at bigint) WITH cdc = {{'enabled': true}}"
EVERY = 0.1
LOOK = 0.02
"""Seconds between two pulses, and between two looks at the target."""


class Pulses(Watch):
    """Writes pulses, and times each by the driver's first look at the target that shows it or a later one."""

    def __init__(self, source: str, target: str, copy: str) -> None:
        super().__init__()
        self._source, self._target, self._copy = source, target, copy
        self._waiting: deque[int] = deque()
        self.seen = 0
        """The newest pulse that was in the target, in microseconds since 1970."""

    @property
    def behind(self) -> int:
        """How old the oldest pulse is that is not in the target yet, in milliseconds."""
        waiting = list(self._waiting)
        return (time.time_ns() // 1000 - waiting[0]) // 1000 if waiting else 0

    def _read(self) -> None:
        with connect(self._source) as source, connect(self._target) as target:
            write = source.prepare(f"UPDATE {KEYSPACE}.{TABLE} USING TIMESTAMP ? SET at = ? WHERE id = 0")
            look = f"SELECT at FROM {self._copy}.{TABLE} WHERE id = 0"
            next_pulse = time.monotonic()
            while not self._closing.wait(LOOK):
                if time.monotonic() >= next_pulse:
                    next_pulse += EVERY
                    self._pulse(source, write)
                self._look(target, look)

    def _pulse(self, session: Any, write: Any) -> None:
        at = time.time_ns() // 1000
        try:
            session.execute(write, (at, at))
        except Exception:  # the node is being killed
            return
        self._waiting.append(at)

    def _look(self, session: Any, look: str) -> None:
        try:
            row = session.execute(look).one()
        except Exception:  # the table is not there yet, or the node is being killed
            return
        now = time.time_ns() // 1000
        self.seen = row[0] if row else 0
        while self._waiting and self._waiting[0] <= self.seen:
            self._timed(self._waiting.popleft(), now)
