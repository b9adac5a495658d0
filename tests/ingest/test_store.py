"""Events that Kafka does not take: only their own requests are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from fault_proxy import FaultProxy, fault_proxy, quick_producer
from kafka_topics import new_topic, stored
from refusals import Kind, Refusal

from penstock.ingest.events import KeyedEvents
from penstock.ingest.exchange import RefusedRequest
from penstock.ingest.kafka_store import KafkaStore
from penstock.local.services import Services
from penstock.wire import Reader
from penstock.wire.errors import ClusterAuthorizationFailed, TopicAuthorizationFailed


def event(value: bytes, key: bytes | None = None) -> KeyedEvents:
    return KeyedEvents.of([value], key, len(value))


@pytest.fixture
def good(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "good", 1) as name:
        yield name


@pytest.fixture
def compacted(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "compacted", 1, {"cleanup.policy": "compact"}) as name:
        yield name


@asynccontextmanager
async def store_behind(services: Services, *topics: str) -> AsyncIterator[tuple[KafkaStore, FaultProxy]]:
    async with fault_proxy(services.kafka) as proxy, Reader(services.kafka) as reader:
        store = KafkaStore(quick_producer(proxy), reader, topics)
        await store.open()
        try:
            yield store, proxy
        finally:
            await store.close()


def test_a_topic_that_does_not_take_an_event_takes_the_others(services: Services, good: str, compacted: str) -> None:
    async def work() -> None:
        async with store_behind(services, good, compacted) as (store, _):
            together = [
                store.put(compacted, event(b"1", b"k")),
                store.put(compacted, event(b"2")),
                store.put(compacted, event(b"3", b"k")),
            ]
            before, bad, behind = await asyncio.gather(*together, return_exceptions=True)
            assert (before, behind) == (None, None)
            assert isinstance(bad, RefusedRequest)
            assert (bad.status, bad.retry_after) == (400, None)
            assert "INVALID_RECORD" in bad.detail and "without key" in bad.detail
            store.require_ready()
            await store.put(good, event(b"4"))
            assert store.facts().kafka == "ok"

    asyncio.run(work())
    assert stored(services.kafka, compacted, 1) == [[b"1", b"3"]]
    assert stored(services.kafka, good, 1) == [[b"4"]]


@pytest.mark.parametrize("kind", [TopicAuthorizationFailed, ClusterAuthorizationFailed], ids=lambda kind: kind.name)
def test_a_server_that_may_not_write_to_a_topic_takes_events_for_others(
    services: Services, good: str, compacted: str, kind: Kind
) -> None:
    async def work() -> None:
        async with store_behind(services, good, compacted) as (store, proxy):
            Refusal(proxy).once(kind)
            with pytest.raises(RefusedRequest, match=f"tell its operator: {kind.name}") as refused:
                await store.put(compacted, event(b"1", b"k"))
            assert (refused.value.status, refused.value.retry_after) == (500, None)
            store.require_ready()
            await store.put(good, event(b"2"))

    asyncio.run(work())
