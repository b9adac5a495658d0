"""A producer's statistics: their arithmetic, and those of a run as Prometheus reads them."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

from hypothesis import given, strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from penstock.local.services import Services
from penstock.wire import Producer
from penstock.wire.producer.stats import SHORTEST, Histogram
from penstock.wire.prometheus import ProducerCollector


@given(st.lists(st.floats(SHORTEST, 1000), min_size=1), st.floats(0.01, 1))
def test_a_percentile_is_at_most_a_tenth_too_high(durations: list[float], share: float) -> None:
    seen = Histogram()
    for one in durations:
        seen.add(one)
    exact = sorted(durations)[max(0, -int(-share * len(durations) // 1) - 1)]
    assert exact * 0.999 <= seen.percentile(share) <= exact * 1.1


def test_nothing_seen_is_zero() -> None:
    assert Histogram().percentile(0.99) == 0


def test_a_run_is_counted(services: Services) -> None:
    topic = f"stats-{uuid.uuid4().hex[:8]}"

    async def work() -> str:
        async with Producer(services.kafka, linger=timedelta(0)) as producer:
            for number in range(3):
                await (await producer.send(topic, b"%d" % number))
            failing = await producer.send(topic, bytes(3_000_000))
            await asyncio.wait([failing])
            assert failing.exception()
            registry = CollectorRegistry()
            registry.register(ProducerCollector(producer, name="shop"))
            of_topic = producer.stats().topics[topic]
            assert (of_topic.records, of_topic.batches, of_topic.failed, of_topic.retries) == (3, 3, 1, 0)
            assert (of_topic.queued, of_topic.in_flight) == (0, 0)
            assert of_topic.bytes > 3 * 61
            assert 0 < of_topic.latency_p50 <= of_topic.latency_p99 < 30
            assert [one.requests for one in producer.stats().brokers.values()] == [4]
            return generate_latest(registry).decode()

    said = asyncio.run(work())
    labels = f'{{producer="shop",topic="{topic}"'
    assert f"penstock_producer_records_total{labels}}} 3.0" in said
    assert f"penstock_producer_failed_total{labels}}} 1.0" in said
    assert f'penstock_producer_latency_seconds{{producer="shop",quantile="0.99",topic="{topic}"}}' in said
    assert 'penstock_producer_requests_total{broker="' in said
    assert 'penstock_producer_buffer_used_bytes{producer="shop"} 0.0' in said
