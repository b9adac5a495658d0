"""`errors.retry.timeout` and `errors.retry.delay.max.ms` of sinks: faults of converters and transforms that can pass.

As in Kafka Connect (KIP-298) a step is tried again after 300 ms, 600 ms and so on, and when the time is over, its
record is a bad one. Without a time a converter's fault repeats the batch for ever, and so do all faults of writes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.connect.records.record import NoValue, PassingFault
from penstock.errors import PenstockError
from penstock.process.signals import pause

FIRST = 0.3
"""Seconds before a step is tried again for the first time."""


@dataclass(frozen=True)
class Retries:
    """For how long a step is tried again, and the longest pause before it is, in seconds."""

    timeout: float
    longest: float

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Retries | None:
        """Those of a valid configuration; None where steps are not tried again."""
        timeout, longest = values["errors.retry.timeout"], values["errors.retry.delay.max.ms"]
        return cls(math.inf if timeout < 0 else timeout / 1000, longest / 1000) if timeout else None


@dataclass(frozen=True)
class Patient:
    """A step that is tried again while its fault can pass; then it raises NoValue."""

    step: Callable[[Any], Any]
    retries: Retries

    def __call__(self, data: Any) -> Any:
        end, wait = time.monotonic() + self.retries.timeout, FIRST
        while True:
            try:
                return self.step(data)
            except (PassingFault, PenstockError) as error:
                if isinstance(error, PenstockError) and not error.retriable:
                    raise
                left = end - time.monotonic()
                if left <= 0:
                    raise NoValue(f"{error}; it was tried again for {self.retries.timeout:g} s") from error
            pause(min(wait, self.retries.longest, left))
            wait *= 2
