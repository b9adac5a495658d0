"""Requests to other servers, with bounds: a server that answers slowly, without end or with nonsense costs little.

An exchange has one deadline for everything: name, connection, TLS, request and answer. An answer has a largest size,
which is checked while it comes. `_Exchange` has the protocol (h11), and no socket; `fetch` sends it from an event loop,
and `fetch_blocking` from a thread, also in Spark's Python processes. Each exchange has its own connection. Nothing is
tried again: the error says by `retriable` whether that can help. A login stays with its server, and out of messages.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

import h11

from penstock import __version__
from penstock.errors import PenstockError
from penstock.serve.client_connection import (
    CHUNK,
    HEAD,
    PORTS,
    ClientConnection,
    Deadline,
    context_of,
    login_of,
    place_of,
    port_of,
    proxy_login,
    proxy_of,
)

MOST = 8 << 20
"""The most bytes of an answer's body."""
MOST_REFUSED = 64 << 10
"""The most bytes that are read of the body of an error."""
REDIRECTS = (301, 302, 303, 307, 308)


class NoHttpAnswer(PenstockError):
    """The server did not answer in time, or its answer is not one."""

    retriable = True


class TookTooLong(NoHttpAnswer):
    """The server has not answered in time."""


class TooLargeAnswer(NoHttpAnswer):
    """The answer has more bytes than are read: asking again does not help, asking for less may."""

    retriable = False


class UntrustedCertificate(NoHttpAnswer):
    """No trusted authority has signed the server's certificate, or it is for another name: `reason` says which."""

    retriable = False

    def __init__(self, what: str, *, where: str = "", next: str = "", reason: str = "") -> None:
        super().__init__(what, where=where, next=next)
        self.reason = reason


class RedirectedElsewhere(NoHttpAnswer):
    """The answer sends the request to another server, `origin`, which does not get the login."""

    retriable = False

    def __init__(self, what: str, *, where: str = "", next: str = "", origin: str = "") -> None:
        super().__init__(what, where=where, next=next)
        self.origin = origin


class CannotBeSent(NoHttpAnswer):
    """No request can have this address or header."""

    retriable = False


@dataclass(frozen=True)
class Address:
    """A server: its URL without a login, and the header that carries the login, if there is one."""

    url: str
    login: str | None

    @classmethod
    def of(cls, text: str, option: str) -> Address:
        """Raises PenstockError if it is not the URL of a server; `option` is the one that gave it."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
            # Refuses names with parts that are empty or too long, which would fail at each request.
            (host or "").encode("ascii").decode().encode("idna")
        except ValueError:
            host = port = None
            parts = urlsplit("")
        wrong = parts.query or parts.fragment or port == 0 or not _is_path(parts.path)
        if parts.scheme not in PORTS or not host or wrong:
            plain = text.rpartition("@")[2]
            raise PenstockError(
                f"{plain!r} is not the address of a server", where=option, next='write it as "http://host:port"'
            )
        plain = urlunsplit(parts._replace(netloc=place_of(parts))).rstrip("/")
        return cls(plain, login_of(parts))


def _is_path(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


@dataclass(frozen=True)
class HttpAnswer:
    """The status and the body of an answer."""

    status: int
    body: bytes
    reason: str = ""
    """What the server says beside the status."""
    location: str = ""
    """Where it sends the request."""

    def parsed(self, where: str) -> Any:
        """The body as JSON; raises NoHttpAnswer if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise NoHttpAnswer(
                f"the answer is not JSON (HTTP {self.status}): {error}", where=where, next="check what listens there"
            ) from None


async def fetch(
    address: Address,
    path: str,
    *,
    method: str = "GET",
    body: Any = None,
    patience: float = 5.0,
    most: int = MOST,
    tls: ssl.SSLContext | None = None,
) -> HttpAnswer:
    """Ask a server; `body` is sent as JSON, `patience` is in seconds. Raises NoHttpAnswer.

    Redirects are answers. `tls` is for https, in place of the authorities of this machine.
    """
    # Imported here: Spark's Python processes, which only block, start without it.
    import asyncio

    request = _Request(address, path, method, _json(body), {}, most)
    with _reported(request, patience):
        async with asyncio.timeout(patience):
            exchange, parts = _Exchange(request), request.parts
            start, context = exchange.start(), context_of(parts, tls)
            reader, writer = await asyncio.open_connection(parts.hostname, port_of(parts), ssl=context)
            try:
                writer.write(start)
                while (answer := exchange.take(await reader.read(CHUNK))) is None:
                    pass
                return answer
            finally:
                writer.transport.abort()


