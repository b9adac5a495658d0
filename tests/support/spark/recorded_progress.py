"""Progresses that Spark 4.3 gave, and meters that are fed with them.

`tests/data/progress` has them as the JSON of `StreamingQuery.recentProgress`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from penstock.watch.graph import Graph
from penstock.watch.meters import Meters, PipelineMeter
from penstock.watch.program import Program, exposition
from penstock.watch.query_meter import QueryMeter, SinkMeter, SourceMeter
from penstock.watch.query_metrics import QueryMetrics
from penstock.watch.status import status

DATA = Path(__file__).parents[2] / "data/progress"
Progress = dict[str, Any]


def recorded(name: str) -> list[Progress]:
    """The progresses of a query, with an id of its own: counts of sinks are kept by it."""
    found: list[Progress] = json.loads((DATA / f"{name}.json").read_text())["progress"]
    return [one | {"id": id} for id in [str(uuid.uuid4())] for one in found]


def ended(progress: Progress) -> float:
    """When a batch ended, Unix seconds."""
    return datetime.fromisoformat(progress["timestamp"]).timestamp() + float(progress["batchDuration"]) / 1000


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


class Fed:
    """The meter of a query that reads one source and writes to one sink."""

    def __init__(self, every: timedelta | str = timedelta(seconds=1), graph: Graph | None = None) -> None:
        self.clock = Clock()
        self.meters = Meters(self.clock)
        self.pipeline: PipelineMeter = self.meters.pipeline("shop", every, 30.0)
        self.query: QueryMeter = self.pipeline._query("shop.orders")
        self.graph = graph or Graph()
        self.begins()

    def begins(self) -> None:
        sources, sinks = [SourceMeter("topic orders", "topic:orders")], [SinkMeter("topic out", "topic:out")]
        self.pipeline.planned("shop.orders", self.graph, sources, sinks, {})
        self.pipeline.started("shop.orders")

    def progress(self, told: Progress) -> None:
        self.clock.now = max(self.clock.now, ended(told))
        self.pipeline.progress("shop.orders", told)

    def looks(self, *, active: bool, available: bool, message: str = "") -> None:
        told = {"message": message, "isTriggerActive": active, "isDataAvailable": available}
        self.pipeline.looked("shop.orders", told)

    def status(self) -> dict[str, Any]:
        told = status(Program("run", "shop"), self.meters)
        return dict(json.loads(json.dumps(told, allow_nan=False)))

    def samples(self) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
        """The samples of a scrape by name and labels, without those of the query."""
        found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
        for family in text_string_to_metric_families(exposition([QueryMetrics(self.meters)]).decode()):
            for one in family.samples:
                labels = frozenset(one.labels.items()) - {("pipeline", "shop"), ("query", "shop.orders")}
                found.setdefault(one.name, {})[labels] = one.value
        return found

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples().get(f"penstock_{name}", {}).get(frozenset(labels.items()))


def replayed(name: str) -> Iterator[tuple[Fed, Progress]]:
    fed = Fed()
    for one in recorded(name):
        fed.progress(one)
        yield fed, one
