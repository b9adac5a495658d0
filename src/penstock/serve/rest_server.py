"""An HTTP server with bounds, for the REST APIs of commands and the console: uvicorn's, behind our own listener."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from penstock.errors import PenstockError
from penstock.serve.access.hosts import Asgi, Hosts, Message, Receive, Send, guarded
from penstock.serve.listener import MONITORED, Connection, Listener, usual_bounds, watch

ALLOW = "--allow-host NAME"
"""The option of commands with a server."""
HEAD = 64 << 10
"""The largest head of a request in bytes: a longer head gets 400 and the connection is closed."""
BACKLOG = 2048
"""Connections that the kernel keeps until they are accepted, at most."""
TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
TAKEN = {
    "error_code": 503,
    "message": "all connections wait for their answers",
    "error": "all connections wait for their answers",
    "next": "send the request again later",
}


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 is any free port. Raises PenstockError if it cannot listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise PenstockError(
            f"cannot listen at {host}:{port}: {error.strerror}",
            next="stop what listens there, or choose another address",
        ) from error


def address_of(bound: socket.socket) -> str:
    """Host and port as in a URL."""
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _HttpConnection(H11Protocol, Connection):
    """A connection of uvicorn that knows whether its caller is silent."""

    def __init__(self, config: uvicorn.Config, server: ServerState, state: dict[str, Any], on_lost: Callable[[], None]):
        super().__init__(config, server, state)
        self._on_lost = on_lost

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.begin(transport)
        if self.spare:
            self.app = _for_monitors(self.app)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        if not self.transport.is_closing():
            super().data_received(data)
            self._note()

    def on_response_complete(self) -> None:
        self.waits_since, self.idle_since = None, self.loop.time()
        answered = self.cycle
        super().on_response_complete()
        if self.cycle is not answered:
            # The next request had come while this one was being answered.
            self._note()

    def _note(self) -> None:
        """Note whether a request is coming, or has come and is being answered."""
        request = self.cycle
        if request is not None and not request.response_complete and not request.more_body:
            self.waits_since = self.idle_since = None
        elif self.waits_since is None:
            self.waits_since, self.idle_since = self.loop.time(), None

    def leave(self) -> None:
        self.waits_since = None
        begun = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not begun and not self.transport.is_closing():
            self.transport.write(TOO_LATE)
        if self.cycle is not None:
            # Else the application could write to the closed connection before the event loop says that it is gone.
            self.cycle.disconnected = True
        self.close()


def _for_monitors(app: Any) -> Asgi:
    """The application for what monitors ask; other requests get 503."""

    async def answering(scope: Any, receive: Receive, send: Send) -> None:
        async def last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        if scope["type"] != "http" or scope["path"] in MONITORED:
            await app(scope, receive, last)
            return
        body = json.dumps(TAKEN).encode()
        headers = [(b"content-type", b"application/json"), (b"retry-after", b"1")]
        await last({"type": "http.response.start", "status": 503, "headers": headers})
        await last({"type": "http.response.body", "body": body})

    return answering


class BoundedServer(uvicorn.Server):
    """uvicorn's server, for the connections that a `Listener` accepts within its bounds."""

    def __init__(self, app: Asgi, bound: socket.socket, **settings: Any) -> None:
        """`settings` are uvicorn's."""
        self._bounds = usual_bounds()
        config = uvicorn.Config(
            app,
            # httptools, which uvicorn prefers if it is installed, has no limit for heads.
            http="h11",
            h11_max_incomplete_event_size=HEAD,
            ws="none",
            timeout_keep_alive=int(self._bounds.idle),
            # Its log lines go to the root logger, with that logger's format.
            log_config=None,
            **settings,
        )
        super().__init__(config)
        self._listener = Listener(bound, self._connection, self._bounds)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._listener.start()
        # All of them are made by `_connection`.
        connections = cast(set[Connection], self.server_state.connections)
        self._watching = asyncio.create_task(watch(connections, self._bounds))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._listener.stop()
        await super().shutdown(sockets=[])
        self._watching.cancel()

    def _connection(self, on_lost: Callable[[], None]) -> Connection:
        return _HttpConnection(self.config, self.server_state, self.lifespan.state, on_lost)


class RestServer:
    """Answers requests to one of its `hosts`, in a thread, until `close`."""

    def __init__(self, app: Asgi, bound: socket.socket, hosts: Hosts | None = None) -> None:
        self.url = f"http://{address_of(bound)}"
        verbose = logging.getLogger().isEnabledFor(logging.INFO)
        self._server = BoundedServer(
            guarded(app, hosts or Hosts(), allow_with=ALLOW),
            bound,
            log_level="info" if verbose else "warning",
            lifespan="off",
        )
        self._thread = threading.Thread(target=self._server.run, name="rest", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; answers open requests first."""
        self._server.should_exit = True
        self._thread.join()
