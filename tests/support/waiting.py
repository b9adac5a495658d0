"""Waits for events in other processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0  # seconds


def until(reached: Callable[[], T | None], what: str, patience: float = PATIENCE) -> T:
    """The first result that is true."""
    deadline = time.monotonic() + patience
    while not (found := reached()):
        assert time.monotonic() < deadline, f"no {what} within {patience:g} s"
        time.sleep(0.05)
    return found
