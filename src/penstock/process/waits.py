"""Says that something waits: after a second, and then whenever it has waited for twice as long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

log = logging.getLogger(__name__)

FIRST, MOST = 1.0, 60.0
"""Seconds until the first line, and the most between two lines."""
WAITING, WAITED = "waiting", "waited"
"""The events of the lines."""


class Said(NamedTuple):
    """A line: what is awaited, why, for how many seconds (None when it is over), and the thread that waits."""

    what: str
    why: str
    seconds: float | None
    thread: int | None


class Failing:
    """The waits of a thread or an asyncio task whose last attempt has failed; another thread may read it."""

    def __init__(self) -> None:
        self._waits: dict[int, Wait] = {}

    @property
    def since(self) -> float | None:
        """When the oldest of them began, by `time.monotonic`; None if there is none."""
        return min((wait.since for wait in list(self._waits.values())), default=None)

    def add(self, wait: Wait) -> None:
        self._waits[id(wait)] = wait

    def remove(self, wait: Wait) -> None:
        self._waits.pop(id(wait), None)

    def clear(self) -> None:
        self._waits.clear()


_failing: ContextVar[Failing | None] = ContextVar("failing", default=None)


@contextmanager
def noted(failing: Failing) -> Iterator[None]:
    """`failing` gets the waits of the code inside."""
    before = _failing.set(failing)
    try:
        yield
    finally:
        _failing.reset(before)


@dataclass
class Wait:
    """A wait for `what` that lasts at most `patience` seconds, or without end; it begins when it is made.

    `of_several` says that it is for one server of several, which may do its work: nothing is away without it.
    """

    what: str
    patience: float | None
    since: float = field(default_factory=time.monotonic)
    of_several: bool = False
    _next: float = FIRST

    def fails(self) -> None:
        """An attempt failed, of which others tell."""
        if not self.of_several and (failing := _failing.get()):
            failing.add(self)

    def failed(self, why: object, next: str = "") -> None:
        """An attempt failed; `why` is said if it is time for that, and what to do `next` the first time."""
        self.fails()
        waited = time.monotonic() - self.since
        if waited < self._next:
            return
        step = f". Next: {next}" if next and self._next == FIRST else ""
        self._next = waited + min(waited, MOST)
        about: dict[str, Any] = {
            "event": WAITING,
            "what": self.what,
            "why": str(why),
            "waited_seconds": round(waited, 3),
        }
        most = ""
        if self.patience is not None:
            about["patience_seconds"] = self.patience
            most = f", at most {span(self.patience)}"
        log.warning("waiting for %s for %s%s: %s%s", self.what, span(waited), most, why, step, extra=about)

    def over(self) -> None:
        """What was awaited is there; said if the wait was."""
        if failing := _failing.get():
            failing.remove(self)
        if self._next > FIRST:
            waited = time.monotonic() - self.since
            log.info("%s: there after %s", self.what, span(waited), extra={"event": WAITED, "what": self.what})


class _Lines(logging.Handler):
    def __init__(self, take: Callable[[Said], None]) -> None:
        super().__init__(logging.INFO)
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        said = vars(record)
        if said.get("event") in (WAITING, WAITED):
            self._take(Said(said["what"], said.get("why", ""), said.get("waited_seconds"), record.thread))


@contextmanager
def heard(take: Callable[[Said], None]) -> Iterator[None]:
    """`take` gets the lines of this process while the code inside runs."""
    lines = _Lines(take)
    log.addHandler(lines)
    try:
        yield
    finally:
        log.removeHandler(lines)


def hear(take: Callable[[Said], None]) -> None:
    """`take` gets the lines of this process until its end."""
    log.addHandler(_Lines(take))


def waiting(what: str, seconds: float, why: str = "") -> str:
    """A wait in words, as a status has it."""
    return f"{what} for {span(seconds)}{': ' if why else ''}{why}"


def span(seconds: float) -> str:
    """A duration in words, for people: "4 s", "2 min 5 s", "3 h"."""
    whole = round(seconds)
    parts = [(whole // 3600, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")]
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"
