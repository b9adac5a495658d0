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
from penstock.source.http.app import EVENTS, FAULT, GONE, App, Asked
from penstock.source.http.body import Share
from penstock.source.http.events import Events

if TYPE_CHECKING:
    from penstock.source.http.connections import Connection

log = logging.getLogger(__name__)

SMALL = 256 << 10
"""Bytes of a body."""


def quick(connection: Connection, app: App) -> Quick | None:
    """For the request whose head has come; None if the application is to have it."""
    topic, cycle, parser = app.routes.get(connection.url), connection.cycle, connection.parser
    if topic is None or (cycle is not None and not cycle.response_complete) or parser.get_method() != b"POST":
        return None
    if connection.expect_100_continue or connection.flow.write_paused:
        return None
    headers = dict(connection.headers)
    size = int(headers.get(b"content-length", SMALL + 1))
    if size > SMALL or b"content-encoding" in headers:
        return None
    share = Share(app.in_flight)
    try:
        app.require_host(headers)
        asked = app.admit(topic, headers, b"")
        share.take(size)
    except Refused:
        share.give_back()
        return None  # the application finds the same, and says so
    return Quick(connection, app, topic, asked, share, app.callers[topic].headers(headers.get(b"origin")))


class Quick:
    """One request, from its head to its answer."""

    message_event = asyncio.Event()
    """uvicorn sets it when something came; nobody waits for it here."""

    def __init__(
        self, connection: Connection, app: App, topic: str, asked: Asked, share: Share, shared: Headers
    ) -> None:
        """`shared` are headers of the answer that tell a browser which page may read it."""
        self.body: list[bytes] = []
        self.scope, self.more_body = connection.scope, True
        self.response_started = self.response_complete = self.disconnected = False
        parser = connection.parser
        self.keep_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        self._connection, self._app, self._topic, self._asked, self._share = connection, app, topic, asked, share
        self._shared = shared
        self._began = time.perf_counter()

    def take(self) -> None:
        """The body is complete."""
        app = self._app
        try:
            body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
            events, problems = app.read(self._topic, self._asked, body)
            app.store.put(self._topic, events).add_done_callback(partial(self._stored, events, problems))
        except Exception as error:
            self._refuse(error)

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
