"""Collects the records of each topic into batches, within the producer's memory.

Records wait until they fill a batch or have waited `linger`, and longer while all brokers are busy. Then they are
encoded together, as columns, and go to the sender. They take memory until they are settled; callers for whom there is
too little memory wait in `reserve`, in order.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import count, repeat
from typing import NamedTuple, TypeVar

import pyarrow as pa

from penstock.native import Array
from penstock.wire.cluster import Cluster
from penstock.wire.errors import KafkaError, TransactionAbortable
from penstock.wire.producer.partition_queue import Outcome, ProducerBatch, Settle
from penstock.wire.producer.sender import Sender
from penstock.wire.producer.transactions import Transactions
from penstock.wire.records.record_encoder import Encoded, TableEncoder

OVERHEAD = 100
"""Bytes of memory that a record takes in addition to its key and value."""

Headers = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]

Item = TypeVar("Item")

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Accumulator:
    """Filled by `Producer.send`, which uses the attributes directly: that saves a call for each record."""

    def __init__(
        self,
        encoders: Encoders,
        sender: Sender,
        transactions: Transactions | None,
        *,
        memory: int,
        linger: float,
        patience: float,
    ) -> None:
        """`memory` is in bytes, `linger` in seconds; an unacknowledged batch fails after `patience` seconds."""
        self.pending: dict[str, Pending] = {}
        """The open batch of each topic."""
        self.memory = self.free = memory
        """All bytes, and the free bytes: negative while a batch larger than all memory is in flight."""
        self.waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._encoders, self._sender, self._transactions = encoders, sender, transactions
        self._linger, self._patience = linger, patience
        self._numbers = count()
        self._open: dict[int, None] = {}
        """The numbers of unsettled batches, oldest first."""
        self._settled = asyncio.Event()

    def begin(self, topic: str) -> Pending:
        """Make the open batch of a topic that has none."""
        pending = self.pending[topic] = Pending(topic)
        asyncio.get_running_loop().call_later(self._linger, self._lingered, pending)
        return pending

    def encode(self, pending: Pending) -> None:
        """Hand the records of an open batch to the sender, unless that was done before."""
        if self.pending.get(pending.topic) is not pending:
            return
        del self.pending[pending.topic]
        self.free += pending.size
        try:
            encoder = self._encoders.current(pending.topic, self._encoders[pending.topic])
            for encoded in encoder.encode(pending.columns()):
                self.free -= len(encoded.data)
                self.add(pending.topic, encoded, partial(pending.settle, encoded))
        except Exception as error:
            pending.fail(error)
            if self._transactions and not self._transactions.failure:
                self._transactions.failure = TransactionAbortable(f"not sent: {error!r}", topic=pending.topic)

    def encode_all(self) -> None:
        """Hand all open batches to the sender."""
        for pending in list(self.pending.values()):
            self.encode(pending)

    def add(self, topic: str, encoded: Encoded, settle: Settle) -> None:
        """Hand a batch to the sender, with memory already reserved; `settle` gets the outcome of each part of it."""
        number = next(self._numbers)
        self._open[number] = None
        deadline, left = time.monotonic() + self._patience, encoded.count

        def settled(outcome: Outcome, part: slice) -> None:
            nonlocal left
            settle(outcome, part)
            left -= part.stop - part.start
            if left:
                return
            self.free += len(encoded.data)
            del self._open[number]
            self._settled.set()

        self._sender.add(topic, encoded.partition, ProducerBatch(encoded.data, encoded.count, deadline, settled))

    async def flush(self) -> None:
        """Hand over all open batches, and wait until they and all earlier batches are settled."""
        self.encode_all()
        last = next(self._numbers)
        while next(iter(self._open), last) < last:
            self._settled.clear()
            await self._settled.wait()

    async def drop(self, error: KafkaError) -> None:
        """Fail all batches that are not in flight, and wait for the answers to the others."""
        self.encode_all()
        while self._open:
            self._sender.drop(error)
            if self._sender.in_flight:
                await self._sender.answered()

    async def reserve(self, size: int) -> None:
        """Wait in order until `size` bytes are free; a size larger than all memory waits until all memory is free."""
        if not self.waiting and self._fits(size):
            self.free -= size
            return
        self.encode_all()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and not turn.exception():
                self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        """Free reserved memory that is not used."""
        self.free += size
        self.has_room()  # no request will come back for this memory and admit the next waiter

    def refuse(self, error: KafkaError) -> None:
        """Fail the callers that wait in `reserve`."""
        while self.waiting:
            _, turn = self.waiting.popleft()
            if not turn.done():
                turn.set_exception(error)

    def has_room(self) -> None:
        """After a request came back: admit waiting callers, and send batches that waited for an idle broker."""
        while self.waiting and self._fits(self.waiting[0][0]):
            size, turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self.free -= size
        for pending in [batch for batch in self.pending.values() if batch.due]:
            self.encode(pending)

    def _fits(self, size: int) -> bool:
        return size <= self.free or self.free == self.memory

    def _lingered(self, pending: Pending) -> None:
        pending.due = True
        if self._sender.has_capacity():
            self.encode(pending)


# The encoder of each topic that a producer knows, made for the topic's number of partitions.


class Encoders(dict[str, TableEncoder]):
    """Encoders by topic; `learn` adds the encoder of a new topic, or of any topic after `clear`."""

    def __init__(
        self,
        cluster: Cluster,
        make: Callable[[int], TableEncoder],
        require_open: Callable[[str], None],
        *,
        patience: float,
    ) -> None:
        """`make` returns the encoder for a number of partitions; `require_open` raises if the producer is closed."""
        super().__init__()
        self.renews = True
        """Whether old metadata is read again."""
        self._cluster, self._make, self._require_open = cluster, make, require_open
        self._patience = patience

    async def learn(self, topic: str) -> TableEncoder:
        """The topic's encoder from metadata read now; waits for the metadata as long as for a delivery."""

        async def attempt() -> None:
            self._require_open(topic)
            await self._cluster.refresh(topic)

        await self._cluster.patiently(attempt, self._patience)
        self._require_open(topic)  # it may have been closed meanwhile
        return self._new(topic)

    def current(self, topic: str, encoder: TableEncoder) -> TableEncoder:
        """This encoder, or a new one if the topic has more partitions; rereads old metadata in the background."""
        if not self.renews:
            return encoder
        self._cluster.renew(topic)
        grown = len(self._cluster.topics[topic].leaders) != encoder.partitions
        return self._new(topic) if grown else encoder

    def _new(self, topic: str) -> TableEncoder:
        encoder = self[topic] = self._make(len(self._cluster.topics[topic].leaders))
        return encoder


