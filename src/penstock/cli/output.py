"""Standard output: safe text, rows in aligned columns, durations, and readers that end early."""

from __future__ import annotations

import asyncio
import os
import re
import select
import stat
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

T = TypeVar("T")

PIPE_CLOSED = 141
"""The exit code that shells report after a broken pipe."""
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def printable(text: str) -> str:
    """The text as one line, with control characters escaped, as they could control the terminal."""
    return UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A line for each row, with columns as wide as their longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def in_largest_units(span: timedelta) -> str:
    """A duration in its largest unit and the next smaller one."""
    seconds = max(0, int(span.total_seconds()))
    days, hours, minutes = seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {seconds % 60}s" if minutes else f"{seconds}s"


async def while_read(work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; cancels it, and raises BrokenPipeError, when who reads its output has ended.

    A write shows that, too, but only the next one: nothing may come for days from what `work` follows.
    """
    output, loop, task = _pipe(), asyncio.get_running_loop(), asyncio.ensure_future(work)
    ended = False

    def heard() -> None:
        nonlocal ended
        loop.remove_reader(output)
        # The other end of a socket may also send something.
        ended = _has_no_reader(output)
        if ended:
            task.cancel()

    if output >= 0:
        loop.add_reader(output, heard)
    try:
        return await task
    except asyncio.CancelledError:
        if ended:
            raise BrokenPipeError from None
        raise
    finally:
        if output >= 0:
            loop.remove_reader(output)


def _pipe() -> int:
    """Standard output if it is a pipe or a socket, whose reader can end; else -1."""
    try:
        output = sys.stdout.fileno()
    except OSError:  # none, or a test's
        return -1
    kind = os.fstat(output).st_mode
    return output if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind) else -1


def _has_no_reader(output: int) -> bool:
    asked = select.poll()
    asked.register(output, 0)
    return bool(asked.poll(0))


@contextmanager
def to_pipe() -> Iterator[None]:
    """End the program in silence if who reads its output has ended, as `head` does."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would raise again when it flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(PIPE_CLOSED) from None
