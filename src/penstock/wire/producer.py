"""The Kafka producer: a future for each record, or whole Arrow tables, over one event loop.

    async with Producer("localhost:9092") as producer:
        future = await producer.send("clicks", b"value", key=b"user-1")
        print((await future).offset)
        receipt = await producer.send_table("clicks", table)

Records of a topic are collected until they fill a batch or have waited `linger`, and while all brokers are busy. Then
they are encoded together, as columns, go through the lane of their partition, and stay accounted for until the broker
has them or an error says why not. What does not fit into `buffer_memory` waits in `send`: nothing is ever dropped.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from itertools import count
from types import TracebackType

import pyarrow as pa

from penstock.wire import forks
from penstock.wire.cluster import Cluster
from penstock.wire.columns import Encoded, TableEncoder
from penstock.wire.compression import codec_number
from penstock.wire.connection import Link
from penstock.wire.errors import InvalidTxnState, KafkaError, ProducerClosed, TransactionAbortable
from penstock.wire.lanes import Batch, Outcome
from penstock.wire.options import Acks, require_delivery, require_records, require_times
from penstock.wire.partition import Partitioner
from penstock.wire.pending import OVERHEAD, Headers, Pending, RecordMetadata, as_bytes
from penstock.wire.retry import patiently
from penstock.wire.sasl import Authenticate
from penstock.wire.sender import Delivery, Sender
from penstock.wire.stats import Stats
from penstock.wire.tables import Receipt, TableDelivery, Tabular, by_topic, receipts, record_batches
from penstock.wire.transaction import Transactions

Settle = Callable[[Outcome, slice], None]
REQUEST = 2_000_001
"""Bytes of a request: two batches keep both sides busy, while four leave the broker's second thread without work."""


