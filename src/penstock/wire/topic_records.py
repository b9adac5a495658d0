"""The Kafka reader: a topic's records as Arrow tables, from given offsets to given ends, or forever.

    async with Reader("localhost:9092") as reader:
        async for partition, table in reader.read("clicks", start=await reader.earliest("clicks")):
            ...

It has no consumer group, no committed offsets and no fetch sessions. `fetcher` describes how it reads.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType

import pyarrow as pa

from penstock.border.public import public
from penstock.durations import Duration, duration
from penstock.wire.broker_connection import Link
from penstock.wire.cluster import Backoff, Cluster, TopicMetadata
from penstock.wire.errors import ConnectionLost, KafkaError, UnknownTopicOrPartition, error_of
from penstock.wire.fetcher import FetchLimits, PartitionPosition, PassOver, Reached, TopicRead, require_leader
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Message
from penstock.wire.records.compression import MAX_SIZE
from penstock.wire.sasl import Authenticate

EARLIEST, LATEST = -2, -1
MAX_BYTES = 16 << 20
"""Default bytes of an answer."""
MORE_DECOMPRESSED = 100_000_000
"""By default a record batch may decompress to this many bytes more than an answer may have."""
PAUSES = 0.1, 1.0


@public("wire.Reader")
class Reader:
    """Reads topics; belongs to one event loop, in which all of its methods must be called.

    With `committed`, it returns only records without a transaction or of committed transactions, up to the first
    transaction that is still open. With `rack` it reads from replicas in that rack, if brokers have a
    `replica.selector.class` that chooses them. Retriable errors are retried until `patience` is over, then raised as
    `KafkaError`; an unknown topic, or no reachable broker at the start, is raised at once. Topics are never created.
    """

    def __init__(
        self,
        servers: str,
        *,
        committed: bool = True,
        client_id: str = "penstock",
        request_timeout: Duration = timedelta(seconds=30),
        patience: Duration = timedelta(minutes=2),
        tls: ssl.SSLContext | None = None,
        authenticate: Authenticate | None = None,
        rack: str = "",
    ) -> None:
        timeout = duration(request_timeout, name="request_timeout").total_seconds()
        self._committed, self._patience = committed, duration(patience, name="patience").total_seconds()
        link = Link(client_id=client_id, request_timeout=timeout, tls=tls, authenticate=authenticate)
        self._cluster = Cluster(servers, link, pauses=PAUSES, create=False, patience=self._patience)
        self._timeout, self._rack = timeout, rack

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to the brokers."""
        await self._cluster.close()

    async def topics(self) -> dict[str, int]:
        """All topics that this user may see, with their number of partitions."""
        response = await self._cluster.ask(frames.METADATA, {"topics": None, "allow_auto_topic_creation": False})
        return {topic["name"]: len(topic["partitions"]) for topic in response["topics"]}

    async def partitions(self, topic: str) -> range:
        """The numbers of the topic's partitions."""
        return range(len((await self._known(topic)).leaders))

    async def topic_id(self, topic: str, max_age: Duration = timedelta(seconds=5)) -> str:
        """The topic's id in hex, which changes when the topic is created again; "" from brokers without ids.

        It is read again if the known id is older than `max_age`.
        """

        limit = duration(max_age, name="max_age").total_seconds()

        async def attempt() -> bytes:
            known = await self._cluster.topic(topic)
            if time.monotonic() - known.read_at > limit:
                await self._cluster.refresh(topic)
            return self._cluster.topics[topic].id

        topic_id = await self._cluster.patiently(attempt, self._patience)
        return topic_id.hex() if any(topic_id) else ""

    async def earliest(self, topic: str) -> dict[int, int]:
        """The first offset that each partition still has, by partition."""
        return await self._offsets(topic, EARLIEST)

    async def latest(self, topic: str) -> dict[int, int]:
        """The end of each partition: the offset after the last record that `read` returns."""
        return await self._offsets(topic, LATEST)

    async def at_time(self, topic: str, ms: int) -> dict[int, int]:
        """The first offset in each partition at or after this time (milliseconds since 1970), or its end."""
        ends = await self.latest(topic)
        return {p: ends[p] if offset < 0 else offset for p, offset in (await self._offsets(topic, ms)).items()}

    async def read(
        self,
        topic: str,
        *,
        start: Mapping[int, int],
        end: Mapping[int, int] | None = None,
        max_bytes: int = MAX_BYTES,
        max_decompressed_bytes: int | None = None,
        max_wait: Duration = timedelta(milliseconds=500),
        pass_over: PassOver | None = None,
        reached: Reached | None = None,
    ) -> AsyncGenerator[tuple[int, pa.Table], None]:
        """Pairs of a partition and a table of its next records, in order within each partition; no table is empty.

        Columns: `offset int64, timestamp timestamp[ms, UTC], key binary, value binary, headers list<struct<key string,
        value binary>>`. Reads the partitions of `start`, each until its `end`; without `end` it follows the topic
        forever, and `max_wait` is how long a broker may wait for records. An answer has at most `max_bytes`,
        compressed, or one larger batch. Raises ValueError if the arguments do not fit the topic.

        A batch may decompress to `max_decompressed_bytes`, by default 100 MB more than `max_bytes`; a larger batch
        raises `RecordsTooLarge`, and a batch with the right checksum that is not in Kafka's format raises
        `RecordsUnreadable`. With `pass_over` the read skips such batches: it calls `pass_over` with each, in order with
        the tables. A batch with a wrong checksum always raises `RecordsDamaged`: its offsets may be wrong too.

        `reached` is called with a partition and the offset before which all was returned, also after gaps: compaction
        and transactions leave offsets without a record, so the last record does not say how far a partition is read.
        """
        known = await self._known(topic)
        if unknown := {*start, *(end or ())}.difference(range(len(known.leaders))):
            raise ValueError(f"{topic} has partitions 0 to {len(known.leaders) - 1}, not {sorted(unknown)}")
        if end is not None and (missing := set(start).difference(end)):
            raise ValueError(f"partitions {sorted(missing)} of {topic} have a start but no end")
        wait = duration(max_wait, name="max_wait").total_seconds()
        if not wait < self._timeout:
            raise ValueError(f"max_wait must be less than the request_timeout of {self._timeout:g} s")
        if max_decompressed_bytes is None:
            max_decompressed_bytes = max_bytes + MORE_DECOMPRESSED
        most = min(max_decompressed_bytes, MAX_SIZE)
        limits = FetchLimits(self._committed, max_bytes, int(wait * 1000), self._patience, self._rack)
        places = [
            PartitionPosition(p, at, None if end is None else end[p], Backoff(*PAUSES)) for p, at in start.items()
        ]
        reading = TopicRead(self._cluster, known, limits, places, reached)
        try:
            async for chunk in reading.chunks():
                tables = chunk.tables(most, pass_over)
                while (table := await asyncio.to_thread(next, tables, None)) is not None:
                    yield chunk.partition, table
                if reached:
                    after = chunk.following()
                    reached(chunk.partition, after if chunk.end is None else min(after, chunk.end))
        finally:
            await reading.close()

    async def _known(self, topic: str) -> TopicMetadata:
        """The topic's metadata; a wrong address or topic name is raised at once, not retried."""
        final = (UnknownTopicOrPartition,) if self._cluster.brokers else (UnknownTopicOrPartition, ConnectionLost)
        return await self._cluster.patiently(lambda: self._cluster.topic(topic), self._patience, final=final)

    async def _offsets(self, topic: str, wanted: int) -> dict[int, int]:
        await self._known(topic)
        failed = False

        async def attempt() -> dict[int, int]:
            nonlocal failed
            if failed:
                with suppress(KafkaError):
                    await self._cluster.refresh(topic)
            failed = True
            return await self._list(topic, wanted)

        return await self._cluster.patiently(attempt, self._patience)

    async def _list(self, topic: str, wanted: int) -> dict[int, int]:
        of_node = defaultdict(list)
        for partition, node in enumerate((await self._cluster.topic(topic)).leaders):
            of_node[node].append({"partition_index": partition, "timestamp": wanted})
        offsets: dict[int, int] = {}
        for node, asked in of_node.items():
            require_leader(node, topic, asked[0]["partition_index"])
            body = {
                "replica_id": -1,
                "isolation_level": int(self._committed),
                "topics": [{"name": topic, "partitions": asked}],
            }
            answer = await self._cluster.ask(frames.LIST_OFFSETS, body, node)
            offsets |= {
                listed["partition_index"]: _offset(topic, listed) for listed in answer["topics"][0]["partitions"]
            }
        return dict(sorted(offsets.items()))


def _offset(topic: str, partition: Message) -> int:
    if code := partition["error_code"]:
        raise error_of(code)(topic=topic, partition=partition["partition_index"])
    offset: int = partition["offset"]
    return offset
