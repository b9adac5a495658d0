"""The runs that the console knows: found by run files and given as targets, and asked for their `/status` each second.

A run that does not answer keeps what it said last, marked as unreachable: after one refused connection, or after two
requests without an answer. A run whose process ended stays for a while, because its end is what a user looks for.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.console.reading import run_status
from penstock.errors import PenstockError
from penstock.serve.http_client import MOST, Address, HttpAnswer, NoHttpAnswer, TookTooLong, fetch
from penstock.watch import run_files
from penstock.watch.run_files import RunFile

PERIOD, PATIENCE = 1.0, 0.8
"""Seconds between two requests to a run, and for its answer."""
FAILURES = 2
"""Requests without an answer after which a run is unreachable."""
KEPT = 3600.0
"""Seconds for which a run is shown after the end of its process."""
MOST_RUNS = 200


@dataclass
class Run:
    """A command with a metrics server; `status` is what it said last, None before its first answer."""

    address: Address
    file: RunFile | None
    status: dict[str, Any] | None = None
    body: bytes = b""
    """The last answer as it came: parsed, the histories of many queries would take ten times as much memory."""
    reachable: bool = False
    failures: int = 0
    problem: str = ""
    ended: float | None = None
    """When its run file disappeared (monotonic seconds)."""
    rates: dict[tuple[str, str, str], float] = field(default_factory=dict)
    """Rows a second by query, "source" or "sink", and its name."""
    _counts: dict[tuple[str, str, str], float] = field(default_factory=dict)
    _at: float = 0.0

    @property
    def name(self) -> str:
        if self.status is not None:
            return str(self.status["name"])
        return self.file.name if self.file else self.address.url

    async def ask(self) -> None:
        """Ask for the status once; never raises."""
        try:
            answer = await fetch(self.address, "/status", patience=PATIENCE, most=MOST)
            if answer.status != 200:
                raise NoHttpAnswer(f"/status is answered with HTTP {answer.status}", where=self.address.url)
            self.take(answer.body, await asyncio.to_thread(self._read, answer))
        except TookTooLong as error:
            self.failures += 1
            self.problem = error.what
            self.reachable = self.reachable and self.failures < FAILURES
        except PenstockError as error:
            self.reachable, self.problem = False, error.what

    def take(self, body: bytes, status: dict[str, Any]) -> None:
        """Take an answer, and what it says without the history."""
        self.body, self.status, self.reachable, self.failures, self.problem = body, status, True, 0, ""
        self._count(status)

    def whole(self) -> dict[str, Any] | None:
        """The status with the history of the batches; it takes some time. None before the first answer."""
        return run_status.taken(json.loads(self.body), history=True) if self.body else None

    def _read(self, answer: HttpAnswer) -> dict[str, Any]:
        """The status in an answer; raises NoHttpAnswer if it is not one."""
        status = run_status.taken(answer.parsed(self.address.url))
        if status is None:
            raise NoHttpAnswer("/status has no kind, name and state", where=self.address.url)
        return status

    def end(self, now: float) -> None:
        """Its process is gone; a process that stops by itself has said so, if it was asked in its last second."""
        self.ended, self.reachable = now, False
        stopping = self.status is not None and self.status["state"] in ("stopping", "stopped")
        self.problem = "" if stopping else "its process has ended"

    def _count(self, status: dict[str, Any]) -> None:
        """The rates since the last answer; a counter that fell begins again at 0."""
        now, counts = time.monotonic(), dict(_counts(status))
        if self._counts and now > self._at:
            passed = now - self._at
            self.rates = {
                of: round(max(0.0, count - (before if count >= before else 0)) / passed, 3)
                for of, count in counts.items()
                if (before := self._counts.get(of)) is not None
            }
        self._counts, self._at = counts, now


def _counts(status: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str], float]]:
    for query in status["queries"]:
        for side in ("source", "sink"):
            for endpoint in query.get(f"{side}s", ()):
                if "rows_total" in endpoint:
                    yield (query["name"], side, endpoint["name"]), endpoint["rows_total"]


class Runs:
    """All runs; `follow` keeps them up to date until it is cancelled."""

    def __init__(self, targets: Sequence[Address] = ()) -> None:
        self._targets = [Run(address, None) for address in targets]
        self._found: dict[tuple[int, float], Run] = {}
        self._asked: set[asyncio.Task[None]] = set()
        self._in_flight: set[int] = set()
        self.looked = asyncio.Event()
        """Set when each run that was found first has been asked once."""

    def all(self) -> list[Run]:
        return [*self._targets, *self._found.values()]

    async def follow(self) -> None:
        while True:
            begun = time.monotonic()
            await self._find()
            tasks = [self._ask(run) for run in self.all() if run.ended is None and id(run) not in self._in_flight]
            if tasks:
                await asyncio.wait(tasks, timeout=PATIENCE)
            self.looked.set()
            await asyncio.sleep(max(0.0, begun + PERIOD - time.monotonic()))

    def _ask(self, run: Run) -> asyncio.Task[None]:
        task = asyncio.create_task(run.ask())
        self._in_flight.add(id(run))
        self._asked.add(task)
        task.add_done_callback(self._asked.discard)
        task.add_done_callback(lambda _: self._in_flight.discard(id(run)))
        return task

    async def _find(self) -> None:
        """New run files become runs; runs without one have ended."""
        files = {(file.pid, file.created): file for file in await asyncio.to_thread(run_files.running)}
        now = time.monotonic()
        for of, run in list(self._found.items()):
            if of not in files and run.ended is None:
                run.end(now)
            elif run.ended is not None and now > run.ended + KEPT:
                del self._found[of]
        targets = {run.address.url for run in self._targets}
        for of, file in files.items():
            if of not in self._found and file.kind != "console" and len(self._found) < MOST_RUNS:
                address = _address(file)
                if address is not None and address.url not in targets:
                    self._found[of] = Run(address, file)
        self._forget_replaced()

    def _forget_replaced(self) -> None:
        """A run that ended is not shown beside a newer one of the same kind and name."""
        alive = {(run.file.kind, run.name) for run in self._found.values() if run.file and run.ended is None}
        for of, run in list(self._found.items()):
            if run.ended is not None and run.file and (run.file.kind, run.name) in alive:
                del self._found[of]


def _address(file: RunFile) -> Address | None:
    try:
        return Address.of(file.url, "run file")
    except PenstockError:
        return None
