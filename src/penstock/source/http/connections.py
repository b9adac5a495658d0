"""Connections that are let go when a request does not come to its end in time.

uvicorn itself waits for ever, for the head as for the body. A timer for each request would cost more than a look at all
connections once in a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.source.http.app import App
from penstock.source.http.quick import Quick, quick

LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
LOOK = 0.5
"""Seconds between two looks."""
FAREWELL = 2.0
"""Seconds for a caller to close its side of TLS; uvloop would wait for half a minute."""


class Connection(HttpToolsProtocol):
    """uvicorn's, which knows since when it waits for the rest of a request."""

    waits_since: float | None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waits_since = self.loop.time()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.waits_since = self.loop.time()

    def on_headers_complete(self) -> None:
        app = self.config.app
        assert isinstance(app, App)
        found = quick(self, app)
        if found is None:
            super().on_headers_complete()
        else:
            self.cycle = found  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        if isinstance(self.cycle, Quick):
            self.cycle.body.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.waits_since = None
        if isinstance(self.cycle, Quick):
            self.cycle.take()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if isinstance(self.cycle, Quick):
            self.cycle.lost()

    def shutdown(self) -> None:
        super().shutdown()
        self._end_soon()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._end_soon()

    def _end_soon(self) -> None:
        """Cut a connection that is being closed, if its caller does not take part in that."""
        if self.transport.is_closing():
            self.loop.call_later(FAREWELL, self.transport.abort)

    def leave(self) -> None:
        """Say why, unless an answer was given already."""
        head_only = self.cycle is None or self.cycle.scope is not self.scope
        if head_only or not self.cycle.response_started:
            self.transport.write(LATE)
        self.transport.close()
        self._end_soon()


async def watch(connections: Iterable[object], seconds: float) -> None:
    """Let those go whose request has been coming for longer; ends when cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOK)
        due = loop.time() - seconds
        for one in list(connections):
            if isinstance(one, Connection) and one.waits_since is not None and one.waits_since < due:
                one.leave()
