"""The server's counts: plain numbers while requests are answered, Prometheus metrics at a scrape, reports of workers.

A worker writes its report to a slot in memory that all share: so each worker can answer for all, and counts outlive the
worker that counted. prometheus_client's own mode for several processes keeps counts in files, reads no custom
collectors, such as the producer's, and knows nothing of /health.
"""

from __future__ import annotations

import asyncio
import mmap
import re
import struct
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from penstock import __version__
from penstock.ingest.exchange import InFlight
from penstock.ingest.kafka_store import EventStore, Facts
from penstock.metrics.exposition import lines_of, samples
from penstock.native import crc32c
from penstock.serve.listener import Listener
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

    def collect(self) -> Iterator[Metric]:
        """The counts as metrics."""
        requests = CounterMetricFamily("penstock_ingest_requests", "Requests answered", labels=("topic", "status"))
        for (topic, status), count in self.requests.items():
            requests.add_metric((topic, str(status)), count)
        yield requests
        yield _by_topic("events", "Events acknowledged", self.events)
        yield _by_topic("bytes", "Bytes of bodies with acknowledged events, unpacked", self.bytes)
        yield _by_topic("bad_events", "Events refused because they are not valid", self.bad)
        yield self._times()

    def _times(self) -> Metric:
        buckets, total = [], 0
        for bound, count in zip([*map(str, BOUNDS), "+Inf"], self.times, strict=True):
            total += count
            buckets.append((bound, float(total)))
        text = "From the head of a request to its answer"
        name = "penstock_ingest_request_duration_seconds"
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self.seconds)


def _by_topic(name: str, text: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"penstock_ingest_{name}", text, labels=("topic",))
    for topic, count in counts.items():
        family.add_metric((topic,), count)
    return family


def report(
    counts: IngestCounts, in_flight: InFlight, store: EventStore, producer: Producer, listener: Listener
) -> WorkerState:
    """The report of this process."""
    facts = store.facts()
    metrics = [*_now(in_flight, listener, facts), deaths(0)]
    metrics += [*counts.collect(), *ProducerCollector(producer, "ingest").collect()]
    return WorkerState(time.monotonic(), [Family.of(metric) for metric in metrics], facts, in_flight.bytes)


def _now(in_flight: InFlight, listener: Listener, facts: Facts) -> Iterator[Metric]:
    yield _gauge("workers", "Processes that take events", 1)
    yield _gauge("in_flight_bytes", "Bytes of requests not answered yet", in_flight.bytes)
    yield _gauge("connections", "Open connections", listener.open)
    text = "Connections refused, or closed for others, because too many are open, in all or from one address"
    yield CounterMetricFamily("penstock_ingest_refused_connections", text, value=listener.refused)
    if facts.spool is not None:
        yield _gauge("spool_bytes", "Bytes on disk", facts.spool)
        yield _gauge("spool_limit_bytes", "The most bytes on disk; beyond, events are refused", facts.spool_limit or 0)
        waiting = GaugeMetricFamily(
            "penstock_ingest_waiting_bytes", "Bytes on disk for a topic that Kafka does not take", labels=("topic",)
        )
        for topic, size in facts.waiting.items():
            waiting.add_metric((topic,), size)
        yield waiting


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"penstock_ingest_{name}", text, value=value)


# The reports of worker processes.


PERIOD = 0.5
"""Seconds between two reports. What a worker counted since its last report is lost when it is killed."""
ROOM, ROOM_OF_TOPIC = 256 << 10, 32 << 10
"""Most bytes of a report: a sample takes 50 to 400 bytes, and a topic has up to 60 samples, with the longest names."""
HEAD = struct.Struct("<II")
"""The number of bytes in a half of a slot, and their CRC32C."""
LASTING = ("counter", "histogram")
"""Kinds of metrics that continue when another process replaces one that died; the others end with it."""

Sample = tuple[str, float]
"""Series and value. A series is text, as `penstock.metrics.exposition` writes it: of names with a dictionary of labels
each, reading and adding the reports of four workers with 100 topics took four times as long."""


class Family(msgspec.Struct, array_like=True, frozen=True):
    """A metric with its samples."""

    name: str
    text: str
    kind: str
    samples: list[Sample]

    @staticmethod
    def of(metric: Metric) -> Family:
        sample_values = [(series, float(value)) for series, value in samples(metric)]
        return Family(metric.name, metric.documentation, metric.type, sample_values)


