"""The metrics server of a command: a few pages by HTTP, from threads of the command itself.

It takes GET only, and at most HEAD_BYTES of a request's head; its connections have the bounds of
`penstock.serve.listener`. At most PAGES pages are made at a time, and each page that a monitor asks for has a thread of
its own. Each connection has one request. Names in `Host` and `Origin` are checked as `penstock.serve.access.hosts`
does, so that no page in a browser reads a server on the loopback address. Loads no web server: it is part of every
command.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from prometheus_client.registry import Collector

from penstock.errors import PenstockError
from penstock.serve.access.hosts import Hosts, refusal, warn_if_open
from penstock.serve.listener import MONITORED, Connection, Listener, usual_bounds, watch
from penstock.watch.program import TYPE, exposition

log = logging.getLogger(__name__)

HEAD_BYTES = 16 << 10
PAGES = 8
"""Pages that are made at a time; further requests wait."""
LATE = 10.0
"""Seconds after which the answer says that the page is not made."""
QUEUE = 400
"""Requests that wait for a thread, after which those are forgotten whose callers have gone."""
GRACE = 1.0
"""Seconds in which requests are answered at the end."""
BACKLOG = 1024
JSON = "application/json"


@dataclass(frozen=True)
class ListenAddress:
    """Where a server listens; port 0 is any free one."""

    host: str
    port: int


@dataclass(frozen=True)
class MetricsAnswer:
    """The answer to a request."""

    body: bytes
    type: str = JSON
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


Page = Callable[[], MetricsAnswer]


def as_json(body: Any, status: int = 200) -> MetricsAnswer:
    return MetricsAnswer(json.dumps(body, allow_nan=False).encode(), JSON, status)


def pages(
    collectors: Iterable[Collector], status: Callable[[], Mapping[str, Any]], unready: Callable[[], list[str]]
) -> dict[str, Page]:
    """The pages that each command has: /metrics, /health, /ready and /status.

    `unready` gives the reasons why the command is not ready; it is ready if there are none.
    """
    of = list(collectors)

    def ready() -> MetricsAnswer:
        why = unready()
        return as_json({"status": "unavailable" if why else "ok", "problems": why}, 503 if why else 200)

    return {
        "/metrics": lambda: MetricsAnswer(exposition(of), TYPE),
        "/health": lambda: as_json({"status": "ok"}),
        "/ready": ready,
        "/status": lambda: as_json(status()),
    }


@contextmanager
def served(place: ListenAddress, pages: Mapping[str, Page]) -> Iterator[str]:
    """Serve the pages while the code inside runs; yields the URL. Raises PenstockError if it cannot listen there."""
    listener = _listening(place)
    host, port = listener.getsockname()[:2]
    warn_if_open(place.host, "read the metrics and the status")
    server = _Server(listener, pages, Hosts([place.host]))
    thread = threading.Thread(target=server.run, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        server.end()
        thread.join()


def _listening(place: ListenAddress) -> socket.socket:
    try:
        family = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((place.host, place.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise PenstockError(
            f"the metrics server cannot listen: {error.strerror or error}",
            where=f"{place.host}:{place.port}",
            next="give --metrics another HOST:PORT, port 0 for a free one, or none",
        ) from error


class _Caller(Connection):
    """A connection with one request."""

    def __init__(
        self,
        take: Callable[[bytes | None, _Caller], None],
        connections: set[Connection],
        on_lost: Callable[[], None],
    ) -> None:
        """`take` gets the head of the request, None if it is too long."""
        self._take, self._connections, self._on_lost = take, connections, on_lost
        self._found = bytearray()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.begin(transport)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        if self.waits_since is None:
            return
        self._found += data
        head, end, _ = bytes(self._found).partition(b"\r\n\r\n")
        if end or len(head) > HEAD_BYTES:
            self.waits_since = None
            self._take(head if len(head) <= HEAD_BYTES else None, self)

    def eof_received(self) -> bool:
        """Whether the caller, who sends no more, still waits for an answer."""
        return self.waits_since is None

    def send(self, answer: MetricsAnswer) -> None:
        if not self.transport.is_closing():
            self.transport.write(_message(answer))
            self.transport.close()

    def leave(self) -> None:
        self.waits_since = None
        self.close()

    def shutdown(self) -> None:
        if self.waits_since is not None:
            self.leave()


class _Turns:
    """Makes pages in threads, at most `most` at a time; no thread keeps the command from ending."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop, self._most, self._running = loop, most, 0
        self._waiting: deque[tuple[Page, _Caller]] = deque()

    def run(self, page: Page, caller: _Caller) -> None:
        """Send the page to the caller when it is made; called in the event loop."""
        if len(self._waiting) >= QUEUE:
            self._waiting = deque(entry for entry in self._waiting if not entry[1].transport.is_closing())
        self._waiting.append((page, caller))
        self._begin()

    def _begin(self) -> None:
        if self._waiting and self._running < self._most:
            self._running += 1
            threading.Thread(target=self._make, args=self._waiting.popleft(), daemon=True).start()

    def _make(self, page: Page, caller: _Caller) -> None:
        answer = page()
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._made, caller, answer)

    def _made(self, caller: _Caller, answer: MetricsAnswer) -> None:
        self._running -= 1
        caller.send(answer)
        self._begin()


