"""Connections cut after each byte of an answer, and batches damaged at each byte: every record lands once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fault_proxy import Answer, Cut, FaultProxy, Request, fault_proxy, quick_producer
from kafka_topics import assert_same, new_topic, stored

from penstock.local.services import Services
from penstock.wire.errors import KafkaError
from penstock.wire.producer.producer import Producer
from penstock.wire.protocol import frames
from penstock.wire.protocol.frames import Api
from penstock.wire.records.batch_header import HEADER_SIZE


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A new topic of one partition."""
    with new_topic(services.kafka, "cut", 1) as name:
        yield name


class Cuts:
    """Cuts the nth answer of one API after n bytes, until a complete answer has passed."""

    def __init__(self, proxy: FaultProxy, api: Api) -> None:
        self._api = api
        self.cuts, self.size = 0, -1
        proxy.hurt = self._hurt

    def _hurt(self, answer: Answer) -> bytes:
        if self.size >= 0 or answer.request.api is not self._api:
            return answer.data
        if self.cuts == len(answer.data):
            self.size = self.cuts
            return answer.data
        self.cuts += 1
        return Cut(answer.data[: self.cuts - 1])

    def assert_all(self) -> None:
        assert self.cuts == self.size > 10


async def send_until_cut_everywhere(one: Producer, topic: str, cuts: Cuts) -> list[list[bytes]]:
    """Send batches, always five in flight, until the cuts are done; returns the sent values."""
    sent: list[bytes] = []
    while cuts.size < 0:
        futures = []
        for _ in range(5):
            sent.append(b"%d" % len(sent))
            futures.append(await one.send(topic, sent[-1]))
        await asyncio.gather(*futures)
    return [sent]


def test_an_answer_to_produce_may_be_cut_anywhere(services: Services, topic: str) -> None:
    async def work() -> list[list[bytes]]:
        async with fault_proxy(services.kafka) as proxy, quick_producer(proxy) as one:
            cuts = Cuts(proxy, frames.PRODUCE)
            sent = await send_until_cut_everywhere(one, topic, cuts)
            cuts.assert_all()
            return sent

    sent = asyncio.run(work())
    assert_same(stored(services.kafka, topic, 1), sent)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("api", [frames.API_VERSIONS, frames.METADATA, frames.INIT_PRODUCER_ID])
def test_the_start_may_be_cut_anywhere(services: Services, topic: str, api: Api) -> None:
    async def work() -> None:
        async with fault_proxy(services.kafka) as proxy, quick_producer(proxy) as one:
            cuts = Cuts(proxy, api)
            await (await one.send(topic, b"v"))
            cuts.assert_all()

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 1), [[b"v"]])


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("api", [frames.FIND_COORDINATOR, frames.ADD_PARTITIONS_TO_TXN, frames.END_TXN])
def test_a_transaction_may_be_cut_anywhere(services: Services, topic: str, api: Api) -> None:
    async def work() -> None:
        async with fault_proxy(services.kafka) as proxy, quick_producer(proxy, transactional_id=topic) as one:
            cuts = Cuts(proxy, api)
            for value in b"first", b"second":
                async with one.transaction():
                    await one.send(topic, value)
            cuts.assert_all()

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 1), [[b"first", b"second"]])


def test_an_abort_may_be_cut_anywhere(services: Services, topic: str) -> None:
    async def work() -> None:
        async with fault_proxy(services.kafka) as proxy, quick_producer(proxy, transactional_id=topic) as one:
            with pytest.raises(RuntimeError):
                async with one.transaction():
                    await (await one.send(topic, b"aborted"))
                    cuts = Cuts(proxy, frames.END_TXN)
                    raise RuntimeError
            cuts.assert_all()
            async with one.transaction():
                await one.send(topic, b"kept")

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 1), [[b"kept"]])


class Spoiler:
    """Flips the bits of one byte of the next Produce request's batch."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.at: int | None = None
        proxy.ask = self._ask

    def _ask(self, request: Request) -> Request:
        if self.at is None or request.api is not frames.PRODUCE:
            return request
        place = request.frame.index(request.records) + self.at
        self.at = None
        frame = bytearray(request.frame)
        frame[place] ^= 0xFF
        return replace(request, frame=bytes(frame))


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_batch_spoilt_on_its_way_is_sent_again(services: Services, topic: str, idempotent: bool) -> None:
    async def work() -> list[list[bytes]]:
        sent: list[bytes] = []
        async with fault_proxy(services.kafka) as proxy, quick_producer(proxy, idempotent=idempotent) as one:
            spoiler = Spoiler(proxy)
            for at in range(HEADER_SIZE, HEADER_SIZE + 14):
                spoiler.at = at
                sent.append(b"value%03d" % at)
                await (await one.send(topic, sent[-1]))
                assert spoiler.at is None
        return [sent]

    sent = asyncio.run(work())
    assert_same(stored(services.kafka, topic, 1), sent)


def test_a_header_spoilt_on_its_way_stores_nothing_wrong(services: Services, topic: str) -> None:
    async def work() -> list[list[bytes]]:
        """The acknowledged values; with a damaged byte of the header, the record may be refused too."""
        sent: list[bytes] = []
        async with fault_proxy(services.kafka) as proxy, quick_producer(proxy) as one:
            spoiler = Spoiler(proxy)
            for at in range(HEADER_SIZE):
                spoiler.at = at
                value = b"value%03d" % at
                try:
                    await (await one.send(topic, value))
                    sent.append(value)
                except KafkaError as error:
                    assert (error.topic, error.partition) == (topic, 0)
                assert spoiler.at is None
        return [sent]

    sent = asyncio.run(work())
    assert_same(stored(services.kafka, topic, 1), sent)
    assert len(sent[0]) > 40
