"""The meters of queries as Prometheus metrics; what is not known is absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.metrics.delays import BOUNDS
from penstock.watch.meters import Meters
from penstock.watch.query_meter import STATES, QueryMeter

QUERY = ("pipeline", "query")
Sample = tuple[tuple[str, ...], float | None]
"""The values of the labels besides those of the query, and the value."""


class QueryMetrics(Collector):
    """Reads the meters at each scrape."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters

    def collect(self) -> Iterator[Metric]:
        with self._meters.lock:
            queries, now = self._meters.queries(), self._meters.clock()
            made = [
                *_of_queries(queries),
                *_of_sources(queries, now),
                *_of_sinks(queries),
                *_of_states(queries),
                *_of_lookups(queries),
                *_of_jvm(self._meters.jvm),
            ]
        yield from (one for one in made if one.samples)


class _Families:
    """Makes the metrics of queries: `of` gives the samples of one query."""

    def __init__(self, queries: Sequence[QueryMeter]) -> None:
        self._queries = queries

    def counter(self, name: str, text: str, samples: Iterable[Sequence[Sample]], *labels: str) -> Metric:
        return self._filled(CounterMetricFamily(f"penstock_{name}", text, labels=(*QUERY, *labels)), samples)

    def gauge(self, name: str, text: str, samples: Iterable[Sequence[Sample]], *labels: str) -> Metric:
        return self._filled(GaugeMetricFamily(f"penstock_{name}", text, labels=(*QUERY, *labels)), samples)

    def _filled(self, made: Metric, samples: Iterable[Sequence[Sample]]) -> Metric:
        for query, some in zip(self._queries, samples, strict=True):
            for values, value in some:
                if value is not None:
                    made.add_metric((query.pipeline, query.name, *values), value)  # type: ignore[attr-defined]
        return made


def _one(value: float | None) -> list[Sample]:
    return [((), value)]


def _of_queries(queries: Sequence[QueryMeter]) -> Iterator[Metric]:
    of = _Families(queries)
    states = [[((state,), float(one.state == state)) for state in STATES] for one in queries]
    yield of.gauge("query_state", "1 for the state in which a query is", states, "state")
    yield of.counter("query_batches", "Finished batches", [_one(one.batches) for one in queries])
    yield of.counter("query_rows", "Rows read by finished batches", [_one(one.rows) for one in queries])
    text = "Duration of a batch, from its planning to its commit"
    durations = HistogramMetricFamily("penstock_query_batch_duration_seconds", text, labels=QUERY)
    for one in queries:
        if one.batches:
            durations.add_metric((one.pipeline, one.name), _cumulative(one.durations), one.seconds)
    yield durations
    phases = [[((name,), some) for name, some in one.phases.items()] for one in queries]
    yield of.counter("query_phase_seconds", "Time of batches by Spark's phase", phases, "phase")
    commits = [_one(one.last_commit) for one in queries]
    yield of.gauge("query_last_commit_timestamp_seconds", "When the last batch was committed", commits)
    starts = [[((reason,), float(some)) for reason, some in one.starts.items()] for one in queries]
    yield of.counter("query_starts", "Starts of a query in this process", starts, "reason")
    watermarks = [_one(one.watermark) for one in queries]
    yield of.gauge("query_watermark_timestamp_seconds", "Rows with earlier times are late", watermarks)
    targets = [_one(one.target) for one in queries]
    yield of.gauge("query_delay_target_seconds", "The delay that the pipeline should keep", targets)


