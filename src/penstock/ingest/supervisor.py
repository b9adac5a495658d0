"""Several processes that take requests at one socket: started, watched, replaced when they die, stopped together.

They are forked, so that a new worker serves after milliseconds, with what is already compiled. They share the listening
socket, so that a connection goes to a free worker, and none is lost with a worker that dies. A worker's end shows at
the pipe on which it reports that it is ready. When this process dies in any way, the kernel kills its workers.
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
"""Deaths in a row of a worker before it is ready that end the server."""
YOUNG = 5.0
"""Seconds; a worker that dies younger is replaced only after `PAUSE` seconds."""
PAUSE = 1.0
PR_SET_PDEATHSIG = 1

Serve = Callable[[int, Callable[[], None]], None]
"""Serves as the worker of this number until it is stopped; calls the function when it takes requests."""


@dataclass
class IngestWorker:
    """A worker process; `error` is why it could not serve."""

    number: int
    process: ForkProcess
    pipe: Connection
    began: float = field(default_factory=time.monotonic)
    ready: bool = False
    error: PenstockError | None = None

    def end(self) -> str:
        """Describes how the ended process ended."""
        self.process.join()
        self.pipe.close()
        code = self.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"worker {self.number} (process {self.process.pid}) {how}"


class Workers:
    """Worker `number` of `count` runs `serve(number, ...)`; `died` is called with the number of a worker that died."""

    def __init__(self, count: int, serve: Serve, bound: socket.socket, died: Callable[[int], None]) -> None:
        self._count, self._serve, self._bound, self._died = count, serve, bound, died
        self._running: dict[Connection, IngestWorker] = {}
        self._due: dict[int, float] = {}
        self._tries: Counter[int] = Counter()
        self._stopping = False
        self._error: PenstockError | None = None

    def run(self, ready: Callable[[], None]) -> None:
        """Run until SIGTERM or Ctrl-C; raises PenstockError if workers cannot start, or fail at the end."""
        announced = False
        with _signals() as (asked, woken):
            self._due = dict.fromkeys(range(self._count), 0.0)
            while self._running or self._due:
                self._start_due()
                for readable in wait([woken, *self._running], self._patience()):
                    if isinstance(readable, Connection):
                        self._hear(self._running[readable])
                    else:
                        woken.recv(100)
                while asked:
                    self._stop(asked.pop(0))
                if not announced and sum(worker.ready for worker in self._running.values()) == self._count:
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
        """Seconds until the next start is due; None if none is."""
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
            if self._stopping:  # the signal may have come before the worker handled signals
                worker.process.terminate()

    def _ended(self, worker: IngestWorker, how: str) -> None:
        if self._stopping:
            if worker.process.exitcode and not self._error:
                self._error = PenstockError(how, next="see its output above")
            return
        self._died(worker.number)
        self._tries[worker.number] += not worker.ready
        if not worker.ready and (worker.error or self._tries[worker.number] == TRIES):
            self._error = worker.error or PenstockError(
                f"{how} before it served, {TRIES} times", next="see its output above, and start again"
            )
            self._stop(signal.SIGTERM)
            return
        log.warning("%s; another worker replaces it", f"{how}: {worker.error}" if worker.error else how)
        now = time.monotonic()
        self._due[worker.number] = now + (PAUSE if now - worker.began < YOUNG else 0)

    def _stop(self, number: int) -> None:
        """Pass a signal on; a second Ctrl-C makes workers drop their requests."""
        self._stopping = True
        self._due.clear()
        self._bound.close()
        for worker in self._running.values():
            assert worker.process.pid
            os.kill(worker.process.pid, number)


@contextmanager
def _signals() -> Iterator[tuple[list[int], socket.socket]]:
    """The stop signals as they come, and a socket that becomes readable then."""
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
    """A worker's process, in its own process group: the terminal's Ctrl-C reaches it through the parent only."""
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
