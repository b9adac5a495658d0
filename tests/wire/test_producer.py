"""The producer against a real broker, read back by confluent-kafka; connections are cut and bytes damaged."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from fault_proxy import Answer, Cut, FaultProxy, fault_proxy
from kafka_topics import new_topic
from waiting import PATIENCE, until

from penstock.local.services import Services
from penstock.wire.errors import ConnectionLost, DeliveryTimeout, InvalidTopic, MessageTooLarge, ProducerClosed
from penstock.wire.producer.producer import Producer
from penstock.wire.producer.table_receipts import TableFailed
from penstock.wire.records.compression import Compression
from penstock.wire.records.partitioner import partition_for

SOON = timedelta(milliseconds=1)


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A new topic of four partitions."""
    with new_topic(services.kafka, "wire", 4) as name:
        yield name


def read(servers: str, topic: str, least: int = 0) -> list[Message]:
    """All records of the topic, by partition and offset; waits until there are at least the given number."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "check.crcs": True, "fetch.wait.max.ms": 10}
    )
    try:
        ends: dict[int, int] = {}

        def there() -> bool:
            for p in range(4):
                ends[p] = consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=PATIENCE)[1]
            return sum(ends.values()) >= least

        until(there, f"{least} records")
        consumer.assign([TopicPartition(topic, p, 0) for p in range(4)])
        found: list[Message] = []
        while len(found) < sum(ends.values()):
            message = consumer.poll(PATIENCE)
            assert message is not None, f"{len(found)} of {ends} came"
            assert not message.error(), message.error()
            found.append(message)
        return sorted(found, key=lambda one: (one.partition(), one.offset()))
    finally:
        consumer.close()


def values(messages: list[Message], partition: int) -> list[bytes]:
    return [one.value() for one in messages if one.partition() == partition]


def test_a_record_arrives_as_it_was_sent(services: Services, topic: str) -> None:
    async def work() -> list[Any]:
        async with Producer(services.kafka, linger=SOON) as producer:
            futures = [
                await producer.send(topic, b"v", key=b"k", headers={"a": b"1", "b": None}, timestamp=1_600_000_000_123),
                await producer.send(topic, None, key=b"tombstone"),
                await producer.send(topic, b"", partition=3),
            ]
            return list(await asyncio.gather(*futures))

    first, second, third = asyncio.run(work())
    by_place = {(one.partition(), one.offset()): one for one in read(services.kafka, topic)}
    sent = by_place[first.partition, first.offset]
    assert (sent.key(), sent.value(), sent.headers()) == (b"k", b"v", [("a", b"1"), ("b", None)])
    assert sent.timestamp()[1] == first.timestamp == 1_600_000_000_123
    assert first.partition == partition_for(b"k", 4)
    assert by_place[second.partition, second.offset].value() is None
    assert third.partition == 3 and by_place[3, third.offset].value() == b"" and by_place[3, third.offset].key() is None


def test_a_time_before_1970_is_refused_and_costs_no_memory(services: Services, topic: str) -> None:
    """Java's producer refuses it, too; an application of Kafka Streams ends at such a record."""

    async def work() -> int:
        async with Producer(services.kafka, linger=SOON) as producer:
            with pytest.raises(ValueError, match="timestamp -1 is before 1970; give milliseconds since 1970, or none"):
                await producer.send(topic, b"v", timestamp=-1)
            await (await producer.send(topic, b"v", timestamp=0))
            return producer.stats().buffer_used

    assert asyncio.run(work()) == 0
    assert [one.timestamp()[1] for one in read(services.kafka, topic)] == [0]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_tables_of_any_compression_arrive_in_order(services: Services, topic: str, compression: Compression) -> None:
    rows = 20_000
    sent = [b"%d " % n * (1 + n % 40) for n in range(rows)]
    keys = [b"key-%d" % (n % 97) if n % 5 else None for n in range(rows)]
    table = pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(sent, pa.large_binary())})

    async def work() -> Any:
        async with Producer(services.kafka, compression=compression, batch_size=100_000) as producer:
            return await producer.send_table(topic, table)

    receipt = asyncio.run(work())
    found = read(services.kafka, topic)
    assert receipt.rows == len(found) == rows
    assert receipt.offsets == {p: [(0, len(values(found, p)) - 1)] for p in receipt.offsets}
    of_key: dict[bytes | None, list[bytes]] = {}
    for key, value in zip(keys, sent, strict=True):
        of_key.setdefault(key, []).append(value)
    came: dict[bytes | None, list[bytes]] = {}
    for one in found:
        came.setdefault(one.key(), []).append(one.value())
        assert one.key() is None or one.partition() == partition_for(one.key(), 4)
    unkeyed, unkeyed_came = of_key.pop(None), came.pop(None)
    assert came == of_key
    assert sorted(unkeyed_came) == sorted(unkeyed)


