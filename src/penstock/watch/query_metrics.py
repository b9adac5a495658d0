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
            metrics = [
                *_of_queries(queries),
                *_of_sources(queries, now),
                *_of_sinks(queries),
                *_of_states(queries),
                *_of_lookups(queries),
                *_of_jvm(self._meters.jvm),
            ]
        yield from (metric for metric in metrics if metric.samples)


class _Families:
    """Makes the metrics of queries: `of` gives the samples of one query."""

    def __init__(self, queries: Sequence[QueryMeter]) -> None:
        self._queries = queries

    def counter(self, name: str, text: str, samples: Iterable[Sequence[Sample]], *labels: str) -> Metric:
        return self._filled(CounterMetricFamily(f"penstock_{name}", text, labels=(*QUERY, *labels)), samples)

    def gauge(self, name: str, text: str, samples: Iterable[Sequence[Sample]], *labels: str) -> Metric:
        return self._filled(GaugeMetricFamily(f"penstock_{name}", text, labels=(*QUERY, *labels)), samples)

    def _filled(self, metric: Metric, samples: Iterable[Sequence[Sample]]) -> Metric:
        for query, some in zip(self._queries, samples, strict=True):
            for values, value in some:
                if value is not None:
                    metric.add_metric((query.pipeline, query.name, *values), value)  # type: ignore[attr-defined]
        return metric


def _one(value: float | None) -> list[Sample]:
    return [((), value)]


def _of_queries(queries: Sequence[QueryMeter]) -> Iterator[Metric]:
    of = _Families(queries)
    states = [[((state,), float(query.state == state)) for state in STATES] for query in queries]
    yield of.gauge("query_state", "1 for the state in which a query is", states, "state")
    yield of.counter("query_batches", "Finished batches", [_one(query.batches) for query in queries])
    yield of.counter("query_rows", "Rows read by finished batches", [_one(query.rows) for query in queries])
    text = "Duration of a batch, from its planning to its commit"
    durations = HistogramMetricFamily("penstock_query_batch_duration_seconds", text, labels=QUERY)
    for query in queries:
        if query.batches:
            durations.add_metric((query.pipeline, query.name), _cumulative(query.durations), query.seconds)
    yield durations
    phases = [[((name,), some) for name, some in query.phases.items()] for query in queries]
    yield of.counter("query_phase_seconds", "Time of batches by Spark's phase", phases, "phase")
    commits = [_one(query.last_commit) for query in queries]
    yield of.gauge("query_last_commit_timestamp_seconds", "When the last batch was committed", commits)
    starts = [[((reason,), float(some)) for reason, some in query.starts.items()] for query in queries]
    yield of.counter("query_starts", "Starts of a query in this process", starts, "reason")
    watermarks = [_one(query.watermark) for query in queries]
    yield of.gauge("query_watermark_timestamp_seconds", "Rows with earlier times are late", watermarks)
    targets = [_one(query.target) for query in queries]
    yield of.gauge("query_delay_target_seconds", "The delay that the pipeline should keep", targets)


def _of_sources(queries: Sequence[QueryMeter], now: float) -> Iterator[Metric]:
    of = _Families(queries)
    lags = [[((source.name,), source.lag.records) for source in query.sources] for query in queries]
    yield of.gauge("source_lag_records", "Records that are not read yet", lags, "source")
    seconds = [[((source.name,), query.lag_seconds(source, now)) for source in query.sources] for query in queries]
    text = "Time since all was read that existed then; 0 when a query has read all and waits"
    yield of.gauge("source_lag_seconds", text, seconds, "source")
    rows = [[((source.name,), float(source.rows)) for source in query.sources] for query in queries]
    yield of.counter("source_rows", "Rows read by finished batches", rows, "source")
    bad = [
        [((source.name, reason), float(count)) for source in query.sources for reason, count in source.bad.items()]
        for query in queries
    ]
    yield of.counter("source_bad_records", "Records that could not be read", bad, "source", "reason")
    left = [[((source.name,), query.retention_left(source, now)) for source in query.sources] for query in queries]
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
        counts = [[((sink.name,), float(getattr(sink.counts, name))) for sink in query.sinks] for query in queries]
        yield of.counter(f"sink_{name}", f"{text} acknowledged by the sink", counts, "sink")
    failures = [
        [((sink.name, reason), float(count)) for sink in query.sinks for reason, count in sink.counts.failures.items()]
        for query in queries
    ]
    yield of.counter("sink_failures", "Batches that the sink failed to write", failures, "sink", "reason")
    letters = [
        [((sink.name, reason), float(count)) for sink in query.sinks for reason, count in sink.counts.letters.items()]
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
        samples = [[((name,), getattr(state, field)) for name, state in query.states.items()] for query in queries]
        yield kind(f"state_{name}", text, samples, "operator")


def _of_lookups(queries: Sequence[QueryMeter]) -> Iterator[Metric]:
    of = _Families(queries)
    for name, text, field in (
        ("rows", "Rows that were looked up", "rows"),
        ("hits", "Rows whose answer was in memory", "hits"),
        ("wait_seconds", "Time that tasks waited for answers, added up", "wait"),
    ):
        samples = [
            [((name,), float(getattr(lookup, field))) for name, lookup in query.lookups.items()] for query in queries
        ]
        yield of.counter(f"lookup_{name}", text, samples, "lookup")
    ages: list[list[Sample]] = [[((name,), stale) for name, stale in query.tables.items()] for query in queries]
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