def _of_sources(queries: Sequence[QueryMeter], now: float) -> Iterator[Metric]:
    of = _Families(queries)
    lags = [[((one.name,), one.lag.records) for one in query.sources] for query in queries]
    yield of.gauge("source_lag_records", "Records that are not read yet", lags, "source")
    seconds = [[((one.name,), query.lag_seconds(one, now)) for one in query.sources] for query in queries]
    text = "Time since all was read that existed then; 0 when a query has read all and waits"
    yield of.gauge("source_lag_seconds", text, seconds, "source")
    rows = [[((one.name,), float(one.rows)) for one in query.sources] for query in queries]
    yield of.counter("source_rows", "Rows read by finished batches", rows, "source")
    bad = [
        [((one.name, reason), float(count)) for one in query.sources for reason, count in one.bad.items()]
        for query in queries
    ]
    yield of.counter("source_bad_records", "Records that could not be read", bad, "source", "reason")
    left = [[((one.name,), query.retention_left(one, now)) for one in query.sources] for query in queries]
    text = "Time until the source deletes what is not read yet"
    yield of.gauge("source_retention_left_seconds", text, left, "source")


def _of_sinks(queries: Sequence[QueryMeter]) -> Iterator[Metric]:
    of = _Families(queries)
    text = "From the time of an event to the acknowledgement of the sink"
    delays = HistogramMetricFamily("penstock_delay_seconds", text, labels=(*QUERY, "sink"))
    for query in queries:
        for sink in query.sinks:
            if any(sink.counts.buckets):
                labels = (query.pipeline, query.name, sink.name)
                delays.add_metric(labels, _cumulative(sink.counts.buckets), sink.counts.seconds)
    yield delays
    for name, text in (("rows", "Rows"), ("bytes", "Bytes"), ("retries", "Requests that were repeated,")):
        counts = [[((one.name,), float(getattr(one.counts, name))) for one in query.sinks] for query in queries]
        yield of.counter(f"sink_{name}", f"{text} acknowledged by the sink", counts, "sink")
    failures = [
        [((one.name, reason), float(count)) for one in query.sinks for reason, count in one.counts.failures.items()]
        for query in queries
    ]
    yield of.counter("sink_failures", "Batches that the sink failed to write", failures, "sink", "reason")
    letters = [
        [((one.name, reason), float(count)) for one in query.sinks for reason, count in one.counts.letters.items()]
        for query in queries
    ]
    yield of.counter("dead_letters", "Records written to a topic of dead letters", letters, "sink", "reason")


def _of_states(queries: Sequence[QueryMeter]) -> Iterator[Metric]:
    of = _Families(queries)
    for kind, name, text, field in (
        (of.gauge, "rows", "Rows of state", "rows"),
        (of.gauge, "memory_bytes", "Memory of state", "memory"),
        (of.gauge, "disk_bytes", "Files of state", "disk"),
        (of.counter, "commit_seconds", "Time of writing the state's changes", "commit_seconds"),
        (of.counter, "late_rows", "Rows that came too late for the state", "late_rows"),
    ):
        samples = [[((name,), getattr(one, field)) for name, one in query.states.items()] for query in queries]
        yield kind(f"state_{name}", text, samples, "operator")


def _of_lookups(queries: Sequence[QueryMeter]) -> Iterator[Metric]:
    of = _Families(queries)
    for name, text, field in (
        ("rows", "Rows that were looked up", "rows"),
        ("hits", "Rows whose answer was in memory", "hits"),
        ("wait_seconds", "Time that tasks waited for answers, added up", "wait"),
    ):
        samples = [[((name,), float(getattr(one, field))) for name, one in query.lookups.items()] for query in queries]
        yield of.counter(f"lookup_{name}", text, samples, "lookup")
    ages: list[list[Sample]] = [[((name,), stale) for name, stale in one.tables.items()] for one in queries]
    text = "For how long the source of a global table was away at the last batch"
    yield of.gauge("global_table_stale_seconds", text, ages, "table")


def _of_jvm(jvm: tuple[int, int] | None) -> Iterator[Metric]:
    if jvm is not None:
        used, most = jvm
        yield GaugeMetricFamily("penstock_jvm_memory_used_bytes", "Heap of Spark's JVM in use", value=used)
        yield GaugeMetricFamily("penstock_jvm_memory_max_bytes", "The most that this heap may use", value=most)


def _cumulative(buckets: Sequence[int]) -> list[tuple[str, float]]:
    bounds = [*map(str, BOUNDS), "+Inf"]
    return [(bound, float(count)) for bound, count in zip(bounds, accumulate(buckets), strict=True)]