def fetch_blocking(
    address: Address,
    path: str,
    *,
    method: str = "GET",
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    patience: float = 5.0,
    most: int = MOST,
    cut: bool = False,
    tls: ssl.SSLContext | None = None,
    redirects: int = 0,
    proxied: bool = False,
) -> HttpAnswer:
    """As `fetch`, without an event loop; `headers` are sent besides the usual ones, or in their place.

    With `cut` a longer body is no error: its first `most` bytes are read. Up to `redirects` redirects of GET and HEAD
    are followed. `proxied` honours the proxies of the environment, as http_proxy.
    """
    deadline = Deadline(patience)
    request = _Request(address, path, method, _json(body), headers or {}, most, cut)
    while True:
        with _reported(request, patience):
            answer = _exchanged(request, tls, deadline, proxy_of(request.parts) if proxied else None)
        if not redirects or answer.status not in REDIRECTS or method not in ("GET", "HEAD") or not answer.location:
            return answer
        with _reported(request, patience):
            request, redirects = request.redirected(answer.location), redirects - 1


@contextmanager
def _reported(request: _Request, patience: float) -> Iterator[None]:
    """Raise what goes wrong inside as NoHttpAnswer."""
    where = request.address.url
    try:
        yield
        return
    except TimeoutError:
        raise TookTooLong(
            f"no answer within {patience:g} s", where=where, next="check what the server is busy with"
        ) from None
    except ssl.SSLCertVerificationError as error:
        raise UntrustedCertificate(
            f"the server's certificate is not trusted: {error.verify_message}",
            where=where,
            next="check the address, or name the authority that signed it in the environment's SSL_CERT_FILE",
            reason=error.verify_message,
        ) from None
    except ssl.SSLError as error:
        why = f"TLS fails: {error.reason or error}"
    except OSError as error:
        # asyncio's own text for a refused connection names the address a second time.
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error) or type(error).__name__
    except h11.RemoteProtocolError as error:
        why = f"the answer is not HTTP: {error}"
    except (h11.LocalProtocolError, ValueError):
        # Their own texts have the header, which may be a login.
        raise CannotBeSent(
            "the address or a header has characters that no request can have",
            where=ascii(where)[1:-1],
            next="correct the address, or the key or password",
        ) from None
    raise NoHttpAnswer(why, where=where, next="check the address and that the server runs")


# The protocol.


@dataclass(frozen=True)
class _Request:
    """A request; `data` is the body."""

    address: Address
    path: str
    method: str
    data: bytes | None
    headers: Mapping[str, str]
    most: int
    cut: bool = False
    whole_url: bool = False
    """Whether the URL is sent instead of the path, as proxies want it."""

    @property
    def parts(self) -> SplitResult:
        """Of the address; raises CannotBeSent, or ValueError as `urlsplit` does, if it is none of a server."""
        parts = urlsplit(self.address.url)
        if parts.scheme not in PORTS or not parts.hostname:
            raise CannotBeSent(
                f"{self.address.url!r} is not the address of a server", next='write it as "http://host:port"'
            )
        return parts

    @property
    def target(self) -> str:
        return f"{self.address.url}{self.path}" if self.whole_url else f"{self.parts.path}{self.path}" or "/"

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        headers = {"host": place_of(self.parts), "accept": "application/json", "user-agent": f"penstock/{__version__}"}
        headers["connection"] = "close"
        if self.address.login is not None:
            headers["authorization"] = self.address.login
        if self.data is not None:
            headers["content-type"] = "application/json"
        if self.data is not None or self.method not in ("GET", "HEAD"):
            headers["content-length"] = str(len(self.data or b""))
        headers |= {name.lower(): value for name, value in self.headers.items()}
        # A name of a host may have other letters.
        if not headers["host"].isascii():
            headers["host"] = headers["host"].encode("idna").decode()
        return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()]

    def redirected(self, location: str) -> _Request:
        """The request that follows; raises RedirectedElsewhere if it had to leave the login behind."""
        before, after = self.parts, _joined(f"{self.address.url}{self.path}", location)
        is_upgrade = (before.scheme, after.scheme) == ("http", "https") and before.hostname == after.hostname
        origin = f"{after.scheme}://{place_of(after)}"
        if (
            self.address.login
            and not is_upgrade
            and (before.scheme, place_of(before)) != (after.scheme, place_of(after))
        ):
            raise RedirectedElsewhere(
                f"the server redirects to {origin}, which does not get its login",
                where=self.address.url,
                next="give the server's own address, if you trust it",
                origin=origin,
            )
        query = f"?{after.query}" if after.query else ""
        return replace(self, address=Address(origin, self.address.login), path=f"{after.path or '/'}{query}")


