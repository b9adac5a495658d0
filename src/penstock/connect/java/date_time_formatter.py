"""Days and times of day by patterns, as Java's `DateTimeFormatter` reads them.

Supported are the letters y u M d H h m s S n a X x Z V, text in quotes, optional parts in brackets, and the formats
with a name that `NAMED` has. Every other letter is refused: a value that is read in another way than Java reads it
would be a wrong one. Unlike there, a day that a month does not have is an error, and not the month's last day.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from penstock.connect.java.date_patterns import MONTHS, Element, WrongPattern, elements

MOST = 100
"""Characters of a pattern, and of a text that is read with one."""
MOST_OPTIONAL = 10
"""Parts in brackets: each doubles the ways in which a text can be read, and all may be tried."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FRACTION, _OFFSET = "\0", "\1"
"""Signs of the patterns here that Java does not have: an optional fraction, and an offset in any notation."""
_DAY, _TIME, _ZONED = "uuuu-MM-dd", f"HH:mm[:ss{_FRACTION}]", "XXXXX['['VV']']"
NAMED = {
    "BASIC_ISO_DATE": "uuuuMMdd[XX]",
    "ISO_LOCAL_DATE": _DAY,
    "ISO_OFFSET_DATE": f"{_DAY}XXXXX",
    "ISO_DATE": f"{_DAY}[XXXXX]",
    "ISO_LOCAL_TIME": _TIME,
    "ISO_OFFSET_TIME": f"{_TIME}XXXXX",
    "ISO_TIME": f"{_TIME}[XXXXX]",
    "ISO_LOCAL_DATE_TIME": f"{_DAY}'T'{_TIME}",
    "ISO_OFFSET_DATE_TIME": f"{_DAY}'T'{_TIME}XXXXX",
    "ISO_ZONED_DATE_TIME": f"{_DAY}'T'{_TIME}{_ZONED}",
    "ISO_DATE_TIME": f"{_DAY}'T'{_TIME}[{_ZONED}]",
    "ISO_INSTANT": f"{_DAY}'T'HH:mm:ss{_FRACTION}XXXXX",
    "CQL_TIMESTAMP": f"{_DAY}[['T'][ ]{_TIME}][ ][{_OFFSET}]",
}
_DIGITS = {"M": "month", "d": "day", "H": "hour", "h": "hour of half", "m": "minute", "s": "second"}
_OFFSETS = {
    "X": "Z|[+-][0-9]{2}(?:[0-9]{2})?",
    "XX": "Z|[+-][0-9]{4}",
    "XXX": "Z|[+-][0-9]{2}:[0-9]{2}",
    "XXXX": "Z|[+-][0-9]{4}(?:[0-9]{2})?",
    "XXXXX": "Z|[+-][0-9]{2}:[0-9]{2}(?::[0-9]{2})?",
    _OFFSET: "Z|UTC|GMT|[+-][0-9]{2}(?::?[0-9]{2})?",
}
_OFFSETS |= {name.replace("X", "x"): text.removeprefix("Z|") for name, text in _OFFSETS.items() if "X" in name}
_OFFSETS |= {"Z": _OFFSETS["xx"], "ZZ": _OFFSETS["xx"], "ZZZ": _OFFSETS["xx"], "ZZZZZ": _OFFSETS["XXXXX"]}
_ZONE_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?(?::?([0-9]{2}))?")
_REGION = re.compile(r"[A-Za-z][A-Za-z0-9_+/-]{1,59}")


@lru_cache(maxsize=1000)
def zone_of(text: str) -> tzinfo:
    """The time zone of a name such as Europe/Paris or +01:00; raises ValueError."""
    if text in ("Z", "UTC", "GMT", "UT"):
        return UTC
    if match := _ZONE_OFFSET.fullmatch(text):
        hours, minutes, seconds = (int(each or 0) for each in match.groups()[1:])
        offset = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if offset > timedelta(hours=18) or minutes > 59 or seconds > 59:
            raise ValueError(f"{text} is not an offset up to 18 hours")
        return timezone(-offset if match[1] == "-" else offset)
    try:
        if _REGION.fullmatch(text):
            return ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        pass
    raise ValueError(f"{text[:MOST]!r} is not a time zone, such as Europe/Paris or +01:00")


