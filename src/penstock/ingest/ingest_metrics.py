"""The server's counts: plain numbers while requests are answered, Prometheus metrics at a scrape."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.ingest.body import InFlight
from penstock.ingest.kafka_store import EventStore, Facts
from penstock.ingest.listener import Listener
from penstock.wire import Producer
from penstock.wire.prometheus import ProducerCollector

LASTING = ("counter", "histogram")
"""Kinds of metrics that continue when another process replaces one that died; the others end with it."""

Sample = tuple[str, dict[str, str], float]
"""Name, labels and value."""
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


def deaths(number: int) -> Metric:
    return CounterMetricFamily(
        "penstock_ingest_worker_deaths", "Workers that ended without being stopped", value=number
    )


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


# The report of a process, and how those of several are merged for /metrics and /health.


class Family(msgspec.Struct, array_like=True, frozen=True):
    """A metric with its samples."""

    name: str
    text: str
    kind: str
    samples: list[Sample]

    @staticmethod
    def of(metric: Metric) -> Family:
        samples = [(one.name, one.labels, float(one.value)) for one in metric.samples]
        return Family(metric.name, metric.documentation, metric.type, samples)

    def metric(self) -> Metric:
        made = Metric(self.name, self.text, self.kind)
        for sample in self.samples:
            made.add_sample(*sample)
        return made


class Report(msgspec.Struct, array_like=True, frozen=True):
    """`at` is in seconds of the monotonic clock, `in_flight` in bytes; `facts` is None if the process died."""

    at: float
    families: list[Family]
    facts: Facts | None
    in_flight: int

    def over(self, before: Iterable[Family]) -> Report:
        """This report, plus what earlier processes counted."""
        return msgspec.structs.replace(self, families=merged([before, self.families]))

    def left(self) -> Report:
        """What remains after the process has died."""
        return Report(self.at, [one for one in self.families if one.kind in LASTING], None, 0)


def merged(parts: Iterable[Iterable[Family]]) -> list[Family]:
    """Samples with the same name and labels added; of quantiles, which have no sum, the largest."""
    families: dict[str, Family] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for family in (family for part in parts for family in part):
        families.setdefault(family.name, family)
        found = values.setdefault(family.name, {})
        for name, labels, value in family.samples:
            key = name, tuple(labels.items())
            found[key] = max(found.get(key, value), value) if "quantile" in labels else found.get(key, 0.0) + value
    samples = {
        family: [(name, dict(labels), value) for (name, labels), value in found.items()]
        for family, found in values.items()
    }
    return [Family(one.name, one.text, one.kind, samples[one.name]) for one in families.values()]


def exposition(reports: Iterable[Report]) -> bytes:
    """The text of a scrape."""
    return generate_latest(_Merged(merged(one.families for one in reports)))


class _Merged(Collector):
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return (one.metric() for one in self._families)


def health(reports: Iterable[Report], now: float, silent: float) -> tuple[bool, dict[str, Any]]:
    """Whether all live processes take events, and the fields of /health: the worst process's, with sizes added up.

    A process that has reported nothing for `silent` seconds counts as taking none.
    """
    living = [(one, one.facts) for one in reports if one.facts]
    late = [f"a worker has been stuck for {now - one.at:.0f} s" for one, _ in living if now - one.at > silent]
    problems = late + [facts.problem for _, facts in living if facts.problem]
    takes = not late and all(facts.takes for _, facts in living)
    told: dict[str, Any] = {
        "status": "ok" if takes else "unavailable",
        "kafka": "ok" if all(facts.kafka == "ok" for _, facts in living) else "away",
        "problem": problems[0] if problems else "",
        "workers": len(living),
        "in_flight": sum(one.in_flight for one, _ in living),
    }
    spools = [facts.spool for _, facts in living if facts.spool is not None]
    waiting: Counter[str] = Counter()
    for _, facts in living:
        waiting.update(facts.waiting)
    more = ({"spool": sum(spools)} if spools else {}) | ({"waiting": waiting} if waiting else {})
    return takes, told | more
