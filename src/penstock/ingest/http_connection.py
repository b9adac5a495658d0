"""Connections that limit what a caller may cost: heads, pipelined requests, unread answers, and time.

uvicorn itself waits for ever, for the head and for the body, and limits neither. A timer for each request would cost
more than a look at all connections once in a while.

Some callers offer another protocol with each request (Java's HttpClient: HTTP/2), and expect an answer in HTTP/1.1 from
a server that ignores the offer (RFC 9110, 7.8). The parser then skips the body, so it gets the head without the offer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from penstock.ingest.app import EVENTS, EXAMINED, FAULT, GONE, SCANNED, App, Asked
from penstock.ingest.body import Share
from penstock.ingest.events import Events
from penstock.ingest.responses import PLAIN, PROBLEM, Headers, Problem, Refused, refusal, refusal_headers

NOT_HTTP = "Invalid HTTP request received."
LOOK = 0.5
"""Seconds between two looks at all connections."""
FAREWELL = 2.0
"""Seconds for a caller to read its last answer, and to close its side of TLS: uvloop would wait for 30."""
PIPELINED = 100
"""Most requests of a connection that wait for the answers to those before them."""
IGNORED = 1 << 20
"""Bytes that a caller may still send after its last answer."""
CROWDED = 0.9
"""Share of the allowed connections: above it, those that wait for a request are closed to make room for others."""


class TooMuch(Exception):
    """A head beyond the limits, or too many requests at once; without a status, only earlier requests are answered."""

    def __init__(self, status: int = 0, detail: str = "") -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class HttpConnection(HttpToolsProtocol):
    """uvicorn's connection, which also knows since when it waits for the rest of a request, and how much it holds."""

    waits_since: float | None = None
    """The loop's time since which a request has been coming."""
    idle_since: float | None = None
    """The loop's time since which nothing has come after an answer."""
    unread, unread_since = 0, 0.0
    """Bytes of answers that the caller has not read, and since when that number is the same."""
    on_lost: Callable[[], None]
    """Called when the connection is gone."""
    url = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        app = self.config.app
        assert isinstance(app, App)
        self._app, self._limits = app, app.limits
        self.waits_since = self.loop.time()
        self._pending = self._counted = 0
        """Bytes since the last part of a request was complete, and how many of them are counted as in flight."""
        self._too_much: TooMuch | None = None
        self._ignored = -1
        """Bytes that came after the last answer; -1 before that."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.waits_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        if self._ignored >= 0:
            self._ignored += len(data)
            if self._ignored > IGNORED and not self._owes_answers():
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        self.idle_since = None
        if self.waits_since is None and (self.cycle is None or self.cycle.response_complete):
            # The parser skips line ends before a request; these must not keep a connection open.
            self.waits_since = self.loop.time()
        self._pending += len(data)
        try:
            while data:
                data = self._feed(data)
            if self._pending > self._limits.head:
                raise self._head_too_large()
        except TooMuch as why:
            self._send_away(why.status, why.detail)
        except httptools.HttpParserError:
            if self._too_much:
                self._send_away(self._too_much.status, self._too_much.detail)
            else:
                self.logger.warning(NOT_HTTP)
                self._send_away(400, NOT_HTTP)
        if self._pending or self._counted:
            self._count_pending()

    def _feed(self, data: bytes) -> bytes:
        """Parse up to the next head that offers another protocol; returns the rest, which is to be parsed after it."""
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
        """Whether the head offers another protocol, where the parser stops; after a CONNECT it always stops."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % (name, value) for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self._limits.headers:
            most = self._limits.headers
            self._stop(TooMuch(431, f"the head of a request may have at most {most} header lines"))

    def on_headers_complete(self) -> None:
        if self._pending > self._limits.head and self._head_size() > self._limits.head:
            self._stop(self._head_too_large())
        if len(self.url) > self._limits.url:
            self._stop(self._head_too_large())
        if len(self.pipeline) >= PIPELINED:
            self._stop(TooMuch())
        self._pending = 0
        if self._offers_protocol():
            return
        found = quick(self, self._app)
        if found is None:
            super().on_headers_complete()
        else:
            self.cycle = found  # type: ignore[assignment]

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)

    def _head_too_large(self) -> TooMuch:
        if len(self.url) > self._limits.url:
            return TooMuch(414, f"a URL may have at most {self._limits.url} bytes")
        return TooMuch(431, f"the head of a request may have at most {self._limits.head} bytes")

    def _stop(self, why: TooMuch) -> None:
        """Stop the parser: it ends when a callback raises."""
        self._too_much = why
        raise why

    def on_body(self, body: bytes) -> None:
        self._pending = 0
        if isinstance(self.cycle, Quick):
            self.cycle.add(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._pending = 0
        if self._offers_protocol():
            return
        super().on_message_complete()
        self.waits_since = None
        if isinstance(self.cycle, Quick):
            self.cycle.take()

    def _count_pending(self) -> None:
        """Count an incomplete head as in flight; without room for it, the caller is disconnected."""
        in_flight, pending = self._app.in_flight, 0 if self._ignored >= 0 else self._pending
        in_flight.bytes += pending - self._counted
        self._counted = pending
        if pending and in_flight.bytes > in_flight.most:
            self._send_away(429, "the memory for requests is taken; send again later")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._app.in_flight.bytes -= self._counted
        self._counted = 0
        if isinstance(self.cycle, Quick):
            self.cycle.lost()
        self.on_lost()

    def shutdown(self) -> None:
        super().shutdown()
        self._end_soon()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.idle_since = self.loop.time()
        self._end_soon()

    def _end_soon(self) -> None:
        """Abort a connection that is being closed, if its caller does not close it in time."""
        if self.transport.is_closing():
            self.loop.call_later(FAREWELL, self.transport.abort)

    def leave(self) -> None:
        """Disconnect a caller whose request does not complete in time."""
        self._send_away(408, "", linger=False)

    def _send_away(self, status: int, detail: str, *, linger: bool = True) -> None:
        """Answer the current request, unless it has its answer, and close; later bytes are ignored.

        A caller that still sends would lose the answer if the connection were closed at once: it may `linger`.
        """
        coming, cycle = self.waits_since is not None, self.cycle
        self._ignored, self.waits_since = 0, None
        of_it = coming and cycle is not None and cycle.scope is self.scope
        if cycle is not None and not cycle.response_complete:
            if not of_it:
                # Earlier requests are answered first; the connection is closed after the last answer.
                cycle.keep_alive = False
                return
            cycle.disconnected = True
            cycle.message_event.set()
        if not (of_it and cycle.response_started) and not self.pipeline:
            self.transport.write(_refusal(status, detail))
        if linger:
            self.loop.call_later(FAREWELL, self._close)
        else:
            self._close()

    def _owes_answers(self) -> bool:
        """Whether requests before the refused one still wait for their answers."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and not cycle.disconnected

    def _close(self) -> None:
        self.transport.close()
        self._end_soon()


def _refusal(status: int, detail: str) -> bytes:
    """An answer written without the application, which never sees the request."""
    text = detail.encode()
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "connection: close", f"content-length: {len(text)}"]
    lines += ["content-type: text/plain; charset=utf-8"] if text else []
    lines += ["retry-after: 1"] if status == HTTPStatus.TOO_MANY_REQUESTS else []
    return "\r\n".join([*lines, "", ""]).encode() + text


def _parser(connection: HttpConnection) -> httptools.HttpRequestParser:
    """A parser like uvicorn's."""
    made = httptools.HttpRequestParser(connection)
    with suppress(AttributeError):  # before 0.6.3
        made.set_dangerous_leniencies(lenient_data_after_close=True)
    return made


async def watch(connections: Iterable[object], *, body: float, idle: float, unread: int, most: int) -> None:
    """Disconnect callers that take too long or too much; runs until cancelled.

    `body` is the most seconds for a request to arrive, `idle` the most seconds in which a caller reads nothing of its
    answers, and `unread` the most bytes of unread answers of all callers. At most `most` connections may be open.
    """
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(LOOK)
        now, left = loop.time(), 0
        living = [one for one in connections if isinstance(one, HttpConnection)]
        for one in living:
            if one.waits_since is not None and one.waits_since < now - body:
                one.leave()
            waiting = one.transport.get_write_buffer_size()
            left += waiting
            if waiting != one.unread:
                one.unread, one.unread_since = waiting, now
            elif waiting and one.unread_since < now - idle:
                one.transport.abort()
        if left > unread:
            _end_largest(living, left - unread)
        if (over := len(living) - int(CROWDED * most)) > 0:
            _end_idle(living, over)


def _end_largest(living: Iterable[HttpConnection], size: int) -> None:
    """Abort the connections with the most unread bytes until `size` bytes are freed."""
    for one in sorted(living, key=lambda one: -one.unread):
        if size <= 0:
            return
        size -= one.unread
        one.transport.abort()


def _end_idle(living: Iterable[HttpConnection], count: int) -> None:
    """Close `count` connections that wait for a request, the longest waiting first."""
    idle = sorted((one.idle_since, id(one), one) for one in living if one.idle_since is not None)
    for _, _, one in idle[:count]:
        one.transport.close()


log = logging.getLogger(__name__)


def quick(connection: HttpConnection, app: App) -> Quick | None:
    """The fast path for the request whose head has come; None if the application is to handle it."""
    topic, cycle, parser = app.routes.get(connection.url), connection.cycle, connection.parser
    if topic is None or (cycle is not None and not cycle.response_complete) or parser.get_method() != b"POST":
        return None
    if connection.expect_100_continue or connection.flow.write_paused:
        return None
    headers = dict(connection.headers)
    size = int(headers.get(b"content-length", SCANNED + 1))
    if size > SCANNED or b"content-encoding" in headers:
        return None
    try:
        app.require_host(headers)
        asked = app.admit(topic, headers, b"")
    except Refused:
        return None  # the application finds the same, and answers it
    return Quick(connection, app, topic, asked, app.callers[topic].headers(headers.get(b"origin")))


class Quick:
    """A request on the fast path, from its head to its answer."""

    message_event = asyncio.Event()
    """uvicorn sets it when something has come; nobody waits for it here."""

    def __init__(self, connection: HttpConnection, app: App, topic: str, asked: Asked, shared: Headers) -> None:
        """`shared` are headers of the answer by which a browser knows which page may read it."""
        self._body: list[bytes] = []
        self._late: Refused | None = None
        """What went wrong while the body came."""
        self.scope, self.more_body = connection.scope, True
        self.response_started = self.response_complete = self.disconnected = False
        parser = connection.parser
        self.keep_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        self._connection, self._app, self._topic, self._asked = connection, app, topic, asked
        self._share, self._shared = Share(app.in_flight), shared
        self._began = time.perf_counter()

    def add(self, part: bytes) -> None:
        """Take a part of the body; only received bytes count as memory in use, not the announced ones."""
        if self._late:
            return
        try:
            self._share.take(len(part))
            self._body.append(part)
        except Refused as why:
            self._late = why
            self._body.clear()
            self._share.give_back()

    def take(self) -> None:
        """Handle the complete body."""
        app, topic, asked = self._app, self._topic, self._asked
        try:
            if self._late:
                raise self._late
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            events = app.scan(topic, asked, body)
            if events:
                self._store(events, ())
            elif len(body) <= EXAMINED:
                self._store(*app.examine(topic, asked, body))
            else:
                app.aside(lambda: app.examine(topic, asked, body)).add_done_callback(self._examined)
        except Exception as error:
            self._refuse(error)

    def _examined(self, done: asyncio.Future[tuple[Events, Sequence[Problem]]]) -> None:
        try:
            self._store(*done.result())
        except Exception as error:
            self._refuse(error)

    def _store(self, events: Events, problems: Sequence[Problem]) -> None:
        self._app.store.put(self._topic, events).add_done_callback(partial(self._stored, events, problems))

    def lost(self) -> None:
        """Drop a body that is not complete: the connection is gone."""
        if self.more_body:
            self.more_body = False
            self._end(GONE)

    def _stored(self, events: Events, problems: Sequence[Problem], done: asyncio.Future[None]) -> None:
        error = done.exception()
        if error:
            self._refuse(error)
            return
        self._answer(self._app.store.status, self._app.accepted(self._topic, events, problems), PLAIN, [])

    def _refuse(self, error: BaseException) -> None:
        if not isinstance(error, Refused):
            log.error("POST %s%s", EVENTS, self._topic, exc_info=error)
            error = FAULT
        self._app.refused(self._topic, error)
        self._answer(error.status, refusal(error), PROBLEM, refusal_headers(error))

    def _answer(self, status: int, body: bytes, kind: bytes, more: Headers) -> None:
        """Write head and body at once; uvicorn would write two parts."""
        connection = self._connection
        self.response_started = self.response_complete = True
        if not self.disconnected and not connection.transport.is_closing():
            fields = b"".join(
                [b"%b: %b\r\n" % pair for pair in (*connection.server_state.default_headers, *self._shared, *more)]
            )
            end = b"" if self.keep_alive else b"connection: close\r\n"
            size = b"content-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
            connection.transport.write(b"".join((STATUS_LINE[status], fields, end, size, body)))
            if not self.keep_alive:
                connection.transport.close()
            connection.on_response_complete()
        self._end(status)

    def _end(self, status: int) -> None:
        self._share.give_back()
        self._app.counts.answered(self._topic, status, time.perf_counter() - self._began)
