"""The process that reads records: what its death, its hanging and its large answers do to the calls."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from penstock.console.reading import reader_program
from penstock.console.reading.reader_process import ENDED, LONGEST, ReaderError, ReaderProcess

SILENT = 8.0
"""Seconds; the process sends a sign of life each 2 seconds once it has started."""


@asynccontextmanager
async def reader(silent: float = 60.0) -> AsyncIterator[ReaderProcess]:
    made = ReaderProcess(silent=silent)
    try:
        yield made
    finally:
        await made.close()


async def states(made: ReaderProcess) -> Any:
    """The answer of a call that needs no server."""
    return await made.call("states", folders=[])


@pytest.mark.slow
def test_a_process_that_hangs_is_reported_and_the_next_call_has_another_one() -> None:
    async def calls() -> None:
        async with reader(SILENT) as made:
            assert await states(made) == []
            assert made.pid is not None
            psutil.Process(made.pid).suspend()
            with pytest.raises(ReaderError, match="did nothing for 8 s") as told:
                await states(made)
            assert (told.value.kind, told.value.retriable) == (ENDED, True)
            made._silent = 60.0
            assert await states(made) == []

    asyncio.run(calls())


def test_a_process_that_hangs_does_not_keep_the_console_from_ending() -> None:
    async def calls() -> None:
        async with reader() as made:
            await states(made)
            assert made.pid is not None
            process = psutil.Process(made.pid)
            process.suspend()
            async with asyncio.timeout(30):
                await made.close()
            assert not process.is_running()

    asyncio.run(calls())


def test_a_line_that_cannot_be_read_is_the_end_of_one_process_only() -> None:
    async def calls() -> None:
        async with reader() as made:
            await states(made)
            process = made._process
            assert process is not None and process.stdout is not None
            process.stdout.feed_data(b"this is not JSON\n")
            assert made._reading is not None
            await made._reading
            assert await states(made) == []

    asyncio.run(calls())


@pytest.mark.parametrize("letter", ["\U0001f600", "\x01", "\ud800", "a"])
def test_a_page_of_any_letters_fits_into_a_line(letter: str) -> None:
    message = {"id": 1, "done": {"records": [letter * (8 << 20)]}}
    line = reader_program.line_of(message)
    assert len(line) <= LONGEST and json.loads(line) == message


def test_an_answer_that_is_too_large_is_an_error() -> None:
    line = reader_program.line_of({"id": 7, "done": "x" * LONGEST})
    told = json.loads(line)
    assert (told["id"], told["error"]["kind"]) == (7, "TooLarge") and told["error"]["next"]


def test_a_call_that_ends_before_it_began_leaves_nothing() -> None:
    async def calls() -> None:
        made = reader_program.Calls(lambda message: None)
        made.take({"id": 1, "call": "states", "args": {"folders": []}})
        made.take({"id": 1, "end": True})
        await asyncio.wait(made._tasks.values())
        await asyncio.sleep(0)
        assert not made._room

    asyncio.run(calls())
