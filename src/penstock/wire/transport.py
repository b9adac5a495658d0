"""Byte streams to one address: plain sockets without a copy in Python, and TLS.

asyncio's own transports join written chunks and copy what the socket does not take at once; for batches of a megabyte
that costs more than the kernel's part. So plain connections use the loop's socket calls, which send from the caller's
buffer. This module knows nothing of Kafka's protocol.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from penstock.wire.errors import AuthenticationFailed, ConnectionLost, Unreachable
from penstock.wire.protocol.types import Buffer

HEAD_START = 0.25
"""Seconds after which the next address of a name is tried too (RFC 8305, "Happy Eyeballs")."""


class Stream(Protocol):
    """A connected stream; every failure raises `ConnectionLost`."""

    async def send(self, chunks: Sequence[Buffer]) -> None:
        """Write the chunks one after the other; one caller at a time."""

    async def receive(self, count: int) -> memoryview:
        """Exactly `count` bytes."""

    async def finish(self) -> None:
        """Wait until all sent bytes have left this process; nothing can be sent after it."""

    def close(self) -> None:
        """Close at once; may be called more than once."""


async def connect(host: str, port: int, *, patience: float, tls: ssl.SSLContext | None) -> Stream:
    """A stream to the first address of `host` that answers; the name is resolved each time.

    Raises `Unreachable`, or `AuthenticationFailed` if the certificate is not accepted.
    """
    try:
        async with asyncio.timeout(patience):
            return await (_connect_tls(host, port, tls) if tls else _connect_plain(host, port))
    except TimeoutError:
        raise Unreachable(f"Kafka at {host}:{port} did not answer within {patience:g} s") from None
    except ssl.SSLCertVerificationError as error:
        refused = f"the certificate of {host}:{port} is not accepted: {error.verify_message}"
        raise AuthenticationFailed(f"{refused}; check the `tls` context's trusted certificates") from error
    except OSError as error:
        raise Unreachable(f"Kafka at {host}:{port} cannot be reached: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    """The system's words for an error: asyncio's own have addresses as Python writes them."""
    if isinstance(error, socket.gaierror):
        return "no address is known for the host; check its name"
    return os.strerror(error.errno) if error.errno and not isinstance(error, ssl.SSLError) else str(error)


async def _connect_plain(host: str, port: int) -> Stream:
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    sock = await _first_of([(family, kind, protocol, address) for family, kind, protocol, _, address in addresses])
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return PlainStream(sock, f"{host}:{port}")


async def _connect_tls(host: str, port: int, tls: ssl.SSLContext | None) -> Stream:
    reader, writer = await asyncio.open_connection(
        host, port, ssl=tls, server_hostname=host, happy_eyeballs_delay=HEAD_START
    )
    return TlsStream(reader, writer, f"{host}:{port}")


async def _first_of(addresses: Sequence[tuple[int, int, int, Any]]) -> socket.socket:
    """The first socket that connects; the next address is tried after a failure or after `HEAD_START`."""
    begun: list[asyncio.Task[socket.socket]] = []
    winner: asyncio.Task[socket.socket] | None = None
    try:
        while winner is None and (len(begun) < len(addresses) or not all(task.done() for task in begun)):
            if len(begun) < len(addresses):
                begun.append(asyncio.create_task(_open(*addresses[len(begun)])))
            going, pause = (
                [task for task in begun if not task.done()],
                HEAD_START if len(begun) < len(addresses) else None,
            )
            await asyncio.wait(going, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            winner = next((task for task in begun if task.done() and not task.exception()), None)
        return (winner or begun[-1]).result()
    finally:
        for task in begun:
            if task is not winner:
                task.cancel()
                task.add_done_callback(_discard)


def _discard(lost: asyncio.Task[socket.socket]) -> None:
    if not lost.cancelled() and not lost.exception():
        lost.result().close()


async def _open(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


class PlainStream:
    """A TCP socket."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self._socket, self._peer, self._loop = sock, peer, asyncio.get_running_loop()

    async def send(self, chunks: Sequence[Buffer]) -> None:
        try:
            for chunk in chunks:
                await self._loop.sock_sendall(self._socket, chunk)
        except (OSError, ValueError) as error:  # a ValueError is a socket that was closed meanwhile
            raise ConnectionLost(f"the connection to {self._peer} broke: {error}") from error

    async def receive(self, count: int) -> memoryview:
        view = memoryview(bytearray(count))
        done = 0
        while done < count:
            try:
                got = await self._loop.sock_recv_into(self._socket, view[done:])
            except (OSError, ValueError) as error:
                raise ConnectionLost(f"the connection to {self._peer} broke: {error}") from error
            if not got:
                raise ConnectionLost(f"{self._peer} closed the connection")
            done += got
        return view

    async def finish(self) -> None:
        """Nothing: this stream does not buffer."""

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()


class TlsStream:
    """A TLS connection, over asyncio's transport."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str) -> None:
        self._reader, self._writer, self._peer = reader, writer, peer

    async def send(self, chunks: Sequence[Buffer]) -> None:
        try:
            self._writer.writelines(chunks)
            await self._writer.drain()
        except OSError as error:
            raise ConnectionLost(f"the connection to {self._peer} broke: {error}") from error

    async def receive(self, count: int) -> memoryview:
        try:
            return memoryview(await self._reader.readexactly(count))
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ConnectionLost(f"{self._peer} closed the connection") from error

    async def finish(self) -> None:
        self._writer.close()
        # Do not wait long for a broker that does not answer the TLS close.
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()

    def close(self) -> None:
        # The writer's own `close` continues in the background, and warns if the loop ends first.
        with suppress(RuntimeError):
            self._writer.transport.abort()
