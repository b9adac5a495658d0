"""What a lane needs before it may send: the leader of its partition, and if idempotent a producer id.

Each is asked for once at a time, in the background; who is not prepared is looked at again when the answer came.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.wire import protocol
from penstock.wire.cluster import Cluster
from penstock.wire.errors import KafkaError, LeaderNotAvailable, error_of
from penstock.wire.lanes import Identity, Lane
from penstock.wire.settlement import Settlement
from penstock.wire.transaction import Transactions
from penstock.wire.work import Work


class Preparation:
    """Of the lanes of one sender."""

    def __init__(
        self,
        cluster: Cluster,
        lanes: Mapping[tuple[str, int], Lane],
        settlement: Settlement,
        work: Work,
        transactions: Transactions | None,
        *,
        idempotent: bool,
    ) -> None:
        self._cluster, self._lanes, self._settlement, self._work = cluster, lanes, settlement, work
        self._transactions, self._idempotent = transactions, idempotent
        self._identity: Identity | None = None

    def is_done(self, lane: Lane) -> bool:
        """Whether leader and identity are known; starts the work that makes them so."""
        if self.leader(lane) < 0:
            self.learn(lane.topic)
            return False
        if self._transactions:
            if not self._transactions.has(lane):
                self._work.once(self._transactions, self._join(self._transactions))
            return self._transactions.has(lane)
        if not self._idempotent:
            return True
        if lane.wants_identity:
            if not lane.in_flight:
                self._work.once(lane, self._identify(lane))
            return False
        if lane.identity is None:
            if self._identity is None:
                self._work.once(self, self._identify(lane))
                return False
            lane.restart(self._identity)
        return True

    def leader(self, lane: Lane) -> int:
        """The node that leads the lane's partition, -1 while none is known."""
        topic = self._cluster.topics.get(lane.topic)
        return topic.leaders[lane.partition] if topic and lane.partition < len(topic.leaders) else -1

    def learn(self, topic: str) -> None:
        """Look up the leaders of a topic's partitions again."""
        self._work.once(topic, self._learn(topic))

    async def _learn(self, topic: str) -> None:
        lanes = [lane for lane in self._lanes.values() if lane.topic == topic]
        try:
            await self._cluster.refresh(topic)
            if any(self.leader(lane) < 0 for lane in lanes if lane.queue):
                raise LeaderNotAvailable(topic=topic)
        except KafkaError as error:
            self._hold(lanes, error)

    async def _join(self, transactions: Transactions) -> None:
        lanes = [lane for lane in self._lanes.values() if lane.queue]
        try:
            await transactions.join(lanes)
        except KafkaError as error:
            transactions.failure = transactions.failure or error
            self._settlement.drop(self._lanes.values(), error)

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

    def _hold(self, lanes: list[Lane], error: KafkaError) -> None:
        """Try again after a pause, or give up what waits when that is of no use."""
        for lane in lanes:
            lane.backoff.failed()
        if not error.retriable:
            self._settlement.drop(lanes, error)
