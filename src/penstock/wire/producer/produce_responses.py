"""Handles a broker's answer, or a missing answer: a batch is done, is sent again, is split, is renumbered, or fails.

The rules are those of Java's client (Sender.completeBatch and TransactionManager.canRetry, 4.3).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.native import Array
from penstock.wire.errors import (
    DeliveryTimeout,
    InvalidProducerEpoch,
    KafkaError,
    MessageTooLarge,
    OutOfOrderSequenceNumber,
    RecordListTooLarge,
    UnknownProducerId,
    error_of,
)
from penstock.wire.producer.partition_queue import Delivery, Outcome, PartitionQueue, ProducerBatch, Settle
from penstock.wire.producer.stats import TopicCounts, TopicStats
from penstock.wire.producer.table_receipts import ranges
from penstock.wire.producer.transactions import Transactions
from penstock.wire.records.batch_header import HEADER_SIZE, read_headers
from penstock.wire.records.compression import MAX_SIZE, decompress
from penstock.wire.records.record_decoder import decode
from penstock.wire.records.record_encoder import Encoded, TableEncoder

DUPLICATE_SEQUENCE_NUMBER = 46


class Answers:
    """Decides about the batches of one producer; calls `learn` with topics whose leaders must be looked up again."""

    def __init__(
        self, delivery: Delivery, settlement: Settlement, learn: Callable[[str], None], *, transactional: bool
    ) -> None:
        self._delivery, self._settlement, self._learn = delivery, settlement, learn
        self._transactional = transactional

    def judge(self, queue: PartitionQueue, batch: ProducerBatch, result: dict[str, Any] | None) -> None:
        """Handle `result`, the answer's part about the batch's partition; None if the answer has none."""
        where: dict[str, Any] = {"topic": queue.topic, "partition": queue.partition}
        if result is None:
            self.failed(queue, batch, error_of(-1)(detail="the answer does not mention this partition", **where))
        elif result["error_code"] in (0, DUPLICATE_SEQUENCE_NUMBER):
            self._settlement.done(queue, batch, Outcome(result["base_offset"], result["log_append_time_ms"], None))
        else:
            said = result.get("error_message") or ""
            error = error_of(result["error_code"])(detail=said, **where)
            named = [record["batch_index"] for record in result.get("record_errors", ())]
            if 0 < len(named) < batch.count and not error.retriable and not self._transactional:
                self._some_refused(queue, batch, error, named)
            else:
                self.failed(queue, batch, error)

    def failed(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError) -> None:
        """Send the batch again if it may succeed; if the broker expects another sequence, renumber first."""
        batch.problem = error
        if isinstance(error, OutOfOrderSequenceNumber | UnknownProducerId) and self._renumbers(queue, batch):
            if queue.is_first(batch):
                queue.wants_identity = True
                queue.backoff.failed()
            queue.again(batch)
            return
        if isinstance(error, MessageTooLarge | RecordListTooLarge):
            self._too_large(queue, batch, error)
            return
        if not error.retriable:
            # With this epoch all following batches would fail too.
            queue.wants_identity |= isinstance(error, InvalidProducerEpoch) and not self._transactional
            self._settlement.fail(queue, batch, error)
            return
        queue.again(batch)
        queue.backoff.failed()
        if error.refresh_metadata:
            self._learn(queue.topic)

    def _renumbers(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Whether a batch after a gap may be sent again: yes, except the first batch after a gap in a transaction."""
        return self._delivery.idempotent and not (self._transactional and queue.is_first(batch))

    def _some_refused(
        self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError, named: Sequence[int]
    ) -> None:
        """Fail the records for which the broker refused a batch, and send the others again: it stored none of them."""
        bad = np.unique(named)
        rows = [np.setdiff1d(np.arange(batch.count), bad), bad]
        parts = queue.split(batch, parted(batch.data, rows, self._delivery.compression_level))
        for part, of_part in zip(parts, rows, strict=True):
            part.settle = partial(_spread, batch.settle, of_part + batch.first, part.first)
        self._settlement.fail(queue, parts[1], error)

    def _too_large(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError) -> None:
        """Send the records in smaller batches; a record that is alone in its batch fails."""
        if batch.count > 1:
            queue.split(batch, halves(batch.data, self._delivery.compression_level))
        else:
            detail = "; ".join(filter(None, (sizes(batch.data), error.detail)))
            self._settlement.fail(queue, batch, type(error)(detail, topic=queue.topic, partition=queue.partition))


