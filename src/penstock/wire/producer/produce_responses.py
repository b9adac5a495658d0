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
from penstock.wire.producer.partition_queue import Delivery, Lane, Outcome, ProducerBatch, Settle
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

    def judge(self, lane: Lane, one: ProducerBatch, result: dict[str, Any] | None) -> None:
        """Handle `result`, the answer's part about the batch's partition; None if the answer has none."""
        where: dict[str, Any] = {"topic": lane.topic, "partition": lane.partition}
        if result is None:
            self.failed(lane, one, error_of(-1)(detail="the answer does not mention this partition", **where))
        elif result["error_code"] in (0, DUPLICATE_SEQUENCE_NUMBER):
            self._settlement.done(lane, one, Outcome(result["base_offset"], result["log_append_time_ms"], None))
        else:
            said = result.get("error_message") or ""
            error = error_of(result["error_code"])(detail=said, **where)
            named = [record["batch_index"] for record in result.get("record_errors", ())]
            if 0 < len(named) < one.count and not error.retriable and not self._transactional:
                self._some_refused(lane, one, error, named)
            else:
                self.failed(lane, one, error)

    def failed(self, lane: Lane, one: ProducerBatch, error: KafkaError) -> None:
        """Send the batch again if it may succeed; if the broker expects another sequence, renumber first."""
        one.problem = error
        if isinstance(error, OutOfOrderSequenceNumber | UnknownProducerId) and self._renumbers(lane, one):
            if lane.is_first(one):
                lane.wants_identity = True
                lane.backoff.failed()
            lane.again(one)
            return
        if isinstance(error, MessageTooLarge | RecordListTooLarge):
            self._too_large(lane, one, error)
            return
        if not error.retriable:
            # With this epoch all following batches would fail too.
            lane.wants_identity |= isinstance(error, InvalidProducerEpoch) and not self._transactional
            self._settlement.fail(lane, one, error)
            return
        lane.again(one)
        lane.backoff.failed()
        if error.refresh_metadata:
            self._learn(lane.topic)

    def _renumbers(self, lane: Lane, one: ProducerBatch) -> bool:
        """Whether a batch after a gap may be sent again: yes, except the first batch after a gap in a transaction."""
        return self._delivery.idempotent and not (self._transactional and lane.is_first(one))

    def _some_refused(self, lane: Lane, one: ProducerBatch, error: KafkaError, named: Sequence[int]) -> None:
        """Fail the records for which the broker refused a batch, and send the others again: it stored none of them."""
        bad = np.unique(named)
        rows = [np.setdiff1d(np.arange(one.count), bad), bad]
        parts = lane.split(one, parted(one.data, rows, self._delivery.compression_level))
        for part, of_part in zip(parts, rows, strict=True):
            part.settle = partial(_spread, one.settle, of_part + one.first, part.first)
        self._settlement.fail(lane, parts[1], error)

    def _too_large(self, lane: Lane, one: ProducerBatch, error: KafkaError) -> None:
        """Send the records in smaller batches; a record that is alone in its batch fails."""
        if one.count > 1:
            lane.split(one, halves(one.data, self._delivery.compression_level))
        else:
            detail = "; ".join(filter(None, (sizes(one.data), error.detail)))
            self._settlement.fail(lane, one, type(error)(detail, topic=lane.topic, partition=lane.partition))


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

    def done(self, lane: Lane, one: ProducerBatch, outcome: Outcome) -> None:
        """The broker has written the batch."""
        lane.settled(one)
        self.topics[lane.topic].acknowledged(one.count, len(one.data), time.monotonic() - one.created)
        one.finish(outcome)

    def fail(self, lane: Lane, one: ProducerBatch, error: KafkaError) -> None:
        """The batch failed and is not sent again."""
        lane.gap(one)
        if error.partition is None:
            error = _placed(error, lane)
        self.topics[lane.topic].failed += one.count
        if self._transactions and not self._transactions.failure:
            self._transactions.failure = error
        one.finish(Outcome(-1, -1, error))
        self._has_room()

    def drop(self, lanes: Iterable[Lane], error: KafkaError) -> None:
        """Fail all batches that wait in these lanes."""
        # The freed memory may admit a record for a new lane, so iterate over a copy.
        for lane in list(lanes):
            for one in list(lane.queue):
                self.fail(lane, one, error)

    def expire(self, lanes: Iterable[Lane]) -> None:
        """Fail the waiting batches whose deadline is over."""
        now = time.monotonic()
        for lane in list(lanes):
            for one in lane.expired(now):
                late = DeliveryTimeout(
                    topic=lane.topic,
                    partition=lane.partition,
                    detail=f"not acknowledged within {now - one.created:.1f} s, sent {one.attempts} times"
                    + (f", the last error was {one.problem}" if one.problem else ""),
                )
                self.fail(lane, one, late)

    def stats(self, lanes: Iterable[Lane]) -> dict[str, TopicStats]:
        """The statistics of each topic that has lanes."""
        by_topic: dict[str, list[Lane]] = defaultdict(list)
        for lane in lanes:
            by_topic[lane.topic].append(lane)
        return {
            topic: self.topics[topic].snapshot(
                sum(len(lane.queue) for lane in of), sum(len(lane.in_flight) for lane in of)
            )
            for topic, of in by_topic.items()
        }


def _placed(error: KafkaError, lane: Lane) -> KafkaError:
    """The error of a connection or topic, as an error of one partition's records."""
    made = type(error)(error.detail, topic=lane.topic, partition=lane.partition)
    made.__cause__ = error.__cause__
    return made


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
