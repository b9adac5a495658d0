"""Microseconds since 1970 and their timeuuids."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

UUID_EPOCH = 0x01B21DD213814000
"""Ticks of 100 ns between 1582-10-15, where version-1 UUIDs begin, and 1970-01-01 (RFC 9562, section 5.1)."""

MICROSECOND = timedelta(microseconds=1)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LARGEST_LOW_HALF = 0x7F7F7F7F7F7F7F7F
"""The greatest last eight bytes of a timeuuid: timeuuids of one tick are ordered by them, each byte signed."""


def micros(at: datetime) -> int:
    """The time in microseconds since 1970; a time without a zone is UTC."""
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // MICROSECOND


def now_micros() -> int:
    return micros(datetime.now(UTC))


def upper_bound(time: int) -> uuid.UUID:
    """The greatest timeuuid of a microsecond: `> upper_bound(a) AND <= upper_bound(b)` selects the time (a, b]."""
    ticks = time * 10 + 9 + UUID_EPOCH
    high = (ticks & 0xFFFFFFFF) << 32 | (ticks >> 32 & 0xFFFF) << 16 | 0x1000 | ticks >> 48 & 0x0FFF
    return uuid.UUID(int=high << 64 | _LARGEST_LOW_HALF)
