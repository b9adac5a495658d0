"""TLS in front of a server without TLS: decrypts requests and encrypts answers. Or another address of a server."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def tls_proxy(server: str, keystore: Path, *, clients: Path | None = None) -> Iterator[str]:
    """The address at which `server` speaks TLS; `clients` has the certificates of the accepted clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keystore)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    with _proxy(server, context) as address:
        yield address


@contextmanager
def tcp_proxy(server: str) -> Iterator[str]:
    """Another address of `server`."""
    with _proxy(server, None) as address:
        yield address


@contextmanager
def _proxy(server: str, context: ssl.SSLContext | None) -> Iterator[str]:
    host, _, port = server.rpartition(":")

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_copy(reader, back), _copy(there, writer))

    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(accept, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        asyncio.run_coroutine_threadsafe(_end(listening), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _end(listening: asyncio.Server) -> None:
    listening.close()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        with suppress(ConnectionError, ssl.SSLError):
            while data := await source.read(1 << 16):
                target.write(data)
                await target.drain()
    finally:
        target.close()
