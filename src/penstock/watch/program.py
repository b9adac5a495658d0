"""What a command says of itself: its run file, the first fields of its status, and the text of a scrape.

Loads no Spark.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from prometheus_client.metrics_core import InfoMetricFamily
from prometheus_client.registry import Collector

from penstock import __version__
from penstock.metrics.exposition import text
from penstock.watch.run_files import RunFile


def command_line() -> str:
    """The command of this process as a user would type it."""
    return shlex.join(["penstock", *sys.argv[1:]])


@dataclass(frozen=True)
class Program:
    """A command that tells its status: `kind` is "run", "connect", "ingest", "segment" or "state"."""

    kind: str
    name: str
    command: str = field(default_factory=command_line)
    started: float = field(default_factory=time.time)

    def run_file(self, url: str, *, checkpoint: str | None = None, servers: str | None = None) -> RunFile:
        """The file by which other commands find it; `url` is where it tells its status."""
        return RunFile(self.kind, self.name, url, self.command, checkpoint, servers)


def address(host: str, port: int) -> str:
    """HOST:PORT as in a URL."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def nearest(host: str) -> str:
    """The host by which this machine reaches a server that listens there: one for all addresses has none itself."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def reached_at(bound: socket.socket) -> str:
    """The URL by which this machine reaches a server of HTTP at this socket."""
    host, port = bound.getsockname()[:2]
    return f"http://{address(nearest(host), port)}"


def iso(at: float | None) -> str | None:
    """Unix seconds as an ISO time."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def head(program: Program, now: float) -> dict[str, Any]:
    """The fields that the status of each command has."""
    return {
        "version": __version__,
        "kind": program.kind,
        "name": program.name,
        "pid": os.getpid(),
        "started": iso(program.started),
        "now": iso(now),
        "command": program.command,
    }


TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of a scrape."""


def exposition(collectors: Iterable[Collector]) -> bytes:
    """The text of a scrape, which begins with the version of Penstock."""
    build = InfoMetricFamily("penstock_build", "The version of Penstock", value={"version": __version__})
    return text(chain([build], *(collector.collect() for collector in collectors)))
