"""Java's SimpleDateFormat in UTC, with English names: writes times, and reads them as leniently as Java does.

Reading is not strict: numbers may have fewer or more digits where no other number follows, the 32nd of a month is in
the next one, and text after the time is ignored. Days before 15 October 1582 are those of the Julian calendar.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from itertools import zip_longest

from penstock.connect.java.date_patterns import MONTHS, WEEKDAYS, Element, WrongPattern, elements
from penstock.connect.records.record import NoValue

_DAY = 24 * 60 * 60 * 1000
_GREGORIAN = -141_427
"""15 October 1582 in days since 1970."""
_NUMBER = re.compile("-?[0-9]+")
_MOST_DIGITS = 9
_SIGNED = "(?P<sign>[+-])(?P<hours>[0-9]{2})"
_OFFSET = re.compile("(?i:UTC|GMT(?![+-]))|(?i:GMT)?(?P<sign>[+-])(?P<hours>[0-9]{1,2}):?(?P<minutes>[0-9]{2})")
_ISO_OFFSETS = {
    count: re.compile(f"Z|{_SIGNED}(?P<minutes>{minutes})") for count, minutes in ((1, ""), (2, "[0-9]{2}"))
} | {3: re.compile(f"Z|{_SIGNED}:(?P<minutes>[0-9]{{2}})")}
_NAMES = {"M": (1, MONTHS), "L": (1, MONTHS), "E": (0, WEEKDAYS), "a": (0, ("AM", "PM")), "G": (0, ("BC", "AD"))}
"""Fields that are names, with the number of the first name."""
_SAME = {"L": "M", "k": "H", "h": "K", "Z": "z", "X": "z"}
"""Letters of the same field."""
_MOST = {"G": 3, "y": 6, "M": 4, "L": 4, "d": 2, "D": 3, "E": 4, "a": 1, "z": 4, "Z": 3, "X": 3}
_MOST |= dict.fromkeys("HhkKms", 2)
"""The letters with the same meaning in Spark's patterns, and how often each may stand there; milliseconds are SSS."""


def _month_start(year: int, month: int, gregorian: bool) -> int:
    """The first day of a month, in days since 1970; months count on from December."""
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    # Years that begin in March have the leap day at their end.
    year -= month <= 2
    day = (153 * ((month + 9) % 12) + 2) // 5
    skipped = year // 400 - year // 100 if gregorian else -2
    return 365 * year + year // 4 + skipped + day - 719_468


def _days(year: int, month: int, day: int) -> int:
    gregorian = _month_start(year, month, True) + day - 1
    return gregorian if gregorian >= _GREGORIAN else _month_start(year, month, False) + day - 1


