"""Durations as users write them: a `timedelta`, or a string in Spark's form such as "10 minutes"."""

from __future__ import annotations

import re
from datetime import timedelta

from penstock.errors import PenstockError

_UNITS = {
    "microsecond": timedelta(microseconds=1),
    "millisecond": timedelta(milliseconds=1),
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+?)s?(?:\s+|$)")

LONGEST = 200
"""Most characters of a duration string."""


def duration(value: timedelta | str, *, name: str) -> timedelta:
    """Returns `value` as a timedelta.

    Raises `PenstockError` if it is negative or not a duration; `name` is the setting's name for the message.
    """
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise PenstockError(f"{name} is negative: {value}", next="give a duration of zero or more")
        return value
    total = _read(value) if isinstance(value, str) else None
    if total is None:
        raise PenstockError(
            f"{name} is not a duration: {repr(value)[:LONGEST]}",
            next='write it as "10 minutes" or as a datetime.timedelta',
        )
    return total


def _read(text: str) -> timedelta | None:
    """The sum of the parts; None if anything else is in `text`, or the sum is too long for a timedelta."""
    if len(text) > LONGEST:
        return None
    total, rest = timedelta(0), text.strip().lower()
    while (part := _PART.match(rest)) and part[2] in _UNITS:
        try:
            total += float(part[1]) * _UNITS[part[2]]
        except OverflowError:
            return None
        rest = rest[part.end() :]
    return total if text.strip() and not rest else None


def duration_text(value: timedelta) -> str:
    """The string that `duration` reads back as `value`."""
    return f"{value // timedelta(microseconds=1)} microseconds"
