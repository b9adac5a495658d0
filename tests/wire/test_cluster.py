"""The producer against three real brokers that are killed, moved and outgrown, and against librdkafka's mock ones."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from cluster_topics import create, leaders, replicated
from confluent_kafka import ElectionType, Producer as Librdkafka, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from kafka_cluster import KafkaCluster
from kafka_topics import assert_same, stored
from waiting import PATIENCE, until

from penstock.wire.errors import DeliveryTimeout
from penstock.wire.producer.producer import Producer
from penstock.wire.records.partitioner import partition_for

pytestmark = pytest.mark.kill

SOON = timedelta(milliseconds=1)


@pytest.fixture
def topic(admin: AdminClient) -> str:
    """A new topic of six partitions on three brokers; two of them must have each record."""
    return create(admin, 6)


def dealt(count: int, partitions: int) -> list[list[bytes]]:
    """The content of each partition if record n went to partition n modulo their number."""
    return [[b"%d" % n for n in range(p, count, partitions)] for p in range(partitions)]


def rows(first: int, count: int, partitions: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    values = pa.array([b"%d" % n for n in numbers], pa.binary())
    return pa.record_batch({"value": values, "partition": pa.array([n % partitions for n in numbers], pa.int32())})


@pytest.mark.slow
def test_a_killed_leader_costs_no_future(cluster: KafkaCluster, admin: AdminClient, topic: str) -> None:
    count = 100_000
    victim = next(leader for leader in leaders(admin, topic) if leader != 1)

    async def work() -> list[Any]:
        async with Producer(cluster.servers, buffer_memory=2_000_000, batch_size=20_000) as producer:
            futures = []
            for n in range(count):
                if n == count // 2:
                    cluster.kill(victim)
                futures.append(await producer.send(topic, b"%d" % n, partition=n % 6))
            return await asyncio.gather(*futures)

    places = asyncio.run(work())
    assert_same(stored(cluster.address(1), topic, 6), dealt(count, 6))
    known = [(n % 6, n // 6) for n in range(count)]
    # -1: the old leader wrote it and died before its answer, and the new leader does not return the offset.
    assert all((one.partition, one.offset) in (place, (place[0], -1)) for one, place in zip(places, known, strict=True))


def test_records_flow_while_leaders_move_away_and_back(cluster: KafkaCluster, admin: AdminClient, topic: str) -> None:
    preferred = leaders(admin, topic)
    places = [TopicPartition(topic, p) for p in range(6)]

    def move() -> None:
        cluster.stop(2)
        until(lambda: 2 not in leaders(admin, topic), "move away")
        cluster.start(2)
        cluster.wait(2)
        until(lambda: replicated(admin, topic), "return of the replicas")
        admin.elect_leaders(ElectionType.PREFERRED, places).result()
        until(lambda: leaders(admin, topic) == preferred, "move back")

    async def work() -> int:
        async with Producer(cluster.servers, linger=SOON) as producer:
            moved, sent = asyncio.create_task(asyncio.to_thread(move)), 0
            while not moved.done():
                await producer.send_table(topic, rows(sent, 600, 6))
                sent += 600
            await moved
            await producer.send_table(topic, rows(sent, 600, 6))
            return sent + 600

    count = asyncio.run(work())
    assert_same(stored(cluster.servers, topic, 6), dealt(count, 6))


def test_new_partitions_are_used(cluster: KafkaCluster, admin: AdminClient) -> None:
    topic = create(admin, 2)
    key = next(b"%d" % n for n in range(100) if partition_for(b"%d" % n, 5) == 4)

    async def work() -> None:
        async with Producer(cluster.servers, linger=SOON, metadata_max_age=timedelta(milliseconds=200)) as producer:
            assert (await (await producer.send(topic, b"", key=key))).partition < 2
            admin.create_partitions([NewPartitions(topic, 5)])[topic].result()
            deadline = time.monotonic() + PATIENCE
            while (await (await producer.send(topic, b"", key=key))).partition != 4:
                assert time.monotonic() < deadline
            receipt = await producer.send_table(topic, pa.table({"value": [b""] * 5, "partition": range(5)}))
            assert sorted(receipt.offsets) == list(range(5))

    asyncio.run(work())


def test_a_record_for_a_new_partition_looks_for_it_at_once(cluster: KafkaCluster, admin: AdminClient) -> None:
    topic = create(admin, 1)

    async def work() -> None:
        async with Producer(cluster.servers, linger=SOON) as producer:
            await (await producer.send(topic, b"", partition=0))
            with pytest.raises(ValueError, match="has partitions 0 to 0, not 2"):
                await producer.send(topic, b"", partition=2)
            admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
            until(lambda: len(leaders(admin, topic)) == 3, "new partitions")
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                try:
                    future = await producer.send(topic, b"", partition=2)
                except ValueError:  # this broker does not know it yet
                    continue
                assert (await future).partition == 2
                return
            pytest.fail("the new partition was never found")

    asyncio.run(work())


@pytest.mark.slow
def test_too_few_replicas_are_waited_for_until_the_time_is_over(
    cluster: KafkaCluster, admin: AdminClient, topic: str
) -> None:
    async def work() -> None:
        limits = {"delivery_timeout": timedelta(seconds=8), "request_timeout": timedelta(seconds=2)}
        async with (
            Producer(cluster.servers, linger=SOON, **limits) as hasty,  # type: ignore[arg-type]
            Producer(cluster.servers, linger=SOON) as patient,
        ):
            for producer in hasty, patient:
                await producer.send_table(topic, rows(0, 6, 6))
            cluster.kill(2, 3)
            waiting = [await patient.send(topic, b"%d" % n, partition=n % 6) for n in range(6, 600)]
            late = [await hasty.send(topic, b"late", partition=p) for p in range(6)]
            failed = await asyncio.gather(*late, return_exceptions=True)
            assert all(isinstance(error, DeliveryTimeout) for error in failed)
            assert any("NOT_ENOUGH_REPLICAS" in str(error) for error in failed), failed
            assert not any(future.done() for future in waiting)
            cluster.start(3)
            await asyncio.gather(*waiting)

    asyncio.run(work())
    found = stored(cluster.address(1), topic, 6)
    # Records that failed may have been written anyway.
    ours = [[value for value in of[1:] if value != b"late"] for of in found]
    assert_same(ours, dealt(600, 6))


def test_librdkafkas_mock_cluster_serves() -> None:
    mock = Librdkafka({"test.mock.num.brokers": 3, "bootstrap.servers": "replaced", "log_level": 0})
    brokers = mock.list_topics(timeout=PATIENCE).brokers.values()
    servers = ",".join(f"{one.host}:{one.port}" for one in brokers)

    async def work() -> None:
        async with Producer(servers, delivery_timeout=timedelta(seconds=PATIENCE)) as producer:
            receipt = await producer.send_table("mocked", rows(0, 4_000, 4))
            assert receipt.offsets == {p: [(0, 999)] for p in range(4)}
            assert (await (await producer.send("mocked", b"4000", partition=0))).offset == 1_000

    asyncio.run(work())
    assert len(brokers) == 3
    assert_same(stored(servers, "mocked", 4), dealt(4_001, 4))
