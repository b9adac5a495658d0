"""Standard output: safe text, rows in aligned columns, durations, and readers that end early."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

PIPE_CLOSED = 141
"""The exit code that shells report after a broken pipe."""
UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def printable(text: str) -> str:
    """The text as one line, with control characters escaped, as they could control the terminal."""
    return UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


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
