"""Leaders that are killed, or whose disks fill up, while millions of rows go to three real brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pytest
from cluster_topics import create, leaders
from confluent_kafka.admin import AdminClient
from kafka_cluster import KafkaCluster
from kafka_topics import stored

from penstock.wire.errors import DeliveryTimeout, KafkaError
from penstock.wire.producer.producer import Producer
from penstock.wire.topic_records import Reader

pytestmark = pytest.mark.kill

PARTITIONS, STEP = 6, 50_000
ROWS = 5_000_000


@pytest.fixture
def topic(admin: AdminClient) -> str:
    """A new topic of six partitions on three brokers; two of them must have each record."""
    return create(admin, 6)


def numbered(count: int, at: Mapping[int, Callable[[], None]]) -> Iterator[pa.RecordBatch]:
    """Rows 0 to `count`: row n has the value n, as 8 bytes, and goes to partition n modulo PARTITIONS.

    `at` has the actions to run before a row's batch is made.
    """
    left = dict(at)
    for first in range(0, count, STEP):
        for row in [row for row in left if row <= first]:
            left.pop(row)()
        numbers = np.arange(first, min(first + STEP, count))
        values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(numbers), [None, pa.py_buffer(numbers)])
        yield pa.record_batch({"value": values, "partition": pa.array(numbers % PARTITIONS, pa.int32())})


async def numbers_of(servers: str, topic: str) -> dict[int, np.ndarray]:
    """The values of each partition, in the order of their offsets."""
    found: dict[int, list[np.ndarray]] = {p: [] for p in range(PARTITIONS)}
    async with Reader(servers) as reader:
        start, end = await reader.earliest(topic), await reader.latest(topic)
        async for partition, table in reader.read(topic, start=start, end=end):
            values = table.column("value").combine_chunks().cast(pa.binary(8))
            found[partition].append(np.frombuffer(values.buffers()[1], np.int64))
    return {p: np.concatenate(of or [np.empty(0, np.int64)]) for p, of in found.items()}


def assert_each_once_in_order(found: dict[int, np.ndarray], count: int) -> None:
    for p, came in found.items():
        sent = np.arange(p, count, PARTITIONS)
        if not np.array_equal(came, sent):
            lost, twice = len(np.setdiff1d(sent, came)), len(came) - len(np.unique(came))
            pytest.fail(f"partition {p}: {lost} lost, {twice} twice of {len(sent)}; {len(came)} came")


def test_a_killed_leader_costs_no_row(cluster: KafkaCluster, admin: AdminClient, topic: str) -> None:
    victim = next(leader for leader in leaders(admin, topic) if leader != 1)
    faults = {ROWS // 3: lambda: cluster.kill(victim), 2 * ROWS // 3: lambda: cluster.start(victim)}

    async def work() -> tuple[int, dict[int, np.ndarray]]:
        # Little memory, so that at the kill most records are on the brokers, and some in flight.
        async with Producer(cluster.servers, buffer_memory=4 << 20, batch_size=200_000) as producer:
            receipt = await producer.send_table(topic, numbered(ROWS, faults))
        return receipt.rows, await numbers_of(cluster.address(1), topic)

    rows, found = asyncio.run(work())
    assert rows == ROWS
    assert_each_once_in_order(found, ROWS)


def test_a_leader_whose_disk_is_full_costs_no_row(cluster: KafkaCluster, admin: AdminClient, topic: str) -> None:
    count = 600_000
    victim = next(leader for leader in leaders(admin, topic) if leader != 1)

    def restart() -> None:
        cluster.wait_for_end(victim)
        cluster.start(victim)

    async def work() -> tuple[int, dict[int, np.ndarray]]:
        faults = {count // 3: lambda: cluster.fill_disk(victim, topic, 50_000), 2 * count // 3: restart}
        async with Producer(cluster.servers, buffer_memory=500_000, batch_size=20_000) as producer:
            receipt = await producer.send_table(topic, numbered(count, faults))
        return receipt.rows, await numbers_of(cluster.address(1), topic)

    rows, found = asyncio.run(work())
    assert rows == count
    assert_each_once_in_order(found, count)


def test_what_a_full_disk_acknowledged_is_there_and_the_rest_is_told(cluster: KafkaCluster, admin: AdminClient) -> None:
    """The only replica's disk is full. Failed records may have been written anyway, once and in order."""
    topic = create(admin, 1, leader=2)
    values = [b"%d " % n * 100 for n in range(2_000)]

    async def work() -> list[bool]:
        limits = {"delivery_timeout": timedelta(seconds=3), "request_timeout": timedelta(seconds=1)}
        async with Producer(cluster.servers, batch_size=10_000, **limits) as producer:  # type: ignore[arg-type]
            futures = [await producer.send(topic, value) for value in values[:500]]
            await asyncio.gather(*futures)
            cluster.fill_disk(2, topic, 100_000)
            futures += [await producer.send(topic, value) for value in values[500:1_500]]
            told = await asyncio.gather(*futures, return_exceptions=True)
            assert all(isinstance(one, DeliveryTimeout) for one in told if isinstance(one, BaseException))
            await asyncio.to_thread(cluster.wait_for_end, 2)
            await asyncio.to_thread(cluster.start_all)
            told += await asyncio.gather(*[await producer.send(topic, value) for value in values[1_500:]])
            return [not isinstance(one, KafkaError) for one in told]

    acknowledged = asyncio.run(work())
    assert 500 < acknowledged.count(True) < 2_000
    (found,) = stored(cluster.servers, topic, 1)
    places = [values.index(value) for value in found]
    assert places == sorted(set(places))
    assert {n for n, done in enumerate(acknowledged) if done} <= set(places)
