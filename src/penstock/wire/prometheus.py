"""A producer's statistics for prometheus_client: `REGISTRY.register(ProducerCollector(producer))`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.wire.producer.producer import Producer
from penstock.wire.producer.stats import BrokerStats, TopicStats

Values = Mapping[tuple[str, ...], float]

_TOPIC_COUNTERS = {
    "records": "Records acknowledged",
    "bytes": "Bytes of acknowledged record batches",
    "batches": "Record batches acknowledged",
    "failed": "Records that failed for good",
    "retries": "Record batches sent again",
}
_TOPIC_GAUGES = {"queued": "Record batches waiting", "in_flight": "Record batches sent and not answered"}
_LATENCY = {"latency_p50": "0.5", "latency_p99": "0.99"}


class ProducerCollector(Collector):
    """Reads the statistics of one producer at each scrape; `name` tells the producers of a process apart."""

    def __init__(self, producer: Producer, name: str = "default") -> None:
        self._producer, self._name = producer, name

    def collect(self) -> Iterator[Metric]:
        stats, name = self._producer.stats(), self._name
        yield _gauge("buffer_used_bytes", "Memory of records not acknowledged", {(name,): stats.buffer_used})
        yield _gauge("buffer_memory_bytes", "Bound of that memory", {(name,): stats.buffer_memory})
        topics: dict[tuple[str, ...], TopicStats] = {(name, topic): one for topic, one in stats.topics.items()}
        brokers: dict[tuple[str, ...], BrokerStats] = {(name, str(node)): one for node, one in stats.brokers.items()}
        for field, text in _TOPIC_COUNTERS.items():
            yield _counter(field, text, {labels: getattr(one, field) for labels, one in topics.items()}, "topic")
        for field, text in _TOPIC_GAUGES.items():
            yield _gauge(field, text, {labels: getattr(one, field) for labels, one in topics.items()}, "topic")
        yield _counter("requests", "Requests", {labels: one.requests for labels, one in brokers.items()}, "broker")
        yield _latency("latency_seconds", "From batch to answer", topics, "topic")
        yield _latency("request_latency_seconds", "From request to answer", brokers, "broker")


def _counter(field: str, text: str, values: Values, label: str) -> Metric:
    made = CounterMetricFamily(f"penstock_producer_{field}", text, labels=("producer", label))
    for labels, value in values.items():
        made.add_metric(labels, value)
    return made


def _gauge(field: str, text: str, values: Values, *more: str) -> Metric:
    made = GaugeMetricFamily(f"penstock_producer_{field}", text, labels=("producer", *more))
    for labels, value in values.items():
        made.add_metric(labels, value)
    return made


def _latency(field: str, text: str, of: Mapping[tuple[str, ...], object], label: str) -> Metric:
    values: dict[tuple[str, ...], float] = {
        (*labels, quantile): getattr(one, name) for labels, one in of.items() for name, quantile in _LATENCY.items()
    }
    return _gauge(field, text, values, label, "quantile")
