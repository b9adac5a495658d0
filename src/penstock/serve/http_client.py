"""Requests to other servers, with bounds: a server that answers slowly, without end or with nonsense costs little.

A request has one deadline for everything, and an answer has a largest size. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import h11

from penstock import __version__
from penstock.errors import PenstockError

MOST = 8 << 20
"""The most bytes of an answer's body."""
HEAD = 64 << 10
"""The most bytes of an answer's head."""
CHUNK = 64 << 10
PORTS = {"http": 80, "https": 443}


class NoHttpAnswer(PenstockError):
    """The server did not answer in time, or its answer is not one."""

    retriable = True


class TookTooLong(NoHttpAnswer):
    """The server has not answered in time."""


class TooLargeAnswer(NoHttpAnswer):
    """The answer has more bytes than are read: asking again does not help, asking for less may."""

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
        plain = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
        if parts.username is None:
            return cls(plain, None)
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(plain, f"Basic {base64.b64encode(pair.encode()).decode()}")


def _is_path(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


@dataclass(frozen=True)
class HttpAnswer:
    """The status and the body of an answer."""

    status: int
    body: bytes

    def parsed(self, where: str) -> Any:
        """The body as JSON; raises NoHttpAnswer if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            raise NoHttpAnswer(
                f"the answer is not JSON (HTTP {self.status})", where=where, next="check what listens there"
            ) from None


async def fetch(
    address: Address,
    path: str,
    *,
    method: str = "GET",
    body: Any = None,
    patience: float = 5.0,
    most: int = MOST,
) -> HttpAnswer:
    """Ask a server; `body` is sent as JSON, `patience` is in seconds. Raises NoHttpAnswer."""
    try:
        async with asyncio.timeout(patience):
            return await _asked(address, path, method, body, most)
    except TimeoutError:
        raise TookTooLong(
            f"no answer within {patience:g} s", where=address.url, next="check what the server is busy with"
        ) from None
    except (OSError, ssl.SSLError) as error:
        # asyncio's own text for a refused connection names the address a second time.
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error) or type(error).__name__
    except h11.RemoteProtocolError as error:
        why = f"the answer is not HTTP: {error}"
    raise NoHttpAnswer(why, where=address.url, next="check the address and that the server runs")


async def _asked(address: Address, path: str, method: str, body: Any, most: int) -> HttpAnswer:
    parts = urlsplit(address.url)
    assert parts.hostname
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or PORTS[parts.scheme], ssl=tls)
    try:
        data = b"" if body is None else json.dumps(body).encode()
        headers = _headers(address, parts.netloc, method, body is not None, len(data))
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD)
        target = f"{parts.path}{path}"
        sent = [
            connection.send(h11.Request(method=method, target=target, headers=list(headers.items()))),
            connection.send(h11.Data(data=data)) if data else b"",
            connection.send(h11.EndOfMessage()),
        ]
        writer.write(b"".join(part or b"" for part in sent))
        return await _answer(reader, connection, most, address.url)
    finally:
        writer.transport.abort()


def _headers(address: Address, host: str, method: str, has_body: bool, size: int) -> Mapping[str, str]:
    headers = {"host": host, "accept": "application/json", "user-agent": f"penstock/{__version__}"}
    headers["connection"] = "close"
    if address.login is not None:
        headers["authorization"] = address.login
    if has_body:
        headers["content-type"] = "application/json"
    if has_body or method != "GET":
        headers["content-length"] = str(size)
    return headers


async def _answer(reader: asyncio.StreamReader, connection: h11.Connection, most: int, where: str) -> HttpAnswer:
    status, size, chunks = 0, 0, []
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(CHUNK))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            size += len(event.data)
            if size > most:
                raise TooLargeAnswer(
                    f"the answer has more than {most} bytes, which is the most that is read",
                    where=where,
                    next="see what is so large there, with another program",
                )
            chunks.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            return HttpAnswer(status, b"".join(chunks))
        elif isinstance(event, h11.ConnectionClosed):
            raise h11.RemoteProtocolError("the connection ended before the answer")