def _spread(settle: Settle, numbers: Array, first: int, outcome: Outcome, part: slice) -> None:
    """Settle a batch that has some records of another batch, as runs of that other batch's records.

    `numbers` are the records' numbers in the other batch; the batch's own records count from `first`.
    """
    for start, last in ranges(numbers[part.start - first : part.stop - first]):
        settle(outcome, slice(start, last + 1))
        if outcome.offset >= 0:
            outcome = outcome._replace(offset=outcome.offset + last + 1 - start)


# The end of each batch: settles its futures, counts it for its topic, and fails an open transaction if it failed.


class Settlement:
    """Ends batches; calls `has_room` when a failure may have freed memory."""

    def __init__(self, has_room: Callable[[], None], transactions: Transactions | None) -> None:
        self.topics: dict[str, TopicCounts] = defaultdict(TopicCounts)
        self._has_room, self._transactions = has_room, transactions

    def done(self, queue: PartitionQueue, batch: ProducerBatch, outcome: Outcome) -> None:
        """The broker has written the batch."""
        queue.settled(batch)
        self.topics[queue.topic].acknowledged(batch.count, len(batch.data), time.monotonic() - batch.created)
        batch.finish(outcome)

    def fail(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError) -> None:
        """The batch failed and is not sent again."""
        queue.gap(batch)
        if error.partition is None:
            error = _placed(error, queue)
        self.topics[queue.topic].failed += batch.count
        if self._transactions and not self._transactions.failure:
            self._transactions.failure = error
        batch.finish(Outcome(-1, -1, error))
        self._has_room()

    def drop(self, queues: Iterable[PartitionQueue], error: KafkaError) -> None:
        """Fail all batches that wait in these queues."""
        # The freed memory may admit a record for a new queue, so iterate over a copy.
        for queue in list(queues):
            for batch in list(queue.waiting):
                self.fail(queue, batch, error)

    def expire(self, queues: Iterable[PartitionQueue]) -> None:
        """Fail the waiting batches whose deadline is over."""
        now = time.monotonic()
        for queue in list(queues):
            for batch in queue.expired(now):
                late = DeliveryTimeout(
                    topic=queue.topic,
                    partition=queue.partition,
                    detail=f"not acknowledged within {now - batch.created:.1f} s, sent {batch.attempts} times"
                    + (f", the last error was {batch.problem}" if batch.problem else ""),
                )
                self.fail(queue, batch, late)

    def stats(self, queues: Iterable[PartitionQueue]) -> dict[str, TopicStats]:
        """The statistics of each topic that has queues."""
        by_topic: dict[str, list[PartitionQueue]] = defaultdict(list)
        for queue in queues:
            by_topic[queue.topic].append(queue)
        return {
            topic: self.topics[topic].snapshot(
                sum(len(queue.waiting) for queue in of), sum(len(queue.in_flight) for queue in of)
            )
            for topic, of in by_topic.items()
        }


def _placed(error: KafkaError, queue: PartitionQueue) -> KafkaError:
    """The error of a connection or topic, as an error of one partition's records."""
    placed = type(error)(error.detail, topic=queue.topic, partition=queue.partition)
    placed.__cause__ = error.__cause__
    return placed


# Splits a record batch into smaller batches with the same compression.


def halves(batch: memoryview, level: int | None) -> Iterator[Encoded]:
    """Splits a batch of at least two records into batches in order, each with at most half of its bytes.

    A record that is larger than half gets its own batch, so there may be three. Their `rows` count from 0.
    """
    (header,) = read_headers(batch)
    size = len(decompress(header.codec, batch[HEADER_SIZE:]))
    encoder = TableEncoder(1, batch_size=HEADER_SIZE + size // 2, compression=header.codec, level=level)
    return encoder.encode(_records(batch))


def parted(batch: memoryview, parts: Sequence[Array], level: int | None) -> Iterator[Encoded]:
    """A batch for each part of a batch's records; a part has the records' numbers from 0, ascending."""
    (header,) = read_headers(batch)
    # Time deltas from another first record may take more bytes than before, so the old size is not a bound.
    encoder = TableEncoder(1, batch_size=MAX_SIZE, compression=header.codec, level=level)
    records = _records(batch)
    for rows in parts:
        yield from encoder.encode(records.take(pa.array(rows)))


def _records(batch: memoryview) -> pa.RecordBatch:
    (records,) = decode(batch).drop_columns(["offset"]).to_batches()
    return records


def sizes(batch: memoryview) -> str:
    """Describes the sizes of a batch of one record, for the error that it is too large."""
    (header,) = read_headers(batch)
    size = len(decompress(header.codec, batch[HEADER_SIZE:]))
    return f"one record of {size} bytes, {len(batch)} bytes in its batch as sent, to which the limit applies"
