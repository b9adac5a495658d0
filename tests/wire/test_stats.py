"""A producer's statistics: their arithmetic, and those of a run as Prometheus reads them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import reduce
from operator import add

from hypothesis import given, strategies as st
from kafka_topics import new_topic
from prometheus_client import CollectorRegistry, generate_latest

from penstock.local.services import Services
from penstock.wire import Producer
from penstock.wire.producer.stats import BOUNDS, SHORTEST, Histogram, Latency
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
    assert Histogram().latency() == Latency((0,) * (len(BOUNDS) + 1), 0.0)


@given(st.lists(st.one_of(st.floats(0, 300), st.sampled_from([*BOUNDS, SHORTEST]))))
def test_a_duration_is_counted_up_to_each_bound_that_it_does_not_exceed(durations: list[float]) -> None:
    seen = Histogram()
    for one in durations:
        seen.add(one)
    # A relative error of the logarithm, a few units in the last place, decides only for values next to a bound.
    few, many = (
        [sum(one <= bound * share for one in durations) for bound in BOUNDS] for share in (1 - 1e-12, 1 + 1e-12)
    )
    latency = seen.latency()
    assert all(a <= b <= c for a, b, c in zip(few, latency.counts, many, strict=False))
    assert latency.counts[-1] == len(durations)
    # Python's sum rounds less often from 3.12 on.
    assert latency.seconds == reduce(add, durations, 0.0)


def test_a_bound_is_in_its_own_bucket() -> None:
    for place, bound in enumerate(BOUNDS):
        seen = Histogram()
        seen.add(bound)
        assert seen.latency().counts == (0,) * place + (1,) * (len(BOUNDS) + 1 - place)


def test_a_run_is_counted(services: Services) -> None:
    async def work(topic: str) -> str:
        async with Producer(services.kafka, linger=timedelta(0)) as producer:
            for number in range(3):
                await (await producer.send(topic, b"%d" % number))
            failing = await producer.send(topic, bytes(3_000_000))
            await asyncio.wait([failing])
            assert failing.exception()
            registry = CollectorRegistry()
            registry.register(ProducerCollector(producer, name="shop"))
            counted = producer.stats().topics[topic]
            assert (counted.records, counted.batches, counted.failed, counted.retries) == (3, 3, 1, 0)
            assert (counted.queued, counted.in_flight) == (0, 0)
            assert counted.bytes > 3 * 61
            assert 0 < counted.latency_p50 <= counted.latency_p99 < 30
            assert [one.requests for one in producer.stats().brokers.values()] == [4]
            return generate_latest(registry).decode()

    # A topic that the broker makes at the first send has no leader for a while: such attempts would count as retries.
    with new_topic(services.kafka, "stats", 1) as topic:
        said = asyncio.run(work(topic))
    labels = f'{{producer="shop",topic="{topic}"'
    assert f"penstock_producer_records_total{labels}}} 3.0" in said
    assert f"penstock_producer_failed_total{labels}}} 1.0" in said
    of_topic = f'producer="shop",topic="{topic}"'
    assert f'penstock_producer_latency_seconds_bucket{{le="104.8576",{of_topic}}} 3.0' in said
    assert f'penstock_producer_latency_seconds_bucket{{le="+Inf",{of_topic}}} 3.0' in said
    assert f"penstock_producer_latency_seconds_count{{{of_topic}}} 3.0" in said
    assert 'penstock_producer_request_latency_seconds_bucket{broker="' in said
    assert "quantile" not in said
    assert 'penstock_producer_requests_total{broker="' in said
    assert 'penstock_producer_buffer_used_bytes{producer="shop"} 0.0' in said
