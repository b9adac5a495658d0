"""Names that move, addresses that are dead, clocks that jump, and a broker slower than its input."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fault_proxy import FaultProxy, fault_proxy, quick_producer
from kafka_topics import assert_same, new_topic, stored
from waiting import PATIENCE

from penstock.local.services import Services
from penstock.wire import cluster, transport
from penstock.wire.broker_connection import Link
from penstock.wire.cluster import Backoff, Cluster, addresses
from penstock.wire.errors import ConnectionLost, InvalidTimestamp
from penstock.wire.producer.producer import Producer

HOST = "kafka.test"
OLD, NEW = "127.0.0.2", "127.0.0.3"
HOUR = 3600


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A new topic of one partition."""
    with new_topic(services.kafka, "network", 1) as name:
        yield name


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of HOST, which a test may change at any time."""
    found: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *arguments: Any, **options: Any) -> list[Any]:
        hosts = found if host == HOST else [host]
        return [one for each in hosts for one in real(each, port, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return found


@asynccontextmanager
async def old_and_new(services: Services) -> AsyncIterator[tuple[FaultProxy, FaultProxy]]:
    """Two ways to the broker that both say it is at HOST, on one port of two addresses."""
    async with (
        fault_proxy(services.kafka, OLD, name=HOST) as old,
        fault_proxy(services.kafka, NEW, old.port, name=HOST) as new,
    ):
        yield old, new


@pytest.mark.parametrize("silent", [False, True], ids=["closed", "silent"])
def test_a_name_that_moves_is_looked_up_again(services: Services, topic: str, named: list[str], silent: bool) -> None:
    async def work() -> None:
        patience = timedelta(milliseconds=300)
        async with old_and_new(services) as (old, new), quick_producer(old, request_timeout=patience) as one:
            named[:] = [OLD]
            await (await one.send(topic, b"0"))
            assert (old.connections, new.connections) == (1, 0)
            named[:] = [NEW]
            if silent:
                old.hurt = lambda answer: b""
            else:
                await old.close()
            await asyncio.gather(*[await one.send(topic, b"%d" % n) for n in range(1, 50)])
            assert new.connections == 1

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 1), [[b"%d" % n for n in range(50)]])


@contextmanager
def black_hole(address: str) -> Iterator[int]:
    """A port that does not answer connection attempts, like a machine that is gone; its number."""
    with ExitStack() as opened:
        server = opened.enter_context(socket.create_server((address, 0), backlog=0))
        for _ in range(3):  # when its queue is full, Linux drops new connections
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        yield server.getsockname()[1]


def test_the_next_address_of_a_name_is_tried_while_the_first_is_silent(
    services: Services, topic: str, named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(port: int) -> None:
        async with (
            fault_proxy(services.kafka, NEW, port, name=HOST) as proxy,
            asyncio.timeout(PATIENCE),
            quick_producer(proxy) as one,
        ):
            await (await one.send(topic, b"v"))

    never_gives_up(monkeypatch)
    named[:] = [OLD, NEW]
    with black_hole(OLD) as port:
        asyncio.run(work(port))


def never_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting takes as long as it takes."""
    real = transport.connect
    monkeypatch.setattr(transport, "connect", lambda *args, **options: real(*args, **options | {"patience": HOUR}))


def test_the_next_address_is_tried_at_once_when_one_refuses(
    services: Services, topic: str, named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with (
            fault_proxy(services.kafka, NEW, name=HOST) as proxy,
            asyncio.timeout(PATIENCE),
            quick_producer(proxy) as one,
        ):
            await (await one.send(topic, b"v"))

    never_gives_up(monkeypatch)
    monkeypatch.setattr(transport, "HEAD_START", HOUR)
    named[:] = [OLD, NEW]
    asyncio.run(work())


def test_all_who_wait_for_a_broker_share_one_try() -> None:
    came = 0

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal came
        came += 1
        writer.close()

    async def work() -> None:
        async with await asyncio.start_server(refuse, OLD, 0) as server:
            (broker,) = addresses(f"{OLD}:{server.sockets[0].getsockname()[1]}")
            cluster = Cluster("127.0.0.1:1", Link())
            told = await asyncio.gather(*[cluster.connect(broker) for _ in range(5)], return_exceptions=True)
            assert all(isinstance(error, ConnectionLost) for error in told), told

    asyncio.run(work())
    assert came == 1


def test_pauses_stay_short_however_long_a_broker_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: 100.0))
    backoff = Backoff(0.1, 1.0)
    for _ in range(2_000):
        backoff.failed()
    assert 100.5 <= backoff.until <= 101.0


class Clock:
    """A wall clock that can be set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0
        seconds, nanoseconds = time.time, time.time_ns
        monkeypatch.setattr(time, "time", lambda: seconds() + self.ahead)
        monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + self.ahead * 1_000_000_000)


def test_a_clock_that_jumps_neither_expires_nor_holds_records(
    services: Services, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    async def work() -> None:
        async with fault_proxy(services.kafka) as proxy, quick_producer(proxy) as one:
            proxy.pause = 0.001
            futures = []
            for n in range(300):
                # A broker refuses records more than an hour ahead of its own clock.
                clock.ahead = (0, HOUR - 60, 60 - HOUR)[n // 25 % 3]
                futures.append(await one.send(topic, b"%d" % n))
                await asyncio.sleep(0)
            places = await asyncio.wait_for(asyncio.gather(*futures), 30)
            stats = one.stats().topics[topic]
            assert places[25].timestamp - places[50].timestamp > 3_000_000
            assert (stats.records, stats.failed, stats.queued) == (300, 0, 0)
            assert 0.001 < stats.latency_p50 <= stats.latency_p99 < 30
            clock.ahead = 2 * HOUR
            with pytest.raises(InvalidTimestamp, match=f"topic {topic}, partition 0.*check this clock"):
                await (await one.send(topic, b"from the future"))

    asyncio.run(work())
    assert_same(stored(services.kafka, topic, 1), [[b"%d" % n for n in range(300)]])


MEMORY, PART, TOTAL = 32 << 20, 4 << 20, 512 << 20


def large_parts(count: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
    """Batches of incompressible 1 kB values, made lazily."""
    rng = np.random.default_rng(0)
    for _ in range(TOTAL // PART):
        values = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(1024), PART // 1024, [None, pa.py_buffer(rng.bytes(PART))]
        )
        count(PART)
        yield pa.record_batch({"value": values})


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_memory_is_bounded_when_the_broker_is_slow(services: Services, topic: str) -> None:
    handed = ahead = grown = 0

    def count(size: int) -> None:
        nonlocal handed
        handed += size

    async def watch(one: Producer) -> None:
        nonlocal ahead, grown
        before = resident()
        while True:
            of_topic = one.stats().topics.get(topic)
            ahead = max(ahead, handed - (of_topic.bytes if of_topic else 0))
            grown = max(grown, resident() - before)
            await asyncio.sleep(0.005)

    async def work() -> int:
        async with fault_proxy(services.kafka) as proxy, Producer(proxy.servers, buffer_memory=MEMORY) as one:
            proxy.pause = 0.005
            watching = asyncio.create_task(watch(one))
            receipt = await one.send_table(topic, large_parts(count))
            watching.cancel()
            return receipt.rows

    assert asyncio.run(work()) == TOTAL // 1024
    # The waiting batches, the batch that is being encoded, and the one that is being made.
    assert MEMORY / 2 < ahead <= MEMORY + 2 * PART
    assert grown < 150 << 20
