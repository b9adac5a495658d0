"""The results of the benchmark of matching as a consumer sees them, and how far they are behind the events."""

from __future__ import annotations

import re
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

from _stream_data import PARTITIONS
from penstock.errors import PenstockError

RESULT = re.compile(rb'"n":(\d+),"person":"([-0-9a-f]{36})"')
LOOK = 0.05
READY = 20.0


class Results:
    """The person of each event by its number, as read until now; `twice` are results that came again."""

    def __init__(self, servers: str, events: str, results: str) -> None:
        self.persons: dict[int, str] = {}
        self.twice = 0
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": results})
        self._consumer.assign([TopicPartition(results, number, 0) for number in range(PARTITIONS)])
        self._events = [TopicPartition(events, number) for number in range(PARTITIONS)]

    def written(self) -> int:
        """How many events there are in the topic."""
        return sum(self._end(part) for part in self._events)

    def _end(self, part: TopicPartition) -> int:
        until = time.monotonic() + READY
        while True:
            try:
                return int(self._consumer.get_watermark_offsets(part, timeout=10, cached=False)[1])
            except KafkaException:
                # A new topic has no leader at once.
                if time.monotonic() > until:
                    raise
                time.sleep(LOOK)

    def lag(self) -> int:
        """Events that have no result yet."""
        while some := self._consumer.consume(10_000, timeout=LOOK):
            for record in some:
                if not record.error() and (found := RESULT.search(record.value())):
                    number = int(found[1])
                    self.twice += number in self.persons
                    self.persons[number] = found[2].decode()
        return self.written() - len(self.persons)

    def await_first(self, patience: float) -> None:
        """Wait until there is a result."""
        until = time.monotonic() + patience
        while not self.persons:
            self.lag()
            if time.monotonic() > until:
                raise PenstockError("no result came", next="read what the job printed")

    def longest(self, seconds: float) -> int:
        """The longest lag within this time."""
        until, longest = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            longest = max(longest, self.lag())
        return longest

    def falls_to(self, most: int, patience: float) -> int:
        """Wait until the lag is no more than this; the longest until then."""
        until, longest = time.monotonic() + patience, 0
        while (lag := self.lag()) > most:
            longest = max(longest, lag)
            if time.monotonic() > until:
                raise PenstockError(f"the lag is {lag} and was {most}", next="read job.log, or try a lower --rate")
        return longest

    def close(self) -> None:
        self._consumer.close()
