"""Whatever happens to a query, counters never fall, histograms add up, and each batch counts once."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from hypothesis import given, strategies as st
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.streaming.query import StreamingQuery

from penstock.metrics.delays import BOUNDS, OBSERVED, SinkCounts
from penstock.run.supervise import Watched, is_batch
from penstock.watch.graph import Graph
from penstock.watch.meters import Meters
from penstock.watch.program import Program, exposition
from penstock.watch.query_meter import SinkMeter, SourceMeter
from penstock.watch.query_metrics import QueryMetrics
from penstock.watch.status import status

Progress = dict[str, Any]
BEGIN = datetime(2026, 11, 25, tzinfo=UTC).timestamp()

# Spark's queries, as far as their progress is concerned.


@dataclass
class Spark:
    """A query's progress over its restarts: batches and idle moments, with the numbers that Spark gives them.

    A restart repeats the batch that was not committed, and begins with no progress.
    """

    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    now: float = BEGIN
    number: int = 0
    read: int = 0
    written: int = 0
    recent: list[Progress] = field(default_factory=list)
    batches: int = 0
    rows: int = 0

    def batch(self, rows: int, seconds: float) -> Progress:
        rows = min(rows, self.written - self.read)
        begin = self.read
        self.read += rows
        told = self._told(begin, rows, seconds) | {"durationMs": {"addBatch": 1, "triggerExecution": 2}}
        self.number += 1
        self.batches += 1
        self.rows += rows
        return self._kept(told)

    def idle(self) -> Progress:
        """The progress of a query that found nothing new has the number of the next batch."""
        told = self._told(self.read, 0, 0.0) | {"durationMs": {"latestOffset": 1, "triggerExecution": 1}}
        return self._kept(told)

    def restart(self) -> None:
        self.recent = []

    def _kept(self, told: Progress) -> Progress:
        self.recent = [*self.recent[-99:], told]
        return told

    def _told(self, begin: int, rows: int, seconds: float) -> Progress:
        at = datetime.fromtimestamp(self.now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.now += 0.001 + seconds
        ends = {"endOffset": {"orders": {"0": self.read}}, "latestOffset": {"orders": {"0": self.written}}}
        counts = [0] * (len(BOUNDS) + 1)
        counts[self.number % 17] = rows
        task = SinkCounts(rows, 10 * rows, 0, tuple(counts), float(rows)).batch().to_pylist()
        return {
            "id": self.id,
            "timestamp": at,
            "batchId": self.number,
            "batchDuration": int(seconds * 1000),
            "numInputRows": rows,
            "sources": [{"startOffset": {"orders": {"0": begin}}, "numInputRows": rows, **ends}],
            "stateOperators": [],
            "observedMetrics": {OBSERVED: {"tasks": task}},
        }


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 1000)),
        st.tuples(st.just("batch"), st.integers(0, 500), st.floats(0, 700)),
        st.tuples(st.just("idle")),
        st.tuples(st.just("look"), st.booleans(), st.booleans()),
        st.tuples(st.just("fault"), st.sampled_from([None, 1.0])),
        st.tuples(st.just("start")),
        st.tuples(st.just("stop")),
        st.tuples(st.just("wait"), st.sampled_from(["", "Kafka at a:1"])),
        st.tuples(st.just("pass"), st.floats(0, 1000)),
    ),
    max_size=40,
)


@given(EVENTS)
def test_counters_never_fall_and_histograms_add_up(events: Sequence[tuple[Any, ...]]) -> None:
    spark = Spark()
    meters = Meters(lambda: spark.now)
    pipeline = meters.pipeline("shop", timedelta(seconds=1))
    query = pipeline._query("orders")
    before: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for event, *given_to in (("start",), *events):
        if event == "write":
            spark.written += given_to[0]
        elif event == "batch":
            pipeline.progress("orders", spark.batch(*given_to))
        elif event == "idle":
            pipeline.progress("orders", spark.idle())
        elif event == "look":
            active, available = given_to
            pipeline.looked("orders", {"message": "", "isTriggerActive": active, "isDataAvailable": available})
        elif event == "fault":
            pipeline.fault("it failed", query="orders", pause=given_to[0])
        elif event == "start":
            sources, sinks = [SourceMeter("topic orders", "topic:orders")], [SinkMeter("topic out", "topic:out")]
            query.begins(Graph(), sources, sinks, {}, spark.now)
            pipeline.started("orders")
        elif event == "stop":
            pipeline.stopped("orders")
        elif event == "wait":
            query.waits(given_to[0], spark.now)
        else:
            spark.now += given_to[0]
        before = checked(meters, before)
    assert query.batches == spark.batches and query.rows == spark.rows


def checked(
    meters: Meters, before: dict[tuple[str, frozenset[tuple[str, str]]], float]
) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Check a scrape and a status; the counters of the scrape."""
    counters = {}
    states = 0.0
    for family in text_string_to_metric_families(exposition([QueryMetrics(meters)]).decode()):
        for one in family.samples:
            labels = frozenset(one.labels.items())
            assert math.isfinite(one.value), one
            if family.type in ("counter", "histogram"):
                counters[one.name, labels] = one.value
            if one.name == "penstock_query_state":
                states += one.value
            if "lag" in one.name:
                assert one.value >= 0, one
        if family.type == "histogram":
            buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name.endswith("_bucket")]
            assert [value for _, value in sorted(buckets)] == sorted(value for _, value in buckets)
            (count,) = [s.value for s in family.samples if s.name.endswith("_count")]
            assert buckets[-1] == (math.inf, count)
    assert states == 1
    assert all(counters[name] >= value for name, value in before.items())
    json.dumps(status(Program("run", "shop"), meters), allow_nan=False)
    return counters


class Java:
    """An object of the JVM, whose getters are functions."""

    def __init__(self, told: Progress) -> None:
        self._told = told

    def timestamp(self) -> str:
        return str(self._told["timestamp"])

    def json(self) -> str:
        return json.dumps(self._told)


class RunningQuery:
    """A query whose progress goes on between two looks."""

    name = "orders"

    def __init__(self, spark: Spark) -> None:
        self._spark = spark

    @property
    def _jsq(self) -> RunningQuery:
        return self

    def lastProgress(self) -> Java | None:
        return Java(self._spark.recent[-1]) if self._spark.recent else None

    def recentProgress(self) -> list[Java]:
        return [Java(one) for one in self._spark.recent]


@given(st.lists(st.lists(st.sampled_from(["batch", "empty", "idle", "restart"]), max_size=6), max_size=25))
def test_each_batch_is_read_once_however_many_end_between_two_looks(looks: list[list[str]]) -> None:
    spark = Spark(written=1 << 40)
    watched = Watched(cast(StreamingQuery, RunningQuery(spark)))
    seen: list[Progress] = []
    for happened in looks:
        for event in happened:
            if event == "restart":
                # What the last query told is read before another one begins.
                seen += watched.news()
                spark.restart()
                watched = Watched(cast(StreamingQuery, RunningQuery(spark)))
            elif event == "idle":
                spark.idle()
            else:
                spark.batch(5 if event == "batch" else 0, 0.5)
        found = watched.news()
        # Of idle moments only the newest is of use, and only the first time.
        assert all(is_batch(one) for one in found[:-1])
        seen += found
    assert [one["batchId"] for one in seen if is_batch(one)] == list(range(spark.batches))
    assert watched.news() == []
