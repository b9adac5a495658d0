"""Waits for events in other processes, and how long a test waits at most on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from typing import TypeVar

T = TypeVar("T")

QUIET = 0.04
"""Seconds that `_work` takes on a machine with nothing else to do."""


def _work() -> None:
    sum(number * number for number in range(500_000))


@cache
def slowness() -> float:
    """How many times longer this machine takes now than a quiet one, at least 1.

    PENSTOCK_TEST_PATIENCE multiplies it: for a machine that becomes slow later, or a debugger.
    """
    began = time.perf_counter()
    for _ in range(5):
        _work()
    measured = (time.perf_counter() - began) / 5 / QUIET
    return max(1.0, measured) * float(os.environ.get("PENSTOCK_TEST_PATIENCE", "1"))


def patience(seconds: float) -> float:
    """Seconds that a test waits at most for what takes far less than `seconds` on a quiet machine.

    All bounds on waiting come from here: what never comes still fails, and a busy machine fails nothing.
    """
    return seconds * slowness()


PATIENCE = patience(120)
"""Seconds; enough for all that a running server does."""


def until(reached: Callable[[], T | None], what: str, patience: float = PATIENCE) -> T:
    """The first result that is true."""
    deadline = time.monotonic() + patience
    while not (found := reached()):
        assert time.monotonic() < deadline, f"no {what} within {patience:.0f} s"
        time.sleep(0.05)
    return found
