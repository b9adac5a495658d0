"""A broker that answers each of Kafka's error codes: retriable errors lead to one write, others are raised at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pyarrow as pa
import pytest
from fault_proxy import Request, fault_proxy, quick_producer
from kafka_topics import assert_same, new_topic, stored
from refusals import Kind, Refusal, producer_of, refused

from penstock.local.services import Services
from penstock.wire.errors import (
    CODES,
    ClusterAuthorizationFailed,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    DuplicateSequenceNumber,
    InvalidProducerEpoch,
    InvalidRecord,
    KafkaError,
    OutOfOrderSequenceNumber,
    UnknownProducerId,
)
from penstock.wire.producer.accumulator import RecordMetadata
from penstock.wire.producer.producer import Producer
from penstock.wire.producer.table_receipts import TableFailed
from penstock.wire.protocol import frames
from penstock.wire.records.compression import Compression

SOON = timedelta(milliseconds=1)
KINDS = [*CODES.values()]
# Java's TransactionManager.canRetry and Sender.completeBatch (4.3): if the broker expects another sequence, an
# idempotent producer starts again under another epoch; a batch that the broker already has is a success.
RENUMBERED = {OutOfOrderSequenceNumber, UnknownProducerId}


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A new topic of one partition."""
    with new_topic(services.kafka, "code", 1) as name:
        yield name


@pytest.mark.parametrize("idempotent", [True, False])
def test_each_code_for_the_first_of_some_batches(services: Services, topic: str, idempotent: bool) -> None:
    # Without idempotence a repeated batch lands after the batches that were sent after it.
    batches = 5 if idempotent else 1
    repeated = {kind for kind in KINDS if kind.retriable} | (RENUMBERED if idempotent else set())
    sent: list[bytes] = []
    told: dict[Kind, BaseException] = {}
    tries: dict[Kind, list[bytes]] = {}

    async def refuse(refusal: Refusal, one: Producer, kind: Kind) -> None:
        refusal.once(kind)
        values = [b"%s %d" % (kind.name.encode(), n) for n in range(batches)]
        futures = [await one.send(topic, value) for value in values]
        first, *others = await asyncio.gather(*futures, return_exceptions=True)
        assert not any(isinstance(other, BaseException) for other in others), (kind, others)
        tries[kind] = [request.records for request in refusal.asked if values[0] in request.records]
        sent.extend(values if kind in repeated else values[1:])
        if isinstance(first, BaseException):
            told[kind] = first

    async def work() -> None:
        async with fault_proxy(services.kafka) as proxy, quick_producer(proxy, idempotent=idempotent) as one:
            refusal = Refusal(proxy)
            for kind in KINDS:
                await refuse(refusal, one, kind)

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 1), [sent])
    assert told.keys() == set(KINDS) - repeated - {DuplicateSequenceNumber}
    for kind, error in told.items():
        assert type(error) is kind
        assert f"{kind.name} (topic {topic}, partition 0): {kind.says}" in str(error)
        assert len(tries[kind]) == 1
    for kind in repeated:
        assert len(tries[kind]) > 1
        assert (tries[kind][0] == tries[kind][-1]) == (kind not in RENUMBERED), kind


def test_a_batch_under_new_numbers_has_a_new_producer_id(services: Services, topic: str) -> None:
    async def work() -> list[tuple[int, int]]:
        async with fault_proxy(services.kafka) as proxy, quick_producer(proxy) as one:
            refusal = Refusal(proxy)
            await (await one.send(topic, b"before"))
            refusal.once(OutOfOrderSequenceNumber)
            await (await one.send(topic, b"after"))
            return [producer_of(request) for request in refusal.asked]

    (before, _), first, again = asyncio.run(work())
    assert first == (before, 1)
    assert again[0] != before and again[1] == 0


def test_a_refused_epoch_fails_its_batch_and_not_those_after_it(services: Services, topic: str) -> None:
    async def work() -> None:
        async with fault_proxy(services.kafka) as proxy, quick_producer(proxy) as one:
            refusal = Refusal(proxy)
            await (await one.send(topic, b"before"))
            ours, _ = producer_of(refusal.asked[0])

            def refuse(request: Request) -> Request | bytes:
                if request.api is frames.PRODUCE and producer_of(request)[0] == ours:
                    return refused(request, InvalidProducerEpoch)
                return request

            proxy.ask = refuse
            with pytest.raises(InvalidProducerEpoch, match=f"topic {topic}, partition 0.*create a new producer"):
                await (await one.send(topic, b"refused"))
            await (await one.send(topic, b"after"))

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 1), [[b"before", b"after"]])


