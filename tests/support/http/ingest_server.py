"""A server of `penstock ingest` as a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import requests
from kafka_topics import stored
from prometheus_client.parser import text_string_to_metric_families
from waiting import PATIENCE

READY = "taking events at "
PARTITIONS = 3


@dataclass
class Server:
    """A server that takes requests at `url`."""

    url: str
    process: subprocess.Popen[str]
    errors: Path

    def kill(self) -> None:
        """Kill it with kill -9."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@dataclass(frozen=True)
class Site:
    """A server with two topics: `clicks` with a schema and a key, `raw` without; and the keys of two callers."""

    server: Server
    servers: str
    clicks: str
    raw: str
    web: str
    all: str

    def url(self, topic: str) -> str:
        return f"{self.server.url}/events/{topic}"

    def stored(self, topic: str) -> list[bytes]:
        """All values of a topic; in order within a partition."""
        return [value for part in stored(self.servers, topic, PARTITIONS) for value in part]


def metrics(server: Server) -> dict[tuple[str, ...], float]:
    """The values of a scrape by name and sorted label values."""
    text = requests.get(f"{server.url}/metrics", timeout=PATIENCE).text
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {(one.name, *sorted(one.labels.values())): one.value for one in samples}


@contextmanager
def ingest(folder: Path, *arguments: object) -> Iterator[Server]:
    """A server that is ready; stopped afterwards."""
    errors = folder / "errors.txt"
    command = [sys.executable, "-m", "penstock", "ingest", "--listen", "127.0.0.1:0", *map(str, arguments)]
    with errors.open("w") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        try:
            assert process.stdout
            line = next((line for line in process.stdout if line.startswith(READY)), None)
            assert line, f"no server:\n{errors.read_text()}"
            yield Server(line.removeprefix(READY).strip(), process, errors)
        finally:
            process.kill()