class WorkerState(msgspec.Struct, array_like=True, frozen=True):
    """`at` is in seconds of the monotonic clock, `in_flight` in bytes; `facts` is None if the process died."""

    at: float
    families: list[Family]
    facts: Facts | None
    in_flight: int

    def over(self, before: Sequence[Family]) -> WorkerState:
        """This report, plus what earlier processes counted."""
        if not before:
            return self
        return msgspec.structs.replace(self, families=merged([before, self.families]))

    def left(self) -> WorkerState:
        """What remains after the process has died."""
        return WorkerState(self.at, [family for family in self.families if family.kind in LASTING], None, 0)


def merged(parts: Iterable[Iterable[Family]]) -> list[Family]:
    """Samples of the same series added."""
    families: dict[str, Family] = {}
    values: dict[str, dict[str, float]] = {}
    for family in (family for part in parts for family in part):
        families.setdefault(family.name, family)
        by_series = values.setdefault(family.name, {})
        for series, value in family.samples:
            by_series[series] = by_series.get(series, 0.0) + value
    return [
        Family(family.name, family.text, family.kind, list(values[family.name].items())) for family in families.values()
    ]


def exposition(reports: Iterable[WorkerState]) -> bytes:
    """The text of a scrape."""
    build = InfoMetricFamily("penstock_build", "The version of Penstock", value={"version": __version__})
    families = [Family.of(build), *merged(state.families for state in reports)]
    lines = (line for family in families for line in lines_of(family.name, family.text, family.kind, family.samples))
    return "".join(lines).encode()


def health(reports: Iterable[WorkerState], now: float, silent: float) -> tuple[bool, dict[str, Any]]:
    """Whether all live processes take events, and the fields of /health: the worst process's, with sizes added up.

    A process that has reported nothing for `silent` seconds counts as taking none.
    """
    living = [(state, state.facts) for state in reports if state.facts]
    late = [f"a worker has been stuck for {now - state.at:.0f} s" for state, _ in living if now - state.at > silent]
    problems = late + [facts.problem for _, facts in living if facts.problem]
    takes = not late and all(facts.takes for _, facts in living)
    fields: dict[str, Any] = {
        "status": "ok" if takes else "unavailable",
        "kafka": "ok" if all(facts.kafka == "ok" for _, facts in living) else "away",
        "problem": problems[0] if problems else "",
        "workers": len(living),
        "in_flight": sum(state.in_flight for state, _ in living),
    }
    spools = [facts.spool for _, facts in living if facts.spool is not None]
    waiting: Counter[str] = Counter()
    for _, facts in living:
        waiting.update(facts.waiting)
    more = ({"spool": sum(spools)} if spools else {}) | ({"waiting": waiting} if waiting else {})
    return takes, fields | more


TOTALS = ("requests_total", "events_total", "bytes_total", "bad_events_total")
# The names of topics are Kafka's, which have nothing to escape.
_TOTAL = re.compile(rf'penstock_ingest_({"|".join(TOTALS)}){{.*?\btopic="([^"]*)"')


_STATUS = re.compile(r'\bstatus="(\d+)"')


def totals(reports: Iterable[WorkerState]) -> dict[str, Any]:
    """What all processes counted since the start, in all and by topic; `statuses` are the requests by HTTP status.

    Requests are those that users sent: to a topic, or refused because they name none. Whoever asks for a page, as
    monitors and the console do for this one, sent no events.
    """
    total_by_name: Counter[str] = Counter(dict.fromkeys(TOTALS, 0))
    topics: dict[str, Counter[str]] = {}
    statuses: Counter[str] = Counter()
    for series, value in (sample for report in reports for family in report.families for sample in family.samples):
        if match := _TOTAL.match(series):
            name, topic = match.groups()
            if status := _STATUS.search(series):
                if not topic and not status[1].startswith("4"):
                    continue
                statuses[status[1]] += int(value)
            total_by_name[name] += int(value)
            if topic:
                topics.setdefault(topic, Counter(dict.fromkeys(TOTALS, 0)))[name] += int(value)
    return {**total_by_name, "topics": topics, "statuses": statuses}


