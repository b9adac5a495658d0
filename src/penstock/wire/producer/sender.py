"""Sends batches from their queues to the leaders' brokers, and returns each answer to its batch.

One task checks all queues whenever something changed: a batch came, an answer came, a pause ended. For each broker with
capacity it makes a request with one batch per queue. Requests to a broker are pipelined. `PartitionQueue` keeps the
order and prevents duplicates, `Preparation` does what comes before a request, `Answers` what comes after.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from penstock.wire.broker_connection import BrokerConnection
from penstock.wire.cluster import Backoff, Cluster
from penstock.wire.errors import KafkaError, LeaderNotAvailable, ProducerClosed, error_of
from penstock.wire.producer.partition_queue import Delivery, Outcome, PartitionQueue, ProducerBatch, ProducerId
from penstock.wire.producer.produce_responses import Answers, Settlement
from penstock.wire.producer.stats import BrokerStats, Histogram, TopicStats
from penstock.wire.producer.transactions import PRODUCE_AT_MOST, Transactions
from penstock.wire.protocol import frames

BY_ID = 13  # the first version of Produce that names topics by their id
IDLE = 1.0
"""Seconds after which deadlines are checked if nothing else happens."""


class _Sent(NamedTuple):
    queue: PartitionQueue
    batch: ProducerBatch


class Sender:
    """Runs from `start` to `close`; `add` gives it batches."""

    def __init__(
        self,
        cluster: Cluster,
        delivery: Delivery,
        has_room: Callable[[], None],
        transactions: Transactions | None = None,
    ) -> None:
        self.queues: dict[tuple[str, int], PartitionQueue] = {}
        self.requests: dict[int, int] = defaultdict(int)
        self._answer_times: dict[int, Histogram] = defaultdict(Histogram)
        self._cluster, self._delivery, self._has_room = cluster, delivery, has_room
        self._transactions = transactions
        self._work = SenderTasks()
        self._settlement = Settlement(has_room, transactions)
        self._preparation = Preparation(
            cluster, self.queues, self._settlement, self._work, transactions, idempotent=delivery.idempotent
        )
        self._answers = Answers(
            delivery, self._settlement, self._preparation.learn, transactional=transactions is not None
        )
        self._pump: asyncio.Task[None] | None = None
        self._broken: KafkaError | None = None

    def start(self) -> None:
        self._pump = asyncio.create_task(self._run())

    def add(self, topic: str, partition: int, batch: ProducerBatch) -> None:
        if self._broken:
            batch.finish(Outcome(-1, -1, self._broken))
            return
        self.queue(topic, partition).add(batch)
        self._work.changed.set()

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        key = topic, partition
        if key not in self.queues:
            self.queues[key] = PartitionQueue(
                topic, partition, Backoff(*self._delivery.pauses), transactional=self._transactions is not None
            )
        return self.queues[key]

    def drop(self, error: KafkaError) -> None:
        """Fail all batches that are not in flight."""
        self._settlement.drop(self.queues.values(), error)

    @property
    def in_flight(self) -> bool:
        return any(queue.in_flight for queue in self.queues.values())

    async def answered(self) -> None:
        """Wait for the next request to come back."""
        await self._work.any_ended()

    def topic_stats(self) -> dict[str, TopicStats]:
        return self._settlement.stats(self.queues.values())

    def broker_stats(self) -> dict[int, BrokerStats]:
        return {
            node: BrokerStats(
                seen.count, self.requests[node], seen.percentile(0.5), seen.percentile(0.99), seen.latency()
            )
            for node, seen in self._answer_times.items()
        }

    def has_capacity(self) -> bool:
        """Whether some broker could take a new batch at once."""
        return any(count < self._delivery.in_flight for count in self.requests.values()) or not self.requests

    async def close(self) -> None:
        """Stop, and fail all batches that are left."""
        self._broken = ProducerClosed()
        if self._pump:
            self._pump.cancel()
        await self._work.cancel()
        for queue in self.queues.values():
            for batch in [*queue.in_flight, *queue.waiting]:
                self._settlement.fail(queue, batch, ProducerClosed(topic=queue.topic, partition=queue.partition))

    async def _run(self) -> None:
        try:
            while True:
                self._work.changed.clear()
                self._settlement.expire(self.queues.values())
                pause = self._send_what_can_go()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._work.changed.wait()
        except Exception as error:
            # Nothing awaits this task: without this, a bug here would make every caller wait forever.
            self._broken = KafkaError(f"the sender failed: {error!r}")
            self.drop(self._broken)
            raise

    def _send_what_can_go(self) -> float:
        """Start requests for all queues that may send; returns the seconds until the next check."""
        now, ready, next_look = time.monotonic(), defaultdict(list), IDLE
        for queue in self.queues.values():
            if not queue.sendable(self._delivery.in_flight, now):
                if queue.waiting and queue.backoff.until > now:
                    next_look = min(next_look, queue.backoff.until - now)
            elif self._preparation.is_done(queue) and queue.may_ask(node := self._preparation.leader(queue)):
                ready[node].append(queue)
        for node, queues in ready.items():
            while queues and self.requests[node] < self._delivery.in_flight:
                queues = self._post(node, queues)
        return next_look

    def _post(self, node: int, queues: list[PartitionQueue]) -> list[PartitionQueue]:
        """Start a request with a batch of each queue that fits in it; returns the other queues."""
        taken: list[_Sent] = []
        size = 0
        for queue in queues:
            if taken and size + len(queue.waiting[0].data) > self._delivery.request_size:
                break
            size += len(queue.waiting[0].data)
            taken.append(_Sent(queue, queue.take(node)))
            self._settlement.topics[queue.topic].retries += taken[-1].batch.attempts > 1
        # The next check starts with the queues that were not served.
        for sent in taken:
            key = sent.queue.topic, sent.queue.partition
            self.queues[key] = self.queues.pop(key)
        self.requests[node] += 1
        self._work.start(self._deliver(node, taken))
        return queues[len(taken) :]

    async def _deliver(self, node: int, sent: list[_Sent]) -> None:
        try:
            connection = await self._cluster.connection(node)
            began = time.monotonic()
            await self._produce(connection, sent)
            self._answer_times[node].add(time.monotonic() - began)
        except KafkaError as error:
            for queue, batch in sent:
                self._answers.failed(queue, batch, error)
        except ValueError as error:
            for each in sent:
                wrong = KafkaError(f"the request cannot be encoded: {error}", topic=each.queue.topic)
                self._settlement.fail(each.queue, each.batch, wrong)
        finally:
            self.requests[node] -= 1
            self._work.changed.set()
            self._has_room()

    async def _produce(self, connection: BrokerConnection, sent: list[_Sent]) -> None:
        version = connection.version(frames.PRODUCE, at_most=PRODUCE_AT_MOST if self._transactions else None)
        by_id, body = version >= BY_ID, self._body(sent, by_id=version >= BY_ID)
        # Read now: before the answer comes, the topic may be created again with another id.
        names = {self._cluster.topics[queue.topic].id: queue.topic for queue, _ in sent} if by_id else {}
        answer = connection.post(frames.PRODUCE, body, version=version, answered=self._delivery.acks != 0)
        response = await connection.wait(answer, frames.PRODUCE)
        if not self._delivery.acks:
            for queue, batch in sent:
                self._settlement.done(queue, batch, Outcome(-1, -1, None))
            return
        results = {
            (names.get(topic["topic_id"]) if by_id else topic["name"], partition["index"]): partition
            for topic in response["responses"]
            for partition in topic["partition_responses"]
        }
        for queue, batch in sent:
            self._answers.judge(queue, batch, results.get((queue.topic, queue.partition)))

    def _body(self, sent: list[_Sent], *, by_id: bool) -> dict[str, Any]:
        topics: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for queue, batch in sent:
            topics[queue.topic].append({"index": queue.partition, "records": batch.data})
        named = [{"topic_id": self._cluster.topics[name].id} if by_id else {"name": name} for name in topics]
        return {
            "transactional_id": self._transactions.id if self._transactions else None,
            "acks": self._delivery.acks,
            "timeout_ms": int(self._delivery.request_timeout * 1000),
            "topic_data": [name | {"partition_data": data} for name, data in zip(named, topics.values(), strict=True)],
        }


# What a queue needs before it may send: the leader of its partition, and a producer id if the producer is idempotent.
#
# Background tasks ask for each, one request at a time; queues that are not ready are checked again after the answer.


class Preparation:
    """Prepares the queues of one sender."""

    def __init__(
        self,
        cluster: Cluster,
        queues: Mapping[tuple[str, int], PartitionQueue],
        settlement: Settlement,
        work: SenderTasks,
        transactions: Transactions | None,
        *,
        idempotent: bool,
    ) -> None:
        self._cluster, self._queues, self._settlement, self._work = cluster, queues, settlement, work
        self._transactions, self._idempotent = transactions, idempotent
        self._identity: ProducerId | None = None

    def is_done(self, queue: PartitionQueue) -> bool:
        """Whether leader and identity are known; starts the requests for them if not."""
        if self.leader(queue) < 0:
            self.learn(queue.topic)
            return False
        if self._transactions:
            if not self._transactions.has(queue):
                self._work.once(self._transactions, self._join(self._transactions))
            return self._transactions.has(queue)
        if not self._idempotent:
            return True
        if queue.wants_identity:
            if not queue.in_flight:
                self._work.once(queue, self._identify(queue))
            return False
        if queue.identity is None:
            if self._identity is None:
                self._work.once(self, self._identify(queue))
                return False
            queue.restart(self._identity)
        return True

    def leader(self, queue: PartitionQueue) -> int:
        """The node that leads the queue's partition, -1 while none is known."""
        topic = self._cluster.topics.get(queue.topic)
        return topic.leaders[queue.partition] if topic and queue.partition < len(topic.leaders) else -1

    def learn(self, topic: str) -> None:
        """Look up the leaders of a topic's partitions again."""
        self._work.once(topic, self._learn(topic))

    async def _learn(self, topic: str) -> None:
        queues = [queue for queue in self._queues.values() if queue.topic == topic]
        try:
            await self._cluster.refresh(topic)
            if any(self.leader(queue) < 0 for queue in queues if queue.waiting):
                raise LeaderNotAvailable(topic=topic)
        except KafkaError as error:
            self._hold(queues, error)

    async def _join(self, transactions: Transactions) -> None:
        queues = [queue for queue in self._queues.values() if queue.waiting]
        try:
            await transactions.join(queues)
        except KafkaError as error:
            transactions.failure = transactions.failure or error
            self._settlement.drop(self._queues.values(), error)

    async def _identify(self, queue: PartitionQueue) -> None:
        try:
            body = {"transactional_id": None, "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
            response = await self._cluster.ask(frames.INIT_PRODUCER_ID, body)
            if response["error_code"]:
                raise error_of(response["error_code"])()
            producer_id = ProducerId(response["producer_id"], response["producer_epoch"])
            # All queues start with the same id; later ids are for a queue that must be renumbered.
            self._identity = self._identity or producer_id
            if not queue.in_flight:
                queue.restart(producer_id)
        except KafkaError as error:
            self._hold([queue], error)

    def _hold(self, queues: list[PartitionQueue], error: KafkaError) -> None:
        """Try again after a pause; fail the waiting batches if the error is not retriable."""
        for queue in queues:
            queue.backoff.failed()
        if not error.retriable:
            self._settlement.drop(queues, error)


# The tasks of a sender: requests in flight, and the preparation of other requests.


class SenderTasks:
    """Runs tasks until `cancel`; `changed` is set when a task of `once` ends, or by its owner."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[object] = set()

    def start(self, what: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def once(self, about: object, what: Coroutine[None, None, None]) -> None:
        """Run `what` unless a task for the same `about` is running."""
        if about in self._busy:
            what.close()
            return
        self._busy.add(about)

        async def work() -> None:
            try:
                await what
            finally:
                self._busy.discard(about)
                self.changed.set()

        self.start(work())

    async def any_ended(self) -> None:
        """Wait for the next task to end."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