@pytest.mark.parametrize("kind", [CoordinatorLoadInProgress, CoordinatorNotAvailable, ClusterAuthorizationFailed])
def test_a_producer_id_that_is_refused(services: Services, topic: str, kind: Kind) -> None:
    async def work() -> None:
        async with fault_proxy(services.kafka) as proxy, quick_producer(proxy) as one:
            Refusal(proxy).once(kind, frames.INIT_PRODUCER_ID)
            future = await one.send(topic, b"first")
            if kind.retriable:
                await future
            else:
                with pytest.raises(kind, match=rf"\(topic {topic}, partition 0\)"):
                    await future
            await (await one.send(topic, b"second"))

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 1), [[b"first", b"second"] if kind.retriable else [b"second"]])


def test_each_code_for_a_topic_that_is_looked_up(services: Services, topic: str) -> None:
    async def work() -> dict[Kind, KafkaError]:
        told: dict[Kind, KafkaError] = {}
        async with fault_proxy(services.kafka) as proxy:
            refusal = Refusal(proxy)
            for kind in KINDS:
                refusal.once(kind, frames.METADATA)
                async with quick_producer(proxy) as one:
                    try:
                        await (await one.send(topic, kind.name.encode()))
                    except KafkaError as error:
                        told[kind] = error
        return told

    told = asyncio.run(work())
    assert told.keys() == {kind for kind in KINDS if not kind.retriable}
    for kind, error in told.items():
        assert type(error) is kind
        assert f"{kind.name} (topic {topic}): {kind.says}" in str(error)
    assert_same(stored(services.kafka, topic, 1), [[kind.name.encode() for kind in KINDS if kind.retriable]])


def test_what_a_broker_can_answer_says_what_to_do() -> None:
    """The final codes of ProduceResponse.java and LogValidator.java (4.3)."""
    codes = [10, 17, 18, 21, 29, 31, 32, 35, 42, 43, 44, 47, 48, 49, 53, 76, 87, 90, 120]
    for kind in (CODES[code] for code in codes):
        assert not kind.retriable
        assert "; " in kind.says, f"{kind.name}: {kind.says}"


@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_of_a_batch_with_records_that_the_broker_rejects_only_these_fail(
    services: Services, idempotent: bool, compression: Compression
) -> None:
    """A compacted topic refuses records without a key."""
    keys = [None if n % 100 in (0, 50, 51, 99) else b"k%d" % n for n in range(1_000)]
    kept = [n for n, key in enumerate(keys) if key]

    async def work(topic: str) -> None:
        async with Producer(services.kafka, idempotent=idempotent, compression=compression) as one:
            await (await one.send(topic, b"first", key=b"k"))
            table = pa.table({"value": [b"%d" % n for n in range(1_000)], "key": keys})
            with pytest.raises(TableFailed) as failed:
                await one.send_table(topic, table)
            rows = [row for first, last, _ in failed.value.failed for row in range(first, last + 1)]
            assert rows == [n for n, key in enumerate(keys) if not key]
            assert all(isinstance(why, InvalidRecord) for _, _, why in failed.value.failed)
            assert (failed.value.receipt.rows, failed.value.receipt.offsets) == (len(kept), {0: [(1, len(kept))]})
            futures = [await one.send(topic, b"last", key=key) for key in (b"k", None, b"k")]
            before, bad, behind = await asyncio.gather(*futures, return_exceptions=True)
            assert isinstance(bad, InvalidRecord)
            assert isinstance(before, RecordMetadata) and isinstance(behind, RecordMetadata)
            assert (before.offset, behind.offset) == (len(kept) + 1, len(kept) + 2)
            assert one.stats().buffer_used == 0

    with new_topic(services.kafka, "compacted", 1, {"cleanup.policy": "compact"}) as topic:
        asyncio.run(work(topic))
        assert_same(stored(services.kafka, topic, 1), [[b"first", *[b"%d" % n for n in kept], b"last", b"last"]])


def test_a_transaction_with_a_record_that_the_broker_rejects_is_aborted(services: Services) -> None:
    async def work(topic: str) -> None:
        async with Producer(services.kafka, transactional_id=topic) as one:
            with pytest.raises(InvalidRecord):
                async with one.transaction():
                    await one.send(topic, b"v", key=b"k")
                    await one.send(topic, b"v")
            async with one.transaction():
                await one.send(topic, b"after", key=b"k")

    with new_topic(services.kafka, "compacted", 1, {"cleanup.policy": "compact"}) as topic:
        asyncio.run(work(topic))
        assert_same(stored(services.kafka, topic, 1), [[b"after"]])


def test_a_record_that_the_broker_rejects_says_why(services: Services) -> None:
    async def work(topic: str) -> None:
        async with Producer(services.kafka, linger=SOON) as one:
            await (await one.send(topic, b"v", key=b"k"))
            with pytest.raises(InvalidRecord, match=f"topic {topic}, partition 0.*message without key"):
                await (await one.send(topic, b"v"))

    with new_topic(services.kafka, "compacted", 1, {"cleanup.policy": "compact"}) as topic:
        asyncio.run(work(topic))
