"""A TCP proxy that causes faults in its connections to one broker.

It handles Kafka's frames: it can change a request, or answer it instead of the broker, and it can change an answer,
hold it back, or cut it off after any byte. Every request needs an answer, so it does not support acks=0. Clients keep
using the proxy: it replaces the brokers' addresses in answers with its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, NamedTuple

from penstock.wire.producer.accumulator import OVERHEAD
from penstock.wire.producer.producer import Producer
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Api


class Cut(bytes):
    """The last bytes that pass before the connection is cut."""


@dataclass(frozen=True)
class Request:
    """A request; `frame` is without its length."""

    frame: bytes

    @property
    def api(self) -> Api:
        return self._decoded[0]

    @property
    def version(self) -> int:
        return self._decoded[1]

    @property
    def body(self) -> dict[str, Any]:
        return self._decoded[4]

    @property
    def records(self) -> bytes:
        """The first record batch of a Produce request."""
        return bytes(self.body["topic_data"][0]["partition_data"][0]["records"])

    def answer(self, body: dict[str, Any]) -> bytes:
        """The frame of an answer to the request, with its length."""
        return b"".join(frames.encode_response(self.api, self.version, self._decoded[2], body))

    def read(self, answer: bytes) -> dict[str, Any]:
        """The message in the frame of an answer to the request."""
        return frames.response(self.api, self.version, answer[4:])

    @cached_property
    def _decoded(self) -> tuple[Api, int, int, str | None, dict[str, Any]]:
        return frames.decode_request(self.frame)


class Answer(NamedTuple):
    """An answer; `at` is the number of bytes of earlier answers on its connection."""

    request: Request
    at: int
    data: bytes


class FaultProxy:
    """Listens from `start` to `close`; `connections` counts the accepted connections.

    `ask` gets each request and returns what goes to the broker, or bytes that the client gets at once as the answer.
    `hurt` gets each answer and returns the bytes to pass on.
    """

    def __init__(self, servers: str) -> None:
        host, port = servers.split(":")
        self._target = host, int(port)
        self.ask: Callable[[Request], Request | bytes] = lambda request: request
        self.hurt: Callable[[Answer], bytes] = lambda answer: answer.data
        self.pause = 0.0
        self.connections = 0
        self.host, self.port = "", 0
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()

    @property
    def servers(self) -> str:
        return f"{self.host}:{self.port}"

    async def start(self, address: str, port: int, *, name: str) -> None:
        self._server = await asyncio.start_server(self._accept, address, port)
        self.host, self.port = name or address, self._server.sockets[0].getsockname()[1]

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
        waiting: asyncio.Queue[tuple[Request, bytes]] = asyncio.Queue()
        pumps = [
            asyncio.create_task(self._requests(reader, to_broker, waiting)),
            asyncio.create_task(self._answers(from_broker, writer, waiting)),
        ]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in done:
                pump.result()
        finally:
            for pump in pumps:
                pump.cancel()
            writer.transport.abort()
            to_broker.transport.abort()

    async def _requests(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, waiting: asyncio.Queue[tuple[Request, bytes]]
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                request = Request((await _frame(source))[4:])
                passed = self.ask(request)
                if isinstance(passed, bytes):
                    waiting.put_nowait((request, passed))
                    continue
                waiting.put_nowait((request, b""))
                sink.writelines([len(passed.frame).to_bytes(4, "big"), passed.frame])
                await sink.drain()

    async def _answers(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, waiting: asyncio.Queue[tuple[Request, bytes]]
    ) -> None:
        at = 0
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                request, ours = await waiting.get()
                data = ours or self._as_ours(request, await _frame(source))
                passed = self.hurt(Answer(request, at, data))
                at += len(data)
                if self.pause:
                    await asyncio.sleep(self.pause)
                sink.write(passed)
                await sink.drain()
                if isinstance(passed, Cut):
                    return

    def _as_ours(self, request: Request, data: bytes) -> bytes:
        """The answer, with our address in place of the brokers'."""
        if request.api not in (frames.METADATA, frames.FIND_COORDINATOR):
            return data
        message = request.read(data)
        for one in [message, *message.get("brokers", ()), *message.get("coordinators", ())]:
            if one.get("host"):
                one |= {"host": self.host, "port": self.port}
        return request.answer(message)


@asynccontextmanager
async def fault_proxy(
    servers: str, address: str = "127.0.0.1", port: int = 0, *, name: str = ""
) -> AsyncIterator[FaultProxy]:
    """A proxy to this broker; to clients the broker's address is `name`, by default the proxy's address."""
    proxy = FaultProxy(servers)
    await proxy.start(address, port, name=name)
    try:
        yield proxy
    finally:
        await proxy.close()


def quick_producer(proxy: FaultProxy, **options: Any) -> Producer:
    """A producer that makes a batch of each record and retries without pauses."""
    soon = timedelta(milliseconds=1)
    return Producer(proxy.servers, batch_size=OVERHEAD, retry_backoff=soon, retry_backoff_max=soon, **options)


async def _frame(source: asyncio.StreamReader) -> bytes:
    size = await source.readexactly(4)
    return size + await source.readexactly(int.from_bytes(size, "big"))
