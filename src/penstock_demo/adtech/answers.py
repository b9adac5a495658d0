"""What the load learns from the running pipeline: which persons are known, and which batches are finished."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from penstock_demo.adtech import site

MARGIN = 500
"""Milliseconds, because the ends of a topic's partitions are not read at the same moment."""


class Progress:
    """The progress of the segments query, from the changes that it writes.

    A batch has everything that Kafka had when it was planned. So a batch with the change of an event has all events
    that were acknowledged before that event. And it is finished, and does not run again, when a later change follows
    an event that was posted after the batch's changes were seen.
    """

    def __init__(self) -> None:
        self.passed = 0
        """Events that were acknowledged before this time, in milliseconds, are in finished batches."""
        self._told: deque[tuple[int, int]] = deque()

    def saw(self, at: int, now: int) -> None:
        """Call this when a change is seen that follows an event of the time `at`."""
        while self._told and self._told[0][0] < at:
            self.passed = max(self.passed, self._told.popleft()[1])
        if not self._told or now > self._told[-1][0]:
            self._told.append((now, at - MARGIN))


class Answers(threading.Thread):
    """Reads the pipeline's output: the known persons, for their trackers, and the pipeline's progress."""

    def __init__(self, servers: str, trackers: Mapping[str, SimpleQueue[str]], progress: Progress) -> None:
        super().__init__(name="answers", daemon=True)
        self._trackers, self._progress = trackers, progress
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "penstock-demo-load",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 100,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        topics = (site.VISITS, *site.CHANGES)
        self._consumer.assign([TopicPartition(t, p, OFFSET_BEGINNING) for t in topics for p in range(site.PARTITIONS)])

    def run(self) -> None:
        while True:
            for message in self._consumer.consume(500, 0.2):
                if not message.error():
                    self._take(message.topic(), orjson.loads(message.value()))

    def _take(self, topic: str, told: dict[str, Any]) -> None:
        if topic == site.VISITS:
            self._trackers[told["id"].partition("-")[0]].put(told["id"])
        elif told["event"] in site.AT_ONCE and told["segment"] != site.BY_TIME:
            self._progress.saw(told["at"], now())


def now() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
