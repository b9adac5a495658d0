"""Arguments as users write them: durations, whole numbers, and the names of options.

A duration is a string in Spark's form such as "10 minutes", with signs of units such as "5 ms", a number of seconds, or
a `timedelta`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import TypeAlias

from penstock.errors import PenstockError

Duration: TypeAlias = str | float | timedelta
"""A duration: a string such as "10 minutes", an integer or float of seconds, or a `timedelta`."""

_UNITS = {
    "microsecond": timedelta(microseconds=1),
    "millisecond": timedelta(milliseconds=1),
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
    "week": timedelta(weeks=1),
}
_UNITS |= {f"{name}s": span for name, span in _UNITS.items()}
_SIGNS = {"us": "microsecond", "ms": "millisecond", "s": "second", "min": "minute", "h": "hour", "d": "day"}
_UNITS |= {sign: _UNITS[name] for sign, name in _SIGNS.items()}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)(?:\s+|$)")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The beginning of time of Kafka, Spark and CQL."""
NANOS_PER_DAY = 86_400_000_000_000
LONGEST = 200
"""Most characters of a duration string."""


def whole(text: str, least: int = 0, most: int = (1 << 63) - 1) -> int | None:
    """A whole number in plain digits; None for anything else, without reading more digits than `most` has."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most))):
        return None
    return int(text) if least <= int(text) <= most else None


class InvalidDuration(PenstockError, ValueError):
    """A setting is negative or not a duration; also a ValueError, as the Kafka client promises for its options."""


def duration(value: Duration, *, name: str) -> timedelta:
    """Returns `value` as a timedelta; a number is in seconds.

    Raises `InvalidDuration` if it is negative or not a duration; `name` is the setting's name for the message.
    """
    total = _read(value) if isinstance(value, str) else _made(value)
    if total is None:
        raise InvalidDuration(
            f"{name} is not a duration: {repr(value)[:LONGEST]}",
            next='write it as "10 minutes", as seconds (a number without quotes), or as a datetime.timedelta',
        )
    if total < timedelta(0):
        raise InvalidDuration(f"{name} is negative: {value}", next="give a duration of zero or more")
    return total


def _made(value: float | timedelta) -> timedelta | None:
    """None for a value of another type, and for a number that no timedelta can hold."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        return None


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


def require_known(names: Iterable[str], known: Collection[str], *, where: str) -> None:
    """Raise `PenstockError` for the first of `names` that is not in `known`; it suggests the nearest one."""
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise PenstockError(f"unknown argument {name!r}", where=where, next=f"{hint}use one of {', '.join(known)}")


def keywords(function: Callable[..., object]) -> list[str]:
    """The keyword-only arguments of a function, without those that it takes as `**options`."""
    return [
        name for name, parameter in signature(function).parameters.items() if parameter.kind is Parameter.KEYWORD_ONLY
    ]
