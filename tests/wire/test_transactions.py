"""Transactions against a real broker, read by confluent-kafka as committed and as uncommitted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import nullcontext
from datetime import timedelta
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from fault_proxy import fault_proxy
from kafka_topics import new_topic, stored
from refusals import Refusal
from waiting import PATIENCE

from penstock.local.services import Services
from penstock.native.text_slices import Texts
from penstock.wire import Producer, TableFailed
from penstock.wire.coordinator import Committed
from penstock.wire.errors import InvalidTxnState, KafkaError, LeaderNotAvailable, MessageTooLarge, TransactionAbortable
from penstock.wire.protocol import frames

SOON = timedelta(milliseconds=1)


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A new topic of two partitions."""
    with new_topic(services.kafka, "txn", 2) as name:
        yield name


def read(servers: str, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """The values, once no transaction is open."""
    return sorted(chain(*stored(servers, topic, 2, isolation, PATIENCE)))


def read_stable(servers: str, topic: str) -> set[bytes]:
    """The values up to the last stable offset, while a transaction is open."""
    return set(chain(*stored(servers, topic, 2)))


def producer(services: Services, id: str, **options: Any) -> Producer:
    return Producer(services.kafka, transactional_id=id, linger=SOON, **options)


def test_a_transaction_shows_all_of_its_records_at_once(services: Services, topic: str) -> None:
    async def work() -> None:
        async with producer(services, topic) as one:
            for number in range(3):
                async with one.transaction():
                    await one.send(topic, b"%d-a" % number, partition=0)
                    future = await one.send(topic, b"%d-b" % number, partition=1)
                    await future
                    before = {b"%d-%s" % (n, letter) for n in range(number) for letter in (b"a", b"b")}
                    assert read_stable(services.kafka, topic) == before
                assert len(read(services.kafka, topic)) == 2 * number + 2

    asyncio.run(work())


def test_an_aborted_transaction_leaves_nothing_and_the_next_one_goes_on(services: Services, topic: str) -> None:
    async def work() -> list[Any]:
        async with producer(services, topic) as one:
            with pytest.raises(RuntimeError, match="changed my mind"):
                async with one.transaction():
                    await (await one.send(topic, b"written and dropped", partition=0))
                    waiting = await one.send(topic, b"never", partition=1)
                    raise RuntimeError("changed my mind")
            with pytest.raises(KafkaError):
                # It was in flight or dropped, but not committed.
                await waiting
                raise TransactionAbortable
            async with one.transaction():
                return list(await asyncio.gather(*[await one.send(topic, b"kept", partition=p) for p in range(2)]))

    asyncio.run(work())
    assert read(services.kafka, topic) == [b"kept", b"kept"]
    assert b"written and dropped" in read(services.kafka, topic, "read_uncommitted")


SENDS: dict[str, Callable[[Producer, str, bytes], Coroutine[Any, Any, Any]]] = {
    "send": lambda one, topic, value: _delivered(one, topic, value),
    "send_table": lambda one, topic, value: one.send_table(topic, pa.table({"value": [value]})),
    "send_tables": lambda one, topic, value: one.send_tables((topic, pa.record_batch({"value": [value]})) for _ in "1"),
    "send_values": lambda one, topic, value: one.send_values(topic, [Texts.of([value])]),
}


async def _delivered(one: Producer, topic: str, value: bytes) -> None:
    await (await one.send(topic, value))


@pytest.mark.parametrize("how", SENDS)
@pytest.mark.parametrize("aborted", [True, False], ids=["aborted", "committed"])
def test_what_waits_for_memory_at_the_end_of_a_transaction_is_not_in_the_next_one(
    services: Services, topic: str, how: str, aborted: bool
) -> None:
    late = b"late" * 700

    async def work() -> list[Any]:
        async with producer(services, topic, buffer_memory=10_000, batch_size=4_000) as one:
            async with one.transaction():
                await one.send(topic, b"first")
            with pytest.raises(RuntimeError) if aborted else nullcontext():
                async with one.transaction():
                    sending = [asyncio.create_task(SENDS[how](one, topic, late)) for _ in range(30)]
                    await asyncio.sleep(0)
                    if aborted:
                        raise RuntimeError
            async with one.transaction():
                await one.send(topic, b"next")
                told = await asyncio.wait_for(asyncio.gather(*sending, return_exceptions=True), 30)
            assert one.stats().buffer_used == 0
            return told

    told = asyncio.run(work())
    taken = [one for one in told if not isinstance(one, KafkaError)]
    assert len(taken) < 30
    assert not (aborted and taken)
    assert read(services.kafka, topic) == [b"first", *[late] * len(taken), b"next"]


def test_what_waits_for_metadata_at_the_end_of_a_transaction_is_not_in_the_next_one(
    services: Services, topic: str
) -> None:
    pause = timedelta(milliseconds=500)

    async def work() -> None:
        async with (
            fault_proxy(services.kafka) as proxy,
            Producer(proxy.servers, transactional_id=topic, retry_backoff=pause) as one,
        ):
            async with one.transaction():
                pass
            Refusal(proxy).once(LeaderNotAvailable, frames.METADATA)
            with pytest.raises(RuntimeError):
                async with one.transaction():
                    sending = asyncio.create_task(one.send(topic, b"late"))
                    await asyncio.wait([sending], timeout=0.1)
                    raise RuntimeError
            async with one.transaction():
                with pytest.raises(InvalidTxnState, match=f"topic {topic}.*ended before this call was accepted"):
                    await sending

    asyncio.run(work())
    assert read(services.kafka, topic) == []


def test_a_record_that_fails_aborts_the_transaction(services: Services, topic: str) -> None:
    async def work() -> None:
        async with producer(services, topic) as one:
            with pytest.raises(MessageTooLarge, match=f"topic {topic}, partition 0"):
                async with one.transaction():
                    await one.send(topic, b"small", partition=1)
                    large = await one.send(topic, bytes(3_000_000), partition=0)
            with pytest.raises(MessageTooLarge):
                await large
            async with one.transaction():
                await one.send(topic, b"after", partition=0)

    asyncio.run(work())
    assert read(services.kafka, topic) == [b"after"]


def test_a_table_that_fails_aborts_the_transaction_with_records_that_wait(services: Services, topic: str) -> None:
    async def work() -> None:
        async with Producer(services.kafka, transactional_id=topic, linger=timedelta(minutes=1)) as one:
            with pytest.raises(TableFailed):
                async with one.transaction():
                    waiting = await one.send(topic, b"waiting", partition=1)
                    await one.send_table(topic, pa.table({"value": [bytes(3_000_000)], "partition": [0]}))
            with pytest.raises(TransactionAbortable, match=f"topic {topic}, partition 1.*1 rows failed"):
                await waiting
            async with one.transaction():
                await one.send(topic, b"after", partition=0)

    asyncio.run(work())
    assert read(services.kafka, topic) == [b"after"]


def test_offsets_of_a_group_are_committed_with_the_records(services: Services, topic: str) -> None:
    async def work() -> None:
        async with producer(services, topic) as one:
            async with one.transaction() as transaction:
                await one.send(topic, b"v", partition=0)
                await transaction.add_offsets("group-" + topic, {(topic, 0): Committed(41, "batch 7")})
            with pytest.raises(RuntimeError):
                async with one.transaction() as transaction:
                    await transaction.add_offsets("group-" + topic, {(topic, 0): Committed(42)})
                    raise RuntimeError

    asyncio.run(work())
    consumer = Consumer({"bootstrap.servers": services.kafka, "group.id": "group-" + topic})
    try:
        (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=PATIENCE)
        assert (found.offset, found.metadata) == (41, "batch 7")
    finally:
        consumer.close()


def test_tables_go_through_transactions_too(services: Services, topic: str) -> None:
    async def work() -> int:
        async with producer(services, topic, batch_size=2_000) as one:
            async with one.transaction():
                receipt = await one.send_table(topic, pa.table({"value": [b"%04d" % n for n in range(1_000)]}))
            return receipt.rows

    assert asyncio.run(work()) == 1_000
    assert read(services.kafka, topic) == [b"%04d" % n for n in range(1_000)]


@pytest.mark.slow
def test_wrong_use_is_told(services: Services, topic: str) -> None:
    async def work() -> None:
        async with producer(services, topic) as one:
            with pytest.raises(InvalidTxnState, match=r"send inside `async with producer.transaction\(\)`"):
                await one.send(topic, b"v")
            with pytest.raises(InvalidTxnState, match="end it before you begin the next one"):
                async with one.transaction() as ended, one.transaction():
                    pass
            with pytest.raises(InvalidTxnState, match="the transaction has ended; begin another"):
                await ended.add_offsets("group-" + topic, {(topic, 0): Committed(1)})
        async with Producer(services.kafka) as plain:
            with pytest.raises(ValueError, match="without transactional_id has no transactions"):
                async with plain.transaction():
                    pass

    asyncio.run(work())
    with pytest.raises(ValueError, match="a transactional producer must be idempotent"):
        Producer(services.kafka, acks=1, transactional_id="t")
