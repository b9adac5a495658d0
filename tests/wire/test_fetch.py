"""The reader against a real broker: records of confluent-kafka and of our producer; connections are cut on the way."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer as Confluent
from confluent_kafka.admin import AdminClient, NewTopic
from fault_proxy import Cut, FaultProxy, Request, fault_proxy
from kafka_topics import create_topics
from refusals import Refusal
from waiting import PATIENCE, patience, until

from penstock.local.services import Services
from penstock.wire import fetcher
from penstock.wire.broker_connection import BrokerConnection
from penstock.wire.errors import (
    ConnectionLost,
    LeaderNotAvailable,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestTimeout,
    UnknownTopicOrPartition,
)
from penstock.wire.fetcher import RecordsDamaged, TopicReplaced
from penstock.wire.producer.producer import Producer
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import FETCH
from penstock.wire.topic_records import Reader

PARTITIONS = 3
SHORT = timedelta(milliseconds=100)
# Without it librdkafka repeats batches that a newly elected leader refuses, after the batches that it accepted.
ORDERED = {"enable.idempotence": True}

Found = dict[int, list[dict[str, Any]]]


@pytest.fixture
def make(services: Services) -> Iterator[Callable[..., str]]:
    """Makes topics of three partitions."""
    admin, made = AdminClient({"bootstrap.servers": services.kafka}), []

    def create(name: str = "", **config: str) -> str:
        name = name or f"fetch-{uuid.uuid4().hex[:8]}"
        create_topics(admin, [NewTopic(name, PARTITIONS, 1, config=config)])
        made.append(name)
        return name

    yield create
    for done in admin.delete_topics(list(set(made))).values():
        done.result()


@pytest.fixture
def topic(make: Callable[..., str]) -> str:
    return make()


async def collect(reader: Reader, topic: str, **options: Any) -> Found:
    """All records up to now, by partition."""
    options = {"start": await reader.earliest(topic), "end": await reader.latest(topic)} | options
    found: Found = {p: [] for p in options["start"]}
    async for partition, table in reader.read(topic, **options):
        assert table.num_rows
        found[partition] += table.to_pylist()
    for partition in found:
        assert offsets(found, partition) == sorted(set(offsets(found, partition)))
    return found


def read(services: Services, topic: str, *, committed: bool = True, **options: Any) -> Found:
    async def work() -> Found:
        async with Reader(services.kafka, committed=committed) as reader:
            return await asyncio.wait_for(collect(reader, topic, **options), 30)

    return asyncio.run(work())


def values(found: Found, partition: int) -> list[bytes]:
    return [row["value"] for row in found[partition]]


def offsets(found: Found, partition: int) -> list[int]:
    return [row["offset"] for row in found[partition]]


def write(services: Services, topic: str, count: int, **options: Any) -> None:
    """Values 0 to count, round the partitions, by confluent-kafka."""
    producer = Confluent({"bootstrap.servers": services.kafka, "linger.ms": 5, **ORDERED, **options})
    for n in range(count):
        producer.produce(topic, b"%d" % n, partition=n % PARTITIONS)
    assert producer.flush(20) == 0


def assert_whole(found: Found, count: int) -> None:
    for p in range(PARTITIONS):
        assert values(found, p) == [b"%d" % n for n in range(p, count, PARTITIONS)]
        assert offsets(found, p) == list(range(len(found[p])))


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_reads_what_librdkafka_writes(services: Services, topic: str, codec: str) -> None:
    write(services, topic, 5_000, **{"compression.type": codec})
    assert_whole(read(services, topic), 5_000)
    assert_whole(read(services, topic, max_bytes=2_000), 5_000)


def test_keys_headers_times_and_nulls(services: Services, topic: str) -> None:
    producer = Confluent({"bootstrap.servers": services.kafka})
    headers = [("a", b"1"), ("a", None), ("b", b"")]
    producer.produce(topic, b"v", b"k", partition=0, headers=headers, timestamp=1_600_000_000_123)
    producer.produce(topic, None, b"k", partition=0, timestamp=1)
    producer.produce(topic, b"", None, partition=0, timestamp=2)
    producer.flush(10)
    first, second, third = read(services, topic)[0]
    assert (first["key"], first["value"], first["timestamp"].timestamp()) == (b"k", b"v", 1_600_000_000.123)
    assert [(one["key"], one["value"]) for one in first["headers"]] == headers
    assert (second["offset"], second["key"], second["value"], second["headers"]) == (1, b"k", None, [])
    assert (third["key"], third["value"]) == (None, b"")


def test_reads_what_our_producer_writes(services: Services, topic: str) -> None:
    rows = [b"%d" % n for n in range(30_000)]

    async def work() -> Found:
        async with Producer(services.kafka, compression="zstd", batch_size=20_000) as producer:
            await producer.send_table(topic, pa.table({"value": rows, "partition": [n % 3 for n in range(30_000)]}))
        async with Reader(services.kafka) as reader:
            return await collect(reader, topic)

    assert_whole(asyncio.run(work()), 30_000)


def test_starts_and_ends_between_the_records_of_a_batch(services: Services, topic: str) -> None:
    write(services, topic, 300, **{"linger.ms": 200})
    found = read(services, topic, start={0: 10, 2: 99, 1: 100}, end={0: 13, 2: 100, 1: 100})
    assert {p: offsets(found, p) for p in found} == {0: [10, 11, 12], 2: [99], 1: []}
    assert read(services, topic, start={}, end={}) == {}


def test_a_batch_larger_than_max_bytes_comes_and_starves_no_partition(services: Services, topic: str) -> None:
    producer = Confluent({"bootstrap.servers": services.kafka, "batch.num.messages": 1, **ORDERED})
    sent = {p: [b"%d" % (10 * p + n) * 50_000 for n in range(3)] for p in range(PARTITIONS)}
    for p, some in sent.items():
        for value in some:
            producer.produce(topic, value, partition=p)
    producer.flush(10)
    found = read(services, topic, max_bytes=1)
    assert {p: values(found, p) for p in found} == sent


def test_offsets_of_times(services: Services, topic: str) -> None:
    producer = Confluent({"bootstrap.servers": services.kafka})
    for n in range(10):
        producer.produce(topic, b"v", partition=0, timestamp=1000 + n)
    producer.flush(10)

    async def work() -> tuple[Any, ...]:
        async with Reader(services.kafka) as reader:
            times = [await reader.at_time(topic, ms) for ms in (0, 1004, 2000)]
            return *times, await reader.partitions(topic), (await reader.topics())[topic]

    empty = {1: 0, 2: 0}
    assert asyncio.run(work()) == ({0: 0} | empty, {0: 4} | empty, {0: 10} | empty, range(PARTITIONS), PARTITIONS)


def transactional(services: Services) -> Confluent:
    producer = Confluent({"bootstrap.servers": services.kafka, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(20)
    return producer


def transaction(producer: Confluent, topic: str, *sent: bytes) -> None:
    producer.begin_transaction()
    for value in sent:
        producer.produce(topic, value, partition=0)
    assert producer.flush(10) == 0


def test_transactions(services: Services, topic: str) -> None:
    producer = transactional(services)
    transaction(producer, topic, b"a", b"b")
    producer.commit_transaction(20)
    transaction(producer, topic, b"dropped")
    producer.abort_transaction(20)
    transaction(producer, topic, b"c")
    producer.commit_transaction(20)
    everything = [b"a", b"b", b"dropped", b"c"]
    # A marker follows each transaction: there is no record at the last offset. The answer to a commit, or to an abort,
    # comes before the marker is in the partition.
    until(lambda: offsets(read(services, topic), 0) == [0, 1, 5], "marker of the last commit")
    assert values(read(services, topic), 0) == [b"a", b"b", b"c"]
    assert values(read(services, topic, committed=False), 0) == everything
    # From the middle of the aborted records.
    assert values(read(services, topic, start={0: 3}, end={0: 7}), 0) == [b"c"]

    transaction(producer, topic, b"open")
    write(services, topic, 1)
    assert values(read(services, topic), 0) == [b"a", b"b", b"c"]
    assert values(read(services, topic, committed=False), 0) == [*everything, b"open", b"0"]
    producer.abort_transaction(20)
    until(lambda: values(read(services, topic), 0) == [b"a", b"b", b"c", b"0"], "marker of the aborted transaction")


def test_a_topic_that_ends_with_an_aborted_transaction_ends(services: Services, topic: str) -> None:
    producer = transactional(services)
    transaction(producer, topic, b"dropped")
    producer.abort_transaction(20)
    assert read(services, topic) == {0: [], 1: [], 2: []}


def test_a_compacted_topic_has_gaps(services: Services, make: Callable[..., str]) -> None:
    quick = {"min.cleanable.dirty.ratio": "0.01", "segment.ms": "100", "max.compaction.lag.ms": "100"}
    topic = make(**quick, **{"cleanup.policy": "compact", "delete.retention.ms": "0"})
    producer = Confluent({"bootstrap.servers": services.kafka})
    n, left = 0, list[int]()

    def cleaned() -> bool:
        # A new record closes the segment of the earlier records, which the cleaner then cleans.
        nonlocal n, left
        for _ in range(40):
            producer.produce(topic, b"%d" % n, b"key", partition=0)
            n += 1
        assert producer.flush(PATIENCE) == 0
        left = offsets(read(services, topic), 0)
        assert left[-1] == n - 1
        return left[:30] != list(range(30))

    until(cleaned, "gaps", patience(180))
    assert len(left) < n
    assert values(read(services, topic), 0)[-1] == b"%d" % (n - 1)
    assert offsets(read(services, topic, start={0: 1}, end={0: left[0]}), 0) == []


async def records(tables: AsyncIterator[tuple[int, pa.Table]], count: int) -> Found:
    """At least `count` records of a read without an end."""
    found: Found = {p: [] for p in range(PARTITIONS)}
    async for partition, table in tables:
        found[partition] += table.to_pylist()
        if sum(map(len, found.values())) >= count:
            break
    return found


def test_follows_what_comes(services: Services, topic: str) -> None:
    async def work() -> Found:
        async with Reader(services.kafka) as reader, Producer(services.kafka) as producer:
            start = await reader.earliest(topic)

            async def send() -> None:
                for n in range(30):
                    await producer.send(topic, b"%d" % n, partition=n % PARTITIONS)
                    await asyncio.sleep(0.01)

            sending = asyncio.create_task(send())
            async with aclosing(reader.read(topic, start=start, max_wait=SHORT)) as tables:
                found = await asyncio.wait_for(records(tables, 30), PATIENCE)
            await sending
            return found

    assert_whole(asyncio.run(work()), 30)


def through_proxy(services: Services, work: Callable[[FaultProxy, Reader], Awaitable[Any]], **options: Any) -> Any:
    """The result of `work`, whose reader reaches the broker through a proxy."""

    async def run() -> Any:
        async with fault_proxy(services.kafka) as proxy, Reader(proxy.servers, **options) as reader:
            return await asyncio.wait_for(work(proxy, reader), PATIENCE)

    return asyncio.run(run())


def fetches(proxy: FaultProxy) -> asyncio.Event:
    """Set when a reader has asked for records."""
    asked = asyncio.Event()

    def ask(request: Request) -> Request:
        if request.api is FETCH:
            asked.set()
        return request

    proxy.ask = ask
    return asked


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("seed", range(3))
def test_connections_cut_anywhere_lose_and_repeat_nothing(services: Services, topic: str, seed: int) -> None:
    write(services, topic, 9_000, **{"batch.num.messages": 100})
    rng = random.Random(seed)

    async def work(proxy: FaultProxy, reader: Reader) -> tuple[Found, int]:
        # The first connection answers ApiVersions and Metadata, and each one some of what follows.
        proxy.hurt = lambda answer: Cut() if answer.at > 2_000 and rng.random() < 0.2 else answer.data
        return await collect(reader, topic, max_bytes=2_000), proxy.connections

    found, connections = through_proxy(services, work)
    assert connections > 3
    assert_whole(found, 9_000)


def test_a_follower_outlives_a_cut(services: Services, topic: str) -> None:
    async def work(proxy: FaultProxy, reader: Reader) -> Found:
        tables = reader.read(topic, start=await reader.earliest(topic), max_wait=SHORT)
        reading = asyncio.create_task(records(tables, 30))
        await fetches(proxy).wait()
        proxy.cut()
        await asyncio.to_thread(write, services, topic, 30)
        found = await reading
        await tables.aclose()
        return found

    assert_whole(through_proxy(services, work), 30)


def test_a_broker_that_never_answers_is_given_up_in_time(services: Services, topic: str) -> None:
    async def work(proxy: FaultProxy, reader: Reader) -> None:
        start = await reader.earliest(topic)
        proxy.hurt = lambda answer: b""
        await records(reader.read(topic, start=start, max_wait=SHORT), 1)

    limits = {"request_timeout": timedelta(milliseconds=300), "patience": timedelta(seconds=1)}
    with pytest.raises((RequestTimeout, ConnectionLost), match="did not answer"):
        through_proxy(services, work, **limits)


def changed(monkeypatch: pytest.MonkeyPatch, change: Callable[[dict[str, Any]], None]) -> None:
    """Let `change` change the partitions in answers to fetches."""
    real = BrokerConnection.ask

    async def ask(self: BrokerConnection, api: Any, body: Any, **options: Any) -> Any:
        answer = await real(self, api, body, **options)
        if api is FETCH:
            for one in answer["responses"]:
                for partition in one["partitions"]:
                    change(partition)
        return answer

    monkeypatch.setattr(BrokerConnection, "ask", ask)


def test_a_leader_that_moved_is_looked_for(services: Services, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(services, topic, 3_000)
    left = 4

    def refuse(partition: dict[str, Any]) -> None:
        nonlocal left
        if partition["partition_index"] == 1 and left:
            left -= 1
            partition |= {"error_code": NotLeaderOrFollower.code, "records": None}

    changed(monkeypatch, refuse)
    assert_whole(read(services, topic, max_bytes=3_000), 3_000)
    assert left == 0


def test_a_log_whose_last_records_were_compacted_away_ends(
    services: Services, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tombstones and markers are removed after a while; the end of the log stays after them."""
    write(services, topic, 6)

    def without_last(partition: dict[str, Any]) -> None:
        if partition["partition_index"] == 1:
            partition["records"] = None

    changed(monkeypatch, without_last)
    found = read(services, topic)
    assert {p: values(found, p) for p in found} == {0: [b"0", b"3"], 1: [], 2: [b"2", b"5"]}


