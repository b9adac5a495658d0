"""The state of a cluster: its brokers, the leader of each partition, and a connection to each broker.

Metadata is read at the first use of a topic, again when an error says that it is stale, and when it is too old.
Concurrent reads become one. Brokers that cannot be reached are tried again after a pause that doubles, with jitter, so
that not all clients reconnect at once when a cluster comes back.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from penstock.process.waits import Wait
from penstock.wire.broker_connection import BrokerConnection, Link
from penstock.wire.errors import ConnectionLost, KafkaError, MalformedResponse, UnknownTopicOrPartition, error_of
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Api, Message

T = TypeVar("T")
log = logging.getLogger(__name__)
MOST_DOUBLINGS = 30
"""By then a pause is at its longest; a float would overflow after a thousand."""


class Broker(NamedTuple):
    """Where a broker listens."""

    node: int
    host: str
    port: int


@dataclass(frozen=True)
class TopicMetadata:
    """A topic in the newest metadata; `leaders[p]` is a node, or -1 while partition p has no leader."""

    name: str
    id: bytes
    leaders: tuple[int, ...]
    read_at: float


@dataclass
class Backoff:
    """A pause that doubles with each failure; its length is random within its upper half."""

    first: float
    longest: float
    failures: int = 0
    until: float = 0.0

    def failed(self) -> None:
        pause = min(self.first * 2**self.failures, self.longest)
        self.failures = min(self.failures + 1, MOST_DOUBLINGS)
        self.until = time.monotonic() + random.uniform(pause / 2, pause)

    async def wait(self) -> None:
        await asyncio.sleep(max(0.0, self.until - time.monotonic()))

    def reset(self) -> None:
        self.failures, self.until = 0, 0.0


@dataclass
class _Peer:
    """The connection to one address; concurrent callers share one attempt to connect, and its failure."""

    backoff: Backoff
    connection: BrokerConnection | None = None
    wait: Wait | None = None
    opening: asyncio.Task[BrokerConnection] | None = None


def addresses(servers: str) -> list[Broker]:
    """The bootstrap brokers in "host:port,[v6]:port", with node -1; raises ValueError if it is not such a list."""
    matches = [
        re.fullmatch(r"\s*(?:\[([0-9A-Fa-f:.]+)\]|([^\s,:\[\]]+)):(\d{1,5})\s*", address)
        for address in servers.split(",")
    ]
    # The operating system would take a larger port modulo 65536.
    if not all(match and 0 < int(match[3]) < 65536 for match in matches):
        raise ValueError(f'servers is not a list of host:port: {servers!r}; write it as "host:9092,other:9092"')
    return [Broker(-1, match[1] or match[2], int(match[3])) for match in matches if match]


class Cluster:
    """Connections and metadata, for one event loop.

    `pauses` are the first and the longest pause in seconds after a failure. With `create`, brokers may create a missing
    topic when the client asks for its metadata; without it they never do. `patience` is for how many seconds callers
    wait, for messages.
    """

    def __init__(
        self,
        servers: str,
        link: Link,
        *,
        max_age: float = 300.0,
        pauses: tuple[float, float] = (0.1, 5.0),
        create: bool = True,
        patience: float = 120.0,
    ) -> None:
        self._patience = patience
        self.bootstrap, self.link, self._create = addresses(servers), link, create
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self._max_age, self._pauses = max_age, pauses
        self._peers: dict[tuple[str, int], _Peer] = {}
        self._reads: dict[str, asyncio.Task[None]] = {}

    async def topic(self, name: str) -> TopicMetadata:
        """The topic's metadata, read if it is unknown or too old; raises `KafkaError` if the topic cannot be used."""
        known = self.topics.get(name)
        if known is None or time.monotonic() - known.read_at > self._max_age:
            await self.refresh(name)
        return self.topics[name]

    async def refresh(self, name: str) -> None:
        """Read the topic's metadata again; concurrent callers share one read."""
        read = self._reading(name)
        await asyncio.wait([read])
        if read.cancelled():
            raise ConnectionLost("this client closed its connections to the cluster", topic=name)
        read.result()

    def renew(self, name: str) -> None:
        """Read the metadata of a known topic again in the background if it is too old."""
        if time.monotonic() - self.topics[name].read_at > self._max_age:
            self._reading(name)

    async def connection(self, node: int) -> BrokerConnection:
        """The connection to a broker, opened if necessary; raises `ConnectionLost` if that fails."""
        if node not in self.brokers:
            raise ConnectionLost(f"broker {node} is not in the cluster's metadata")
        return await self.connect(self.brokers[node])

    async def any_connection(self) -> BrokerConnection:
        """A connection to any broker that answers; open connections first."""
        known = [*self.brokers.values(), *self.bootstrap]
        for peer in self._peers.values():
            if peer.connection and not peer.connection.closed:
                return peer.connection
        failure = ConnectionLost("no broker is known")
        for broker in random.sample(known, len(known)):
            try:
                return await self.connect(broker)
            except ConnectionLost as error:
                failure = error
        raise failure

    async def ask(self, api: Api, body: dict[str, Any], node: int | None = None) -> Message:
        """One request to one broker; to any broker without `node`."""
        connection = await (self.any_connection() if node is None else self.connection(node))
        return await connection.ask(api, body)

    async def metadata(self, topics: list[dict[str, str]] | None) -> Message:
        """The brokers, which are known afterwards, and these topics; all topics with None. No topic is created."""
        response = await self.ask(frames.METADATA, {"topics": topics, "allow_auto_topic_creation": False})
        self._know_brokers(response)
        return response

    async def patiently(
        self, attempt: Callable[[], Awaitable[T]], patience: float, *, final: tuple[type[KafkaError], ...] = ()
    ) -> T:
        """The result of the first attempt that succeeds; raises the last error after `patience` seconds.

        Errors that are not retriable, or are of the classes `final`, are raised at once. The pauses between attempts
        are those of the connections.
        """
        deadline, backoff = time.monotonic() + patience, Backoff(*self._pauses)
        wait = Wait("Kafka's answer", patience)
        while True:
            try:
                answer = await attempt()
                wait.over()
                return answer
            except KafkaError as error:
                if not error.retriable or isinstance(error, final) or time.monotonic() > deadline:
                    raise
                if not isinstance(error, ConnectionLost):  # `_open` reports it
                    wait.failed(error)
            backoff.failed()
            await backoff.wait()

    async def close(self) -> None:
        for task in self._reads.values():
            task.cancel()
        for peer in self._peers.values():
            if peer.opening:
                peer.opening.cancel()
                await asyncio.wait([peer.opening])
            if peer.connection:
                await peer.connection.close()

    async def connect(self, broker: Broker) -> BrokerConnection:
        """The connection to this address, opened if necessary; after a failure the next attempt waits for its pause."""
        peer = self._peers.setdefault((broker.host, broker.port), _Peer(Backoff(*self._pauses)))
        if peer.connection and not peer.connection.closed:
            return peer.connection
        if peer.opening is None:
            peer.opening = asyncio.create_task(self._open(peer, broker))
        return await asyncio.shield(peer.opening)

    async def _open(self, peer: _Peer, broker: Broker) -> BrokerConnection:
        peer.wait = wait = peer.wait or Wait(f"Kafka at {broker.host}:{broker.port}", self._patience, of_several=True)
        try:
            await peer.backoff.wait()
            peer.connection = await BrokerConnection.open(broker.host, broker.port, self.link)
            wait.over()
            peer.wait = None
        except KafkaError as error:
            peer.backoff.failed()
            wait.failed(str(error).removeprefix(f"{wait.what} "), error.next)
            raise
        finally:
            peer.opening = None
        peer.backoff.reset()
        return peer.connection

    def _reading(self, name: str) -> asyncio.Task[None]:
        if name not in self._reads:
            self._reads[name] = asyncio.create_task(self._read(name))
            self._reads[name].add_done_callback(lambda read: self._has_read(name, read))
        return self._reads[name]

    def _has_read(self, name: str, read: asyncio.Task[None]) -> None:
        del self._reads[name]
        if not read.cancelled():
            read.exception()  # marked as read: nothing waits for a background read; the next use starts another

    async def _read(self, name: str) -> None:
        connection = await self.any_connection()
        body = {"topics": [{"name": name}], "allow_auto_topic_creation": self._create}
        response = await connection.ask(frames.METADATA, body)
        self._know_brokers(response)
        topic = next((topic for topic in response["topics"] if topic["name"] == name), None)
        if topic is None:
            raise UnknownTopicOrPartition(topic=name)
        if topic["error_code"]:
            raise error_of(topic["error_code"])(topic=name)
        metadata = _topic(name, topic)
        if (known := self.topics.get(name)) and any(known.id) and any(metadata.id) and known.id != metadata.id:
            log.warning(
                "topic %s was deleted and created again, with %d partitions instead of %d; if the broker created it, "
                "it has the broker's settings",
                *(name, len(metadata.leaders), len(known.leaders)),
                extra={"event": "warning", "topic": name},
            )
        self.topics[name] = metadata

    def _know_brokers(self, response: Message) -> None:
        self.brokers = {b["node_id"]: Broker(b["node_id"], b["host"], b["port"]) for b in response["brokers"]}


def _topic(name: str, topic: Message) -> TopicMetadata:
    leaders = {partition["partition_index"]: partition["leader_id"] for partition in topic["partitions"]}
    if sorted(leaders) != list(range(len(leaders))) or not leaders:
        raise MalformedResponse(topic=name, detail=f"its partitions are {sorted(leaders)}")
    return TopicMetadata(name, topic["topic_id"], tuple(leaders[p] for p in range(len(leaders))), time.monotonic())