def _joined(url: str, location: str) -> SplitResult:
    """The address that a redirect leads to; raises h11.RemoteProtocolError if it is not one of a server."""
    with suppress(ValueError):
        after = urlsplit(urljoin(url, location))
        if after.scheme in PORTS and after.hostname and after.port != 0:
            return after
    raise h11.RemoteProtocolError("it redirects to an address that is not one of a server")


class _Exchange:
    """One request and its answer as bytes, without a connection."""

    def __init__(self, request: _Request) -> None:
        self._request = request
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD)
        self._head: h11.Response | None = None
        self._body = bytearray()

    def start(self) -> bytes:
        """What is sent; raises ValueError or h11.LocalProtocolError if it cannot be."""
        request = self._request
        events = [h11.Request(method=request.method, target=request.target, headers=request.all_headers())]
        data = [h11.Data(data=request.data)] if request.data else []
        return b"".join(self._protocol.send(event) or b"" for event in (*events, *data, h11.EndOfMessage()))

    def take(self, data: bytes) -> HttpAnswer | None:
        """Take what has come, b"" at the end of the connection; returns the answer when it is whole."""
        self._protocol.receive_data(data)
        while (event := self._protocol.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Response):
                self._head = event
            elif isinstance(event, h11.Data):
                self._body += event.data
                if self._is_enough():
                    return self._answer()
            elif isinstance(event, h11.EndOfMessage):
                return self._answer()
            elif isinstance(event, h11.ConnectionClosed):
                raise h11.RemoteProtocolError("the connection ended before the answer")
        return None

    def _is_enough(self) -> bool:
        """Whether no more is read; raises TooLargeAnswer if more was needed."""
        assert self._head is not None
        most = self._request.most
        if self._request.cut or self._head.status_code >= 400:
            return len(self._body) >= min(most, MOST_REFUSED)
        if len(self._body) > most:
            raise TooLargeAnswer(
                f"the answer has more than {most} bytes, which is the most that is read",
                where=self._request.address.url,
                next="see what is so large there, with another program",
            )
        return False

    def _answer(self) -> HttpAnswer:
        head, request = self._head, self._request
        assert head is not None
        body = bytes(self._body[: request.most])
        location = next((value.decode("latin-1") for name, value in head.headers if name == b"location"), "")
        return HttpAnswer(head.status_code, body, head.reason.decode("latin-1")[:200], location)


def _exchanged(
    request: _Request, tls: ssl.SSLContext | None, deadline: Deadline, proxy: SplitResult | None
) -> HttpAnswer:
    parts = request.parts
    if proxy and parts.scheme == "http":
        request = replace(request, headers={**request.headers, **proxy_login(proxy)}, whole_url=True)
        parts, proxy, tls = proxy, None, None
    exchange = _Exchange(request)
    start, context = exchange.start(), context_of(parts, tls)
    with ClientConnection(parts, context, deadline, proxy) as connection:
        connection.send(start)
        while (answer := exchange.take(connection.receive())) is None:
            pass
        return answer


def _json(body: Any) -> bytes | None:
    return None if body is None else json.dumps(body).encode()
