"""What a process tells of itself, and how the reports of several become one: what /metrics and /health are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from penstock.source.http.store import Facts

LASTING = ("counter", "histogram")
"""Kinds of metrics that go on when another process takes the place of one that died; the others die with it."""

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
    """`at` is the monotonic clock's seconds, `in_flight` bytes; there are no facts of a process that died."""

    at: float
    families: list[Family]
    facts: Facts | None
    in_flight: int

    def over(self, before: Iterable[Family]) -> Report:
        """With what others counted before."""
        return msgspec.structs.replace(self, families=merged([before, self.families]))

    def left(self) -> Report:
        """What remains when the process has died."""
        return Report(self.at, [one for one in self.families if one.kind in LASTING], None, 0)


def merged(parts: Iterable[Iterable[Family]]) -> list[Family]:
    """Samples with the same name and labels are added; of quantiles, which have no sum, the largest is taken."""
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
    """Whether all that live take events, and what is told: the worst, sizes added up.

    Who has reported nothing for `silent` seconds takes none.
    """
    living = [(one, one.facts) for one in reports if one.facts]
    late = [f"a worker is stuck since {now - one.at:.0f} s" for one, _ in living if now - one.at > silent]
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
