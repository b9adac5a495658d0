"""Transactions whose coordinator answers with errors, and producers that a newer one has fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import pytest
from fault_proxy import Answer, Cut, Request, fault_proxy, quick_producer
from kafka_topics import assert_same, new_topic, stored
from refusals import Kind, Refusal, refused

from penstock.local.services import Services
from penstock.wire.coordinator import Committed
from penstock.wire.errors import (
    CODES,
    ClusterAuthorizationFailed,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    GroupAuthorizationFailed,
    InvalidProducerEpoch,
    InvalidTxnState,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    TopicAuthorizationFailed,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    UnknownProducerId,
)
from penstock.wire.producer.producer import Producer
from penstock.wire.producer.transactions import Transactions
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Api

RETRIABLE = [kind for kind in CODES.values() if kind.retriable]
FENCED = ProducerFenced, InvalidProducerEpoch
STEPS = [
    frames.FIND_COORDINATOR,
    frames.INIT_PRODUCER_ID,
    frames.ADD_PARTITIONS_TO_TXN,
    frames.ADD_OFFSETS_TO_TXN,
    frames.TXN_OFFSET_COMMIT,
    frames.END_TXN,
]


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A new topic of two partitions."""
    with new_topic(services.kafka, "txn", 2) as name:
        yield name


async def transact(one: Producer, topic: str, value: bytes) -> None:
    """A transaction of a record and a group's offset."""
    async with one.transaction() as transaction:
        await one.send(topic, value, partition=0)
        await transaction.add_offsets("group-" + topic, {(topic, 0): Committed(1)})


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("api", STEPS, ids=lambda api: api.name)
def test_each_step_is_tried_again_after_each_code_that_may_pass(services: Services, topic: str, api: Api) -> None:
    async def work() -> None:
        async with fault_proxy(services.kafka) as proxy:
            refusal = Refusal(proxy)
            for kind in RETRIABLE:
                refusal.once(kind, api)
                async with quick_producer(proxy, transactional_id=topic) as one:
                    await transact(one, topic, kind.name.encode())

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 2), [[kind.name.encode() for kind in RETRIABLE], []])


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        (frames.FIND_COORDINATOR, TransactionalIdAuthorizationFailed),
        (frames.INIT_PRODUCER_ID, ClusterAuthorizationFailed),
        (frames.ADD_PARTITIONS_TO_TXN, TopicAuthorizationFailed),
        (frames.PRODUCE, OutOfOrderSequenceNumber),
        (frames.PRODUCE, UnknownProducerId),
        (frames.PRODUCE, InvalidProducerEpoch),
        (frames.PRODUCE, TransactionAbortable),
        (frames.ADD_OFFSETS_TO_TXN, GroupAuthorizationFailed),
        (frames.TXN_OFFSET_COMMIT, GroupAuthorizationFailed),
        (frames.END_TXN, InvalidTxnState),
    ],
    ids=lambda one: one.name,
)
def test_a_code_that_stays_aborts_and_the_next_transaction_goes_on(
    services: Services, topic: str, api: Api, kind: Kind
) -> None:
    async def work() -> None:
        async with fault_proxy(services.kafka) as proxy, quick_producer(proxy, transactional_id=topic) as one:
            Refusal(proxy).once(kind, api)
            with pytest.raises(kind):
                await transact(one, topic, b"never seen")
            await transact(one, topic, b"kept")

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 2), [[b"kept"], []])


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        (frames.ADD_PARTITIONS_TO_TXN, ConcurrentTransactions),
        (frames.ADD_OFFSETS_TO_TXN, ConcurrentTransactions),
        (frames.TXN_OFFSET_COMMIT, CoordinatorLoadInProgress),
    ],
    ids=lambda one: one.name,
)
def test_an_abort_while_the_coordinator_is_asked_does_not_fence_the_producer(
    services: Services, topic: str, api: Api, kind: Kind
) -> None:
    """A request that is repeated after the abort would have the old epoch."""

    async def ask(one: Producer, transaction: Transactions, value: bytes) -> None:
        if api is frames.ADD_PARTITIONS_TO_TXN:
            await (await one.send(topic, value, partition=0))
        else:
            await transaction.add_offsets("group-" + topic, {(topic, 0): Committed(1)})

    async def work() -> None:
        async with (
            fault_proxy(services.kafka) as proxy,
            Producer(proxy.servers, transactional_id=topic, retry_backoff=timedelta(milliseconds=300)) as one,
        ):
            async with one.transaction() as transaction:
                await ask(one, transaction, b"first")
            asked = asyncio.Event()

            def refuse_once(request: Request) -> Request | bytes:
                if request.api is not api or asked.is_set():
                    return request
                asked.set()
                return refused(request, kind)

            proxy.ask = refuse_once
            with pytest.raises(RuntimeError):
                async with one.transaction() as transaction:
                    asking = asyncio.create_task(ask(one, transaction, b"aborted"))
                    await asyncio.wait_for(asked.wait(), 30)
                    raise RuntimeError
            with suppress(TransactionAbortable):
                await asking
            async with one.transaction():
                await one.send(topic, b"next", partition=0)

    asyncio.run(work())
    first = [b"first"] if api is frames.ADD_PARTITIONS_TO_TXN else []
    assert_same(stored(services.kafka, topic, 2), [[*first, b"next"], []])


