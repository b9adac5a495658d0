"""A producer that is closed, or is a copy in a forked process, says so: nothing hangs, no connection is shared."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from kafka_topics import new_topic

from penstock.local.services import Services
from penstock.wire import BlockingProducer, Producer, TableFailed
from penstock.wire.errors import ProducerClosed

TABLE = pa.table({"value": [b"v"]})
FORKS = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of Python 3.12, because threads run here


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A new topic of one partition."""
    with new_topic(services.kafka, "closed", 1) as name:
        yield name


async def _transaction(producer: Producer) -> None:
    async with producer.transaction():
        pass


def _flush(producer: Producer, topic: str) -> Awaitable[None]:
    return producer.flush()


ASYNC: list[Callable[[Producer, str], Awaitable[Any]]] = [
    lambda producer, topic: producer.send(topic, b"v"),
    lambda producer, topic: producer.send("another", b"v"),
    lambda producer, topic: producer.send_table(topic, TABLE),
    lambda producer, topic: _transaction(producer),
]


def test_after_close_every_call_is_refused(services: Services, topic: str) -> None:
    async def work() -> None:
        async with Producer(services.kafka, transactional_id=topic) as producer:
            async with producer.transaction():
                await producer.send(topic, b"v")
            await producer.close()
            await producer.close()
            for call in ASYNC:
                with pytest.raises(ProducerClosed, match="the producer is closed; create a new one"):
                    await call(producer, topic)
            assert producer.stats().topics[topic].records == 1

    asyncio.run(work())


def test_a_table_that_is_sent_while_it_is_closed_says_which_rows_were_written(services: Services, topic: str) -> None:
    async def work() -> None:
        producer = Producer(services.kafka, buffer_memory=100_000, batch_size=10_000)
        batches = (pa.record_batch({"value": [b"%d" % n * 1_000]}) for n in range(10**9))
        sending = asyncio.create_task(producer.send_table(topic, batches))
        await (await producer.send(topic, b"on its way"))
        await producer.close()
        with pytest.raises((TableFailed, ProducerClosed), match="the producer is closed"):
            await asyncio.wait_for(sending, 30)

    asyncio.run(work())


@pytest.mark.parametrize("answers", [False, True], ids=["refused", "silent"])
def test_who_waits_for_a_broker_is_told_when_it_is_closed(answers: bool) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1] if answers else 1
            producer = Producer(f"127.0.0.1:{port}")
            sending = asyncio.create_task(producer.send("t", b"v"))
            await asyncio.wait([sending], timeout=0.05)
            await producer.close()
            with pytest.raises(ProducerClosed):
                await asyncio.wait_for(sending, 10)

    asyncio.run(work())


def test_records_that_are_not_waited_for_at_the_close_are_told(services: Services, topic: str) -> None:
    async def work() -> None:
        producer = Producer(services.kafka, batch_size=1_000, linger=timedelta(0))
        await (await producer.send(topic, b"v"))
        with stopped(services.pids["kafka"]):
            futures = [await producer.send(topic, bytes(500)) for _ in range(100)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.close(), 0.1)
            for future in futures:
                with pytest.raises(ProducerClosed, match=f"topic {topic}, partition 0"):
                    await asyncio.wait_for(future, 10)

    asyncio.run(work())


def test_who_waits_for_memory_is_told_when_it_is_closed(services: Services, topic: str) -> None:
    async def work() -> None:
        producer = Producer(services.kafka, buffer_memory=20_000)
        await (await producer.send(topic, b"first"))

        async def one() -> None:
            await (await producer.send(topic, bytes(1_000)))

        sending = [asyncio.create_task(one()) for _ in range(200)]
        await asyncio.sleep(0.005)
        await producer.close()
        told = await asyncio.wait_for(asyncio.gather(*sending, return_exceptions=True), 30)
        assert {type(one) for one in told} <= {type(None), ProducerClosed}
        assert producer.stats().buffer_used == 0
        assert producer.stats().topics[topic].records == 1 + told.count(None)

    asyncio.run(work())


def test_who_waits_for_memory_is_told_before_the_close_has_ended(services: Services, topic: str) -> None:
    async def work() -> None:
        producer = Producer(services.kafka, buffer_memory=2_000)
        await (await producer.send(topic, b"first"))
        with stopped(services.pids["kafka"]):
            under_way = await producer.send(topic, bytes(1_500))
            waiting = asyncio.create_task(producer.send(topic, bytes(1_500)))
            await asyncio.sleep(0)
            closing = asyncio.create_task(producer.close())
            with pytest.raises(ProducerClosed):
                await asyncio.wait_for(waiting, 10)
            assert not closing.done()
        await closing
        assert (await under_way).offset == 1

    asyncio.run(work())


def test_who_gives_up_after_it_was_let_in_lets_in_the_next() -> None:
    async def work() -> None:
        collected = Producer("127.0.0.1:1", buffer_memory=1_000)._accumulator
        await collected.reserve(1_000)
        first, second = (asyncio.create_task(collected.reserve(1_000)) for _ in range(2))
        await asyncio.sleep(0)
        collected.give_back(1_000)
        first.cancel()
        await asyncio.wait_for(second, 10)
        assert collected.free == 0

    asyncio.run(work())


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def in_child(work: Callable[[], list[str]]) -> list[str]:
    """The result of `work` in a forked process."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write_end, "\n".join(work()).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answer:
        said = answer.read().splitlines()
    os.waitpid(child, 0)
    return said


@FORKS
def test_a_forked_process_is_told_to_make_its_own(services: Services, topic: str) -> None:
    producer = Producer(services.kafka, transactional_id=topic)

    async def write(value: bytes) -> int:
        async with producer.transaction():
            return (await (await producer.send(topic, value))).offset

    async def use() -> list[str]:
        said = []
        async with producer:
            for call in [*ASYNC, _flush]:
                try:
                    await asyncio.wait_for(call(producer, topic), 10)
                except Exception as error:
                    said.append(f"{type(error).__name__} {error}")
        return said

    with asyncio.Runner() as runner:
        assert runner.run(write(b"before")) == 0
        said = in_child(lambda: asyncio.run(use()))
        # After the marker of the transaction; the child's `close` has closed no connection.
        assert runner.run(write(b"after")) == 2
        assert producer.stats().brokers[1].requests == 2
        runner.run(producer.close())
    assert len(said) == len(ASYNC) + 1
    assert all("ProducerClosed" in one and "create one in each process" in one for one in said), said


@FORKS
def test_a_forked_process_is_told_by_the_producer_of_threads(services: Services, topic: str) -> None:
    with BlockingProducer(services.kafka) as producer:
        calls: list[Callable[[], Any]] = [
            lambda: producer.send(topic, b"v"),
            lambda: producer.send_table(topic, TABLE),
            producer.flush,
        ]

        def use() -> list[str]:
            said = []
            for call in calls:
                try:
                    call()
                except ProducerClosed as error:
                    said.append(str(error))
            producer.close()
            return said

        said = in_child(use)
        assert producer.send(topic, b"v").result(30).offset == 0
    assert len(said) == len(calls)
    assert all("create one in each process" in one for one in said)
