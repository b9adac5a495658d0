"""The Kafka producer: a future for each record, or whole Arrow tables, over one event loop.

    async with Producer("localhost:9092") as producer:
        future = await producer.send("clicks", b"value", key=b"user-1")
        print((await future).offset)
        receipt = await producer.send_table("clicks", table)

The accumulator collects the records of a topic; then they go through the queue of their partition. Each record ends
either acknowledged by the broker or with an error. `send` waits while `buffer_memory` is full: records are never
dropped.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Literal, TypedDict
from weakref import WeakSet

import pyarrow as pa

from penstock.border.public import public
from penstock.durations import Duration, duration
from penstock.native.text_slices import Texts, column
from penstock.wire.broker_connection import Link
from penstock.wire.cluster import Cluster
from penstock.wire.errors import InvalidTxnState, KafkaError, ProducerClosed, TransactionAbortable
from penstock.wire.producer.accumulator import OVERHEAD, Accumulator, Encoders, Headers, RecordMetadata, as_bytes
from penstock.wire.producer.partition_queue import Delivery
from penstock.wire.producer.sender import Sender
from penstock.wire.producer.stats import Stats
from penstock.wire.producer.table_receipts import (
    Acknowledged,
    Receipt,
    TableDelivery,
    TableFailed,
    Tabular,
    by_topic,
    following,
    receipts,
    record_batches,
)
from penstock.wire.producer.transactions import Transactions
from penstock.wire.records.compression import Compression, codec_number
from penstock.wire.records.partitioner import Partitioner, PartitionerName
from penstock.wire.records.record_encoder import TableEncoder, before_1970
from penstock.wire.sasl import Authenticate

Acks = Literal[0, 1, "all"]


class ProducerOptions(TypedDict, total=False):
    """The arguments of `Producer` besides `servers`, for functions that pass them on."""

    client_id: str
    acks: Acks
    idempotent: bool | None
    compression: Compression
    compression_level: int | None
    partitioner: PartitionerName | Partitioner
    linger: Duration
    batch_size: int
    buffer_memory: int
    in_flight: int
    delivery_timeout: Duration
    request_timeout: Duration
    retry_backoff: Duration
    retry_backoff_max: Duration
    metadata_max_age: Duration
    transactional_id: str | None
    transaction_timeout: Duration
    create_topics: bool
    tls: ssl.SSLContext | None
    authenticate: Authenticate | None


REQUEST = 2_000_001
"""Bytes of a request: two batches keep both sides busy; with four, the broker's second thread has no work."""

SMALL = 1 << 20
"""Present rows up to this size are encoded on the loop: a switch to another thread would take as long."""

LATE = "the transaction ended before this call was accepted; await each call that sends inside the transaction"


