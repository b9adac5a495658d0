"""Parts of the benchmark of matching killed while events come at a steady rate, and how long it takes to recover."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import _match_events
import _match_job
from _match_lag import Results
from penstock.local.services import Services, up
from penstock_demo import child

WARM_UP = 10.0
STEADY = 10.0
"""Seconds in which the longest lag is the usual one."""
PATIENCE = 120.0


class Job:
    """The process with Spark; `end` is kill -9."""

    def __init__(self, services: Services, events: str, results: str, folder: Path) -> None:
        places = [services.kafka, services.cql, events, results, str(folder / "checkpoint")]
        self._command, self._log = [sys.executable, _match_job.__file__, *places], folder / "job.log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def restart(self) -> None:
        self.end()
        self.start()

    def end(self) -> None:
        child.kill(self._process)


@contextmanager
def feeding(servers: str, topic: str, persons: int, first: int, rate: int) -> Iterator[None]:
    """Events from number `first` on, in a process of its own; the last one is written when this ends."""
    numbers = [str(number) for number in (persons, first, first + rate * 3600, rate)]
    with subprocess.Popen([sys.executable, _match_events.__file__, servers, topic, *numbers]) as feeder:
        try:
            yield
        finally:
            feeder.terminate()


def recoveries(
    services: Services, results: Results, events: str, topic: str, persons: int, first: int, rate: int, folder: Path
) -> Iterator[dict[str, Any]]:
    """A row for each part that is killed; afterwards `results` has all there are."""
    job = Job(services, events, topic, folder)
    try:
        with feeding(services.kafka, events, persons, first, rate):
            results.await_first(PATIENCE)
            results.falls_to(3 * rate, PATIENCE)
            results.longest(WARM_UP)
            yield _killed("spark", results, job.restart)
            yield _killed("cql", results, lambda: _restart_node(services))
        results.falls_to(0, PATIENCE)
    finally:
        job.end()


def _restart_node(services: Services) -> None:
    os.kill(services.pids["cassandra"], signal.SIGKILL)
    up(services.root, only=["cassandra"])


def _killed(part: str, results: Results, restart: Callable[[], object]) -> dict[str, Any]:
    usual, began = results.longest(STEADY), time.monotonic()
    restart()
    started = time.monotonic() - began
    longest = results.falls_to(usual, PATIENCE)
    seconds = {"seconds": round(time.monotonic() - began, 1), "of_start": round(started, 1)}
    return {"case": f"recovery/{part}", **seconds, "usual_lag": usual, "longest_lag": longest}
