"""One running read of a topic: the position in each partition, and the requests to each broker.

Each broker has one request in flight, for all partitions that it leads and that no other task holds. A task that waits
and reads the metadata again holds the partitions whose request failed. The next requests are sent before the last
answer is decoded, so at most two answers per broker are in memory. An answer's batches are decompressed one by one.

With a rack a leader may name a replica that is nearer (KIP-392). It is asked from then on until `REPLICA_AGE` is over.
When one fails, requests name no rack for `RACKLESS`: a leader names a killed replica until it misses it.

A partition's position is where its last batch ended, not its last record: compaction, transaction markers and aborted
records leave gaps in the offsets, also at the end of the log.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from penstock.process.waits import Wait
from penstock.wire.cluster import Backoff, Cluster, TopicMetadata
from penstock.wire.errors import CorruptMessage, KafkaError, LeaderNotAvailable, OffsetOutOfRange, error_of
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Message
from penstock.wire.records.batch_header import Header, read_headers
from penstock.wire.records.compression import CODEC_NAMES, CorruptRecords, DecompressedTooLarge

REPLICA_AGE = 300.0
"""Seconds for which a replica that is nearer than the leader is asked."""
RACKLESS = 60.0
"""Seconds in which leaders themselves are read after a replica has failed."""
BY_NAME = 12  # the last version of Fetch in which topics go by their name


class RecordsDamaged(KafkaError):
    """A batch is not what its producer wrote; other partitions and later offsets may be intact."""

    name = "RECORDS_DAMAGED"
    says = (
        "the records are damaged; if a second read fails too, the broker's copy is damaged: "
        "restore it from a replica, or start after this batch"
    )


class RecordsUnreadable(KafkaError):
    """A batch has the right checksum but cannot be read: its producer wrote it so, and reading again does not help."""

    name = "RECORDS_UNREADABLE"
    says = "the records of a batch are not in Kafka's format, but its checksum is right: start after this batch"


class RecordsTooLarge(RecordsUnreadable):
    """A batch decompresses to more than the reader may take into memory."""

    name = "RECORDS_TOO_LARGE"
    says = "a record batch takes more memory than allowed; raise max_decompressed_bytes, or start after this batch"


class TopicReplaced(KafkaError):
    """The topic was deleted and created again, so its offsets now mean other records."""

    name = "TOPIC_REPLACED"
    says = "the topic was deleted and created again while it was read; read it again from its beginning"


class Unreadable(NamedTuple):
    """A batch that cannot be read: its first requested offset, and its largest timestamp in milliseconds."""

    partition: int
    offset: int
    timestamp: int
    error: RecordsUnreadable


PassOver = Callable[[Unreadable], None]
"""Called with each batch that is skipped."""
Reached = Callable[[int, int], None]
"""Called with a partition and the offset before which all of it has been read."""


class FetchLimits(NamedTuple):
    """The settings of all requests of a read; patience in seconds, rack "" if it is not known."""

    committed: bool
    max_bytes: int
    max_wait_ms: int
    patience: float
    rack: str = ""


@dataclass
class PartitionPosition:
    """The progress in one partition: the next offset to read, and the end (None: read on forever).

    `replica` is the broker that is asked instead of the leader until `replica_until`; None for the leader.
    """

    partition: int
    next: int
    end: int | None
    backoff: Backoff
    failing_since: float | None = None
    replica: int | None = None
    replica_until: float = 0.0

    @property
    def finished(self) -> bool:
        return self.end is not None and self.next >= self.end


class _Asked(NamedTuple):
    """A task's work: a request to a node, or, without a node, the wait after a failure."""

    node: int | None
    places: list[PartitionPosition]