@public("wire.Producer")
class Producer:
    """Sends records to Kafka; belongs to one event loop, in which all of its methods must be called."""

    def __init__(
        self,
        servers: str,
        *,
        client_id: str = "penstock",
        acks: Acks = "all",
        idempotent: bool | None = None,
        compression: Compression = "none",
        compression_level: int | None = None,
        partitioner: PartitionerName | Partitioner = "key",
        linger: Duration = timedelta(milliseconds=5),
        batch_size: int = 1_000_000,
        buffer_memory: int = 64 << 20,
        in_flight: int = 5,
        delivery_timeout: Duration = timedelta(minutes=2),
        request_timeout: Duration = timedelta(seconds=30),
        retry_backoff: Duration = timedelta(milliseconds=100),
        retry_backoff_max: Duration = timedelta(seconds=1),
        metadata_max_age: Duration = timedelta(minutes=5),
        transactional_id: str | None = None,
        transaction_timeout: Duration = timedelta(minutes=1),
        create_topics: bool = True,
        tls: ssl.SSLContext | None = None,
        authenticate: Authenticate | None = None,
    ) -> None:
        """`servers` is "host:port,..."; sizes are in bytes, numbers for times in seconds. `idempotent` is on unless
        `acks` is 0 or 1.

        `partitioner` is "key" (the key's hash; records without a key get one partition per batch), "sticky" (one
        partition per batch for all records), "round-robin", or a function of a column of keys and the number of
        partitions, which is called in other threads too. `in_flight` is the most requests in flight to each broker. A
        record that is not acknowledged within `delivery_timeout` fails; until then retriable errors are retried, after
        pauses that double from `retry_backoff` to `retry_backoff_max`. Brokers that create missing topics do so with
        their own settings, also for a topic that was deleted meanwhile, which is logged; with `create_topics` false
        records for such a topic fail. Raises ValueError if an option is not valid.
        """
        _require_delivery(acks, idempotent, in_flight, transactional_id)
        if buffer_memory < 1:
            raise ValueError(f"buffer_memory must be at least 1 byte, not {buffer_memory}")
        linger = duration(linger, name="linger")
        timeout, patience = _timeout(request_timeout, "request_timeout"), _timeout(delivery_timeout, "delivery_timeout")
        pauses = _timeout(retry_backoff, "retry_backoff"), _timeout(retry_backoff_max, "retry_backoff_max")
        of_transaction = _timeout(transaction_timeout, "transaction_timeout")
        self._cluster = Cluster(
            servers,
            Link(client_id=client_id, request_timeout=timeout, tls=tls, authenticate=authenticate),
            max_age=_timeout(metadata_max_age, "metadata_max_age"),
            pauses=pauses,
            create=create_topics,
            patience=patience,
        )
        delivery = Delivery(
            acks=-1 if acks == "all" else acks,
            idempotent=acks == "all" if idempotent is None else idempotent,
            in_flight=in_flight,
            request_size=max(batch_size, REQUEST),
            request_timeout=timeout,
            pauses=pauses,
            compression_level=compression_level,
        )
        self._transactions: Transactions | None = None
        self._current: object | None = None  # identifies the transaction that accepts records; checked after each wait
        if transactional_id is not None:
            limits = {"timeout": of_transaction, "patience": patience}
            self._transactions = Transactions(self._cluster, transactional_id, **limits)
        self._batch_size = batch_size
        self._small = 0 if compression == "gzip" else SMALL  # gzip takes fifty times as long
        make = partial(
            TableEncoder,
            batch_size=batch_size,
            compression=codec_number(compression),
            level=compression_level,
            partitioner=partitioner,
        )
        make(1)  # raises ValueError for options with which no batch can be made
        self._encoders = Encoders(self._cluster, make, self.require_open, patience=patience)
        self._sender = Sender(self._cluster, delivery, lambda: self._accumulator.has_room(), self._transactions)
        waits = {"linger": linger.total_seconds(), "patience": patience}
        self._accumulator = Accumulator(self._encoders, self._sender, self._transactions, memory=buffer_memory, **waits)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.is_copy = False
        """Whether this is the copy in a forked process, which shares its connections with the original."""
        _PRODUCERS.add(self)

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def stats(self) -> Stats:
        """The statistics so far, by topic and by broker."""
        used = self._accumulator.memory - self._accumulator.free
        return Stats(used, self._accumulator.memory, self._sender.topic_stats(), self._sender.broker_stats())

    def forked(self) -> None:
        """Refuse all calls from now on; called in a process that was forked from this one."""
        self.is_copy = True
        self._encoders.clear()

    def require_open(self, topic: str | None = None) -> None:
        """Raises `ProducerClosed` in a forked process, or after `close`."""
        if self.is_copy:
            raise ProducerClosed("it was created before the process forked; create one in each process", topic=topic)
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
        """Hand over a record; returns the future of its delivery at once, or when there is memory for the record.

        `value` None is a tombstone; `timestamp` is in milliseconds since 1970, by default now. Records with the same
        key go to the same partition, which is the partition that Java's client chooses. Raises `ProducerClosed`,
        `InvalidTxnState` outside a transaction of a transactional producer, ValueError for a partition that does not
        exist or a time before 1970, and TypeError for a value that is not bytes; errors of the delivery are in the
        future.
        """
        began = self._current
        encoder = self._encoders.get(topic) or await self._learn(topic)
        if partition is not None and not 0 <= partition < encoder.partitions:
            encoder = await self._learn(topic)  # the topic may have more partitions now
            if not 0 <= partition < encoder.partitions:
                raise ValueError(f"{topic} has partitions 0 to {encoder.partitions - 1}, not {partition}")
        if timestamp is not None and timestamp < 0:
            raise ValueError(before_1970(timestamp))
        if self._transactions:
            self._require_transaction(topic, began)
        if key is None and value.__class__ is bytes:  # the most common case, and the fastest
            size = OVERHEAD + len(value)
        else:
            value, key = as_bytes("value", value), as_bytes("key", key)
            size = OVERHEAD + len(value or b"") + len(key or b"")
        collected = self._accumulator
        if collected.waiting or size > collected.free:
            await self._reserve(topic, size, began)
        else:
            collected.free -= size
        pending = collected.pending.get(topic) or collected.begin(topic)
        # Made directly: the loop's own method does the same but costs three times as much.
        future: asyncio.Future[RecordMetadata] = asyncio.Future(loop=self._loop)
        pending.values.append(value)
        pending.keys.append(key)
        pending.timestamps.append(time.time_ns() // 1_000_000 if timestamp is None else timestamp)
        pending.futures.append(future)
        if partition is not None or headers:
            pending.detail(partition, headers)
        pending.size += size
        if pending.size >= self._batch_size:
            collected.encode(pending)
        return future

    async def send_table(self, topic: str, table: Tabular | Iterable[pa.RecordBatch]) -> Receipt:
        """Write all rows and wait for the brokers; rows of one partition keep their order.

        Columns: `value`, optionally `key` (both binary or string), `headers` (list of struct key, value), `timestamp`
        (a timestamp, or int64 milliseconds since 1970), `partition` (integer). Returns the offsets of each partition's
        rows; raises `TableFailed` with the written rows and the failed rows, ValueError or TypeError for wrong columns.
        """
        parts = ((topic, batch) for batch in record_batches(table))
        receipt_by_topic = await self.send_tables(
            list(parts) if isinstance(table, pa.Table | pa.RecordBatch | list) else parts
        )
        return receipt_by_topic.get(topic) or Receipt(topic, 0, {})

    async def send_values(self, topic: str, parts: Sequence[Texts]) -> Receipt:
        """Write values without keys and wait for the brokers, as `send_table` does, with one copy less.

        All values are one batch if they fit into a batch. Row numbers count through all parts.
        """
        began = self._current
        encoder = self._encoders.current(topic, self._encoders.get(topic) or await self._learn(topic))
        self._require_transaction(topic, began)
        if not self._small or not encoder.joins(parts):
            return await self.send_table(topic, pa.record_batch({"value": column(parts)}))
        encoded, delivery = encoder.join(parts), TableDelivery(topic)
        await self._reserve(topic, len(encoded.data), began)
        self._accumulator.add(topic, encoded, delivery.expect(encoded))
        return await delivery.receipt()

    async def send_tables(
        self, parts: Tabular | Iterable[tuple[str, pa.RecordBatch]], *, acknowledged: Acknowledged | None = None
    ) -> dict[str, Receipt]:
        """Write rows to the topics in their column `topic`, or batches each to its topic, and wait for the brokers.

        Returns the receipts by topic; raises `TableFailed`, in which row numbers count only the rows of one topic.
        Unless `parts` is a list, another thread iterates over it, so it may block. `acknowledged` is called in the
        loop's thread with the number of a part, from 0, and the numbers of those of its rows that were acknowledged; it
        must not raise.
        """
        if isinstance(parts, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
            parts = by_topic(record_batches(parts))
        began = self._current
        deliveries: dict[str, TableDelivery] = {}
        left, ready, number = iter(parts), isinstance(parts, list), 0
        while (part := await following(left, here=ready)) is not None:
            topic, batch = part
            encoder = self._encoders.current(topic, self._encoders.get(topic) or await self._learn(topic))
            self._require_transaction(topic, began)
            delivery = deliveries.setdefault(topic, TableDelivery(topic, acknowledged))
            encoded, small = encoder.encode(batch), ready and batch.nbytes <= self._small
            # In another thread too: the kernel does not hold the GIL, so the loop can send meanwhile.
            while (encoded_batch := await following(encoded, here=small)) is not None:
                await self._reserve(topic, len(encoded_batch.data), began)
                self._accumulator.add(topic, encoded_batch, delivery.expect(encoded_batch, number))
            delivery.next_batch(batch.num_rows)
            number += 1
        return await receipts(deliveries.values())

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transactions]:
        """A transaction: all records sent inside become visible together at its end; any error aborts it.

        Needs `transactional_id`, otherwise raises ValueError. A producer that is created later with the same id fences
        this one (`ProducerFenced`). `add_offsets` of the yielded object commits a group's offsets in the transaction.
        """
        if self._transactions is None:
            raise ValueError("a producer without transactional_id has no transactions")
        self.require_open()
        self._start()
        await self._transactions.begin()
        self._current = object()
        try:
            yield self._transactions
            self._stop_taking(InvalidTxnState(LATE))
            await self.flush()
            if self._transactions.failure:
                raise self._transactions.failure
        except BaseException as error:
            await self._abort(self._transactions, error)
            raise
        await self._transactions.end(commit=True)

    async def _abort(self, transactions: Transactions, error: BaseException) -> None:
        why = TransactionAbortable(f"the transaction was aborted: {error!r}")
        if isinstance(error, KafkaError) and not isinstance(error, TableFailed):  # which is about one table's rows
            why = error
        self._stop_taking(why)
        await self._accumulator.drop(why)
        await transactions.end(commit=False)

    def _stop_taking(self, why: KafkaError) -> None:
        """Refuse records that wait for memory: accepted after the transaction's end, they would be in the next one."""
        self._current = None
        self._accumulator.refuse(why)

    async def flush(self) -> None:
        """Send all records that were handed over, and wait until each is acknowledged or has failed."""
        if self.is_copy:
            self.require_open()
        await self._accumulator.flush()

    async def close(self) -> None:
        """Flush, then close the connections; does nothing the second time, or in a forked process."""
        if self._closed or self.is_copy:
            return
        self._closed = True
        self._encoders.renews = False
        self._accumulator.encode_all()
        self._encoders.clear()  # from now on `send` raises ProducerClosed
        self._accumulator.refuse(ProducerClosed())
        try:
            await self.flush()
        finally:
            await self._sender.close()
            await self._cluster.close()

    def _start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._sender.start()

    async def _learn(self, topic: str) -> TableEncoder:
        self.require_open(topic)
        self._start()
        return await self._encoders.learn(topic)

    async def _reserve(self, topic: str, size: int, began: object | None) -> None:
        """Wait for memory; gives it back if the producer was closed or the transaction ended meanwhile."""
        await self._accumulator.reserve(size)
        try:
            self.require_open(topic)
            self._require_transaction(topic, began)
        except KafkaError:
            self._accumulator.give_back(size)
            raise

    def _require_transaction(self, topic: str, began: object | None) -> None:
        """Raises `InvalidTxnState` in a transactional producer unless the call's transaction still accepts records."""
        if self._transactions is None:
            return
        if began is None:
            raise InvalidTxnState("send inside `async with producer.transaction()`", topic=topic)
        if self._current is not began:
            raise InvalidTxnState(LATE, topic=topic)


# A producer is checked when it is made; the errors say what is valid.


def _require_delivery(acks: Acks, idempotent: bool | None, in_flight: int, transactional_id: str | None) -> None:
    """Raises ValueError unless these options fit together."""
    if acks not in (0, 1, "all"):
        raise ValueError(f"acks must be 0, 1 or 'all', not {acks!r}")
    if idempotent and acks != "all":
        raise ValueError("an idempotent producer needs acks='all'")
    idempotent = acks == "all" and idempotent is not False
    if in_flight < 1 or (in_flight > 5 and idempotent):
        raise ValueError("in_flight must be 1 to 5: brokers remember five batches of an idempotent producer")
    if transactional_id is not None and not idempotent:
        raise ValueError("a transactional producer must be idempotent, with acks='all'")


def _timeout(value: Duration, name: str) -> float:
    """The duration in seconds; raises ValueError if it is not a duration, or zero."""
    timeout = duration(value, name=name)
    if not timeout:
        raise ValueError(f"{name} must be more than 0, not {timeout}")
    return timeout.total_seconds()


_PRODUCERS: WeakSet[Producer] = WeakSet()
"""All of this process: a copy in a forked process is marked as one, so no call has to check the process id."""


def _forked() -> None:
    for producer in _PRODUCERS:
        producer.forked()


os.register_at_fork(after_in_child=_forked)
