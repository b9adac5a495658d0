"""A producer's statistics: counts and latencies by topic and by broker, cheap enough to be always on."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

STEPS = 8
"""Buckets of a histogram per doubling: the error of a percentile is at most a tenth."""
SHORTEST = 1e-4
FIRST, LAST = 2, 20
BOUNDS = tuple(SHORTEST * 2**doubling for doubling in range(FIRST, LAST + 1))
"""Upper bounds of the buckets for Prometheus, in seconds: 0.4 ms to 105 s. Each is the end of a bucket of `Histogram`,
so that no count is a guess."""


@dataclass(frozen=True)
class Latency:
    """Durations: how many there are up to each of `BOUNDS`, with all of them last, and their sum in seconds."""

    counts: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class TopicStats:
    """One topic: what was acknowledged, failed, sent again and is waiting, and the seconds from batch to answer."""

    records: int
    bytes: int
    batches: int
    failed: int
    retries: int
    queued: int
    in_flight: int
    latency_p50: float
    latency_p99: float
    latency: Latency


@dataclass(frozen=True)
class BrokerStats:
    """One broker: requests sent and in flight, and the seconds to their answers."""

    requests: int
    in_flight: int
    latency_p50: float
    latency_p99: float
    latency: Latency


@dataclass(frozen=True)
class Stats:
    """A snapshot; sizes are bytes, `queued` and `in_flight` of a topic are batches, `failed` are records."""

    buffer_used: int
    buffer_memory: int
    topics: dict[str, TopicStats]
    brokers: dict[int, BrokerStats]


class HasStats(Protocol):
    """A `Producer`, a `BlockingProducer`, or what passes on their statistics."""

    def stats(self) -> Stats: ...


class Histogram:
    """Durations in buckets that grow by a constant factor."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = defaultdict(int)
        self.count = 0
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self._counts[math.ceil(math.log2(max(seconds, SHORTEST) / SHORTEST) * STEPS)] += 1
        self.count += 1
        self.seconds += seconds

    def percentile(self, share: float) -> float:
        """The upper end of the bucket that holds this percentile (`share` is 0 to 1); 0 if there are no durations."""
        wanted = share * self.count
        for bucket in sorted(self._counts):
            wanted -= self._counts[bucket]
            if wanted <= 0:
                return SHORTEST * math.exp2(bucket / STEPS)
        return 0.0

    def latency(self) -> Latency:
        """The durations in the buckets for Prometheus."""
        counts = [0] * (len(BOUNDS) + 1)
        for bucket, count in self._counts.items():
            doublings = -(-bucket // STEPS)
            counts[min(max(doublings - FIRST, 0), len(BOUNDS))] += count
        return Latency(tuple(accumulate(counts)), self.seconds)


@dataclass
class TopicCounts:
    """The running counts of one topic."""

    records: int = 0
    bytes: int = 0
    batches: int = 0
    failed: int = 0
    retries: int = 0
    latency: Histogram = field(default_factory=Histogram)

    def acknowledged(self, records: int, size: int, seconds: float) -> None:
        self.records += records
        self.bytes += size
        self.batches += 1
        self.latency.add(seconds)

    def snapshot(self, queued: int, in_flight: int) -> TopicStats:
        p50, p99 = self.latency.percentile(0.5), self.latency.percentile(0.99)
        counts = self.records, self.bytes, self.batches, self.failed, self.retries
        return TopicStats(*counts, queued, in_flight, p50, p99, self.latency.latency())