class Producer:
    """Sends records to Kafka; made for one event loop, in which all of its methods are called."""

    def __init__(
        self,
        servers: str,
        *,
        client_id: str = "penstock",
        acks: Acks = "all",
        idempotent: bool | None = None,
        compression: str = "none",
        compression_level: int | None = None,
        partitioner: str | Partitioner = "key",
        linger: timedelta = timedelta(milliseconds=5),
        batch_size: int = 1_000_000,
        buffer_memory: int = 256 << 20,
        in_flight: int = 5,
        delivery_timeout: timedelta = timedelta(minutes=2),
        request_timeout: timedelta = timedelta(seconds=30),
        retry_backoff: timedelta = timedelta(milliseconds=100),
        retry_backoff_max: timedelta = timedelta(seconds=1),
        metadata_max_age: timedelta = timedelta(minutes=5),
        transactional_id: str | None = None,
        transaction_timeout: timedelta = timedelta(minutes=1),
        tls: ssl.SSLContext | None = None,
        authenticate: Authenticate | None = None,
    ) -> None:
        """`servers` is "host:port,..."; sizes are bytes. `idempotent` is on unless `acks` is 0 or 1.

        `partitioner` is "key" (its hash; without one, a partition for each batch), "sticky" (that for all),
        "round-robin", or a function of a column of keys and the number of partitions, called in other threads too.
        `in_flight` requests may be under way to each broker. A record that is not acknowledged within
        `delivery_timeout` fails; until then whatever can pass is tried again, after pauses that double from
        `retry_backoff` to `retry_backoff_max`.
        """
        require_delivery(acks, idempotent, in_flight, transactional_id)
        require_records(compression, compression_level, partitioner, batch_size, buffer_memory)
        timeouts = {"delivery_timeout": delivery_timeout, "request_timeout": request_timeout}
        timeouts |= {"metadata_max_age": metadata_max_age, "transaction_timeout": transaction_timeout}
        timeouts |= {"retry_backoff": retry_backoff, "retry_backoff_max": retry_backoff_max}
        require_times(linger, **timeouts)
        timeout = request_timeout.total_seconds()
        pauses = retry_backoff.total_seconds(), retry_backoff_max.total_seconds()
        self._cluster = Cluster(
            servers,
            Link(client_id=client_id, request_timeout=timeout, tls=tls, authenticate=authenticate),
            max_age=metadata_max_age.total_seconds(),
            pauses=pauses,
        )
        self._delivery = Delivery(
            acks=-1 if acks == "all" else acks,
            idempotent=acks == "all" if idempotent is None else idempotent,
            in_flight=in_flight,
            request_size=max(batch_size, REQUEST),
            request_timeout=timeout,
            pauses=pauses,
            compression_level=compression_level,
        )
        self._transactions: Transactions | None = None
        if transactional_id is not None:
            limits = {"timeout": transaction_timeout.total_seconds(), "patience": delivery_timeout.total_seconds()}
            self._transactions = Transactions(self._cluster, transactional_id, pauses=pauses, **limits)
        self._batch_size = batch_size
        self._make_encoder = partial(
            TableEncoder,
            batch_size=batch_size,
            compression=codec_number(compression),
            level=compression_level,
            partitioner=partitioner,
        )
        self._linger, self._patience = linger.total_seconds(), delivery_timeout.total_seconds()
        self._memory, self._used = buffer_memory, 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._pending: dict[str, Pending] = {}
        self._encoders: dict[str, TableEncoder] = {}
        self._numbers = count()
        self._open: dict[int, None] = {}
        """The numbers of batches that are not settled, oldest first."""
        self._settled = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sender: Sender | None = None
        self._closed = False
        self.is_copy = False
        """Whether it is in a forked process, where it shares its connections with the original."""
        forks.tell(self)

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def stats(self) -> Stats:
        """What was sent, waits and failed so far, by topic and by broker."""
        topics = self._sender.topic_stats() if self._sender else {}
        brokers = self._sender.broker_stats() if self._sender else {}
        return Stats(self._used, self._memory, topics, brokers)

    def forked(self) -> None:
        """Refuse everything from here on."""
        self.is_copy = True
        self._encoders.clear()

    def require_open(self, topic: str | None = None) -> None:
        """`ProducerClosed` in a forked process, or after `close`."""
        if self.is_copy:
            raise ProducerClosed("it was made before this process was forked; make one in each process", topic=topic)
        if self._closed:
            raise ProducerClosed(topic=topic)

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Hand over a record; returns at once, or when there is memory for it, with the future of its delivery.

        `value` None is a tombstone; `timestamp` is milliseconds since 1970, now by default. Records with the same key
        go to the same partition, the one that Java's client chooses.
        """
        encoder = self._encoders.get(topic) or await self._learn(topic)
        if self._transactions:
            self._require_transaction(topic)
        if partition is not None and not 0 <= partition < encoder.partitions:
            encoder = await self._learn(topic)  # it may have grown
            if not 0 <= partition < encoder.partitions:
                raise ValueError(f"{topic} has partitions 0 to {encoder.partitions - 1}, not {partition}")
        if key is None and value.__class__ is bytes:  # the most common case, and the fastest
            size = OVERHEAD + len(value)
        else:
            value, key = as_bytes("value", value), as_bytes("key", key)
            size = OVERHEAD + len(value or b"") + len(key or b"")
        if self._waiting or self._used + size > self._memory:
            await self._reserve(size)
            if topic not in self._encoders:
                self._used -= size
                raise ProducerClosed(topic=topic)
        else:
            self._used += size
        pending = self._pending.get(topic) or self._begin(topic)
        # Made directly: the loop's own method does the same at three times the cost.
        future: asyncio.Future[RecordMetadata] = asyncio.Future(loop=self._loop)
        pending.values.append(value)
        pending.keys.append(key)
        pending.timestamps.append(time.time_ns() // 1_000_000 if timestamp is None else timestamp)
        pending.futures.append(future)
        if partition is not None or headers:
            pending.detail(partition, headers)
        pending.size += size
        if pending.size >= self._batch_size:
            self._encode(pending)
        return future

    async def send_table(self, topic: str, table: Tabular | Iterable[pa.RecordBatch]) -> Receipt:
        """Write all rows and wait for the brokers; rows of one partition keep their order.

        Columns: `value`, and if there `key` (both binary or string), `headers` (list of struct key, value),
        `timestamp` (a timestamp, or milliseconds since 1970), `partition` (int). Returns the offsets of each
        partition's rows, or raises `TableFailed` with what was written and which rows were not.
        """
        found = await self.send_tables((topic, batch) for batch in record_batches(table))
        return found.get(topic) or Receipt(topic, 0, {})

    async def send_tables(self, parts: Tabular | Iterable[tuple[str, pa.RecordBatch]]) -> dict[str, Receipt]:
        """Write rows, each to the topic in its column `topic`, or batches, each to its topic, and wait for the brokers.

        Returns the receipts by topic; in `TableFailed` the rows of a topic are counted without those of others.
        `parts` is asked for the next one in another thread, so it may take its time.
        """
        if isinstance(parts, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
            parts = by_topic(record_batches(parts))
        deliveries: dict[str, TableDelivery] = {}
        loop, left = asyncio.get_running_loop(), iter(parts)
        while (part := await loop.run_in_executor(None, next, left, None)) is not None:
            topic, batch = part
            encoder = self._current(topic, self._encoders.get(topic) or await self._learn(topic))
            self._require_transaction(topic)
            delivery = deliveries.setdefault(topic, TableDelivery(topic))
            encoded = encoder.encode(batch)
            # In another thread too: the kernel holds no lock, so the loop sends meanwhile.
            while (one := await loop.run_in_executor(None, next, encoded, None)) is not None:
                await self._reserve(len(one.data))
                self._add(topic, one, delivery.expect(one))
            delivery.next_batch(batch.num_rows)
        return await receipts(deliveries.values())

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transactions]:
        """All records sent inside become visible together when it ends, or none of them: on any error it is aborted.

        Needs `transactional_id`; a producer that is made with the same id later fences this one (`ProducerFenced`).
        `add_offsets` of what it gives commits a group's offsets as a part of it.
        """
        if self._transactions is None:
            raise ValueError("a producer without transactional_id has no transactions")
        self.require_open()
        self._start()
        await self._transactions.begin()
        try:
            yield self._transactions
            await self.flush()
            if self._transactions.failure:
                raise self._transactions.failure
        except BaseException as error:
            await self._abort(self._transactions, error)
            raise
        await self._transactions.end(commit=True)

    async def _abort(self, transactions: Transactions, error: BaseException) -> None:
        assert self._sender
        why = (
            error if isinstance(error, KafkaError) else TransactionAbortable(f"the transaction was aborted: {error!r}")
        )
        for pending in list(self._pending.values()):
            self._encode(pending)
        while self._open:
            self._sender.drop(why)
            if self._sender.in_flight:
                await self._sender.answered()
        await transactions.end(commit=False)

    async def flush(self) -> None:
        """Send all that was handed over so far, and wait until each of its records is acknowledged or failed."""
        if self.is_copy:
            self.require_open()
        for pending in list(self._pending.values()):
            self._encode(pending)
        last = next(self._numbers)
        while next(iter(self._open), last) < last:
            self._settled.clear()
            await self._settled.wait()

    async def close(self) -> None:
        """Flush, then close the connections; again, or in a forked process, nothing."""
        if self._closed or self.is_copy:
            return
        self._closed = True
        for pending in list(self._pending.values()):
            self._encode(pending)
        self._encoders.clear()  # from here on `send` refuses
        try:
            await self.flush()
        finally:
            if self._sender:
                await self._sender.close()
            await self._cluster.close()

    def _start(self) -> None:
        if self._sender is None:
            self._loop = asyncio.get_running_loop()
            self._sender = Sender(self._cluster, self._delivery, self._has_room, self._transactions)
            self._sender.start()

    async def _learn(self, topic: str) -> TableEncoder:
        """The topic's encoder, which knows its number of partitions; waits for metadata as long as for a delivery."""

        async def attempt() -> None:
            self.require_open(topic)
            self._start()
            await self._cluster.refresh(topic)

        await patiently(attempt, patience=self._patience, pauses=self._delivery.pauses)
        self.require_open(topic)  # it may have been closed meanwhile
        return self._new_encoder(topic)

    def _new_encoder(self, topic: str) -> TableEncoder:
        encoder = self._encoders[topic] = self._make_encoder(len(self._cluster.topics[topic].leaders))
        return encoder

    def _current(self, topic: str, encoder: TableEncoder) -> TableEncoder:
        """This encoder, or a new one if the topic has grown; has metadata that grow old read again, and never waits."""
        if self._closed:
            return encoder
        self._cluster.renew(topic)
        grown = len(self._cluster.topics[topic].leaders) != encoder.partitions
        return self._new_encoder(topic) if grown else encoder

    def _require_transaction(self, topic: str) -> None:
        if self._transactions and not self._transactions.is_open:
            raise InvalidTxnState("send inside `async with producer.transaction()`", topic=topic)

    def _begin(self, topic: str) -> Pending:
        pending = self._pending[topic] = Pending(topic)
        assert self._loop is not None
        self._loop.call_later(self._linger, self._lingered, pending)
        return pending

    def _lingered(self, pending: Pending) -> None:
        pending.due = True
        assert self._sender is not None
        if self._sender.has_capacity():
            self._encode(pending)

    def _encode(self, pending: Pending) -> None:
        if self._pending.get(pending.topic) is not pending:
            return
        del self._pending[pending.topic]
        self._used -= pending.size
        try:
            encoder = self._current(pending.topic, self._encoders[pending.topic])
            for one in encoder.encode(pending.columns()):
                self._used += len(one.data)
                self._add(pending.topic, one, partial(pending.settle, one))
        except Exception as error:
            pending.fail(error)
            if self._transactions and not self._transactions.failure:
                self._transactions.failure = TransactionAbortable(f"not sent: {error!r}", topic=pending.topic)

    def _add(self, topic: str, one: Encoded, settle: Settle) -> None:
        number = next(self._numbers)
        self._open[number] = None
        deadline, left = time.monotonic() + self._patience, one.count

        def settled(outcome: Outcome, part: slice) -> None:
            nonlocal left
            settle(outcome, part)
            left -= part.stop - part.start
            if left:
                return
            self._used -= len(one.data)
            del self._open[number]
            self._settled.set()

        assert self._sender is not None
        self._sender.add(topic, one.partition, Batch(one.data, one.count, deadline, settled))

    async def _reserve(self, size: int) -> None:
        """Wait, behind those who wait already, until so many bytes fit; one that is larger than all waits for none."""
        if not self._waiting and self._fits(size):
            self._used += size
            return
        for pending in list(self._pending.values()):
            self._encode(pending)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._used -= size
            raise

    def _fits(self, size: int) -> bool:
        return self._used + size <= self._memory or not self._used

    def _has_room(self) -> None:
        """A request came back: let waiting senders in, and send what had waited for a free broker."""
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._used += size
        for pending in [one for one in self._pending.values() if one.due]:
            self._encode(pending)
