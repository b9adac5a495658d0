"""Connections over HTTP/1.1 (RFC 9112), with limits of what a caller may cost: heads, pipelined requests, unread
answers, and time. httptools, Node's parser, parses; requests of a connection are answered one after the other.

Some callers offer another protocol with each request (Java's HttpClient: HTTP/2), and expect an answer in HTTP/1.1 from
a server that ignores the offer (RFC 9110, 7.8). The parser then skips the body, so it gets the head without the offer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus

import httptools

from penstock.ingest.app import GONE, App
from penstock.ingest.exchange import Answer, HttpRequest
from penstock.serve.access.callers import SINGLE
from penstock.serve.listener import Connection

log = logging.getLogger(__name__)

NOT_HTTP = "Invalid HTTP request received."
FAREWELL = 2.0
"""Seconds for a caller to read its last answer, and to close its side of TLS: uvloop would wait for 30."""
PIPELINED = 100
"""Most requests of a connection that wait for the answers to those before them."""
SMALL = 4 << 10
"""Bytes up to which a head is counted as what came with it, and not measured."""
HEADER = 200
"""Bytes of memory of a header beside its name and value."""
IGNORED = 1 << 20
"""Bytes that a caller may still send after its last answer."""


class TooMuch(Exception):
    """A head beyond the limits, or too many requests at once; without a status, only earlier requests are answered."""

    def __init__(self, status: int = 0, detail: str = "") -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class HttpConnection(Connection):
    """One connection; it knows since when it waits for the rest of a request, and how much it holds."""

    def __init__(self, app: App, connections: set[HttpConnection], on_lost: Callable[[], None]) -> None:
        """`on_lost` is called when the connection is gone; until then it is one of `connections`."""
        self._app, self._limits, self._connections, self._on_lost = app, app.limits, connections, on_lost
        self._loop = asyncio.get_running_loop()
        self._parser = _parser(self)
        self._head: list[tuple[bytes, bytes]] = []
        self._url = b""
        self._coming: HttpRequest | None = None
        """The request whose body is coming."""
        self._waiting: deque[HttpRequest] = deque()
        """Requests without an answer, in their order; the first one is with the application."""
        self._turn = False
        """Whether the next request is begun in the next turn of the event loop."""
        self._last = False
        """Whether the connection ends after the answers to the requests that wait."""
        self._paused = self._full = False
        """Whether nothing is read until there are answers, and whether the caller does not read its answers."""
        self._pending = self._counted = 0
        """Bytes since the last part of a request was complete, and how many of them are counted as in flight."""
        self._too_much: TooMuch | None = None
        self._ignored = -1
        """Bytes that came after the last answer; -1 before that."""

    # Called by the event loop.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.begin(transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._app.in_flight.bytes -= self._counted
        self._counted = 0
        self._ignored = max(self._ignored, 0)
        for request in self._waiting:
            # The application answers the request that it has, and that is counted.
            if not (request.begun and request.complete):
                self._give_up(request)
        self._on_lost()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._begin_later()

    def data_received(self, data: bytes) -> None:
        if self._ignored >= 0:
            self._ignored += len(data)
            if self._ignored > IGNORED and not self._waiting:
                self.transport.abort()
            return
        self.idle_since = None
        if self.waits_since is None and not self._waiting:
            # The parser skips line ends before a request; these must not keep a connection open.
            self.waits_since = self._loop.time()
        self._pending += len(data)
        try:
            while data:
                data = self._feed(data)
            if self._pending > self._limits.head:
                raise self._head_too_large()
        except TooMuch as why:
            self._send_away(why.status, why.detail)
        except httptools.HttpParserError as error:
            self._not_parsed(error)
        if self._pending or self._counted:
            self._count_pending()
        if len(self._waiting) > 1 and not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def _not_parsed(self, error: httptools.HttpParserError) -> None:
        """End the connection after an error of the parser, or of a function that it called."""
        if self._too_much:
            self._send_away(self._too_much.status, self._too_much.detail)
        elif isinstance(error, httptools.HttpParserCallbackError):
            log.error("a request cannot be answered", exc_info=error)
            self._send_away(500, "an error of the server; see its log. Events may be stored")
        else:
            log.warning(NOT_HTTP)
            self._send_away(400, NOT_HTTP)

    def _feed(self, data: bytes) -> bytes:
        """Parse up to the next head that offers another protocol; returns the rest, which is to be parsed after it."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            if self._offers_protocol():
                head = self._head_without_offer()
                self._parser = _parser(self)
                self._parser.feed_data(head)
                return data[offer.args[0] :]
        return b""

    def _offers_protocol(self) -> bool:
        """Whether the head offers another protocol, where the parser stops; after a CONNECT it always stops."""
        return self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT"

    def _head_without_offer(self) -> bytes:
        version = self._parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._url, version)]
        lines += [b"%b: %b" % (name, value) for name, value in self._head if name != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._url, self._head = b"", []
        self.waits_since = self._loop.time()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head.append((name.lower(), value))
        if len(self._head) > self._limits.headers:
            most = self._limits.headers
            self._stop(TooMuch(431, f"the head of a request may have at most {most} header lines"))

    def _require_single(self) -> None:
        names = [name for name, _ in self._head]
        if twice := sorted(name for name in SINGLE if names.count(name) > 1):
            self._stop(TooMuch(400, f"the request has several lines {twice[0].decode()}; send one"))

    def on_headers_complete(self) -> None:
        if self._pending > self._limits.head and self._head_size() > self._limits.head:
            self._stop(self._head_too_large())
        if len(self._url) > self._limits.url:
            self._stop(self._head_too_large())
        if len(self._waiting) > PIPELINED:
            self._stop(TooMuch())
        pending, self._pending = self._pending, 0
        if self._offers_protocol():
            return
        parser, headers = self._parser, dict(self._head)
        if len(headers) < len(self._head):
            self._require_single()
        method, in_flight = parser.get_method().decode("latin-1"), self._app.in_flight
        request = HttpRequest(method, self._url, headers, in_flight, self._limits.body)
        request.count_head((self._head_size() if pending > SMALL else pending) + HEADER * len(headers))
        self._url, self._head = b"", []
        if parser.get_http_version() != "1.0":
            request.keep_alive = parser.should_keep_alive() and not self.spare
            request.expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        self._coming = request
        self._waiting.append(request)
        if len(self._waiting) == 1 and not self._turn:
            self._begin()

    def on_body(self, body: bytes) -> None:
        self._pending = 0
        if self._coming:
            self._coming.add(body)

    def on_message_complete(self) -> None:
        self._pending = 0
        if self._offers_protocol():
            return
        self.waits_since = None
        request, self._coming = self._coming, None
        if request is None:
            return
        request.complete = True
        if request.begun and not request.answered:
            self._app.take(request, partial(self._answer, request))
        elif not self._waiting:
            self._rest()

    def _head_size(self) -> int:
        return len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._head)

    def _head_too_large(self) -> TooMuch:
        if len(self._url) > self._limits.url:
            return TooMuch(414, f"a URL may have at most {self._limits.url} bytes")
        return TooMuch(431, f"the head of a request may have at most {self._limits.head} bytes")

    def _stop(self, why: TooMuch) -> None:
        """Stop the parser: it ends when a callback raises."""
        self._too_much = why
        raise why

    # Requests, one after the other.

    def _begin(self) -> None:
        """Begin the request whose turn it is."""
        self._turn = False
        if not self._waiting or self._waiting[0].begun or self._full or self.transport.is_closing():
            return
        request = self._waiting[0]
        request.begun = True
        answer = self._app.begin_spare(request) if self.spare else self._app.begin(request)
        if answer:
            self._answer(request, answer)
            return
        if request.expects_continue:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if request.complete:
            self._app.take(request, partial(self._answer, request))

    def _begin_later(self) -> None:
        """Begin the next request after other connections had their turn."""
        if not self._turn:
            self._turn = True
            self._loop.call_soon(self._begin)

    def _answer(self, request: HttpRequest, answer: Answer) -> None:
        self._app.answered(request, answer.status)
        self._waiting.popleft()
        if self.transport.is_closing():
            return
        # Also if none waits yet: of many requests in one piece, each is begun in a turn of its own.
        self._begin_later()
        ends = not request.keep_alive or (self._last and not self._waiting)
        self.transport.write(_message(answer, ends=ends, bare=request.method == "HEAD"))
        if ends:
            self._end(linger=request is self._coming or self._ignored >= 0)
        elif not self._waiting and self._coming is None:
            self._rest()
        if self._paused and len(self._waiting) <= 1 and not self.transport.is_closing():
            self._paused = False
            if self.waits_since is not None:
                self.waits_since = self._loop.time()
            self.transport.resume_reading()

    def _rest(self) -> None:
        """All requests have their answers."""
        if self._last:
            self.close()
        else:
            self.idle_since = self._loop.time()

    def _give_up(self, request: HttpRequest) -> None:
        """Count a request that gets no answer."""
        self._app.answered(request, GONE)

    def _count_pending(self) -> None:
        """Count an incomplete head as in flight; without room for it, the caller is disconnected."""
        in_flight, pending = self._app.in_flight, 0 if self._ignored >= 0 else self._pending
        in_flight.bytes += pending - self._counted
        self._counted = pending
        if pending and in_flight.bytes > in_flight.most:
            self._send_away(429, "the memory for requests is taken; send again later")

    # The end of the connection.

    def silent_since(self) -> float | None:
        """None also if earlier requests of the caller wait for their answers."""
        answering = self._paused or len(self._waiting) > (self._coming is not None)
        return None if answering else super().silent_since()

    def shutdown(self) -> None:
        """End when the requests that have begun to come have their answers."""
        if self._waiting or self._coming:
            self._last = True
        else:
            self.close()

    def leave(self) -> None:
        """Disconnect a caller whose request does not complete in time."""
        if not self._paused:
            self._send_away(408, "", linger=False)

    def _send_away(self, status: int, detail: str, *, linger: bool = True) -> None:
        """Answer the current request, unless it has its answer, and close; later bytes are ignored.

        A caller that still sends would lose the answer if the connection were closed at once: it may `linger`.
        """
        if self._ignored >= 0:
            return
        self._ignored = 0
        coming, self._coming, self.waits_since = self._coming, None, None
        has_answer = coming is not None and coming.answered
        if coming and not has_answer:
            self._waiting.remove(coming)
            self._give_up(coming)
        if self._waiting:
            # Earlier requests are answered first; the connection is closed after the last answer.
            self._last = True
            return
        if not has_answer:
            self.transport.write(_refusal(status, detail))
        self._end(linger=linger)

    def _end(self, *, linger: bool) -> None:
        self._ignored = max(self._ignored, 0)
        self.waits_since = None
        while self._waiting:
            self._give_up(self._waiting.popleft())
        if linger:
            self._loop.call_later(FAREWELL, self.close)
        else:
            self.close()

    def close(self) -> None:
        """Close, and abort if the caller does not close its side in time."""
        self.transport.close()
        self._loop.call_later(FAREWELL, self.transport.abort)


@lru_cache(1)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


@lru_cache(100)
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()


def _message(answer: Answer, *, ends: bool, bare: bool) -> bytes:
    """Head and body of an answer; `bare`: without the body. `ends`: the connection ends after it."""
    lines = [_status_line(answer.status), b"date: %b\r\n" % _date(int(time.time()))]
    if answer.body:
        lines.append(b"content-type: %b\r\n" % answer.kind)
    if answer.status != HTTPStatus.NO_CONTENT:
        lines.append(b"content-length: %d\r\n" % len(answer.body))
    lines += [b"%b: %b\r\n" % pair for pair in answer.headers]
    if ends:
        lines.append(b"connection: close\r\n")
    return b"".join([*lines, b"\r\n", b"" if bare else answer.body])


def _refusal(status: int, detail: str) -> bytes:
    """An answer written without the application, which never sees the request."""
    more = [(b"retry-after", b"1")] if status == HTTPStatus.TOO_MANY_REQUESTS else []
    return _message(Answer(status, detail.encode(), b"text/plain; charset=utf-8", more), ends=True, bare=False)


def _parser(connection: HttpConnection) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(connection)
    with suppress(AttributeError):  # before 0.6.3
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser
