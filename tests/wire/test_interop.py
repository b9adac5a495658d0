"""Other clients read what we write, and vice versa: the Java client, librdkafka and KafkaJS."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType

import confluent_peer
import java_peer
import node_peer
import pytest
from kafka_topics import new_topic
from peer_records import PARTITIONS, Part, Record, by_partition, committed, parts

from penstock.local.services import Services
from penstock.wire import Producer, Reader

PEERS = [java_peer, confluent_peer, node_peer]


@pytest.fixture(scope="module")
def written() -> list[Part]:
    return parts()


@pytest.fixture(scope="module")
def topic(services: Services, written: list[Part]) -> Iterator[str]:
    """A topic with all parts, written by us."""
    with new_topic(services.kafka, "ours", PARTITIONS) as name:
        asyncio.run(write(services.kafka, name, written))
        yield name


async def write(servers: str, topic: str, parts: list[Part]) -> None:
    for codec, end, records in parts:
        id = uuid.uuid4().hex if end else None
        async with Producer(servers, compression=codec, transactional_id=id) as producer:
            try:
                async with producer.transaction() if id else nullcontext():
                    for one in records:
                        place = {"partition": one.partition, "timestamp": one.timestamp}
                        await producer.send(topic, one.value, key=one.key, headers=one.headers, **place)
                    await producer.flush()
                    if end == "abort":
                        raise InterruptedError
            except InterruptedError:
                assert end == "abort"


def read(servers: str, topic: str) -> list[Record]:
    async def work() -> list[Record]:
        found = []
        async with Reader(servers) as reader:
            start, end = await reader.earliest(topic), await reader.latest(topic)
            async for partition, table in reader.read(topic, start=start, end=end):
                for row in table.to_pylist():
                    headers = [(one["key"], one["value"]) for one in row["headers"]]
                    time = round(row["timestamp"].timestamp() * 1000)
                    found.append(Record(partition, row["key"], row["value"], headers, time))
        return found

    return asyncio.run(work())


def test_the_java_console_consumer_reads_what_we_write(services: Services, topic: str, written: list[Part]) -> None:
    expected = committed(written)
    assert by_partition(java_peer.read(services.kafka, topic, len(expected))) == expected


def test_kafkajs_reads_what_we_write(services: Services, topic: str, written: list[Part]) -> None:
    expected = committed(written)
    assert by_partition(node_peer.read(services.kafka, topic, len(expected))) == expected


def test_librdkafka_reads_what_we_write(services: Services, topic: str, written: list[Part]) -> None:
    assert by_partition(confluent_peer.read(services.kafka, topic)) == committed(written)
    everything = by_partition(record for part in written for record in part.records)
    assert by_partition(confluent_peer.read(services.kafka, topic, isolation="read_uncommitted")) == everything


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.__name__)
def test_we_read_what_others_write(services: Services, written: list[Part], peer: ModuleType) -> None:
    with new_topic(services.kafka, "theirs", PARTITIONS) as name:
        peer.write(services.kafka, name, written)
        assert by_partition(read(services.kafka, name)) == committed(written)
