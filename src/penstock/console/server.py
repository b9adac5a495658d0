"""The console's HTTP server, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.console.app import app
from penstock.console.settings import ConsoleSettings
from penstock.console.watched_systems import WatchedSystems
from penstock.process.signals import heeded
from penstock.serve.access.hosts import Asgi, Hosts, guarded
from penstock.serve.rest_server import ALLOW, BoundedServer

GRACE = 2
"""Seconds in which answers that have begun may end."""


class _Server(BoundedServer):
    """Ends the streams of events at a signal, which would keep the server from ending."""

    def __init__(self, systems: WatchedSystems, app: Asgi, bound: socket.socket) -> None:
        super().__init__(
            app,
            bound,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="on",
            timeout_graceful_shutdown=GRACE,
        )
        self._systems = systems

    def end(self) -> None:
        self.should_exit = True
        self._systems.end()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in heeded():
            loop.add_signal_handler(number, self.end)
        yield


def serve(settings: ConsoleSettings, bound: socket.socket, hosts: Hosts) -> None:
    """Answer requests to these hosts at a listening socket; call it in the main thread."""
    systems = WatchedSystems(settings)
    server = _Server(systems, guarded(app(systems), hosts, allow_with=ALLOW), bound)
    asyncio.run(server.serve())
