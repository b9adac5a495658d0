"""Times in ISO 8601, of any year; Python's own have the years 1 to 9999."""

from __future__ import annotations

from datetime import date

from penstock.connect.records.record import Date, TimeOfDay, TimeSpan, Timestamp
from penstock.durations import NANOS_PER_DAY

EPOCH = date(1970, 1, 1)
YEARS, YEARS_DAYS = 400, 146_097
"""The calendar repeats after 400 years."""


def day_number(year: int, month: int, day: int) -> int:
    """Days since 1970 of a day in any year."""
    within = year % YEARS + YEARS
    return (date(within, month, day) - EPOCH).days + (year - within) // YEARS * YEARS_DAYS


def year_and_day(days: int) -> tuple[int, str]:
    """The year of a day since 1970, and its month and day as "-01-31"."""
    turns, within = divmod(days + EPOCH.toordinal() - 1, YEARS_DAYS)
    day = date.fromordinal(within + 1)
    return day.year + turns * YEARS, f"{day:-%m-%d}"


def _day_text(days: int) -> str:
    """The day in ISO 8601, with a sign if its year has not four digits."""
    year, rest = year_and_day(days)
    return f"{year:{'04' if 0 <= year <= 9999 else '+05'}}{rest}"


def iso_text(value: Date | TimeSpan) -> str:
    """The time in ISO 8601, with as many digits of the second as it needs, by threes."""
    if isinstance(value, Date):
        return _day_text(int(value))
    nanos = value.count_of(1)
    if isinstance(value, Timestamp):
        days, nanos = divmod(nanos, NANOS_PER_DAY)
        return f"{_day_text(days)}T{_clock(nanos)}Z"
    sign = "-" if nanos < 0 else ""
    if isinstance(value, TimeOfDay):
        return sign + _clock(abs(nanos))
    seconds, part = divmod(abs(nanos), 1_000_000_000)
    return f"{sign}PT{seconds}{_fraction(part)}S"


def _clock(nanos: int) -> str:
    seconds, part = divmod(nanos, 1_000_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{_fraction(part)}"


def _fraction(nanos: int) -> str:
    digits = f"{nanos:09}"
    while digits.endswith("000"):
        digits = digits[:-3]
    return f".{digits}" if digits else ""
