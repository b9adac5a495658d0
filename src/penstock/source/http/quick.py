"""Small requests with events, answered without a task and ASGI's messages, which cost more than all else about them.

uvicorn's connection takes it for the cycle of a request. What is rare is left to the application as any other request:
bodies that are large, packed or of unknown length, queries, pipelines, callers that do not read their answers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from penstock.source.http.answers import PLAIN, PROBLEM, Headers, Problem, Refused, refusal, refusal_headers
from penstock.source.http.app import EVENTS, EXAMINED, FAULT, GONE, SCANNED, App, Asked
from penstock.source.http.body import Share
from penstock.source.http.events import Events

if TYPE_CHECKING:
    from penstock.source.http.connections import Connection

log = logging.getLogger(__name__)


def quick(connection: Connection, app: App) -> Quick | None:
    """For the request whose head has come; None if the application is to have it."""
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
        return None  # the application finds the same, and says so
    return Quick(connection, app, topic, asked, app.callers[topic].headers(headers.get(b"origin")))


class Quick:
    """One request, from its head to its answer."""

    message_event = asyncio.Event()
    """uvicorn sets it when something came; nobody waits for it here."""

    def __init__(self, connection: Connection, app: App, topic: str, asked: Asked, shared: Headers) -> None:
        """`shared` are headers of the answer that tell a browser which page may read it."""
        self._body: list[bytes] = []
        self._late: Refused | None = None
        """What became wrong while the body came."""
        self.scope, self.more_body = connection.scope, True
        self.response_started = self.response_complete = self.disconnected = False
        parser = connection.parser
        self.keep_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        self._connection, self._app, self._topic, self._asked = connection, app, topic, asked
        self._share, self._shared = Share(app.in_flight), shared
        self._began = time.perf_counter()

    def add(self, part: bytes) -> None:
        """A part of the body; only what has come takes memory from others, not what was announced."""
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
        """The body is complete."""
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
        """The connection is gone; what came of the body is of no use."""
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
        """Write it at once, as uvicorn would in two parts."""
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
