"""The Kafka producer: a future for each record, or whole Arrow tables, over one event loop.

    async with Producer("localhost:9092") as producer:
        future = await producer.send("clicks", b"value", key=b"user-1")
        print((await future).offset)
        receipt = await producer.send_table("clicks", table)

Records of a topic are collected in the accumulator, go through the lane of their partition, and stay accounted for
until the broker has them or an error says why not. What does not fit into `buffer_memory` waits in `send`: nothing is
ever dropped.
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
from typing import Protocol
from weakref import WeakSet

import pyarrow as pa

from penstock.native.text_slices import Texts, column
from penstock.wire.errors import InvalidTxnState, KafkaError, ProducerClosed, TransactionAbortable
from penstock.wire.net.broker_connection import Link
from penstock.wire.net.cluster import Cluster
from penstock.wire.producer.accumulator import Accumulator, Encoders
from penstock.wire.producer.open_batch import OVERHEAD, Headers, RecordMetadata, as_bytes
from penstock.wire.producer.producer_options import Acks, Delivery, require_delivery, require_records, require_times
from penstock.wire.producer.sender import Sender
from penstock.wire.producer.stats import Stats
from penstock.wire.producer.table_receipts import (
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
from penstock.wire.records.compression import codec_number
from penstock.wire.records.partitioner import Partitioner
from penstock.wire.records.record_encoder import TableEncoder
from penstock.wire.sasl import Authenticate

REQUEST = 2_000_001
"""Bytes of a request: two batches keep both sides busy, while four leave the broker's second thread without work."""

SMALL = 1 << 20
"""Bytes of rows that are there already and are encoded on the loop: the way to another thread and back is as long."""

