"""Topics that are deleted while a producer sends: what it says, and that it can leave their creation to others."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_topics import messages, new_topic
from waiting import PATIENCE, until

from penstock.local.services import Services
from penstock.wire import Producer
from penstock.wire.errors import DeliveryTimeout, KafkaError

PARTITIONS = 4
"""Of a topic that the test broker creates."""


async def delete(services: Services, topic: str) -> None:
    """Delete the topic, and wait until the broker knows it no more."""
    admin = AdminClient({"bootstrap.servers": services.kafka})
    await asyncio.to_thread(admin.delete_topics([topic])[topic].result)
    gone = lambda: topic not in admin.list_topics(timeout=PATIENCE).topics  # noqa: E731
    await asyncio.to_thread(until, gone, "the end of the topic")


def test_a_topic_that_a_broker_creates_again_is_told(services: Services, caplog: pytest.LogCaptureFixture) -> None:
    async def work(topic: str) -> None:
        async with Producer(services.kafka) as producer:
            await (await producer.send(topic, b"before"))
            await delete(services, topic)
            await (await producer.send(topic, b"after"))

    with new_topic(services.kafka, "anew", 3) as topic:
        asyncio.run(work(topic))
        assert [one.value() for one in messages(services.kafka, topic, PARTITIONS)] == [b"after"]
        told = f"topic {topic} was deleted and created again, with {PARTITIONS} partitions instead of 3"
        assert told in caplog.text and caplog.text.count("was deleted") == 1


@pytest.mark.slow
def test_a_producer_may_create_no_topic(services: Services) -> None:
    async def work(topic: str) -> None:
        async with Producer(services.kafka, create_topics=False, delivery_timeout=3) as producer:
            await (await producer.send(topic, b"before"))
            await delete(services, topic)
            with pytest.raises(DeliveryTimeout, match="UNKNOWN_TOPIC_ID"):
                await (await producer.send(topic, b"after"))
            with pytest.raises(KafkaError, match="UNKNOWN_TOPIC"):
                await (await producer.send(f"{topic}-other", b"x"))

    admin = AdminClient({"bootstrap.servers": services.kafka})
    with new_topic(services.kafka, "kept", 3) as topic:
        asyncio.run(work(topic))
        known = admin.list_topics(timeout=PATIENCE).topics
        assert topic not in known and f"{topic}-other" not in known
        # For the end of the fixture.
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