@dataclass(frozen=True)
class FetchedBatches:
    """Batches of one partition as received; the records from `start` to before `end` are requested."""

    topic: str
    partition: int
    start: int
    end: int | None
    records: memoryview
    aborted: list[tuple[int, int]] | None

    def tables(self, max_size: int, pass_over: PassOver | None) -> Iterator[pa.Table]:
        """The records in tables of some MiB, or of one larger record; no table is empty.

        Each batch may decompress to `max_size` bytes. Batches that cannot be read go to `pass_over`, in order with the
        tables; without it they raise `RecordsUnreadable`.
        """
        # Here, because it loads compiled loops, which a program that only reads offsets does not need.
        from penstock.wire.records.record_decoder import PART, SCHEMA, data_batches

        parts: list[pa.RecordBatch] = []
        size = 0
        try:
            for header in data_batches(self.records, aborted=self.aborted, max_size=max_size):
                unreadable = None
                try:
                    for part in self._wanted(header, max_size):
                        parts.append(part)
                        size += part.nbytes
                        if size >= PART:
                            yield pa.Table.from_batches(parts, SCHEMA)
                            parts, size = [], 0
                except CorruptRecords as error:
                    unreadable = self._unreadable(header, error)
                    if pass_over is None:
                        raise unreadable.error from error
                if unreadable and pass_over:
                    if parts:
                        yield pa.Table.from_batches(parts, SCHEMA)
                        parts, size = [], 0
                    pass_over(unreadable)
        except CorruptRecords as error:
            raise self.damaged(error) from error
        if parts:
            yield pa.Table.from_batches(parts, SCHEMA)

    def _wanted(self, header: Header, max_size: int) -> Iterator[pa.RecordBatch]:
        from penstock.wire.records.record_decoder import parts

        if header.last_offset < self.start or (self.end is not None and header.base_offset >= self.end):
            return
        for part in parts(self.records, header, max_size):
            offsets = part["offset"].to_numpy()
            first = offsets.searchsorted(self.start)
            last = len(offsets) if self.end is None else offsets.searchsorted(self.end)
            if first < last:
                yield part.slice(first, last - first)

    def _unreadable(self, header: Header, error: CorruptRecords) -> Unreadable:
        detail = (
            f"offsets {header.base_offset} to {header.last_offset}, {header.count} records in {header.length} bytes "
            f"({CODEC_NAMES.get(header.codec, header.codec)}): {error}"
        )
        kind = RecordsTooLarge if isinstance(error, DecompressedTooLarge) else RecordsUnreadable
        offset = max(header.base_offset, self.start)
        kafka_error = kind(detail, topic=self.topic, partition=self.partition)
        return Unreadable(self.partition, offset, header.max_timestamp, kafka_error)

    def following(self) -> int:
        """The offset after the last complete batch; batches are verified later, when their tables are made."""
        after = self.start
        try:
            for header in read_headers(self.records, verify=False):
                after = max(after, header.last_offset + 1)
        except CorruptRecords as error:
            raise self.damaged(error) from error
        return after

    def damaged(self, error: CorruptRecords) -> RecordsDamaged:
        detail = f"read from offset {self.start}: {error}"
        return RecordsDamaged(detail, topic=self.topic, partition=self.partition)


