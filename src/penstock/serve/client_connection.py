"""A connection of a thread to a server, for one exchange: name, proxy, TLS and each read end by one deadline.

A timeout of a socket bounds one read: a server that sends a byte a second would never meet it.
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import h11

HEAD = 64 << 10
"""The most bytes of an answer's head."""
CHUNK = 64 << 10
PORTS = {"http": 80, "https": 443}


# URLs.


def place_of(parts: SplitResult) -> str:
    """Host and port as in a URL, without the login."""
    return parts.netloc.rpartition("@")[2]


def port_of(parts: SplitResult) -> int:
    return parts.port or PORTS[parts.scheme]


def basic(user: str, password: str) -> str:
    """The header `Authorization` of a name and its password."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def login_of(parts: SplitResult) -> str | None:
    """The header `Authorization` for the login in a URL."""
    return None if parts.username is None else basic(unquote(parts.username), unquote(parts.password or ""))


def context_of(parts: SplitResult, context: ssl.SSLContext | None) -> ssl.SSLContext | None:
    """What https needs: the context of the caller, or one with the authorities of this machine."""
    return (context or ssl.create_default_context()) if parts.scheme == "https" else None


def proxy_of(parts: SplitResult) -> SplitResult | None:
    """The proxy for a server as the environment names it, or the system's settings where there are any."""
    if sys.platform == "linux" and not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    # Imported here: it takes longer than most requests.
    from urllib.request import getproxies, proxy_bypass

    text = getproxies().get(parts.scheme)
    if not text or proxy_bypass(place_of(parts)):
        return None
    proxy = urlsplit(text if "://" in text else f"http://{text}")
    return proxy if proxy.scheme in PORTS and proxy.hostname else None


def proxy_login(proxy: SplitResult) -> dict[str, str]:
    """The header of a request that has the login for the proxy."""
    login = login_of(proxy)
    return {} if login is None else {"proxy-authorization": login}


class Deadline:
    """The end of all that is done for one exchange."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds; raises TimeoutError if there are none."""
        if (left := self._end - time.monotonic()) <= 0:
            raise TimeoutError
        return left


class ClientConnection:
    """Connected to `parts`, through `proxy` if there is one; all methods raise OSError, and TimeoutError at the end."""

    def __init__(
        self, parts: SplitResult, context: ssl.SSLContext | None, deadline: Deadline, proxy: SplitResult | None
    ) -> None:
        self._deadline = deadline
        self._socket = _connected(proxy or parts, deadline)
        try:
            if proxy:
                self._tunnel(parts, proxy)
            if context:
                self._socket = context.wrap_socket(
                    self._socket, server_hostname=parts.hostname, do_handshake_on_connect=False
                )
                self._socket.settimeout(deadline.left())
                self._socket.do_handshake()
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> ClientConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            self._socket.settimeout(self._deadline.left())
            left = left[self._socket.send(left) :]

    def receive(self) -> bytes:
        """What has come; b"" at the end."""
        self._socket.settimeout(self._deadline.left())
        return self._socket.recv(CHUNK)

    def _tunnel(self, parts: SplitResult, proxy: SplitResult) -> None:
        """Let the proxy connect to the server."""
        place = place_of(parts) if parts.port else f"{place_of(parts)}:{port_of(parts)}"
        protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD)
        headers = list({"host": place, **proxy_login(proxy)}.items())
        self.send(protocol.send(h11.Request(method="CONNECT", target=place, headers=headers)) or b"")
        protocol.send(h11.EndOfMessage())
        while not isinstance(event := protocol.next_event(), h11.Response):
            if event is h11.NEED_DATA:
                protocol.receive_data(self.receive())
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionError("the proxy ended the connection before its answer")
        if event.status_code >= 300:
            said = event.reason.decode("latin-1")[:200]
            raise ConnectionError(f"the proxy {place_of(proxy)} refuses: {said} (HTTP {event.status_code})")


def _connected(parts: SplitResult, deadline: Deadline) -> socket.socket:
    """A socket at the first address that takes one; each gets an equal share of the time."""
    assert parts.hostname
    places = _resolved(parts.hostname, port_of(parts), deadline)
    for number, (family, kind, protocol, _, place) in enumerate(places):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(deadline.left() / (len(places) - number))
            connection.connect(place)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
        except OSError as error:
            connection.close()
            problem = error
    raise problem


def _resolved(host: str, port: int, deadline: Deadline) -> list[Any]:
    with suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    addresses: Future[list[Any]] = Future()

    def look() -> None:
        try:
            addresses.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, ValueError) as error:
            addresses.set_exception(error)

    # Nothing else bounds the time that name servers take.
    threading.Thread(target=look, name="resolve", daemon=True).start()
    return addresses.result(deadline.left())