@pytest.mark.parametrize("first", ["a record", "an offset"])
def test_who_is_fenced_takes_nothing_back_by_its_abort(services: Services, topic: str, first: str) -> None:
    """Brokers before 2.5 only know versions of InitProducerId that fence the current owner of the id."""
    places = {(topic, 0): Committed(1)}

    def before_2_5(answer: Answer) -> bytes:
        if answer.request.api is not frames.API_VERSIONS:
            return answer.data
        found = answer.request.read(answer.data)
        for one in found["api_keys"]:
            if one["api_key"] == frames.INIT_PRODUCER_ID.key:
                one["max_version"] = 2
        return answer.request.answer(found)

    async def work() -> None:
        async with fault_proxy(services.kafka) as proxy:
            proxy.hurt = before_2_5
            async with (
                quick_producer(proxy, transactional_id=topic) as old,
                quick_producer(proxy, transactional_id=topic) as new,
            ):
                with pytest.raises(FENCED):
                    async with old.transaction() as transaction:
                        async with new.transaction():
                            await new.send(topic, b"new", partition=0)
                        if first == "a record":
                            await old.send(topic, b"old", partition=0)
                        else:
                            await transaction.add_offsets("group-" + topic, places)
                async with new.transaction():
                    await new.send(topic, b"newer", partition=0)

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 2), [[b"new", b"newer"], []])


@pytest.mark.parametrize("learns", ["from a leader", "from the coordinator", "when it commits", "when it aborts"])
def test_a_newer_producer_fences_the_older_for_good(services: Services, topic: str, learns: str) -> None:
    """It may learn it from the leader of a partition that it has written to, or from the transaction's coordinator."""

    async def work() -> None:
        async with (
            Producer(services.kafka, transactional_id=topic) as old,
            Producer(services.kafka, transactional_id=topic) as new,
        ):
            with pytest.raises(FENCED):
                async with old.transaction():
                    await (await old.send(topic, b"old", partition=0))
                    async with new.transaction():
                        await new.send(topic, b"new", partition=0)
                    if learns.startswith("from"):
                        partition = int(learns == "from the coordinator")
                        late = await old.send(topic, b"late", partition=partition)
                        with pytest.raises(FENCED, match=rf"\(topic {topic}, partition {partition}\)"):
                            await late
                    if learns == "when it aborts":
                        raise RuntimeError
            with pytest.raises(FENCED):
                async with old.transaction():
                    pass
            async with new.transaction():
                await new.send(topic, b"newer", partition=0)

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 2), [[b"new", b"newer"], []])


def test_a_transaction_begins_when_the_brokers_are_in_reach_again(services: Services, topic: str) -> None:
    """Without retries it ended at once when the first connection was cut."""
    cuts = 0

    def cut(answer: Answer) -> bytes:
        nonlocal cuts
        if cuts == 3:
            return answer.data
        cuts += 1
        return Cut()

    async def work() -> None:
        async with fault_proxy(services.kafka) as proxy:
            proxy.hurt = cut
            async with quick_producer(proxy, transactional_id=topic) as one:
                await transact(one, topic, b"at last")

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 2), [[b"at last"], []])
    assert cuts == 3
