"""Meters of a program: what happens to its pipelines, for its metrics and its `/status`.

A pipeline's supervisor tells its `PipelineMeter` all that happens. Counters live as long as the process: queries that
start again do not reset them. The thread of a pipeline writes here, those of the metrics server read; each holds the
lock of `Meters`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.checkpoint.checkpoint_folder import Location
from penstock.checkpoint.identity import OUR_KAFKA, SPARKS_KAFKA, source_of, streams
from penstock.kafka.broker_check import SERVERS, security_of
from penstock.process.waits import waiting
from penstock.run.life_signs import Observer
from penstock.spark_runtime.logical_plan import analyzed, each
from penstock.watch.graph import Graph, Node, graph_of, sink_nodes, source_nodes
from penstock.watch.query_meter import NEXT_START, STOPPED, WAITING, QueryMeter, SinkMeter, SourceMeter, distinct
from penstock.wire.admin import Admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from penstock.query.query import Query

NEXT = ". Next: "
OTHERS_END = "the end of the batches of the other queries"
MOST_ERRORS = 20
PATIENCE = 10.0
"""Seconds for Kafka's answer about a topic."""
TARGET = 60.0
"""Seconds from an event to the sink's acknowledgement, which a pipeline should keep, if it says nothing else."""


@dataclass(frozen=True)
class QueryProblem:
    """An error of a query, or of a pipeline's start if `query` is its name."""

    at: float
    query: str
    what: str
    where: str
    next: str
    trace: str


class PipelineMeter(Observer):
    """The observer of one pipeline, which counts for `Meters`."""

    def __init__(self, of: Meters, name: str) -> None:
        self._of, self.name = of, name
        self.every, self.interval, self.target = "", 0.0, TARGET
        self.queries: dict[str, QueryMeter] = {}
        self.waits_for, self.since, self.reason = "", 0.0, ""
        """What the pipeline waits for while it makes its queries, since when, and why."""
        self.stops = self.failed = False

    def begins(self, name: str, query: Query, checkpoint: Location) -> None:
        short = name.removeprefix(self.name).removeprefix(".")
        graph = graph_of(self.name, {short: query})
        sources = [SourceMeter(*place) for place in _places(source_nodes(query))]
        sinks = [SinkMeter(*place) for place in _places(sink_nodes(query))]
        observed, read = observed_sources(query.frame), list(streams(query.frame))
        meter = self.planned(name, graph, sources, sinks, observed)
        # Servers may be away, and a start must not wait for this.
        of = list(zip(read, meter.planned, strict=False))
        threading.Thread(target=_learn_retention, args=[of], daemon=True).start()

    def planned(
        self,
        name: str,
        graph: Graph,
        sources: Sequence[SourceMeter],
        sinks: Sequence[SinkMeter],
        observed: Mapping[str, Sequence[int]],
    ) -> QueryMeter:
        """The meter of a query that is about to start, and reads and writes this (see `QueryMeter.begins`)."""
        with self._changes() as now:
            self.failed, self.waits_for = False, ""
            meter = self._query(name)
            meter.begins(graph, sources, sinks, observed, now)
            return meter

    def started(self, name: str) -> None:
        with self._changes():
            self._query(name).started()

    def progress(self, name: str, progress: Mapping[str, Any]) -> None:
        with self._changes() as now:
            self._query(name).progress(progress, now)

    def looked(self, name: str, status: Mapping[str, Any]) -> None:
        with self._changes() as now:
            self._query(name).looked(status, now)

    def query_failed(self, name: str, text: str) -> None:
        what, _, step = text.partition(NEXT)
        with self._changes() as now:
            query = self._query(name)
            query.enters(WAITING, now, OTHERS_END)
            query.problem, query.next = what, step

    def fault(self, text: str, *, query: str = "", pause: float | None = None, trace: str = "") -> None:
        what, _, step = text.partition(NEXT)
        with self._changes() as now:
            self._of.errors.append(QueryProblem(now, query or self.name, what, f"pipeline {self.name}", step, trace))
            self.failed = pause is None
            self.waits_for, self.since, self.reason = "" if self.failed else NEXT_START, now, ""
            for meter in self.queries.values():
                meter.fault(now, final=self.failed)
                if meter.name == query or not query:
                    meter.problem, meter.next = what, step

    def waits(self, what: str, since: float, why: str = "") -> None:
        """The pipeline waits for this while it makes its queries; "" if it does not wait any more."""
        with self._changes():
            self.waits_for, self.since, self.reason = what, since, why

    def waiting(self, now: float) -> str:
        """The same in words, with the time; the caller holds the lock."""
        return waiting(self.waits_for, now - self.since, self.reason) if self.waits_for else ""

    def stopping(self) -> None:
        with self._changes():
            self.stops = True

    def stopped(self, name: str) -> None:
        with self._changes() as now:
            self._query(name).enters(STOPPED, now)

    def _query(self, name: str) -> QueryMeter:
        return self.queries.setdefault(name, QueryMeter(self.name, name, self.every, self.interval, self.target))

    @contextmanager
    def _changes(self) -> Iterator[float]:
        with self._of.lock:
            yield self._of.clock()


