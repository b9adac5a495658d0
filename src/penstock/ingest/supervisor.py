"""Several processes that take requests at one socket: started, watched, replaced when they die, stopped together.

They are forked, so that the next one serves after milliseconds, with what is compiled here. They share the listening
socket, so that a connection goes to one that is free, and none is lost with who dies. A worker's end is seen at the
pipe through which it tells that it is ready. When this process dies, however it does, the kernel kills its workers.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from penstock.errors import PenstockError

log = logging.getLogger(__name__)

FORK = get_context("fork")
STOPS = (signal.SIGTERM, signal.SIGINT)
TRIES = 3
"""Deaths of a worker before it was ready, one after the other, that end the server."""
YOUNG = 5.0
"""Seconds; who dies younger is replaced after `PAUSE` seconds only."""
PAUSE = 1.0
PR_SET_PDEATHSIG = 1

Serve = Callable[[int, Callable[[], None]], None]
"""Serves as the worker of this number until it is told to stop; calls the function when it takes requests."""


@dataclass
class IngestWorker:
    """A process; `error` is why it could not serve."""

    number: int
    process: ForkProcess
    pipe: Connection
    began: float = field(default_factory=time.monotonic)
    ready: bool = False
    error: PenstockError | None = None

    def end(self) -> str:
        """How it ended, which it has."""
        self.process.join()
        self.pipe.close()
        code = self.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"worker {self.number} (process {self.process.pid}) {how}"


class Workers:
    """Worker `number` of `count` runs `serve(number, ...)`; `died` is called with the number of one that did."""

    def __init__(self, count: int, serve: Serve, bound: socket.socket, died: Callable[[int], None]) -> None:
        self._count, self._serve, self._bound, self._died = count, serve, bound, died
        self._running: dict[Connection, IngestWorker] = {}
        self._due: dict[int, float] = {}
        self._tries: Counter[int] = Counter()
        self._stopping = False
        self._error: PenstockError | None = None

    def run(self, ready: Callable[[], None]) -> None:
        """Until SIGTERM or Ctrl-C; raises if workers cannot be started, or do not end well."""
        announced = False
        with _signals() as (asked, woken):
            self._due = dict.fromkeys(range(self._count), 0.0)
            while self._running or self._due:
                self._start_due()
                for one in wait([woken, *self._running], self._patience()):
                    if isinstance(one, Connection):
                        self._hear(self._running[one])
                    else:
                        woken.recv(100)
                while asked:
                    self._stop(asked.pop(0))
                if not announced and sum(one.ready for one in self._running.values()) == self._count:
                    announced = True
                    ready()
        if self._error:
            raise self._error

    def _start_due(self) -> None:
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now]:
            del self._due[number]
            pipe, theirs = FORK.Pipe(duplex=False)
            process = FORK.Process(target=_work, args=(number, self._serve, theirs, os.getpid()))
            process.start()
            theirs.close()
            self._running[pipe] = IngestWorker(number, process, pipe)

    def _patience(self) -> float | None:
        """Seconds until the next is due."""
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None

    def _hear(self, worker: IngestWorker) -> None:
        try:
            worker.error = worker.pipe.recv()
        except EOFError:
            del self._running[worker.pipe]
            self._ended(worker, worker.end())
            return
        if worker.error is None:
            worker.ready = True
            self._tries[worker.number] = 0
            if self._stopping:  # the signal may have come before it could be heard
                worker.process.terminate()

    def _ended(self, worker: IngestWorker, how: str) -> None:
        if self._stopping:
            if worker.process.exitcode and not self._error:
                self._error = PenstockError(how, next="see what it wrote before")
            return
        self._died(worker.number)
        self._tries[worker.number] += not worker.ready
        if not worker.ready and (worker.error or self._tries[worker.number] == TRIES):
            self._error = worker.error or PenstockError(
                f"{how} before it served, {TRIES} times", next="see what it wrote before, and start again"
            )
            self._stop(signal.SIGTERM)
            return
        log.warning("%s; another takes its place", f"{how}: {worker.error}" if worker.error else how)
        now = time.monotonic()
        self._due[worker.number] = now + (PAUSE if now - worker.began < YOUNG else 0)

    def _stop(self, number: int) -> None:
        """Hand a signal on; a second Ctrl-C makes workers drop their requests."""
        self._stopping = True
        self._due.clear()
        self._bound.close()
        for one in self._running.values():
            assert one.process.pid
            os.kill(one.process.pid, number)


@contextmanager
def _signals() -> Iterator[tuple[list[int], socket.socket]]:
    """Signals that ask for the end, as they come, and a socket that can be read then."""
    asked: list[int] = []
    woken, wake = socket.socketpair()
    with woken, wake:
        wake.setblocking(False)
        before = {number: signal.signal(number, lambda number, frame: asked.append(number)) for number in STOPS}
        signal.set_wakeup_fd(wake.fileno())
        try:
            yield asked, woken
        finally:
            signal.set_wakeup_fd(-1)
            for number, handler in before.items():
                signal.signal(number, handler)


def _work(number: int, serve: Serve, pipe: Connection, parent: int) -> None:
    """A worker's process, in a group of its own: the terminal's Ctrl-C reaches it through the parent only."""
    signal.set_wakeup_fd(-1)
    os.setpgid(0, 0)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    try:
        serve(number, lambda: pipe.send(None))
    except PenstockError as error:
        pipe.send(error)
        sys.exit(1)
