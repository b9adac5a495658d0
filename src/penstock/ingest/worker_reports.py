"""The reports of worker processes: each worker can answer for all, and counts outlive the worker that counted.

A worker writes its report to a slot in memory that all share. prometheus_client's own mode for several processes keeps
counts in files, reads no custom collectors, such as the producer's, and knows nothing of /health.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from prometheus_client import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.ingest.kafka_store import Facts
from penstock.native.crc32c import crc32c

PERIOD = 0.5
"""Seconds between two reports. What a worker counted since its last report is lost when it is killed."""
ROOM, ROOM_OF_TOPIC = 128 << 10, 16 << 10
"""Most bytes of a report: a metric takes 50 to 300 bytes, and a topic has up to 30 metrics, with the longest names."""
HEAD = struct.Struct("<II")
"""The number of bytes in a half of a slot, and their CRC32C."""
LASTING = ("counter", "histogram")
"""Kinds of metrics that continue when another process replaces one that died; the others end with it."""

Sample = tuple[str, dict[str, str], float]
"""Name, labels and value."""


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
        report = self._read(number) or Report(0.0, [], None, 0)
        self.write(number, report.left().over([Family.of(deaths(1))]))

    def write(self, number: int, report: Report) -> None:
        self._slots.write(number, msgspec.msgpack.encode(report))

    def counted(self, number: int) -> list[Family]:
        report = self._read(number)
        return report.families if report else []

    def all(self) -> list[Report]:
        return [report for number in range(self._count) if (report := self._read(number))]

    def _read(self, number: int) -> Report | None:
        text = self._slots.read(number)
        return msgspec.msgpack.decode(text, type=Report) if text else None


class OnlyReport:
    """The report of the only process of a server."""

    def __init__(self, report: Callable[[], Report]) -> None:
        self._report = report

    def reports(self) -> list[Report]:
        return [self._report()]

    async def keep_writing(self) -> None:
        """Does nothing: there is no other process."""


class WorkerReport:
    """The report of a worker, among those of the others; it continues the counts of the workers before it."""

    def __init__(self, of: WorkerReports, number: int, report: Callable[[], Report]) -> None:
        self._of, self._number, self._report = of, number, report
        self._before = of.counted(number)

    def reports(self) -> list[Report]:
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
