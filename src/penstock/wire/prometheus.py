"""A producer's statistics for prometheus_client: `REGISTRY.register(ProducerCollector(producer))`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.border.public import public
from penstock.wire.producer.stats import BOUNDS, BrokerStats, HasStats, Latency, TopicStats

Values = Mapping[tuple[str, ...], float]

_TOPIC_COUNTERS = {
    "records": "Records acknowledged",
    "bytes": "Bytes of acknowledged record batches",
    "batches": "Record batches acknowledged",
    "failed": "Records that failed for good",
    "retries": "Record batches sent again",
}
_TOPIC_GAUGES = {"queued": "Record batches waiting", "in_flight": "Record batches sent and not answered"}
_BUCKETS = (*map(str, BOUNDS), "+Inf")


@public("wire.prometheus.ProducerCollector")
class ProducerCollector(Collector):
    """Reads the statistics of one producer at each scrape; `name` distinguishes the producers of a process."""

    def __init__(self, producer: HasStats, name: str = "default") -> None:
        self._producer, self._name = producer, name

    def collect(self) -> Iterator[Metric]:
        stats, name = self._producer.stats(), self._name
        yield _gauge("buffer_used_bytes", "Memory of records not acknowledged", {(name,): stats.buffer_used})
        yield _gauge("buffer_memory_bytes", "Bound of that memory", {(name,): stats.buffer_memory})
        topics: dict[tuple[str, ...], TopicStats] = {
            (name, topic): topic_stats for topic, topic_stats in stats.topics.items()
        }
        brokers: dict[tuple[str, ...], BrokerStats] = {
            (name, str(node)): broker_stats for node, broker_stats in stats.brokers.items()
        }
        for field, text in _TOPIC_COUNTERS.items():
            yield _counter(
                field, text, {labels: getattr(topic_stats, field) for labels, topic_stats in topics.items()}, "topic"
            )
        for field, text in _TOPIC_GAUGES.items():
            yield _gauge(
                field, text, {labels: getattr(topic_stats, field) for labels, topic_stats in topics.items()}, "topic"
            )
        yield _counter(
            "requests",
            "Requests",
            {labels: broker_stats.requests for labels, broker_stats in brokers.items()},
            "broker",
        )
        batches = {labels: topic_stats.latency for labels, topic_stats in topics.items()}
        yield _histogram("latency_seconds", "From a record batch to its answer", batches, "topic")
        answers = {labels: broker_stats.latency for labels, broker_stats in brokers.items()}
        yield _histogram("request_latency_seconds", "From a request to its answer", answers, "broker")


def _counter(field: str, text: str, values: Values, label: str) -> Metric:
    family = CounterMetricFamily(f"penstock_producer_{field}", text, labels=("producer", label))
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _gauge(field: str, text: str, values: Values, *more: str) -> Metric:
    family = GaugeMetricFamily(f"penstock_producer_{field}", text, labels=("producer", *more))
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(field: str, text: str, values: Mapping[tuple[str, ...], Latency], label: str) -> Metric:
    family = HistogramMetricFamily(f"penstock_producer_{field}", text, labels=("producer", label))
    for labels, latency in values.items():
        family.add_metric(labels, list(zip(_BUCKETS, latency.counts, strict=True)), latency.seconds)
    return family