@dataclass(frozen=True)
class Moment:
    """What a text says: the day, nanoseconds since midnight, and the zone; None for what it does not say."""

    day: date | None
    nanos: int | None
    zone: tzinfo | None

    def millis(self, zone: tzinfo) -> int:
        """Milliseconds since 1970, rounded down; `zone` is for a text without one. Raises ValueError without a day."""
        if self.day is None:
            raise ValueError("it has no day")
        seconds, nanos = divmod(self.nanos or 0, 1_000_000_000)
        minutes, second = divmod(seconds, 60)
        at = datetime.combine(self.day, time(minutes // 60, minutes % 60, second), self.zone or zone)
        return (at - _EPOCH) // timedelta(milliseconds=1) + nanos // 1_000_000


@dataclass(frozen=True)
class DatePattern:
    """A pattern, as a regular expression whose groups are these fields."""

    regex: re.Pattern[str]
    fields: tuple[str, ...]

    @property
    def has_day(self) -> bool:
        return {"month", "day"} <= set(self.fields) and not {"year", "year of century"}.isdisjoint(self.fields)

    @property
    def has_time(self) -> bool:
        return not {"hour", "hour of half"}.isdisjoint(self.fields)

    def read(self, text: str) -> Moment:
        """Raises ValueError for a text that the pattern does not fit."""
        match = self.regex.fullmatch(text) if len(text) <= MOST else None
        if match is None:
            raise ValueError("it does not fit the pattern")
        parts = {field: part for field, part in zip(self.fields, match.groups(), strict=True) if part is not None}
        zone = parts.get("offset") or parts.get("zone")
        return Moment(
            _day(parts), _nanos(parts), zone_of(zone.upper() if "offset" in parts else zone) if zone else None
        )


def _day(parts: dict[str, str]) -> date | None:
    year = parts.get("year") or ("20" + parts["year of century"] if "year of century" in parts else "")
    month, day = parts.get("month", ""), parts.get("day", "")
    if not (year and month and day):
        return None
    number = int(month) if month.isdigit() else [name[:3].lower() for name in MONTHS].index(month[:3].lower()) + 1
    return date(int(year), number, int(day))


def _nanos(parts: dict[str, str]) -> int | None:
    if "hour of half" in parts:
        half = int(parts["hour of half"])
        if not 1 <= half <= 12 or "half" not in parts:
            raise ValueError("it is not an hour of half a day")
        hour = half % 12 + (12 if parts["half"].lower() == "pm" else 0)
    elif "hour" in parts:
        hour = int(parts["hour"])
    else:
        return None
    minute, second = int(parts.get("minute", 0)), int(parts.get("second", 0))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("it is not a time of day")
    fraction = int(parts.get("nano") or parts.get("fraction", "").ljust(9, "0"))
    return ((hour * 60 + minute) * 60 + second) * 1_000_000_000 + fraction


@lru_cache(maxsize=1000)
def date_pattern(text: str, *, names: bool) -> DatePattern:
    """The pattern of this text or name; `names` allows names of months, which are English. Raises WrongPattern."""
    if len(text) > MOST or not text.isprintable() or not text.strip():
        raise WrongPattern(f"it must be a pattern of at most {MOST} characters")
    if text not in NAMED and re.fullmatch("[A-Z0-9]+(?:_[A-Z0-9]+)+", text):
        raise WrongPattern(f"{text} is not supported; use a pattern, or one of {', '.join(NAMED)}")
    parts, fields, depth, open_end = [], [], 0, False
    tokens = list(elements(NAMED.get(text, text)))
    if tokens.count(Element("[", 0)) > MOST_OPTIONAL:
        raise WrongPattern(f"it has more than {MOST_OPTIONAL} optional parts")
    for element in tokens:
        letters = element.text * max(element.times, 1)
        if element.times or (letters in (_FRACTION, _OFFSET) and not element.is_quoted):
            part, field, varies = _element(letters, names)
            if open_end and varies:
                raise WrongPattern(f"before {letters} is a number of any length: give one of both two letters")
            parts.append(part)
            fields.append(field)
            open_end = varies
        elif letters in ("[", "]") and not element.is_quoted:
            depth += 1 if letters == "[" else -1
            if depth < 0:
                raise WrongPattern("it has ] without [")
            parts.append("(?:" if letters == "[" else ")?")
        elif letters in ("{", "}", "#") and not element.is_quoted:
            raise WrongPattern(f"{letters} must be in quotes")
        else:
            parts.append(re.escape(letters))
            open_end = False
    if "hour of half" in fields and "half" not in fields:
        raise WrongPattern("h is an hour of half a day, and needs a; hours from 0 to 23 are H")
    return DatePattern(re.compile("".join(parts) + ")?" * depth, re.IGNORECASE | re.ASCII), tuple(fields))


def _element(letters: str, names: bool) -> tuple[str, str, bool]:
    """The regular expression of a field, its name, and whether its length varies."""
    letter, count = letters[0], len(letters)
    if letter in "yu" and count in (1, 2, 4):
        return f"([0-9]{{{'1,4' if count == 1 else count}}})", "year of century" if count == 2 else "year", count == 1
    if letter == "M" and count in (3, 4):
        if not names:
            raise WrongPattern(f"{letters} are names of months, which are read in English only: use codec.locale=en_US")
        return f"({'|'.join(name if count == 4 else name[:3] for name in MONTHS)})", "month", False
    if letter in _DIGITS and count <= 2:
        return f"([0-9]{{{'1,2' if count == 1 else 2}}})", _DIGITS[letter], count == 1
    if letter in "Sn" and count <= 9:
        return (
            f"([0-9]{{{count if letter == 'S' else f'{count},9'}}})",
            "fraction" if letter == "S" else "nano",
            letter == "n",
        )
    if letters == _FRACTION:
        return "(?:\\.([0-9]{0,9}))?", "fraction", False
    if letters == "a":
        return "(AM|PM)", "half", False
    if letters == "VV":
        return f"({_REGION.pattern}|Z|[+-][0-9]{{2}}:[0-9]{{2}})", "zone", False
    if letters in _OFFSETS:
        return f"({_OFFSETS[letters]})", "offset", False
    raise WrongPattern(
        f"{letters} is not supported; use y, u, M, d, H, h, m, s, S, n, a, X, x, Z, VV, text in quotes, or one of "
        f"{', '.join(NAMED)}"
    )
