"""A TCP proxy on the loopback address that hurts the connections it carries to one broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

Hurt = Callable[[int, bytes], bytes | None]
"""Of bytes from the broker and where in their connection they begin: what goes on; None cuts the connection."""


class FaultProxy:
    """Listens from `start` to `close`; `hurt` is asked about all bytes from the broker, `connections` counts them."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self.hurt: Hurt = lambda at, data: data
        self.pause = 0.0
        self.connections = 0
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        assert self._server
        self._server.close()
        self.cut()
        await asyncio.gather(*self._pipes, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections now."""
        for pipe in self._pipes:
            pipe.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._carry(reader, writer))
        self._pipes.add(task)
        task.add_done_callback(self._pipes.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_broker, to_broker = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        try:
            await asyncio.wait(
                [
                    asyncio.create_task(self._pump(reader, to_broker, lambda at, data: data)),
                    asyncio.create_task(self._pump(from_broker, writer, lambda at, data: self.hurt(at, data))),
                ],
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            writer.transport.abort()
            to_broker.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, hurt: Hurt) -> None:
        at = 0
        with suppress(OSError):
            while data := await source.read(1 << 16):
                passed = hurt(at, data)
                at += len(data)
                if self.pause:
                    await asyncio.sleep(self.pause)
                if passed is None:
                    return
                sink.write(passed)
                await sink.drain()
