"""The server's counts: plain numbers while requests are answered, Prometheus metrics at a scrape."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.ingest.body import InFlight
from penstock.ingest.kafka_store import EventStore, Facts
from penstock.ingest.listener import Listener
from penstock.ingest.worker_reports import Family, Report, deaths
from penstock.wire import Producer
from penstock.wire.prometheus import ProducerCollector

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the buckets of answer times, in seconds."""
TYPE = b"text/plain; version=0.0.4; charset=utf-8"


class IngestCounts:
    """Counts since the start."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, int], int] = defaultdict(int)
        """By topic ("" if it is unknown) and status."""
        self.events: dict[str, int] = defaultdict(int)
        self.bytes: dict[str, int] = defaultdict(int)
        self.bad: dict[str, int] = defaultdict(int)
        self.times = [0] * (len(BOUNDS) + 1)
        self.seconds = 0.0

    def answered(self, topic: str, status: int, seconds: float) -> None:
        self.requests[topic, status] += 1
        self.times[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds


class CountsCollector(Collector):
    """Reads the counts."""

    def __init__(self, counts: IngestCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        requests = CounterMetricFamily("penstock_ingest_requests", "Requests answered", labels=("topic", "status"))
        for (topic, status), count in counts.requests.items():
            requests.add_metric((topic, str(status)), count)
        yield requests
        yield _by_topic("events", "Events acknowledged", counts.events)
        yield _by_topic("bytes", "Bytes of bodies with acknowledged events, unpacked", counts.bytes)
        yield _by_topic("bad_events", "Events refused because they are not valid", counts.bad)
        yield self._times()

    def _times(self) -> Metric:
        buckets, total = [], 0
        for bound, count in zip([*map(str, BOUNDS), "+Inf"], self._counts.times, strict=True):
            total += count
            buckets.append((bound, float(total)))
        text = "From the head of a request to its answer"
        return HistogramMetricFamily("penstock_ingest_seconds", text, buckets=buckets, sum_value=self._counts.seconds)


def _by_topic(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    made = CounterMetricFamily(f"penstock_ingest_{name}", text, labels=("topic",))
    for topic, count in counts.items():
        made.add_metric((topic,), count)
    return made


class Reporter:
    """Creates the reports of this process."""

    def __init__(
        self, counts: IngestCounts, in_flight: InFlight, store: EventStore, producer: Producer, listener: Listener
    ) -> None:
        self._in_flight, self._store, self._listener = in_flight, store, listener
        self._collectors = (CountsCollector(counts), ProducerCollector(producer, "ingest"))

    def report(self) -> Report:
        facts = self._store.facts()
        metrics = [*self._now(facts), deaths(0), *(one for part in self._collectors for one in part.collect())]
        return Report(time.monotonic(), [Family.of(one) for one in metrics], facts, self._in_flight.bytes)

    def _now(self, facts: Facts) -> Iterator[Metric]:
        yield _gauge("workers", "Processes that take events", 1)
        yield _gauge("in_flight_bytes", "Bytes of requests not answered yet", self._in_flight.bytes)
        yield _gauge("connections", "Open connections", self._listener.open)
        text = "Connections refused because too many are open, in all or from one address"
        yield CounterMetricFamily("penstock_ingest_refused_connections", text, value=self._listener.refused)
        if facts.spool is not None:
            yield _gauge("spool_bytes", "Bytes on disk", facts.spool)
            waiting = GaugeMetricFamily(
                "penstock_ingest_waiting_bytes", "Bytes on disk for a topic that Kafka does not take", labels=("topic",)
            )
            for topic, size in facts.waiting.items():
                waiting.add_metric((topic,), size)
            yield waiting


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"penstock_ingest_{name}", text, value=value)