@dataclass(frozen=True)
class _Time:
    """A time, taken apart."""

    year: int
    month: int
    day: int
    days: int
    """Days since 1970."""
    clock: int
    """Milliseconds since midnight."""

    @classmethod
    def of(cls, millis: int) -> _Time:
        days, clock = divmod(millis, _DAY)
        if days >= _GREGORIAN:
            era, day = divmod(days + 719_468, 146_097)
            year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
            day -= 365 * year + year // 4 - year // 100
            year += 400 * era
        else:
            era, day = divmod(days + 719_470, 1461)
            year = (day - day // 1460) // 365
            day -= 365 * year
            year += 4 * era
        month = (5 * day + 2) // 153
        day -= (153 * month + 2) // 5
        month = month + 3 if month < 10 else month - 9
        return cls(year + (month <= 2), month, day + 1, days, clock)

    @property
    def hour(self) -> int:
        return self.clock // 3_600_000

    @property
    def day_of_year(self) -> int:
        return self.days - _days(self.year, 1, 1) + 1


_NUMBERS: dict[str, Callable[[_Time], int]] = {
    "d": lambda time: time.day,
    "D": lambda time: time.day_of_year,
    "H": lambda time: time.hour,
    "k": lambda time: time.hour or 24,
    "K": lambda time: time.hour % 12,
    "h": lambda time: time.hour % 12 or 12,
    "m": lambda time: time.clock // 60_000 % 60,
    "s": lambda time: time.clock // 1000 % 60,
    "S": lambda time: time.clock % 1000,
}


def _shown(letter: str, count: int, time: _Time) -> str:
    if letter in _NUMBERS:
        return str(_NUMBERS[letter](time)).zfill(count)
    if letter == "y":
        year = time.year if time.year > 0 else 1 - time.year
        return f"{year % 100:02}" if count == 2 else str(year).zfill(count)
    if letter in "ML":
        name = MONTHS[time.month - 1]
        return str(time.month).zfill(count) if count < 3 else name[:3] if count == 3 else name
    if letter == "E":
        name = WEEKDAYS[(time.days + 4) % 7]
        return name if count > 3 else name[:3]
    if letter == "a":
        return "PM" if time.hour >= 12 else "AM"
    if letter == "G":
        return "AD" if time.year > 0 else "BC"
    return {"X": "Z", "Z": "+0000"}.get(letter, "UTC" if count < 4 else "Coordinated Universal Time")


def problem(pattern: str) -> str | None:
    """The error of a pattern, or None."""
    try:
        for text, count, is_quoted in elements(pattern):
            is_supported = count <= _MOST.get(text, 0) or (text, count) == ("S", 3) if count else text not in "[]{}#"
            if not is_supported and not is_quoted:
                run = text * max(count, 1)
                return f"{run} is not supported; use {' '.join(_MOST)}, SSS for milliseconds, 'quotes' for literals"
    except WrongPattern:
        return "Unterminated quote"
    return None


@dataclass(frozen=True)
class DateFormat:
    """A pattern that `problem` has nothing against."""

    pattern: str

    @cached_property
    def _elements(self) -> tuple[Element, ...]:
        return tuple(elements(self.pattern))

    def format(self, millis: int) -> str:
        time = _Time.of(millis)
        return "".join(_shown(text, count, time) if count else text for text, count, _ in self._elements)

    def parse(self, text: str) -> int:
        """Milliseconds since 1970; raises NoValue for a text that is not in this format."""
        read = _Reading(text)
        for (letter, count, _), following in zip_longest(self._elements, self._elements[1:], fillvalue=Element("", 0)):
            bounded = _is_number(following.text, following.times)
            fits = read.field(letter, count, bounded=bounded) if count else read.literal(letter)
            if not fits:
                raise NoValue(f"{text[:80]!r} is no time in the format {self.pattern}")
        return read.millis()


def _is_number(letter: str, count: int) -> bool:
    return count > 0 and (letter in _NUMBERS or letter == "y" or (letter in "ML" and count < 3))


@dataclass
class _Reading:
    """A text that is read: how far, and its fields by the pattern's letters, the last one at the end."""

    text: str
    at: int = 0
    fields: dict[str, int] = field(default_factory=dict)

    def literal(self, text: str) -> bool:
        fits = self.text.startswith(text, self.at)
        self.at += len(text)
        return fits

    def field(self, letter: str, count: int, *, bounded: bool) -> bool:
        """Read a field; `bounded` says that a number follows, so that it has no more digits than the pattern."""
        start = len(self.text) - len(self.text[self.at :].lstrip(" \t"))
        if start == len(self.text):
            return False
        if _is_number(letter, count):
            return self._number(letter, count, start, bounded)
        if letter in _NAMES:
            return self._named(letter)
        return self._zone(letter, count, start)

    def _number(self, letter: str, count: int, start: int, bounded: bool) -> bool:
        end = self.at + count if bounded else len(self.text)
        digits = _NUMBER.match(self.text, start, end) if end <= len(self.text) else None
        if digits is None or len(digits[0]) > _MOST_DIGITS:
            return False
        value = int(digits[0])
        if letter == "y" and count < 3 and re.fullmatch("[0-9]{2}", digits[0]):
            value = _of_century(value)
        # Midnight and noon are at the end of the hours from 1 on.
        if (letter, value) in (("k", 24), ("h", 12)):
            value = 0
        return self._keep(_SAME.get(letter, letter), value, digits.end())

    def _named(self, letter: str) -> bool:
        first, names = _NAMES[letter]
        for length in (None, 3):
            for value, name in enumerate(names, first):
                end = self.at + len(name[:length])
                if self.text[self.at : end].lower() == name[:length].lower():
                    return self._keep(_SAME.get(letter, letter), value, end)
        return False

    def _zone(self, letter: str, count: int, start: int) -> bool:
        match = (_ISO_OFFSETS[count] if letter == "X" else _OFFSET).match(self.text, start)
        if match is None:
            return False
        sign, hours, minutes = match["sign"], int(match["hours"] or 0), int(match["minutes"] or 0)
        offset = 60 * hours + minutes
        fits = hours < 24 and minutes < 60
        return fits and self._keep("z", -offset if sign == "-" else offset, match.end())

    def _keep(self, letter: str, value: int, end: int) -> bool:
        self.fields.pop(letter, None)
        self.fields[letter], self.at = value, end
        return True

    def millis(self) -> int:
        fields, order = self.fields, list(self.fields)
        year = fields.get("y", 1970)
        if fields.get("G") == 0:
            year = 1 - year
        # Of fields that exclude each other the last one counts.
        if "D" in fields and ("d" not in fields or order.index("D") > order.index("d")):
            days = _days(year, 1, fields["D"])
        else:
            days = _days(year, fields.get("M", 1), fields.get("d", 1))
        halves = max(order.index("K"), order.index("a")) if {"K", "a"} <= fields.keys() else -1
        hour = fields.get("K", 0) + 12 * fields.get("a", 0)
        if "H" in fields and order.index("H") > halves:
            hour = fields["H"]
        minutes = (24 * days + hour) * 60 + fields.get("m", 0) - fields.get("z", 0)
        millis = (minutes * 60 + fields.get("s", 0)) * 1000 + fields.get("S", 0)
        if not -(1 << 63) <= millis < 1 << 63:
            raise NoValue(f"the time {self.text[:80]!r} is too far away")
        return millis


def _of_century(year: int) -> int:
    """The year that ends with these two digits, from 80 years ago on."""
    first = datetime.now(UTC).year - 80
    return first + (year - first) % 100