def test_damaged_records_say_where(services: Services, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(services, topic, 3)

    def spoil(partition: dict[str, Any]) -> None:
        if records := partition["records"]:
            partition["records"] = memoryview(bytes(records[:-1]) + bytes([records[-1] ^ 1]))

    changed(monkeypatch, spoil)
    with pytest.raises(RecordsDamaged, match=rf"topic {topic}, partition 2\).*start after.*batch at offset 0"):
        read(services, topic, start={2: 0}, end={2: 1})


def test_an_offset_that_is_not_there_says_what_to_do(services: Services, topic: str) -> None:
    with pytest.raises(
        OffsetOutOfRange, match=rf"topic {topic}, partition 1\).*offset 7; `earliest` and `latest` return"
    ):
        read(services, topic, start={1: 7}, end={1: 9})


def test_wrong_use_is_told_at_once(services: Services, topic: str) -> None:
    with pytest.raises(ValueError, match=r"has partitions 0 to 2, not \[3\]"):
        read(services, topic, start={3: 0})
    with pytest.raises(ValueError, match=r"partitions \[1\] of .* have a start but no end"):
        read(services, topic, start={1: 0}, end={0: 0})
    with pytest.raises(ValueError, match="less than the request_timeout of 30 s"):
        read(services, topic, max_wait=timedelta(seconds=30))
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1 cannot be reached"):

        async def work() -> None:
            async with Reader("127.0.0.1:1") as reader:
                await reader.latest(topic)

        asyncio.run(work())


def test_a_topic_whose_leaders_are_being_elected_is_waited_for(services: Services, topic: str) -> None:
    """Leaders of a topic that was just created can be unknown: `penstock topics tail` ended with that error."""
    write(services, topic, 30)

    async def work(proxy: FaultProxy, reader: Reader) -> Found:
        Refusal(proxy).once(LeaderNotAvailable, frames.METADATA)
        return await collect(reader, topic)

    assert_whole(through_proxy(services, work), 30)


def test_an_unknown_topic_is_not_made(services: Services) -> None:
    with pytest.raises(UnknownTopicOrPartition, match=r"topic nowhere.*create it, or check the name"):
        read(services, "nowhere")
    assert "nowhere" not in AdminClient({"bootstrap.servers": services.kafka}).list_topics(timeout=PATIENCE).topics


def test_a_topic_that_is_made_again_is_another_one(services: Services, make: Callable[..., str]) -> None:
    topic = make()
    admin = AdminClient({"bootstrap.servers": services.kafka})

    async def work(proxy: FaultProxy, reader: Reader) -> None:
        tables = reader.read(topic, start=await reader.earliest(topic), max_wait=SHORT)
        reading = asyncio.create_task(records(tables, 1))
        await fetches(proxy).wait()
        await asyncio.to_thread(admin.delete_topics([topic])[topic].result)
        await asyncio.to_thread(make, topic)
        await reading

    with pytest.raises(TopicReplaced, match=f"topic {topic}.*from its beginning"):
        through_proxy(services, work)


def test_topics_go_by_name_where_they_have_no_id(
    services: Services, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers before 3.1 have no topic ids in a fetch."""
    asked = []
    real = BrokerConnection.version

    def version(self: BrokerConnection, api: Any, *, at_most: int | None = None) -> int:
        if api is FETCH:
            asked.append(real(self, api, at_most=fetcher.BY_NAME))
            return asked[-1]
        return real(self, api, at_most=at_most)

    monkeypatch.setattr(BrokerConnection, "version", version)
    write(services, topic, 300)
    assert_whole(read(services, topic), 300)
    assert set(asked) == {fetcher.BY_NAME}
