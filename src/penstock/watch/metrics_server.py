"""The metrics server of a command: a few pages by HTTP, from threads of the command itself.

It takes GET only, at most HEAD_BYTES of a request's head within PATIENCE, and CONNECTIONS at a time; further ones wait
in the system's queue. Each connection has one request. Names in `Host` and `Origin` are checked as
`penstock.serve.hosts` does, so that no page in a browser reads a server on the loopback address.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from prometheus_client.registry import Collector

from penstock.errors import PenstockError
from penstock.serve.hosts import Hosts, refusal, warn_if_open
from penstock.watch.program import TYPE, exposition

log = logging.getLogger(__name__)

HEAD_BYTES = 16 << 10
PATIENCE = 5.0
"""Seconds in which a caller sends a request's head, and takes the answer."""
CONNECTIONS = 8
BACKLOG = 64
JSON = "application/json"


@dataclass(frozen=True)
class Place:
    """Where a server listens; port 0 is any free one."""

    host: str
    port: int


@dataclass(frozen=True)
class Answer:
    """The answer to a request."""

    body: bytes
    type: str = JSON
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


Page = Callable[[], Answer]


def as_json(told: Any, status: int = 200) -> Answer:
    return Answer(json.dumps(told, allow_nan=False).encode(), JSON, status)


def pages(
    collectors: Iterable[Collector], status: Callable[[], Mapping[str, Any]], unready: Callable[[], list[str]]
) -> dict[str, Page]:
    """The pages that each command has: /metrics, /health, /ready and /status.

    `unready` gives the reasons why the command is not ready; it is ready if there are none.
    """
    of = list(collectors)

    def ready() -> Answer:
        why = unready()
        return as_json({"status": "unavailable" if why else "ok", "problems": why}, 503 if why else 200)

    return {
        "/metrics": lambda: Answer(exposition(of), TYPE),
        "/health": lambda: as_json({"status": "ok"}),
        "/ready": ready,
        "/status": lambda: as_json(status()),
    }


@contextmanager
def served(place: Place, pages: Mapping[str, Page]) -> Iterator[str]:
    """Serve the pages while the code inside runs; yields the URL. Raises PenstockError if it cannot listen there."""
    listener = _listening(place)
    host, port = listener.getsockname()[:2]
    warn_if_open(place.host, "read the metrics and the status")
    server = _Server(listener, pages, Hosts([place.host]))
    thread = threading.Thread(target=server.accept, name="metrics", daemon=True)
    thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        # Wakes the thread from its accept, which closing alone does not.
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE)


def _listening(place: Place) -> socket.socket:
    try:
        family = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((place.host, place.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise PenstockError(
            f"the metrics server cannot listen: {error.strerror or error}",
            where=f"{place.host}:{place.port}",
            next="give --metrics another HOST:PORT, port 0 for a free one, or none",
        ) from error


class _Server:
    def __init__(self, listener: socket.socket, pages: Mapping[str, Page], hosts: Hosts) -> None:
        self._listener, self._pages, self._hosts = listener, pages, hosts
        self._free = threading.BoundedSemaphore(CONNECTIONS)

    def accept(self) -> None:
        """Take connections until the listener is closed."""
        while True:
            self._free.acquire()
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0 or not _listens(self._listener):
                    return
                # Too many open files: those of other connections are closed soon.
                self._free.release()
                time.sleep(0.1)
                continue
            threading.Thread(target=self._serve, args=[connection], daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                _send(connection, self._answer(_head(connection)))
        except OSError:
            pass  # the caller has gone
        finally:
            self._free.release()

    def _answer(self, head: bytes | None) -> Answer:
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
            return Answer(refused.body, JSON, refused.status, (("allow", "GET"),))
        page = self._pages.get(words[1].partition("?")[0])
        if page is None:
            return _refused(HTTPStatus.NOT_FOUND, "there is no such page", f"use {', '.join(self._pages)}")
        try:
            return page()
        except Exception:
            log.exception("the page %s failed", words[1].partition("?")[0])
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, "the page failed", "read the command's log")

    def _refusal(self, lines: list[str]) -> Answer | None:
        """The answer to a request that a page of another origin sent, or that was meant for another server."""
        headers = []
        for line in lines:
            name, _, value = line.partition(":")
            # Servers differ in what they take such a line for, so a name in it could pass the checks.
            if name != name.strip():
                return _refused(HTTPStatus.BAD_REQUEST, "a header's name has spaces around it")
            headers.append((name.lower().encode("latin-1"), value.strip().encode("latin-1")))
        found = refusal(headers, self._hosts, "GET")
        return None if found is None else _refused(found[0], found[1], found[2] or BY_ADDRESS)


BY_ADDRESS = "use localhost, this machine's name, or an IP address"


def _listens(listener: socket.socket) -> bool:
    try:
        return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _head(connection: socket.socket) -> bytes | None:
    """The head of the request; None if it is too long. Raises OSError if it does not come in time."""
    deadline, found = time.monotonic() + PATIENCE, b""
    while b"\r\n\r\n" not in found and len(found) <= HEAD_BYTES:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(4096)
        if not part:
            raise ConnectionError("the caller ended within the head")
        found += part
    head = found.partition(b"\r\n\r\n")[0]
    return head if len(head) <= HEAD_BYTES else None


def _refused(status: int, what: str, next: str = "") -> Answer:
    return as_json({"error": what, "where": "metrics server", "next": next}, status)


def _send(connection: socket.socket, answer: Answer) -> None:
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
    connection.settimeout(PATIENCE)
    connection.sendall(f"HTTP/1.1 {answer.status} {phrase}\r\n{head}\r\n".encode("latin-1") + answer.body)