def _places(of: Sequence[Sequence[Node]]) -> Iterator[tuple[str, str, str | None, int]]:
    """The name of each source or sink; the id and the address of its first node in the graph, and how many follow."""
    firsts = [nodes[0] for nodes in of]
    kinds = [first.kind if first.system in ("kafka", "cql") else first.system for first in firsts]
    names = [f"{kind} {','.join(node.name for node in nodes)}".rstrip() for kind, nodes in zip(kinds, of, strict=True)]
    for name, nodes in zip(distinct(names), of, strict=True):
        yield name, nodes[0].id, nodes[0].address, len(nodes) - 1


class Meters:
    """All that a program counts; `clock` gives Unix seconds."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.clock, self.lock = clock, threading.Lock()
        self.pipelines: dict[str, PipelineMeter] = {}
        self.errors: deque[QueryProblem] = deque(maxlen=MOST_ERRORS)
        self.jvm: tuple[int, int] | None = None
        """Bytes of the JVM's heap in use, and the most that it may use."""

    def pipeline(self, name: str, every: timedelta | str, target: float = TARGET, *, key: str = "") -> PipelineMeter:
        """The meter of a pipeline with a batch `every` interval, or in real time; the same key goes on counting.

        The key is the name, unless several pipelines have the same name, as the tasks of a connector do.
        """
        with self.lock:
            meter = self.pipelines.setdefault(key or name, PipelineMeter(self, name))
            interval = every.total_seconds() if isinstance(every, timedelta) else 0.0
            meter.every = _spelt(interval) if isinstance(every, timedelta) else every
            meter.interval, meter.target, meter.stops = interval, target, False
            return meter

    def forget(self, key: str) -> None:
        """Tell nothing of this pipeline any more."""
        with self.lock:
            self.pipelines.pop(key, None)

    def queries(self) -> list[QueryMeter]:
        """All queries; the caller holds the lock."""
        return [query for pipeline in self.pipelines.values() for query in pipeline.queries.values()]


def _spelt(seconds: float) -> str:
    return "1 second" if seconds == 1 else f"{seconds:g} seconds"


# Facts about the sources of a query, besides those in its graph.


def _learn_retention(of: Sequence[tuple[tuple[str, Mapping[str, str]], SourceMeter]]) -> None:
    for (format, options), source in of:
        # It is a number among others: a query that cannot read its source says so itself.
        with suppress(Exception):
            source.retention = topic_keeps(format, options) or source.retention


def topic_keeps(format: str, options: Mapping[str, str]) -> float | None:
    """How long the topic of a source with these options keeps a record; None if for ever, or if that is not known.

    That is its `retention.ms`, unless it is only compacted; `retention.bytes` may delete records earlier. The offsets
    of a change log have its time to live. Raises what the Kafka client raises if no broker answers.
    """
    topic = source_of(format, options).of.get("topic", "")
    if format not in (OUR_KAFKA, SPARKS_KAFKA) or not topic or "," in topic:
        return None
    lower_case_options = {name.lower(): value for name, value in options.items()}
    servers = next((lower_case_options[name] for name in SERVERS if name in lower_case_options), "")
    return asyncio.run(_of_topic(servers, topic, lower_case_options)) if servers else None


async def _of_topic(servers: str, topic: str, options: Mapping[str, str]) -> float | None:
    security = security_of(options)
    admin = Admin(
        servers,
        request_timeout=PATIENCE,
        patience=PATIENCE,
        tls=security.tls(),
        authenticate=security.authenticate(),
    )
    async with admin:
        of = {entry.name: entry.value for entry in await admin.configs(topic)}
    millis = int(of.get("retention.ms") or -1)
    return millis / 1000 if millis > 0 and "delete" in (of.get("cleanup.policy") or "") else None


def observed_sources(frame: DataFrame) -> dict[str, list[int]]:
    """The places of a frame's sources by the names under which their records are observed."""
    places: dict[str, list[int]] = {}
    _walk(analyzed(frame), [], places, iter(range(1 << 16)))
    return places


def _walk(node: Any, names: list[str], places: dict[str, list[int]], numbers: Iterator[int]) -> None:
    """Note the number of each source under the names of the observations above it."""
    kind = node.getClass().getSimpleName()
    below = [*names, str(node.name())] if kind == "CollectMetrics" else names
    children = list(each(node.children()))
    if not children and node.isStreaming():
        place = next(numbers)
        for name in below:
            places.setdefault(name, []).append(place)
    for child in children:
        _walk(child, below, places, numbers)
