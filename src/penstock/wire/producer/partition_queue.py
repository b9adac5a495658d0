"""The queue of one partition: batches in order, batches in flight, and their sequence numbers.

An idempotent producer numbers its records per partition (KIP-98): a broker accepts a batch only if its first number
follows the last number that the broker has; otherwise it answers with an error. A batch keeps its bytes as long as any
broker may have stored it. Only if it is certain that no broker has, because the broker refused it after a gap, the
batch is renumbered under a new producer id. Broker state is per producer id and partition, so each queue can change its
own id. A batch that the broker refused as too large, or for some of its records, is split into parts, which share its
numbers as they share its records (as in Java's ProducerBatch.split), so that later batches keep their numbers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.wire.cluster import Backoff
from penstock.wire.errors import KafkaError
from penstock.wire.records import batch_header
from penstock.wire.records.record_encoder import Encoded

SEQUENCES = 1 << 31


@dataclass(frozen=True)
class Delivery:
    """How batches are delivered; times in seconds, sizes in bytes."""

    acks: int
    idempotent: bool
    in_flight: int
    request_size: int
    request_timeout: float
    pauses: tuple[float, float]
    compression_level: int | None = None
    """The level for batches that are compressed again after a split."""


class ProducerId(NamedTuple):
    """A producer id and its epoch, from InitProducerId."""

    id: int
    epoch: int


class Outcome(NamedTuple):
    """The result of a batch: its offset (-1 if the broker did not return it) and append time (-1: the records' own)."""

    offset: int
    append_time: int
    error: KafkaError | None


Settle = Callable[[Outcome, slice], None]


@dataclass(eq=False)
class ProducerBatch:
    """A record batch to send; `settle` is called once, with its slice of the records that were encoded together."""

    data: memoryview
    count: int
    deadline: float
    settle: Settle
    first: int = 0
    """The index of its first record among the records encoded together: above 0 in later parts of a split batch."""
    created: float = field(default_factory=time.monotonic)
    place: tuple[int, int] = (-1, 0)
    identity: ProducerId | None = None
    sequence: int = -1
    attempts: int = 0
    settled: bool = False
    problem: KafkaError | None = None
    """The error of its last attempt."""

    def finish(self, outcome: Outcome) -> None:
        if not self.settled:
            self.settled = True
            self.settle(outcome, slice(self.first, self.first + self.count))


class PartitionQueue:
    """One partition of one topic."""

    def __init__(self, topic: str, partition: int, backoff: Backoff, *, transactional: bool = False) -> None:
        self.topic, self.partition, self.backoff, self.transactional = topic, partition, backoff, transactional
        self.waiting: deque[ProducerBatch] = deque()
        self.in_flight: list[ProducerBatch] = []
        self.node = -1
        """The broker of the batches in flight, or of the last ones."""
        self.identity: ProducerId | None = None
        self.wants_identity = False
        """The current numbers cannot continue: when nothing is in flight, the queued batches start again at zero."""
        self.recovering = False
        """A batch failed: to keep the order, nothing is sent until all batches in flight have come back."""
        self.proven = False
        """The broker has accepted a batch under this identity, so it knows the numbers."""
        self._next = self._added = 0

    def add(self, batch: ProducerBatch) -> None:
        self._added += 1
        batch.place = self._added, batch.first
        self.waiting.append(batch)

    def sendable(self, most_in_flight: int, now: float) -> bool:
        if not self.waiting or now < self.backoff.until:
            return False
        # A broker that does not know an identity accepts any first number (Kafka's ProducerAppendInfo), so it could
        # accept a second batch in flight after it refused the first one.
        if self.recovering or (self.identity and not self.proven):
            return not self.in_flight
        return len(self.in_flight) < most_in_flight

    def may_ask(self, node: int) -> bool:
        """Whether the next batch may go to this broker: not while another broker has not answered.

        A new leader may have batches that the old leader does not answer for. It remembers the last five batches of a
        producer (KIP-98), and recognizes a repeated batch only if it has not received five others meanwhile.
        """
        return not self.in_flight or node == self.node

    def restart(self, identity: ProducerId) -> None:
        """Renumber all queued batches; only when nothing is in flight."""
        assert not self.in_flight
        self.identity, self.wants_identity, self.proven, self._next = identity, False, False, 0
        for batch in self.waiting:
            batch.sequence = -1

    def take(self, node: int) -> ProducerBatch:
        """The next batch, numbered and counted as in flight at this broker."""
        self.node = node
        batch = self.waiting.popleft()
        if batch.sequence < 0 and self.identity:
            batch.identity, batch.sequence = self.identity, self._next
            self._next = (self._next + batch.count) % SEQUENCES
            self._stamp(batch, *batch.identity)
        elif not batch.attempts:
            self._stamp(batch, -1, -1)
        batch.attempts += 1
        self.in_flight.append(batch)
        self.recovering = False
        return batch

    def _stamp(self, batch: ProducerBatch, producer: int, epoch: int) -> None:
        batch_header.stamp(
            batch.data,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=batch.sequence,
            transactional=self.transactional,
        )

    def is_first(self, batch: ProducerBatch) -> bool:
        """Whether no older batch of this queue is queued or in flight."""
        return (not self.in_flight or self.in_flight[0] is batch) and not (
            self.waiting and self.waiting[0].place < batch.place
        )

    def settled(self, batch: ProducerBatch) -> None:
        self.in_flight.remove(batch)
        self.proven = batch.identity == self.identity
        self.backoff.reset()

    def again(self, batch: ProducerBatch) -> None:
        """Put a failed batch back, before all later batches."""
        self.in_flight.remove(batch)
        self._put_back([batch])

    def split(self, batch: ProducerBatch, parts: Iterable[Encoded]) -> list[ProducerBatch]:
        """Queue the parts of a batch that was in flight and not stored, in its position; returns the parts."""
        self.in_flight.remove(batch)
        batches, sequence, first = [], batch.sequence, batch.first
        for encoded in parts:
            place = batch.place[0], first
            part = replace(batch, data=encoded.data, count=encoded.count, first=first, place=place, sequence=sequence)
            self._stamp(part, *(batch.identity or (-1, -1)))
            batches.append(part)
            first += part.count
            if sequence >= 0:
                sequence = (sequence + part.count) % SEQUENCES
        self._put_back(batches)
        return batches

    def _put_back(self, batches: list[ProducerBatch]) -> None:
        self.recovering = True
        place = sum(other.place < batches[0].place for other in self.waiting)
        for batch in reversed(batches):
            self.waiting.insert(place, batch)

    def gap(self, batch: ProducerBatch) -> None:
        """A batch failed for good: the broker refuses the batches after it, which are then renumbered."""
        if batch in self.in_flight:
            self.in_flight.remove(batch)
        else:
            self.waiting.remove(batch)
        if self.identity and batch.sequence >= 0:
            self.recovering = True

    def expired(self, now: float) -> list[ProducerBatch]:
        """Queued batches whose deadline is over."""
        return [batch for batch in self.waiting if batch.deadline <= now]
