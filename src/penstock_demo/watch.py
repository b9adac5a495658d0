"""What the independent readers of the demos share: the thread that reads, and for topics the client."""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.errors import PenstockError

BATCH, WAIT, PATIENCE = 500, 0.2, 15.0


class Watch(threading.Thread):
    """Reads until `close`. Its data only grows, so other threads may read it at any time."""

    def __init__(self) -> None:
        super().__init__(name="reader", daemon=True)
        self.times = array("q")
        """Pairs of the time of a cause and of the receipt of its result, in microseconds."""
        self.fault: Exception | None = None
        self._recent: deque[tuple[int, int]] = deque(maxlen=20_000)
        self._closing = threading.Event()

    def run(self) -> None:
        try:
            self._read()
        except Exception as error:
            self.fault = error

    def _read(self) -> None:
        """Read until `_closing` is set."""
        raise NotImplementedError

    def close(self) -> None:
        self._closing.set()
        self.join()

    def recent(self, since: int) -> list[int]:
        """The sorted delays, in microseconds, of the kept records that were received since then."""
        return sorted(received - caused for caused, received in list(self._recent) if received >= since)

    def delays(self, since: int) -> list[int]:
        """The sorted delays, in microseconds, of all records that were caused since then."""
        return delays(self.times, since)

    def _timed(self, caused: int, received: int) -> None:
        self.times.extend((caused, received))
        self._recent.append((caused, received))


class TopicWatch(Watch):
    """Reads topics."""

    def __init__(self, opened: Consumer) -> None:
        super().__init__()
        self._consumer = opened

    def _read(self) -> None:
        try:
            while not self._closing.is_set():
                self._adjust()
                messages = self._consumer.consume(BATCH, WAIT)
                now = time.time_ns() // 1000
                for message in messages:
                    if not is_fault(message):
                        self._take(message, now)
                    elif message.error().code() == KafkaError._PARTITION_EOF:
                        self._reached_end(message)
        finally:
            self._consumer.close()

    def _take(self, message: Message, now: int) -> None:
        """Keep what is needed of a record; `now` is its receipt in microseconds."""
        raise NotImplementedError

    def _adjust(self) -> None:
        """Change what is read. Called in the reading thread, because the client lets no other do that meanwhile."""

    def _reached_end(self, message: Message) -> None:
        """Called at the current end of a partition, if the consumer has `enable.partition.eof`."""


def delays(times: array[int], since: int) -> list[int]:
    """The sorted delays between pairs of times, of those that begin since then."""
    pairs = zip(times[::2], times[1::2], strict=False)
    return sorted(received - caused for caused, received in pairs if caused >= since)


def percentile(ordered: Sequence[int], share: float) -> float:
    """The smallest delay, in seconds, that at least this share of the delays does not exceed; 0 if there are none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] / 1e6 if ordered else 0.0


def consumer(servers: str, topics: Mapping[str, int], **more: Any) -> Consumer:
    """A client that reads the committed records of these topics from the beginning; `topics` has their partitions."""
    made = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "penstock-demo",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.max.ms": 500,
            # The demo itself stops brokers; the records show the result.
            "log_level": 0,
            **more,
        }
    )
    made.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for topic, count in topics.items() for p in range(count)])
    return made


def is_fault(message: Message) -> bool:
    """Whether the message is not a record; raises KafkaException for an error that does not pass."""
    fault = message.error()
    if fault is not None and fault.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError.UNKNOWN_TOPIC_OR_PART):
        raise KafkaException(fault)
    return fault is not None


def create(servers: str, topics: Iterable[NewTopic]) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for topic, made in admin.create_topics(list(topics), operation_timeout=PATIENCE).items():
        try:
            made.result()
        except KafkaException as error:
            raise PenstockError(f"topic {topic} cannot be created: {error}", where=servers) from error
