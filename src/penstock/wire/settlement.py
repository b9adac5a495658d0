"""The end of each batch: told to those who wait for it, counted for its topic, and to an open transaction a failure."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from penstock.wire.errors import DeliveryTimeout, KafkaError
from penstock.wire.lanes import Batch, Lane, Outcome
from penstock.wire.stats import TopicCounts, TopicStats
from penstock.wire.transaction import Transactions


class Settlement:
    """`has_room` is called when a failure may have freed memory."""

    def __init__(self, has_room: Callable[[], None], transactions: Transactions | None) -> None:
        self.topics: dict[str, TopicCounts] = defaultdict(TopicCounts)
        self._has_room, self._transactions = has_room, transactions

    def done(self, lane: Lane, one: Batch, outcome: Outcome) -> None:
        """The broker has it."""
        lane.settled(one)
        self.topics[lane.topic].acknowledged(one.count, len(one.data), time.monotonic() - one.created)
        one.finish(outcome)

    def fail(self, lane: Lane, one: Batch, error: KafkaError) -> None:
        """It is not tried again."""
        lane.gap(one)
        if error.partition is None:
            error = _placed(error, lane)
        self.topics[lane.topic].failed += one.count
        if self._transactions and not self._transactions.failure:
            self._transactions.failure = error
        one.finish(Outcome(-1, -1, error))
        self._has_room()

    def drop(self, lanes: Iterable[Lane], error: KafkaError) -> None:
        """Fail all that waits in these lanes."""
        # The room that this makes may let in a record for a new lane.
        for lane in list(lanes):
            for one in list(lane.queue):
                self.fail(lane, one, error)

    def expire(self, lanes: Iterable[Lane]) -> None:
        """Fail what waits and whose time is up."""
        now = time.monotonic()
        for lane in list(lanes):
            for one in lane.expired(now):
                late = DeliveryTimeout(
                    topic=lane.topic,
                    partition=lane.partition,
                    detail=f"not acknowledged within {now - one.created:.1f} s, {one.attempts} times sent"
                    + (f", the last time with {one.problem}" if one.problem else ""),
                )
                self.fail(lane, one, late)

    def stats(self, lanes: Iterable[Lane]) -> dict[str, TopicStats]:
        """Of each topic that has lanes."""
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
    """The error of a whole connection or topic, as that of one partition's records."""
    made = type(error)(error.detail, topic=lane.topic, partition=lane.partition)
    made.__cause__ = error.__cause__
    return made