def test_memory_stays_within_its_bound_and_nothing_is_dropped(services: Services, topic: str) -> None:
    async def work() -> tuple[int, int]:
        most = 0
        async with Producer(services.kafka, buffer_memory=200_000, batch_size=50_000) as producer:
            futures = []
            for n in range(5_000):
                futures.append(await producer.send(topic, b"%5d" % n * 200, partition=n % 4))
                most = max(most, producer.stats().buffer_used)
            await asyncio.gather(*futures)
        return most, len(futures)

    most, count = asyncio.run(work())
    assert most <= 200_000
    found = read(services.kafka, topic)
    assert len(found) == count
    for p in range(4):
        assert values(found, p) == [b"%5d" % n * 200 for n in range(p, 5_000, 4)]


def test_what_the_broker_refuses_says_where_and_the_rest_goes_on(services: Services, topic: str) -> None:
    async def work() -> tuple[Any, Any]:
        async with Producer(services.kafka, batch_size=1_000, linger=SOON) as producer:
            small = [await producer.send(topic, b"before", partition=0)]
            large = await producer.send(topic, bytes(3_000_000), partition=0)
            small += [await producer.send(topic, b"after %d" % n, partition=0) for n in range(20)]
            done = await asyncio.gather(*small)
            with pytest.raises(MessageTooLarge, match=f"topic {topic}, partition 0"):
                await large
            return done, None

    done, _ = asyncio.run(work())
    assert [one.offset for one in done] == list(range(21))
    assert values(read(services.kafka, topic), 0) == [b"before", *(b"after %d" % n for n in range(20))]


def test_a_table_says_which_rows_failed(services: Services, topic: str) -> None:
    rows = [b"a", bytes(3_000_000), b"b", b"c"]

    async def work() -> None:
        async with Producer(services.kafka, batch_size=1_000) as producer:
            await producer.send_table(topic, pa.table({"value": rows, "partition": [2, 2, 2, 1]}))

    with pytest.raises(TableFailed, match=r"1 rows failed, the first at 1 to 1.*MESSAGE_TOO_LARGE") as failed:
        asyncio.run(work())
    assert [(first, last) for first, last, _ in failed.value.failed] == [(1, 1)]
    assert failed.value.receipt.offsets == {2: [(0, 1)], 1: [(0, 0)]}
    assert values(read(services.kafka, topic), 2) == [b"a", b"b"]


@pytest.mark.parametrize("acks", [0, 1])
def test_fewer_acks(services: Services, topic: str, acks: Any) -> None:
    async def work() -> list[Any]:
        # Without answers nobody learns that a new partition is not ready: this one is ready when it has a record.
        async with Producer(services.kafka, linger=SOON) as producer:
            await (await producer.send(topic, b"ready", partition=1))
        async with Producer(services.kafka, acks=acks, linger=SOON) as producer:
            return [await (await producer.send(topic, b"%d" % n, partition=1)) for n in range(3)]

    offsets = [one.offset for one in asyncio.run(work())]
    assert offsets == ([-1] * 3 if acks == 0 else [1, 2, 3])
    assert values(read(services.kafka, topic, least=4), 1) == [b"ready", b"0", b"1", b"2"]


