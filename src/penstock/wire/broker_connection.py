"""One connection to one broker: pipelines requests, matches answers in order, agrees on versions at the start.

A broker answers the requests of a connection in their order (Kafka protocol guide, "Network"). So a late or misplaced
answer makes all later answers useless: the connection is closed and each waiting request fails with `ConnectionLost`.
Its sender then cannot know whether the broker received it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.wire import transport
from penstock.wire.errors import (
    ConnectionLost,
    KafkaError,
    MalformedResponse,
    NotABroker,
    RequestTimeout,
    UnsupportedVersion,
)
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Api, Message
from penstock.wire.protocol.types import Buffer
from penstock.wire.transport import Stream

LARGEST_ANSWER = 1 << 30
"""Bytes of an answer, unless the link says less."""


@dataclass(frozen=True)
class Link:
    """The settings of connections: the same for all brokers of a cluster."""

    client_id: str = "penstock"
    connect_timeout: float = 10.0
    request_timeout: float = 30.0
    tls: ssl.SSLContext | None = None
    authenticate: Callable[[BrokerConnection], Awaitable[None]] | None = None
    largest_answer: int = LARGEST_ANSWER


class PendingRequest(NamedTuple):
    """A request that is not answered yet."""

    correlation: int
    api: Api
    version: int
    answer: asyncio.Future[Message]


class BrokerConnection:
    """A connection, made by `open`; `closed` is true when it cannot be used any more."""

    def __init__(self, stream: Stream, peer: str, link: Link) -> None:
        self.peer, self.closed = peer, False
        self._stream, self._link = stream, link
        self._versions: dict[int, tuple[int, int]] = {}
        self._chosen: dict[tuple[int, int | None], int] = {}
        self._correlation = 0
        self._waiting: deque[PendingRequest] = deque()
        self._outgoing: asyncio.Queue[tuple[list[Buffer], asyncio.Future[Message] | None]] = asyncio.Queue()
        self._sending: asyncio.Future[Message] | None = None
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._read())]

    @classmethod
    async def open(cls, host: str, port: int, link: Link) -> BrokerConnection:
        """Connect, agree on versions, authenticate."""
        stream = await transport.connect(host, port, patience=link.connect_timeout, tls=link.tls)
        connection = cls(stream, f"{host}:{port}", link)
        try:
            await connection._agree()
            if link.authenticate:
                await link.authenticate(connection)
        except BaseException:
            await connection.close()
            raise
        return connection

    def version(self, api: Api, *, at_most: int | None = None) -> int:
        """The newest version that both sides support; raises `UnsupportedBroker` if there is none."""
        wanted = api.key, at_most
        if wanted not in self._chosen:
            self._chosen[wanted] = frames.common_version(api, self._versions, self.peer, at_most=at_most)
        return self._chosen[wanted]

    async def ask(self, api: Api, body: Mapping[str, Any], *, version: int | None = None) -> Message:
        """The broker's answer; raises `RequestTimeout` if it takes longer than the link's `request_timeout`."""
        return await self.wait(self.post(api, body, version=version), api)

    async def wait(self, answer: asyncio.Future[Message], api: Api) -> Message:
        """The answer to a posted request; after the link's `request_timeout` the connection is closed."""
        try:
            async with asyncio.timeout(self._link.request_timeout):
                return await answer
        except TimeoutError:
            late = RequestTimeout(f"{self.peer} did not answer {api.name} within {self._link.request_timeout:g} s")
            self._break(ConnectionLost(str(late)))
            raise late from None

    def post(
        self, api: Api, body: Mapping[str, Any], *, version: int | None = None, answered: bool = True
    ) -> asyncio.Future[Message]:
        """Send a request after the earlier ones; the future is its answer, or {} when it is sent if not `answered`."""
        if self.closed:
            raise ConnectionLost(f"the connection to {self.peer} is closed")
        version = self.version(api) if version is None else version
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        frame = frames.request(api, version, self._correlation, self._link.client_id, body)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        if answered:
            self._waiting.append(PendingRequest(self._correlation, api, version, answer))
        self._outgoing.put_nowait((frame, None if answered else answer))
        return answer

    async def close(self) -> None:
        """Close now; waiting requests fail."""
        if not self.closed:
            await self._stream.finish()
        self._break(ConnectionLost(f"this client closed the connection to {self.peer}"))
        for task in self._tasks:
            if task is not asyncio.current_task():
                with suppress(asyncio.CancelledError):
                    await task

    async def _agree(self) -> None:
        api = frames.API_VERSIONS
        try:
            response = await self._api_versions(api.versions[1])
        except ConnectionLost as error:
            cause = error.__cause__ if isinstance(error.__cause__, MalformedResponse) else error
            said = cause.detail.removeprefix(f"{self.peer} ")
            question = "is it the port of a broker, with this security protocol?"
            raise NotABroker(f"Kafka at {self.peer} does not answer as a broker: it {said}; {question}") from error
        if response["error_code"] == UnsupportedVersion.code:
            # The body in version 0 may say which versions of ApiVersions the broker supports (KIP-511).
            spoken = {supported["api_key"]: supported["max_version"] for supported in response["api_keys"]}
            response = await self._api_versions(min(spoken.get(api.key, 0), api.versions[1]))
        if response["error_code"]:
            raise MalformedResponse(f"{self.peer} answered ApiVersions with error {response['error_code']}")
        self._versions = {
            supported["api_key"]: (supported["min_version"], supported["max_version"])
            for supported in response["api_keys"]
        }

    async def _api_versions(self, version: int) -> Message:
        software = {"client_software_name": "penstock", "client_software_version": "1"}
        return await self.ask(frames.API_VERSIONS, software if version >= 3 else {}, version=version)

    async def _write(self) -> None:
        while not self.closed:
            chunks, self._sending = await self._outgoing.get()
            try:
                await self._stream.send(chunks)
            except ConnectionLost as error:
                self._break(error)
                return
            if self._sending and not self._sending.done():
                self._sending.set_result({})
            self._sending = None

    async def _read(self) -> None:
        try:
            while True:
                size = int.from_bytes(await self._stream.receive(4), "big", signed=True)
                if not 4 <= size <= self._link.largest_answer:
                    raise MalformedResponse(f"{self.peer} announced an answer of {size} bytes")
                self._answer(await self._stream.receive(size))
        except KafkaError as error:
            self._break(error)

    def _answer(self, frame: memoryview) -> None:
        correlation = frames.correlation_id(frame)
        if not self._waiting or self._waiting[0].correlation != correlation:
            raise MalformedResponse(f"{self.peer} answered request {correlation}, which is not the next request")
        waiting = self._waiting[0]
        message = frames.response(waiting.api, waiting.version, frame)
        self._waiting.popleft()
        if not waiting.answer.done():
            waiting.answer.set_result(message)

    def _break(self, error: KafkaError) -> None:
        """Close the connection for good; waiting requests fail with this error."""
        if self.closed:
            return
        self.closed = True
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._stream.close()
        lost = error if isinstance(error, ConnectionLost) else ConnectionLost(str(error))
        if lost is not error:
            lost.__cause__ = error
        waiting = [request.answer for request in self._waiting]
        waiting += [sent for sent in (self._sending, *self._unsent()) if sent]
        self._waiting.clear()
        for answer in waiting:
            if not answer.done():
                answer.set_exception(lost)
                answer.exception()  # marked as read: a request that its sender abandoned is not an unhandled error

    def _unsent(self) -> list[asyncio.Future[Message] | None]:
        left = []
        while not self._outgoing.empty():
            left.append(self._outgoing.get_nowait()[1])
        return left
