"""What the tasks of a query wait for, as their log says it, for the status of the program that runs the query.

Spark's Python processes have nothing but their standard error. So each line of `penstock.process.waits` there is also a
datagram to a socket beside the fork server's, with the query of the process's task. Nobody waits for it: a line for
which the socket has no room is left out, and the wait's next one comes. Executors on other machines send none.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

from penstock.process import waits

QUERY_ID = "sql.streaming.queryId"
"""The local property in which Spark keeps the id of the query that a job belongs to."""
MOST, WORDS = 1 << 16, 1000
"""Bytes of a datagram, and characters of each text in it."""
SLACK = 5.0
"""Seconds by which a wait's next line may be late."""

_query: ContextVar[str] = ContextVar("query", default="")
_receiver: socket.socket | None = None


class Line(NamedTuple):
    """A wait of a process for a query: what for, why, and for how many seconds; None when it is over."""

    process: int
    query: str
    what: str
    why: str
    seconds: float | None


class Waiting:
    """The waits of queries that are not over."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int, str], tuple[Line, float]] = {}
        """The newest line of each, and until when the next one must have come: its process may have ended."""

    def take(self, line: Line) -> None:
        key = line.query, line.process, line.what
        if line.seconds is None:
            self._lines.pop(key, None)
        else:
            self._lines[key] = line, time.monotonic() + min(line.seconds, waits.MOST) + SLACK

    def of(self, query: str | None) -> Line | None:
        """The longest wait of a query."""
        now = time.monotonic()
        lines = [line for line, until in self._lines.values() if line.query == query and now < until]
        return max(lines, key=lambda line: line.seconds or 0.0, default=None)

    def forget(self, query: str | None) -> None:
        """The query makes progress."""
        for key in [key for key in self._lines if key[0] == query]:
            del self._lines[key]


def _of_queries(send: Callable[[Line], None]) -> Callable[[waits.Said], None]:
    """Gives lines to `send` if they belong to a query."""

    def take(said: waits.Said) -> None:
        if query := _query.get() or _of_task():
            send(Line(os.getpid(), query, said.what[:WORDS], said.why[:WORDS], said.seconds))

    return take


@contextmanager
def of_query(id: str) -> Iterator[None]:
    """The waits of the code inside belong to this query."""
    before = _query.set(id)
    try:
        yield
    finally:
        _query.reset(before)


def _of_task() -> str:
    """The query of the task that this process runs; "" if it runs none."""
    module: Any = sys.modules.get("pyspark.taskcontext")
    task = module.TaskContext.get() if module else None
    return (task.getLocalProperty(QUERY_ID) or "") if task else ""


def heard(send: Callable[[Line], None]) -> AbstractContextManager[None]:
    """`send` gets the waits of this process's queries while the code inside runs."""
    return waits.heard(_of_queries(send))


# From Spark's Python processes to the program.


def listen(path: Path) -> None:
    """Receive lines at this path, which is in a folder of this user alone."""
    global _receiver
    close()
    _receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    _receiver.bind(str(path))
    _receiver.setblocking(False)


def close() -> None:
    """Receive no more."""
    global _receiver
    if _receiver:
        _receiver.close()
    _receiver = None


def received() -> Iterator[Line]:
    """What has come since the last call."""
    while _receiver:
        try:
            data = _receiver.recv(MOST)
        except OSError:
            return
        with suppress(ValueError, TypeError):
            yield Line(*json.loads(data))


def send_to(path: Path) -> None:
    """Send the waits of this process, and of those that it forks, to this path."""
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.setblocking(False)

    def send(line: Line) -> None:
        with suppress(OSError):
            sender.sendto(json.dumps(line).encode(), str(path))

    waits.hear(_of_queries(send))