LATE = "the transaction ended before this was taken; inside it, await each call that sends"


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
        buffer_memory: int = 64 << 20,
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
        timeout, patience = request_timeout.total_seconds(), delivery_timeout.total_seconds()
        pauses = retry_backoff.total_seconds(), retry_backoff_max.total_seconds()
        self._cluster = Cluster(
            servers,
            Link(client_id=client_id, request_timeout=timeout, tls=tls, authenticate=authenticate),
            max_age=metadata_max_age.total_seconds(),
            pauses=pauses,
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
        self._current: object | None = None  # stands for the transaction that takes records; asked for after each wait
        if transactional_id is not None:
            limits = {"timeout": transaction_timeout.total_seconds(), "patience": patience}
            self._transactions = Transactions(self._cluster, transactional_id, pauses=pauses, **limits)
        self._batch_size = batch_size
        self._small = 0 if compression == "gzip" else SMALL  # gzip takes fifty times as long
        make = partial(
            TableEncoder,
            batch_size=batch_size,
            compression=codec_number(compression),
            level=compression_level,
            partitioner=partitioner,
        )
        self._encoders = Encoders(self._cluster, make, self.require_open, patience=patience, pauses=pauses)
        self._sender = Sender(self._cluster, delivery, lambda: self._accumulator.has_room(), self._transactions)
        waits = {"linger": linger.total_seconds(), "patience": patience}
        self._accumulator = Accumulator(self._encoders, self._sender, self._transactions, memory=buffer_memory, **waits)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.is_copy = False
        """Whether it is in a forked process, where it shares its connections with the original."""
        tell(self)

    async def __aenter__(self) -> Producer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def stats(self) -> Stats:
        """What was sent, waits and failed so far, by topic and by broker."""
        used = self._accumulator.memory - self._accumulator.free
        return Stats(used, self._accumulator.memory, self._sender.topic_stats(), self._sender.broker_stats())

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
        began = self._current
        encoder = self._encoders.get(topic) or await self._learn(topic)
        if partition is not None and not 0 <= partition < encoder.partitions:
            encoder = await self._learn(topic)  # it may have grown
            if not 0 <= partition < encoder.partitions:
                raise ValueError(f"{topic} has partitions 0 to {encoder.partitions - 1}, not {partition}")
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
            collected.encode(pending)
        return future

    async def send_table(self, topic: str, table: Tabular | Iterable[pa.RecordBatch]) -> Receipt:
        """Write all rows and wait for the brokers; rows of one partition keep their order.

        Columns: `value`, and if there `key` (both binary or string), `headers` (list of struct key, value),
        `timestamp` (a timestamp, or milliseconds since 1970), `partition` (int). Returns the offsets of each
        partition's rows, or raises `TableFailed` with what was written and which rows were not.
        """
        parts = ((topic, batch) for batch in record_batches(table))
        found = await self.send_tables(list(parts) if isinstance(table, pa.Table | pa.RecordBatch | list) else parts)
        return found.get(topic) or Receipt(topic, 0, {})

    async def send_values(self, topic: str, parts: Sequence[Texts]) -> Receipt:
        """Write values without keys and wait for the brokers, as `send_table` does; they are copied once less.

        All of them are one batch if they fit into it. Rows are counted through all parts.
        """
        began = self._current
        encoder = self._encoders.current(topic, self._encoders.get(topic) or await self._learn(topic))
        self._require_transaction(topic, began)
        if not self._small or not encoder.joins(parts):
            return await self.send_table(topic, pa.record_batch({"value": column(parts)}))
        one, delivery = encoder.join(parts), TableDelivery(topic)
        await self._reserve(topic, len(one.data), began)
        self._accumulator.add(topic, one, delivery.expect(one))
        return await delivery.receipt()

    async def send_tables(self, parts: Tabular | Iterable[tuple[str, pa.RecordBatch]]) -> dict[str, Receipt]:
        """Write rows, each to the topic in its column `topic`, or batches, each to its topic, and wait for the brokers.

        Returns the receipts by topic; in `TableFailed` the rows of a topic are counted without those of others.
        `parts` is asked for the next one in another thread, unless it is a list, so it may take its time.
        """
        if isinstance(parts, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
            parts = by_topic(record_batches(parts))
        began = self._current
        deliveries: dict[str, TableDelivery] = {}
        left, ready = iter(parts), isinstance(parts, list)
        while (part := await following(left, here=ready)) is not None:
            topic, batch = part
            encoder = self._encoders.current(topic, self._encoders.get(topic) or await self._learn(topic))
            self._require_transaction(topic, began)
            delivery = deliveries.setdefault(topic, TableDelivery(topic))
            encoded, small = encoder.encode(batch), ready and batch.nbytes <= self._small
            # In another thread too: the kernel holds no lock, so the loop sends meanwhile.
            while (one := await following(encoded, here=small)) is not None:
                await self._reserve(topic, len(one.data), began)
                self._accumulator.add(topic, one, delivery.expect(one))
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
        if isinstance(error, KafkaError) and not isinstance(error, TableFailed):  # which tells of one table's rows
            why = error
        self._stop_taking(why)
        await self._accumulator.drop(why)
        await transactions.end(commit=False)

    def _stop_taking(self, why: KafkaError) -> None:
        """Refuse records that wait for memory: let in once the transaction has ended, they would be in the next one."""
        self._current = None
        self._accumulator.refuse(why)

    async def flush(self) -> None:
        """Send all that was handed over so far, and wait until each of its records is acknowledged or failed."""
        if self.is_copy:
            self.require_open()
        await self._accumulator.flush()

    async def close(self) -> None:
        """Flush, then close the connections; again, or in a forked process, nothing."""
        if self._closed or self.is_copy:
            return
        self._closed = True
        self._encoders.renews = False
        self._accumulator.encode_all()
        self._encoders.clear()  # from here on `send` refuses
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
        """Wait for memory; it is given back if meanwhile the producer was closed, or the transaction ended."""
        await self._accumulator.reserve(size)
        try:
            self.require_open(topic)
            self._require_transaction(topic, began)
        except KafkaError:
            self._accumulator.give_back(size)
            raise

    def _require_transaction(self, topic: str, began: object | None) -> None:
        """`InvalidTxnState` unless the transaction in which a call began, if there are any, still takes records."""
        if self._transactions is None:
            return
        if began is None:
            raise InvalidTxnState("send inside `async with producer.transaction()`", topic=topic)
        if self._current is not began:
            raise InvalidTxnState(LATE, topic=topic)


# Tells those who ask for it, in a forked process, that they are copies; so nobody need ask for the process's id.


class Copied(Protocol):
    """What must not be used in a forked process, because it shares connections or locks with the original."""

    def forked(self) -> None:
        """This is the copy."""


_known: WeakSet[Copied] = WeakSet()


def tell(one: Copied) -> None:
    """Call `forked` of this object in every process that is forked from this one, for as long as it lives."""
    _known.add(one)


def _forked() -> None:
    for one in _known:
        one.forked()


os.register_at_fork(after_in_child=_forked)