# The open batch of a topic: records are appended one by one and encoded together as columns.


class RecordMetadata(NamedTuple):
    """The position of a written record; `timestamp` is in milliseconds since 1970.

    `offset` is -1 with acks=0, or if the broker already had the record and did not return its offset.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class Pending:
    """The open batch of one topic."""

    __slots__ = ("due", "futures", "headers", "keys", "partitions", "size", "timestamps", "topic", "values")

    def __init__(self, topic: str) -> None:
        self.topic, self.size, self.due = topic, 0, False
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.headers: dict[int, list[tuple[str, bytes | None]]] = {}
        self.partitions: dict[int, int] = {}
        self.timestamps: list[int] = []
        self.futures: list[asyncio.Future[RecordMetadata]] = []

    def columns(self) -> pa.RecordBatch:
        """The records as columns; a column that no record has is left out."""
        rows = range(len(self.values))
        columns = {
            "value": pa.array(self.values, pa.large_binary()),
            "timestamp": pa.array(self.timestamps, pa.int64()),
        }
        if self.keys.count(None) < len(self.keys):
            columns["key"] = pa.array(self.keys, pa.large_binary())
        if self.headers:
            columns["headers"] = pa.array([_named(self.headers.get(row)) for row in rows], HEADERS)
        if self.partitions:
            columns["partition"] = pa.array([self.partitions.get(row) for row in rows], pa.int32())
        return pa.RecordBatch.from_pydict(columns)

    def detail(self, partition: int | None, headers: Headers | None) -> None:
        """Set the partition and headers, which few records have, of the newest record."""
        row = len(self.values) - 1
        if partition is not None:
            self.partitions[row] = partition
        if headers:
            pairs = headers.items() if isinstance(headers, Mapping) else headers
            self.headers[row] = [(str(key), as_bytes("a header", value)) for key, value in pairs]

    def settle(self, encoded: Encoded, outcome: Outcome, part: slice) -> None:
        """Set the futures of these rows of this batch."""
        rows = encoded.rows[part]
        futures, sent_at = _of(self.futures, rows), _of(self.timestamps, rows)
        if outcome.error is not None:
            _refuse(futures, outcome.error)
            return
        first = outcome.offset
        offsets: Iterable[int] = range(first, first + len(rows)) if first >= 0 else repeat(-1)
        times = sent_at if outcome.append_time < 0 else repeat(outcome.append_time)
        fields = zip(repeat(self.topic), repeat(encoded.partition), offsets, times, strict=False)
        # A named tuple's own constructor is a Python function, which costs three times as much.
        for future, metadata in zip(futures, map(tuple.__new__, repeat(RecordMetadata), fields), strict=False):
            if not future.done():  # its owner may have cancelled it
                future.set_result(metadata)

    def fail(self, error: Exception) -> None:
        """Fail all futures: none of the records was sent."""
        _refuse(self.futures, error)


def _of(items: list[Item], rows: range | Array) -> list[Item]:
    """The items of these rows."""
    if isinstance(rows, range):
        return items[rows.start : rows.stop]
    return [items[row] for row in rows.tolist()]


def _refuse(futures: Iterable[asyncio.Future[RecordMetadata]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)


def as_bytes(what: str, value: object) -> bytes | None:
    """A value to send, as bytes; raises TypeError here, where the traceback shows the caller's line."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"{what} must be bytes or None, not {type(value).__name__}; encode it first")


def _named(headers: list[tuple[str, bytes | None]] | None) -> list[dict[str, object]]:
    return [{"key": key, "value": value} for key, value in headers or ()]