class _Server:
    """An event loop that reads requests and sends answers."""

    def __init__(self, listener: socket.socket, pages: Mapping[str, Page], hosts: Hosts) -> None:
        self._pages, self._hosts, self._bounds = pages, hosts, usual_bounds()
        self._listener = Listener(listener, self._connection, self._bounds)
        self._connections: set[Connection] = set()
        self._loop, self._ended, self._changed = asyncio.new_event_loop(), asyncio.Event(), asyncio.Event()
        self._turns = _Turns(self._loop, PAGES)
        self._own_turns = {path: _Turns(self._loop, 1) for path in MONITORED}

    def run(self) -> None:
        """Answer until `end`."""
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    def end(self) -> None:
        """Let `run` end; for another thread."""
        self._loop.call_soon_threadsafe(self._ended.set)

    async def _serve(self) -> None:
        self._listener.start()
        watching = asyncio.create_task(watch(self._connections, self._bounds))
        await self._ended.wait()
        self._listener.stop()
        for connection in list(self._connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                while self._connections:
                    self._changed.clear()
                    await self._changed.wait()
        for connection in list(self._connections):
            connection.transport.abort()
        watching.cancel()

    def _connection(self, on_lost: Callable[[], None]) -> Connection:
        def lost() -> None:
            on_lost()
            self._changed.set()

        return _Caller(self._take, self._connections, lost)

    def _take(self, head: bytes | None, caller: _Caller) -> None:
        """Answer the request with this head."""
        asked = self._asked(head)
        if isinstance(asked, MetricsAnswer):
            caller.send(asked)
        elif asked in MONITORED:
            self._loop.call_later(LATE, caller.send, _unavailable(f"{asked} is not made within {LATE:.0f} s"))
            self._own_turns[asked].run(partial(self._page, asked), caller)
        elif caller.spare:
            caller.send(_unavailable("all connections wait for their answers"))
        else:
            self._turns.run(partial(self._page, asked), caller)

    def _page(self, path: str) -> MetricsAnswer:
        try:
            return self._pages[path]()
        except Exception:
            log.exception("the page %s failed", path)
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, "the page failed", "read the command's log")

    def _asked(self, head: bytes | None) -> str | MetricsAnswer:
        """The path of the page that a request asks for, or the answer to another request."""
        if head is None:
            return _refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the head has more than {HEAD_BYTES} bytes")
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _refused(HTTPStatus.BAD_REQUEST, "this is not a request of HTTP/1.1")
        if why := self._refusal(lines):
            return why
        if words[0] != "GET":
            refused = _refused(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is allowed")
            return MetricsAnswer(refused.body, JSON, refused.status, (("allow", "GET"),))
        path = words[1].partition("?")[0]
        if path not in self._pages:
            return _refused(HTTPStatus.NOT_FOUND, "there is no such page", f"use {', '.join(self._pages)}")
        return path

    def _refusal(self, lines: list[str]) -> MetricsAnswer | None:
        """The answer to a request that a page of another origin sent, or that was meant for another server."""
        headers = []
        for line in lines:
            name, _, value = line.partition(":")
            # Servers differ in what they take such a line for, so a name in it could pass the checks.
            if name != name.strip():
                return _refused(HTTPStatus.BAD_REQUEST, "a header's name has spaces around it")
            headers.append((name.lower().encode("latin-1"), value.strip().encode("latin-1")))
        refused = refusal(headers, self._hosts, "GET")
        return None if refused is None else _refused(refused[0], refused[1], refused[2] or BY_ADDRESS)


BY_ADDRESS = "use localhost, this machine's name, or an IP address"


def _refused(status: int, what: str, next: str = "") -> MetricsAnswer:
    return as_json({"error": what, "where": "metrics server", "next": next}, status)


def _unavailable(what: str) -> MetricsAnswer:
    refused = _refused(HTTPStatus.SERVICE_UNAVAILABLE, what, "ask again later")
    return MetricsAnswer(refused.body, JSON, refused.status, (("retry-after", "1"),))


def _message(answer: MetricsAnswer) -> bytes:
    phrase = HTTPStatus(answer.status).phrase
    fields = {
        "content-type": answer.type,
        "content-length": str(len(answer.body)),
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
        "connection": "close",
        **dict(answer.headers),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {answer.status} {phrase}\r\n{head}\r\n".encode("latin-1") + answer.body
