"""Deliveries that are asked for from outside: begun at once, done in the background, one at a time for a segment and
destination; what became of each is in the database, and what ended it in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from penstock.errors import PenstockError
from penstock.segments.sync import Receipt, Run, Sync

AT_ONCE = 4
"""Deliveries; others wait."""
KEPT = 1000
"""Errors of the past."""


class Busy(PenstockError):
    """Another delivery of the same segment to the same destination is under way."""


@dataclass
class Deliveries:
    """What is under way; `sync` makes the delivery of a segment to a destination."""

    sync: Callable[[str, str], Sync]
    _running: dict[tuple[str, str], Run] = field(default_factory=dict)
    _failed: dict[UUID, str] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE, "delivery"))

    def begin(self, segment: str, to: str, mode: str) -> dict[str, Any]:
        """Begin one, or go on with one that was interrupted; of one that is under way what it is."""
        sync = self.sync(segment, to)
        with self._lock:
            run = self._running.get((segment, to))
            if run is not None and run.mode != mode:
                raise Busy(
                    f"a delivery of {segment} to {to} is under way, with mode {run.mode}",
                    where=f"delivery {run.id}",
                    next="wait until it is done, and ask again",
                )
            if run is None:
                run = self._running[segment, to] = sync.begin(mode)
                self._pool.submit(sync.finish, run).add_done_callback(lambda done: self._done(sync, run, done))
        return self._told(sync, run.id, "running")

    def find(self, segment: str, to: str, run: UUID) -> dict[str, Any] | None:
        """The receipt of one that is done, or how it stands; None if there was none."""
        sync = self.sync(segment, to)
        with self._lock:
            running, error = self._running.get((segment, to)), self._failed.get(run)
        if running is not None and running.id == run:
            return self._told(sync, run, "running")
        found = sync.find(run)
        if isinstance(found, Receipt):
            return {"state": "done", **asdict(found)}
        if found is None:
            return None
        return {**self._told(sync, run, "failed"), "error": error} if error else self._told(sync, run, "interrupted")

    def close(self) -> None:
        """Wait for what is under way."""
        self._pool.shutdown()

    def _done(self, sync: Sync, run: Run, done: Future[Receipt]) -> None:
        with self._lock:
            del self._running[sync.segment, sync.destination]
            if error := done.exception():
                self._failed[run.id] = str(error)
                for old in list(self._failed)[:-KEPT]:
                    del self._failed[old]

    def _told(self, sync: Sync, run: UUID, state: str) -> dict[str, Any]:
        return {"state": state, "segment": sync.segment, "destination": sync.destination, "run": str(run)}
