"""The loop of those who try again until their patience is out."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.wire.cluster import Backoff
from penstock.wire.errors import KafkaError

T = TypeVar("T")


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    *,
    patience: float,
    pauses: tuple[float, float],
    final: tuple[type[KafkaError], ...] = (),
) -> T:
    """What the first attempt gives that does not fail; raises what is not retriable, or the last error.

    `patience` is seconds, `pauses` the first and the longest one. Errors of the kinds `final` are raised at once.
    """
    deadline, backoff = time.monotonic() + patience, Backoff(*pauses)
    while True:
        try:
            return await attempt()
        except KafkaError as error:
            if not error.retriable or isinstance(error, final) or time.monotonic() > deadline:
                raise
        backoff.failed()
        await backoff.wait()
