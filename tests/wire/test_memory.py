"""The producer's memory: callers wait for it in order, and none of it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, strategies as st

from penstock.wire import Producer
from penstock.wire.errors import KafkaError, ProducerClosed
from penstock.wire.producer.accumulator import Accumulator, as_bytes

MEMORY = 1_000


def run(work: Callable[[Accumulator], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(5), Producer("127.0.0.1:1", buffer_memory=MEMORY) as producer:
            await work(producer._accumulator)

    asyncio.run(within())


@asynccontextmanager
async def waiting(memory: Accumulator, *sizes: int) -> AsyncIterator[tuple[list[asyncio.Task[None]], list[int]]]:
    """Callers that wait for `sizes`, and the numbers of those who were admitted, in order."""
    admitted: list[int] = []

    async def wait(number: int, size: int) -> None:
        await memory.reserve(size)
        admitted.append(number)

    tasks = [asyncio.create_task(wait(number, size)) for number, size in enumerate(sizes)]
    await asyncio.sleep(0)
    yield tasks, admitted
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_small_caller_does_not_overtake_a_large_one() -> None:
    async def work(memory: Accumulator) -> None:
        await memory.reserve(MEMORY)
        async with waiting(memory, 800, 1, 150) as (_, admitted):
            memory.give_back(500)
            await asyncio.sleep(0)
            assert admitted == []
            memory.give_back(300)
            await asyncio.sleep(0)
            assert (admitted, memory.free) == ([0], 0)
            memory.give_back(151)
            await asyncio.sleep(0)
            assert (admitted, memory.free) == ([0, 1, 2], 0)

    run(work)


def test_what_is_larger_than_all_memory_waits_until_all_is_free() -> None:
    async def work(memory: Accumulator) -> None:
        await memory.reserve(1)
        async with waiting(memory, 5 * MEMORY, 1) as (_, admitted):
            assert admitted == []
            memory.give_back(1)
            await asyncio.sleep(0)
            assert (admitted, memory.free) == ([0], -4 * MEMORY)
            memory.give_back(5 * MEMORY)
            await asyncio.sleep(0)
            assert (admitted, memory.free) == ([0, 1], MEMORY - 1)

    run(work)


def test_a_caller_that_is_cancelled_while_it_waits_takes_nothing() -> None:
    async def work(memory: Accumulator) -> None:
        await memory.reserve(MEMORY)
        async with waiting(memory, 700, 300) as (tasks, admitted):
            tasks[0].cancel()
            await asyncio.sleep(0)
            memory.give_back(MEMORY)
            await asyncio.sleep(0)
            assert (admitted, memory.free) == ([1], 700)

    run(work)


def test_all_who_wait_are_refused_together_and_later_callers_may_wait() -> None:
    async def work(memory: Accumulator) -> None:
        await memory.reserve(MEMORY)
        async with waiting(memory, 1, 2) as (tasks, admitted):
            memory.refuse(ProducerClosed(topic="t"))
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(error) for error in found] == [ProducerClosed] * 2
            assert (admitted, memory.free, len(memory.waiting)) == ([], 0, 0)
        async with waiting(memory, 10) as (_, admitted):
            memory.give_back(10)
            await asyncio.sleep(0)
            assert admitted == [0]

    run(work)


@given(st.lists(st.tuples(st.sampled_from(["reserve", "cancel", "give back", "refuse"]), st.integers(1, 1500))))
def test_no_memory_is_lost_whatever_callers_do(steps: list[tuple[str, int]]) -> None:
    async def work(memory: Accumulator) -> None:
        held: list[int] = []
        tasks: list[asyncio.Task[None]] = []

        async def take(size: int) -> None:
            await memory.reserve(size)
            held.append(size)

        for step, number in steps:
            if step == "reserve":
                tasks.append(asyncio.create_task(take(number)))
            elif step == "cancel" and tasks:
                tasks[number % len(tasks)].cancel()
            elif step == "give back" and held:
                memory.give_back(held.pop(number % len(held)))
            elif step == "refuse":
                memory.refuse(KafkaError("no"))
            if number % 3:
                await asyncio.sleep(0)
        await asyncio.sleep(0)  # all have asked by now
        memory.refuse(KafkaError("the end"))
        await asyncio.gather(*tasks, return_exceptions=True)
        assert memory.free == MEMORY - sum(held)
        for size in held:
            memory.give_back(size)
        assert (memory.free, len(memory.waiting)) == (MEMORY, 0)

    run(work)


@pytest.mark.parametrize("value", [b"v", bytearray(b"v"), memoryview(b"v")])
def test_values_are_any_bytes(value: Any) -> None:
    assert as_bytes("value", value) == b"v"
    assert type(as_bytes("value", value)) is bytes


@pytest.mark.parametrize("value", ["v", 1, [b"v"]])
def test_other_values_are_refused_where_they_are_sent(value: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"a header must be bytes or None, not {type(value).__name__}; encode it first"
    ):
        as_bytes("a header", value)