class TopicRead:
    """One running `read`."""

    def __init__(
        self,
        cluster: Cluster,
        topic: TopicMetadata,
        limits: FetchLimits,
        places: list[PartitionPosition],
        reached: Reached | None = None,
    ) -> None:
        self._cluster, self._topic, self._limits, self._reached = cluster, topic, limits, reached
        # The partitions served longest ago come first: brokers fill an answer in the order of the request.
        self._left = {place.partition: place for place in places if not place.finished}
        self._tasks: dict[asyncio.Task[Message | None], _Asked] = {}
        self._rackless_until = 0.0
        self._wait: Wait | None = None
        """Since some partition could not be read; `cluster` logs it."""

    async def chunks(self) -> AsyncGenerator[FetchedBatches, None]:
        self._start()
        while self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            chunks = [chunk for task in done for chunk in self._settle(task)]
            self._start()
            for chunk in chunks:
                yield chunk

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self) -> None:
        """Send a request to each idle broker, for all partitions that it leads and no task holds."""
        held = {place.partition for asked in self._tasks.values() for place in asked.places}
        busy = {asked.node for asked in self._tasks.values()}
        idle = defaultdict(list)
        for place in self._left.values():
            if place.partition not in held and (node := self._node(place)) not in busy:
                idle[node].append(place)
        for node, places in idle.items():
            self._spawn(self._fetch(node, places), _Asked(node, places))

    def _node(self, place: PartitionPosition) -> int:
        """The broker that is asked for a partition."""
        if place.replica is not None:
            if place.replica in self._cluster.brokers and time.monotonic() < place.replica_until:
                return place.replica
            place.replica = None
        return self._cluster.topics[self._topic.name].leaders[place.partition]

    def _spawn(self, work: Coroutine[Any, Any, Message | None], asked: _Asked) -> None:
        self._tasks[asyncio.create_task(work)] = asked

    async def _fetch(self, node: int, places: list[PartitionPosition]) -> Message:
        require_leader(node, self._topic.name, places[0].partition)
        connection = await self._cluster.connection(node)
        # Brokers that support topic ids may serve topics without an id, from before the cluster's upgrade.
        version = connection.version(frames.FETCH, at_most=None if any(self._topic.id) else BY_NAME)
        partitions = [
            {"partition": place.partition, "fetch_offset": place.next, "partition_max_bytes": self._limits.max_bytes}
            for place in places
        ]
        body = {
            "max_wait_ms": self._limits.max_wait_ms,
            "min_bytes": 1,
            "max_bytes": self._limits.max_bytes,
            "isolation_level": int(self._limits.committed),
            "rack_id": self._limits.rack if time.monotonic() > self._rackless_until else "",
            "topics": [{"topic": self._topic.name, "topic_id": self._topic.id, "partitions": partitions}],
        }
        answer = await connection.ask(frames.FETCH, body, version=version)
        if code := answer.get("error_code"):
            raise error_of(code)(topic=self._topic.name)
        return answer

    async def _recover(self, places: list[PartitionPosition]) -> None:
        for place in places:
            await place.backoff.wait()
        await self._cluster.refresh(self._topic.name)
        fresh = self._cluster.topics[self._topic.name]
        if fresh.id != self._topic.id:
            raise TopicReplaced(topic=self._topic.name)

    def _settle(self, task: asyncio.Task[Message | None]) -> list[FetchedBatches]:
        asked = self._tasks.pop(task)
        try:
            answer = task.result()
        except KafkaError as error:
            self._failed(asked.places, error)
            return []
        return self._take(asked.places, answer) if answer else []

    def _take(self, places: list[PartitionPosition], answer: Message) -> list[FetchedBatches]:
        partitions = {
            partition["partition_index"]: partition
            for topic in answer["responses"]
            for partition in topic["partitions"]
        }
        nothing = not any(partition["records"] for partition in partitions.values())
        chunks = []
        until = time.monotonic() + REPLICA_AGE
        # A broker that throttles us leaves partitions out.
        for place in [place for place in places if place.partition in partitions]:
            partition = partitions[place.partition]
            if partition["error_code"]:
                self._failed([place], self._refusal(place, partition["error_code"]))
                continue
            place.failing_since = None
            place.backoff.reset()
            if (nearer := partition.get("preferred_read_replica", -1)) >= 0:
                # The answer has no records then, whether there are some or not.
                place.replica, place.replica_until = nearer, until
                if nearer not in self._cluster.brokers:
                    self._failed([place], LeaderNotAvailable(topic=self._topic.name, partition=place.partition))
            elif partition["records"]:
                chunks.append(self._advance(place, partition))
            elif nothing:
                # No records are left before the end that the broker reports, which may come after a gap. This is only
                # certain if the whole answer is empty: otherwise other partitions may have filled the answer.
                self._move(place, partition["last_stable_offset" if self._limits.committed else "high_watermark"])
                if self._reached:
                    self._reached(place.partition, place.next)
        if self._wait and not any(place.failing_since for place in self._left.values()):
            self._wait.over()
            self._wait = None
        return chunks

    def _advance(self, place: PartitionPosition, partition: Message) -> FetchedBatches:
        aborted = [(each["producer_id"], each["first_offset"]) for each in partition["aborted_transactions"] or ()]
        records = partition["records"]
        chunk = FetchedBatches(
            self._topic.name,
            place.partition,
            place.next,
            place.end,
            records,
            aborted if self._limits.committed else None,
        )
        self._move(place, chunk.following())
        return chunk

    def _move(self, place: PartitionPosition, to: int) -> None:
        if to > place.next:
            place.next = to
            del self._left[place.partition]
            if not place.finished:
                self._left[place.partition] = place

    def _refusal(self, place: PartitionPosition, code: int) -> KafkaError:
        where: dict[str, Any] = {"topic": self._topic.name, "partition": place.partition}
        kind = error_of(code)
        if kind is OffsetOutOfRange:
            step = "`earliest` and `latest` return the valid offsets; the topic's retention deletes old ones"
            return OffsetOutOfRange(f"offset {place.next}; {step}", **where)
        if kind is CorruptMessage:
            return RecordsDamaged(f"at offset {place.next}, according to the broker", **where)
        return kind(f"at offset {place.next}", **where)

    def _failed(self, places: list[PartitionPosition], error: KafkaError) -> None:
        """Retry after a pause with fresh metadata; raise if that cannot help or the patience is over."""
        now = time.monotonic()
        self._wait = self._wait or Wait(f"records of topic {self._topic.name}", self._limits.patience)
        self._wait.fails()
        for place in places:
            place.failing_since = place.failing_since or now
            place.backoff.failed()
            if place.replica is not None:
                # A replica may be gone, or have other offsets: what the leader says counts.
                place.replica, self._rackless_until = None, now + RACKLESS
                continue
            if not error.retriable or now - place.failing_since > self._limits.patience:
                raise error
        self._spawn(self._recover(places), _Asked(None, places))


def require_leader(node: int, topic: str, partition: int) -> None:
    if node < 0:
        raise LeaderNotAvailable(topic=topic, partition=partition)
