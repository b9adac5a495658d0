"""Carries batches from their lanes to the leaders' brokers, and each answer back to its batch.

One task looks at all lanes whenever something changed: a batch came, an answer came, a pause ended. For each broker
with room it makes one request of one batch a lane. Requests to one broker are pipelined; `Lane` says what
that needs to keep order and to write nothing twice.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.wire import protocol
from penstock.wire.cluster import Backoff, Cluster
from penstock.wire.connection import Connection
from penstock.wire.errors import (
    DeliveryTimeout,
    InvalidProducerEpoch,
    KafkaError,
    LeaderNotAvailable,
    MessageTooLarge,
    OutOfOrderSequenceNumber,
    ProducerClosed,
    RecordListTooLarge,
    UnknownProducerId,
    error_of,
)
from penstock.wire.lanes import Batch, Identity, Lane, Outcome
from penstock.wire.split import halves, sizes
from penstock.wire.stats import BrokerStats, Histogram, TopicCounts, TopicStats
from penstock.wire.transaction import PRODUCE_AT_MOST, Transactions

DUPLICATE_SEQUENCE_NUMBER = 46
BY_ID = 13  # the version of Produce from which topics go by their id
IDLE = 1.0
"""Seconds after which deadlines are looked at when nothing else happens."""


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
    """For what must be compressed again."""


class _Sent(NamedTuple):
    lane: Lane
    batch: Batch


class Sender:
    """Runs from `start` to `close`; `add` gives it work."""

    def __init__(
        self,
        cluster: Cluster,
        delivery: Delivery,
        has_room: Callable[[], None],
        transactions: Transactions | None = None,
    ) -> None:
        self.lanes: dict[tuple[str, int], Lane] = {}
        self.requests: dict[int, int] = defaultdict(int)
        self._topics: dict[str, TopicCounts] = defaultdict(TopicCounts)
        self._answers: dict[int, Histogram] = defaultdict(Histogram)
        self._cluster, self._delivery, self._has_room = cluster, delivery, has_room
        self._changed = asyncio.Event()
        self._working: set[asyncio.Task[None]] = set()
        self._busy: set[object] = set()
        self._pump: asyncio.Task[None] | None = None
        self._transactions = transactions
        self._identity: Identity | None = None
        self._broken: KafkaError | None = None

    def start(self) -> None:
        self._pump = asyncio.create_task(self._run())

    def add(self, topic: str, partition: int, one: Batch) -> None:
        if self._broken:
            one.finish(Outcome(-1, -1, self._broken))
            return
        self.lane(topic, partition).add(one)
        self._changed.set()

    def lane(self, topic: str, partition: int) -> Lane:
        key = topic, partition
        if key not in self.lanes:
            self.lanes[key] = Lane(
                topic, partition, Backoff(*self._delivery.pauses), transactional=self._transactions is not None
            )
        return self.lanes[key]

    def drop(self, error: KafkaError) -> None:
        """Fail all that is not in flight."""
        for lane in self.lanes.values():
            for one in list(lane.queue):
                self._fail(lane, one, error)

    @property
    def in_flight(self) -> bool:
        return any(lane.in_flight for lane in self.lanes.values())

    async def answered(self) -> None:
        """Wait for the next request to come back."""
        await asyncio.wait(self._working, return_when=asyncio.FIRST_COMPLETED)

    def topic_stats(self) -> dict[str, TopicStats]:
        lanes: dict[str, list[Lane]] = defaultdict(list)
        for lane in self.lanes.values():
            lanes[lane.topic].append(lane)
        return {
            topic: self._topics[topic].snapshot(
                sum(len(lane.queue) for lane in of), sum(len(one.in_flight) for one in of)
            )
            for topic, of in lanes.items()
        }

    def broker_stats(self) -> dict[int, BrokerStats]:
        return {
            node: BrokerStats(seen.count, self.requests[node], seen.percentile(0.5), seen.percentile(0.99))
            for node, seen in self._answers.items()
        }

    def has_capacity(self) -> bool:
        """Whether a batch that came now would be sent at once by some broker."""
        return any(count < self._delivery.in_flight for count in self.requests.values()) or not self.requests

    async def close(self) -> None:
        """Fail what is left: all of it, if nobody waited for its end."""
        self._broken = ProducerClosed()
        for task in [*self._working, *([self._pump] if self._pump else [])]:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        for lane in self.lanes.values():
            for one in [*lane.in_flight, *lane.queue]:
                self._fail(lane, one, ProducerClosed(topic=lane.topic, partition=lane.partition))

    async def _run(self) -> None:
        try:
            while True:
                self._changed.clear()
                self._expire()
                pause = self._send_what_can_go()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
        except Exception as error:
            # Nobody awaits this task: without this, a fault of ours would let every sender wait for ever.
            self._broken = KafkaError(f"the sender failed: {error!r}")
            self.drop(self._broken)
            raise

    def _send_what_can_go(self) -> float:
        """Start requests for all lanes that may send; returns seconds until another look is due."""
        now, ready, next_look = time.monotonic(), defaultdict(list), IDLE
        for lane in self.lanes.values():
            if not lane.sendable(self._delivery.in_flight, now):
                if lane.queue and lane.backoff.until > now:
                    next_look = min(next_look, lane.backoff.until - now)
            elif self._is_prepared(lane):
                ready[self._leader(lane)].append(lane)
        for node, lanes in ready.items():
            while lanes and self.requests[node] < self._delivery.in_flight:
                lanes = self._post(node, lanes)
        return next_look

    def _is_prepared(self, lane: Lane) -> bool:
        """Whether leader and identity are known; starts the work that makes them so."""
        if self._leader(lane) < 0:
            self._work(lane.topic, self._learn(lane.topic))
            return False
        if self._transactions:
            if not self._transactions.has(lane):
                self._work(self._transactions, self._join(self._transactions))
            return self._transactions.has(lane)
        if not self._delivery.idempotent:
            return True
        if lane.wants_identity:
            if not lane.in_flight:
                self._work(lane, self._identify(lane))
            return False
        if lane.identity is None:
            if self._identity is None:
                self._work(self._identify, self._identify(lane))
                return False
            lane.restart(self._identity)
        return True

    def _leader(self, lane: Lane) -> int:
        topic = self._cluster.topics.get(lane.topic)
        return topic.leaders[lane.partition] if topic and lane.partition < len(topic.leaders) else -1

    def _work(self, about: object, what: Any) -> None:
        """Do something once at a time for each `about`."""
        if about in self._busy:
            what.close()
            return
        self._busy.add(about)

        async def work() -> None:
            try:
                await what
            finally:
                self._busy.discard(about)
                self._changed.set()

        self._spawn(work())

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _learn(self, topic: str) -> None:
        lanes = [lane for lane in self.lanes.values() if lane.topic == topic]
        try:
            await self._cluster.refresh(topic)
            if any(self._leader(lane) < 0 for lane in lanes if lane.queue):
                raise LeaderNotAvailable(topic=topic)
        except KafkaError as error:
            self._hold(lanes, error)

    async def _join(self, transactions: Transactions) -> None:
        lanes = [lane for lane in self.lanes.values() if lane.queue]
        try:
            await transactions.join(lanes)
        except KafkaError as error:
            transactions.failure = transactions.failure or error
            self.drop(error)

    async def _identify(self, lane: Lane) -> None:
        try:
            body = {"transactional_id": None, "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
            found = await self._cluster.ask(protocol.INIT_PRODUCER_ID, body)
            if found["error_code"]:
                raise error_of(found["error_code"])()
            made = Identity(found["producer_id"], found["producer_epoch"])
            # All lanes begin with one id; the next ones are for a lane that has to begin anew.
            self._identity = self._identity or made
            if not lane.in_flight:
                lane.restart(made)
        except KafkaError as error:
            self._hold([lane], error)

    def _hold(self, lanes: Iterable[Lane], error: KafkaError) -> None:
        """Try again after a pause, or give up what waits when that is of no use."""
        for lane in lanes:
            lane.backoff.failed()
            for one in list(lane.queue):
                if not error.retriable:
                    self._fail(lane, one, error)

    def _expire(self) -> None:
        now = time.monotonic()
        for lane in self.lanes.values():
            for one in lane.expired(now):
                late = DeliveryTimeout(
                    topic=lane.topic,
                    partition=lane.partition,
                    detail=f"not acknowledged within {now - one.created:.1f} s, {one.attempts} times sent"
                    + (f", the last time with {one.problem}" if one.problem else ""),
                )
                self._fail(lane, one, late)

    def _fail(self, lane: Lane, one: Batch, error: KafkaError) -> None:
        lane.gap(one)
        if error.partition is None:
            error = _placed(error, lane)
        self._topics[lane.topic].failed += one.count
        if self._transactions and not self._transactions.failure:
            self._transactions.failure = error
        one.finish(Outcome(-1, -1, error))
        self._has_room()

    def _post(self, node: int, lanes: list[Lane]) -> list[Lane]:
        """Start a request with a batch of each lane that it has room for; returns the other lanes."""
        taken: list[_Sent] = []
        size = 0
        for lane in lanes:
            if taken and size + len(lane.queue[0].data) > self._delivery.request_size:
                break
            size += len(lane.queue[0].data)
            taken.append(_Sent(lane, lane.take()))
            self._topics[lane.topic].retries += taken[-1].batch.attempts > 1
        # The next look begins with the lanes that had no turn.
        for sent in taken:
            key = sent.lane.topic, sent.lane.partition
            self.lanes[key] = self.lanes.pop(key)
        self.requests[node] += 1
        self._spawn(self._deliver(node, taken))
        return lanes[len(taken) :]

    async def _deliver(self, node: int, sent: list[_Sent]) -> None:
        try:
            connection = await self._cluster.connection(node)
            began = time.monotonic()
            await self._produce(connection, sent)
            self._answers[node].add(time.monotonic() - began)
        except KafkaError as error:
            for one in sent:
                self._failed(one, error)
        except ValueError as error:
            for each in sent:
                wrong = KafkaError(f"the request cannot be made: {error}", topic=each.lane.topic)
                self._fail(each.lane, each.batch, wrong)
        finally:
            self.requests[node] -= 1
            self._changed.set()
            self._has_room()

    async def _produce(self, connection: Connection, sent: list[_Sent]) -> None:
        version = connection.version(protocol.PRODUCE, at_most=PRODUCE_AT_MOST if self._transactions else None)
        by_id, body = version >= BY_ID, self._body(sent, by_id=version >= BY_ID)
        # Read now: by the time of the answer the topic may have been made anew, with another id.
        names = {self._cluster.topics[lane.topic].id: lane.topic for lane, _ in sent} if by_id else {}
        answer = connection.post(protocol.PRODUCE, body, version=version, answered=self._delivery.acks != 0)
        found = await connection.wait(answer, protocol.PRODUCE)
        if not self._delivery.acks:
            for lane, one in sent:
                self._done(lane, one, Outcome(-1, -1, None))
            return
        results = {
            (names.get(topic["topic_id"]) if by_id else topic["name"], one["index"]): one
            for topic in found["responses"]
            for one in topic["partition_responses"]
        }
        for each in sent:
            self._judge(each, results.get((each.lane.topic, each.lane.partition)))

    def _body(self, sent: list[_Sent], *, by_id: bool) -> dict[str, Any]:
        topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for lane, one in sent:
            topics[lane.topic].append({"index": lane.partition, "records": one.data})
        named = [{"topic_id": self._cluster.topics[name].id} if by_id else {"name": name} for name in topics]
        return {
            "transactional_id": self._transactions.id if self._transactions else None,
            "acks": self._delivery.acks,
            "timeout_ms": int(self._delivery.request_timeout * 1000),
            "topic_data": [name | {"partition_data": data} for name, data in zip(named, topics.values(), strict=True)],
        }

    def _judge(self, sent: _Sent, result: dict[str, Any] | None) -> None:
        lane, one = sent
        if result is None:
            self._failed(sent, error_of(-1)(topic=lane.topic, partition=lane.partition, detail="the answer skips it"))
        elif result["error_code"] in (0, DUPLICATE_SEQUENCE_NUMBER):
            self._done(lane, one, Outcome(result["base_offset"], result["log_append_time_ms"], None))
        else:
            said = result.get("error_message") or ""
            self._failed(sent, error_of(result["error_code"])(topic=lane.topic, partition=lane.partition, detail=said))

    def _done(self, lane: Lane, one: Batch, outcome: Outcome) -> None:
        lane.settled(one)
        self._topics[lane.topic].acknowledged(one.count, len(one.data), time.monotonic() - one.created)
        one.finish(outcome)

    def _renumbers(self, lane: Lane, one: Batch) -> bool:
        """Whether a batch behind a gap may go again: always, but a transaction whose gap it meets first has failed."""
        return self._delivery.idempotent and not (self._transactions and lane.is_first(one))

    def _failed(self, sent: _Sent, error: KafkaError) -> None:
        """Send again what may succeed; where the broker's numbers are not ours, first start new ones."""
        lane, one = sent
        one.problem = error
        if isinstance(error, OutOfOrderSequenceNumber | UnknownProducerId) and self._renumbers(lane, one):
            if lane.is_first(one):
                lane.wants_identity = True
                lane.backoff.failed()
            lane.again(one)
            return
        if isinstance(error, MessageTooLarge | RecordListTooLarge):
            self._too_large(sent, error)
            return
        if not error.retriable:
            # With this epoch all that follows would fail alike.
            lane.wants_identity |= isinstance(error, InvalidProducerEpoch) and not self._transactions
            self._fail(lane, one, error)
            return
        lane.again(one)
        lane.backoff.failed()
        if error.refresh_metadata:
            self._work(lane.topic, self._learn(lane.topic))

    def _too_large(self, sent: _Sent, error: KafkaError) -> None:
        """Send the records in smaller batches; one that is alone in its batch fails."""
        lane, one = sent
        if one.count > 1:
            lane.split(one, halves(one.data, self._delivery.compression_level))
        else:
            detail = "; ".join(filter(None, (sizes(one.data), error.detail)))
            self._fail(lane, one, type(error)(detail, topic=lane.topic, partition=lane.partition))


def _placed(error: KafkaError, lane: Lane) -> KafkaError:
    """The error of a whole connection or topic, as that of one partition's records."""
    made = type(error)(error.detail, topic=lane.topic, partition=lane.partition)
    made.__cause__ = error.__cause__
    return made