def test_wrong_use_is_told_at_once(services: Services, topic: str) -> None:
    async def work() -> None:
        async with Producer(services.kafka) as producer:
            with pytest.raises(TypeError, match="value must be bytes or None, not str; encode it first"):
                await producer.send(topic, "text")  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="has partitions 0 to 3, not 4"):
                await producer.send(topic, b"v", partition=4)
            with pytest.raises(InvalidTopic, match="a b"):
                await producer.send("a b", b"v")
        with pytest.raises(ProducerClosed, match="create a new one"):
            await producer.send("another", b"v")
        with pytest.raises(ProducerClosed):
            await producer.send(topic, b"v")

    asyncio.run(work())
    with pytest.raises(ValueError, match="an idempotent producer needs acks='all'"):
        Producer(services.kafka, acks=1, idempotent=True)
    with pytest.raises(ValueError, match=r'servers is not a list of host:port.*"host:9092'):
        Producer("nowhere")


def test_without_a_broker_it_gives_up_when_the_time_is_over() -> None:
    async def work() -> None:
        async with Producer("127.0.0.1:1", delivery_timeout=timedelta(milliseconds=300)) as producer:
            await producer.send("t", b"v")

    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1 cannot be reached"):
        asyncio.run(work())


def produce_through(
    services: Services, topic: str, fault: Callable[[FaultProxy], None], **options: Any
) -> tuple[list[Any], int]:
    """Send 4 000 records through a proxy that `fault` prepares; their metadata and the number of connections."""

    async def work() -> tuple[list[Any], int]:
        async with fault_proxy(services.kafka) as proxy:
            fault(proxy)
            async with Producer(proxy.servers, linger=SOON, batch_size=2_000, **options) as producer:
                futures = [await producer.send(topic, b"%d" % n, partition=n % 4) for n in range(4_000)]
                return list(await asyncio.gather(*futures)), proxy.connections

    return asyncio.run(work())


def assert_whole(services: Services, topic: str) -> None:
    """Nothing lost, nothing twice, all in order."""
    found = read(services.kafka, topic)
    for p in range(4):
        assert values(found, p) == [b"%d" % n for n in range(p, 4_000, 4)]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("seed", range(3))
def test_connections_cut_anywhere_lose_and_repeat_nothing(services: Services, topic: str, seed: int) -> None:
    rng = random.Random(seed)

    def cut_often(proxy: FaultProxy) -> None:
        # The first connection answers ApiVersions and Metadata, and each one some of what follows.
        proxy.hurt = lambda answer: Cut() if answer.at > 2_000 and rng.random() < 0.15 else answer.data

    _, connections = produce_through(services, topic, cut_often)
    assert connections > 3
    assert_whole(services, topic)


def test_spoilt_answers_cost_a_connection_and_no_record(services: Services, topic: str) -> None:
    rng = random.Random(7)
    left = 6

    def spoil(proxy: FaultProxy) -> None:
        def hurt(answer: Answer) -> bytes:
            nonlocal left
            if answer.at > 2_000 and left and rng.random() < 0.2:
                left -= 1
                # The length and the correlation id, which show that the stream is out of step.
                return bytes(b ^ 0x55 for b in answer.data[:8]) + answer.data[8:]
            return answer.data

        proxy.hurt = hurt

    produce_through(services, topic, spoil)
    assert left < 6
    assert_whole(services, topic)


@pytest.mark.slow
def test_a_slow_broker_makes_senders_wait(services: Services, topic: str) -> None:
    def slow(proxy: FaultProxy) -> None:
        proxy.pause = 0.02

    metadata, _ = produce_through(services, topic, slow, buffer_memory=20_000)
    assert len(metadata) == 4_000
    assert_whole(services, topic)


def test_a_broker_that_never_answers_fails_each_record_in_time(services: Services, topic: str) -> None:
    async def work() -> None:
        limits = {"request_timeout": timedelta(milliseconds=200), "delivery_timeout": timedelta(seconds=1)}
        async with (
            fault_proxy(services.kafka) as proxy,
            Producer(proxy.servers, linger=SOON, **limits) as producer,  # type: ignore[arg-type]
        ):
            await (await producer.send(topic, b"seen", partition=0))
            proxy.hurt = lambda answer: b""
            futures = [await producer.send(topic, b"lost", partition=0) for _ in range(3)]
            for future in futures:
                with pytest.raises(DeliveryTimeout, match=f"topic {topic}, partition 0.*sent \\d+ times"):
                    await future

    asyncio.run(work())
