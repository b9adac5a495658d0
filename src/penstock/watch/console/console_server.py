"""The console's HTTP server, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from penstock.serve.hosts import Hosts, guarded
from penstock.signals import heeded
from penstock.watch.console.console_app import app
from penstock.watch.console.console_data import ConsoleData, ConsoleSettings

HEAD = 64 << 10
"""The largest head of a request in bytes."""
CONNECTIONS = 200
"""The most connections at a time; further requests get 503."""
GRACE = 2
"""Seconds in which answers that have begun may end."""


class _Server(uvicorn.Server):
    """Ends the streams of events at a signal, which would keep the server from ending."""

    def __init__(self, config: uvicorn.Config, data: ConsoleData) -> None:
        super().__init__(config)
        self._data = data

    def end(self) -> None:
        self.should_exit = True
        self._data.end()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in heeded():
            loop.add_signal_handler(number, self.end)
        yield


def serve(settings: ConsoleSettings, bound: socket.socket, hosts: Hosts) -> None:
    """Answer requests to these hosts at a listening socket; call it in the main thread."""
    data = ConsoleData(settings)
    config = uvicorn.Config(
        guarded(app(data), hosts, allow_with="--allow-host NAME"),
        # httptools, which uvicorn prefers if it is installed, has no limit for heads.
        http="h11",
        h11_max_incomplete_event_size=HEAD,
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=GRACE,
        limit_concurrency=CONNECTIONS,
    )
    asyncio.run(_Server(config, data).serve(sockets=[bound]))
