"""The producer's options: each setting takes effect, and a wrong setting is refused when the producer is made."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from inspect import signature
from typing import Any

import pyarrow as pa
import pytest
from kafka_topics import new_topic

from penstock.local.services import Services
from penstock.wire import BlockingProducer, Producer
from penstock.wire.errors import TransactionAbortable
from penstock.wire.producer.producer import ProducerOptions
from penstock.wire.records.partitioner import partition_for

ROWS = 400


def test_each_option_of_the_producer_is_one_of_the_blocking_producer() -> None:
    own = [one for one in signature(Producer).parameters.values() if one.kind is one.KEYWORD_ONLY]
    typed = {name: one.__forward_arg__ for name, one in ProducerOptions.__annotations__.items()}
    assert {one.name: one.annotation for one in own} == typed


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A new topic of four partitions."""
    with new_topic(services.kafka, "options", 4) as name:
        yield name


def sent(services: Services, topic: str, **options: Any) -> tuple[Counter[int], Counter[int]]:
    """The number of records of each partition: sent one by one, and as a table."""
    keys = [b"%d" % n for n in range(ROWS)]

    async def work() -> tuple[Counter[int], Counter[int]]:
        async with Producer(services.kafka, **options) as producer:
            futures = [await producer.send(topic, b"v", key=key) for key in keys]
            receipt = await producer.send_table(topic, pa.table({"key": keys, "value": [b"v"] * ROWS}))
            one_by_one = Counter(one.partition for one in await asyncio.gather(*futures))
            spans = {p: sum(last - first + 1 for first, last in ranges) for p, ranges in receipt.offsets.items()}
            return one_by_one, Counter(spans)

    return asyncio.run(work())


def test_an_own_partitioner_chooses_for_records_and_tables(services: Services, topic: str) -> None:
    def by_length(keys: pa.Array, partitions: int) -> list[int]:
        return [(len(key) - 1) % partitions for key in keys.to_pylist()]

    lengths = Counter({0: 10, 1: 90, 2: 300})
    assert sent(services, topic, partitioner=by_length) == (lengths, lengths)


def test_named_partitioners_choose_for_records_and_tables(services: Services, topic: str) -> None:
    even = Counter(dict.fromkeys(range(4), ROWS // 4))
    assert sent(services, topic, partitioner="round-robin") == (even, even)
    hashed = Counter(partition_for(b"%d" % n, 4) for n in range(ROWS))
    assert sent(services, topic, partitioner="key") == (hashed, hashed)
    # Little data: one batch each, in one partition.
    linger = timedelta(seconds=1)
    assert [len(found) for found in sent(services, topic, partitioner="sticky", linger=linger)] == [1, 1]


def test_a_partitioner_that_fails_fails_its_records_and_their_transaction(services: Services, topic: str) -> None:
    def broken(keys: pa.Array, partitions: int) -> list[int]:
        raise LookupError("no such customer")

    async def work() -> None:
        async with Producer(services.kafka, partitioner=broken, transactional_id=topic) as producer:
            with pytest.raises(TransactionAbortable, match="no such customer"):
                async with producer.transaction():
                    future = await producer.send(topic, b"v", key=b"k")
            with pytest.raises(LookupError, match="no such customer"):
                await future
            with pytest.raises(LookupError):
                async with producer.transaction():
                    await producer.send_table(topic, pa.table({"key": [b"k"], "value": [b"v"]}))

    asyncio.run(work())


def test_a_level_makes_records_smaller(services: Services, topic: str) -> None:
    text = b"".join(b"%d is followed by %d; " % (n, n * n) for n in range(10_000))

    async def size(level: int | None) -> int:
        async with Producer(services.kafka, compression="gzip", compression_level=level) as producer:
            await (await producer.send(topic, text))
            return producer.stats().topics[topic].bytes

    fast, default, small = (asyncio.run(size(level)) for level in (1, None, 9))
    assert fast > default > small


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"acks": 2}, "acks must be 0, 1 or 'all', not 2"),
        ({"acks": 1, "idempotent": True}, "an idempotent producer needs acks='all'"),
        ({"acks": 1, "transactional_id": "t"}, "a transactional producer must be idempotent"),
        ({"in_flight": 6}, "in_flight must be 1 to 5"),
        ({"in_flight": 0, "acks": 1}, "in_flight must be 1 to 5"),
        ({"compression": "brotli"}, "unknown compression 'brotli'; use one of none, gzip"),
        ({"compression": "gzip", "compression_level": 10}, "compression_level 10 of 'gzip' is not within 1 to 9"),
        ({"compression_level": 3}, "compression 'none' has no levels"),
        ({"partitioner": "random"}, "partitioner 'random' is neither a function nor one of key, sticky, round-robin"),
        ({"batch_size": 61}, "batch_size must be 62 to 2147483647 bytes, not 61"),
        ({"buffer_memory": 0}, "buffer_memory must be at least 1 byte, not 0"),
        ({"linger": timedelta(seconds=-1)}, "linger is negative"),
        ({"linger": "5 msec"}, "linger is not a duration: '5 msec'"),
        ({"delivery_timeout": -1}, "delivery_timeout is negative"),
        ({"request_timeout": "0 seconds"}, "request_timeout must be more than 0"),
        ({"delivery_timeout": timedelta(0)}, "delivery_timeout must be more than 0, not 0:00:00"),
        ({"request_timeout": timedelta(0)}, "request_timeout must be more than 0"),
        ({"metadata_max_age": timedelta(0)}, "metadata_max_age must be more than 0"),
        ({"transaction_timeout": timedelta(0)}, "transaction_timeout must be more than 0"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("kind", [Producer, BlockingProducer])
def test_a_wrong_setting_is_refused_at_once(wrong: dict[str, Any], said: str, kind: Any) -> None:
    with pytest.raises(ValueError, match=said):
        kind("127.0.0.1:1", **wrong)
