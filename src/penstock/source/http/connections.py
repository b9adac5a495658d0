"""Connections that are let go when a request does not come to its end in time, and that keep to HTTP/1.1.

uvicorn itself waits for ever, for the head as for the body. A timer for each request would cost more than a look at all
connections once in a while.

Some callers offer another protocol with each request (Java's HttpClient: HTTP/2), and expect an answer in this one from
who does not care for it (RFC 9110, 7.8). The parser passes over the body then, so it gets the head without the offer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.source.http.app import App
from penstock.source.http.quick import Quick, quick

LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
NOT_HTTP = "Invalid HTTP request received."
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

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            while data:
                data = self._feed(data)
        except httptools.HttpParserError:
            self.logger.warning(NOT_HTTP)
            self.send_400_response(NOT_HTTP)

    def _feed(self, data: bytes) -> bytes:
        """Parse it up to the next head that offers another protocol; what is left is to be parsed behind that."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self._offers_protocol():
                head = self._head_without_offer()
                self.parser = _parser(self)
                self.parser.feed_data(head)
                return data[offer.args[0] :]
        return b""

    def _offers_protocol(self) -> bool:
        """Whether the parser stops behind this head; behind a CONNECT it always does."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_headers_complete(self) -> None:
        if self._offers_protocol():
            return
        app = self.config.app
        assert isinstance(app, App)
        found = quick(self, app)
        if found is None:
            super().on_headers_complete()
        else:
            self.cycle = found  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        if isinstance(self.cycle, Quick):
            self.cycle.add(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._offers_protocol():
            return
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


def _parser(connection: Connection) -> httptools.HttpRequestParser:
    """One like uvicorn's."""
    made = httptools.HttpRequestParser(connection)
    with suppress(AttributeError):  # before 0.6.3
        made.set_dangerous_leniencies(lenient_data_after_close=True)
    return made


async def watch(connections: Iterable[object], seconds: float) -> None:
    """Let those go whose request has been coming for longer; ends when cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOK)
        due = loop.time() - seconds
        for one in list(connections):
            if isinstance(one, Connection) and one.waits_since is not None and one.waits_since < due:
                one.leave()