def current(reports: Sequence[WorkerState], now: float, silent: float) -> dict[str, Any]:
    """The fields of /status that change; it is waiting while Kafka is away, also if events are taken to disk."""
    takes, fields = health(reports, now, silent)
    away, at = fields["kafka"] != "ok", datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    error = {"at": at, "query": "", "what": fields["problem"], "where": "", "next": "see the server's log", "trace": ""}
    return {
        "now": at,
        "state": "waiting" if away else "running" if takes else "failed",
        "waits_for": fields["problem"] or "Kafka" if away else "",
        "queries": [],
        "ingest": {**fields, **totals(reports)},
        "errors": [] if takes or away else [error],
    }


def deaths(number: int) -> Metric:
    return CounterMetricFamily(
        "penstock_ingest_worker_deaths", "Workers that ended without being stopped", value=number
    )


class Slots:
    """Memory created before the processes are forked: the last bytes written to each slot, which outlive the writer.

    A slot has one writer at a time, and any number of readers. It has two halves, and a byte that says which of them
    is valid. A write goes to the other half before that byte changes: of a process that is killed, it is not seen.
    """

    def __init__(self, count: int, room: int) -> None:
        """`room` is the largest number of bytes in a slot."""
        self._half = HEAD.size + room
        self._slot = 1 + 2 * self._half
        self._memory = mmap.mmap(-1, count * self._slot)

    def write(self, number: int, text: bytes) -> None:
        if HEAD.size + len(text) > self._half:
            raise ValueError(f"{len(text)} bytes do not fit; there is room for {self._half - HEAD.size}")
        start = number * self._slot
        half = 1 - self._memory[start]
        at = start + 1 + half * self._half
        HEAD.pack_into(self._memory, at, len(text), crc32c(text))
        self._memory[at + HEAD.size : at + HEAD.size + len(text)] = text
        self._memory[start] = half

    def read(self, number: int) -> bytes:
        """Empty if nothing was written."""
        start = number * self._slot
        while True:
            at = start + 1 + self._memory[start] * self._half
            size, checksum = HEAD.unpack_from(self._memory, at)
            text = self._memory[at + HEAD.size : at + HEAD.size + min(size, self._half - HEAD.size)]
            # The checksum differs if the writer wrote to this half again during the copy.
            if crc32c(text) == checksum:
                return text


class WorkerReports:
    """The reports of all workers; created before them."""

    def __init__(self, count: int, topics: int) -> None:
        self._count, self._slots = count, Slots(count, ROOM + topics * ROOM_OF_TOPIC)

    def died(self, number: int) -> None:
        """Keep the counts of a worker that died for the next one, and count its death."""
        report = self._read(number) or WorkerState(0.0, [], None, 0)
        self.write(number, report.left().over([Family.of(deaths(1))]))

    def write(self, number: int, report: WorkerState) -> None:
        self._slots.write(number, msgspec.msgpack.encode(report))

    def counted(self, number: int) -> list[Family]:
        report = self._read(number)
        return report.families if report else []

    def all(self) -> list[WorkerState]:
        return [report for number in range(self._count) if (report := self._read(number))]

    def _read(self, number: int) -> WorkerState | None:
        text = self._slots.read(number)
        return msgspec.msgpack.decode(text, type=WorkerState) if text else None


class OnlyReport:
    """The report of the only process of a server."""

    def __init__(self, report: Callable[[], WorkerState]) -> None:
        self._report = report

    def reports(self) -> list[WorkerState]:
        return [self._report()]

    async def keep_writing(self) -> None:
        """Does nothing: there is no other process."""


class WorkerReport:
    """The report of a worker, among those of the others; it continues the counts of the workers before it."""

    def __init__(self, of: WorkerReports, number: int, report: Callable[[], WorkerState]) -> None:
        self._of, self._number, self._report = of, number, report
        self._before = of.counted(number)

    def reports(self) -> list[WorkerState]:
        """The reports of all workers; this worker's as of now."""
        self.write()
        return self._of.all()

    def write(self) -> None:
        self._of.write(self._number, self._report().over(self._before))

    async def keep_writing(self) -> None:
        """Write reports until cancelled."""
        try:
            while True:
                self.write()
                await asyncio.sleep(PERIOD)
        finally:
            self.write()
