"""The folders of records, as Confluent's partitioners name them: by Kafka's partition, by fields, or by time.

A folder depends only on its record, so that a record that is written again gets into the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from urllib.parse import quote

from penstock.connect.java.date_patterns import Element, WrongPattern, elements
from penstock.connect.records.record import ConnectRecord, Date, Part, Timestamp, type_name
from penstock.connect.records.semantic_types import TimestampText
from penstock.connect.sinks.destination import BadRecord

Folder = Callable[[ConnectRecord], str]
Moment = Callable[[ConnectRecord], int]
"""The time of a record in milliseconds since 1970; raises BadRecord."""
DAY, HOUR = 86_400_000, 3_600_000
DAILY = "'year'=YYYY/'month'=MM/'day'=dd"
HOURLY = f"{DAILY}/'hour'=HH"
LONGEST = 200
"""Characters of a folder's name; file systems have 255 bytes."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LETTERS = "yYMdHmsS"
"""Those of Joda-Time that a path may have."""


def by_partition(record: ConnectRecord) -> str:
    """DefaultPartitioner."""
    return f"partition={record.partition}"


@dataclass(frozen=True)
class ByFields:
    """FieldPartitioner."""

    fields: Sequence[str]

    def __call__(self, record: ConnectRecord) -> str:
        return "/".join(f"{_safe(name)}={_safe(self._text(record, name))}" for name in self.fields)

    def _text(self, record: ConnectRecord, name: str) -> str:
        value = field_of(record.value, name)
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, int | str):
            kind = type_name(value)
            raise BadRecord(f"its field {name} is {kind}, and partition.field.name needs text, a number or a boolean")
        return str(value if isinstance(value, str) else int(value))


@dataclass(frozen=True)
class ByTime:
    """TimeBasedPartitioner; `duration` in milliseconds, or below 1 for none."""

    format: str
    duration: int
    zone: tzinfo
    moment: Moment

    def __call__(self, record: ConnectRecord) -> str:
        millis = self.moment(record)
        try:
            at = (_EPOCH + timedelta(milliseconds=millis)).astimezone(self.zone)
            if self.duration > 0:
                local = at.replace(tzinfo=UTC) - _EPOCH
                at = _EPOCH + local // timedelta(milliseconds=self.duration) * timedelta(milliseconds=self.duration)
        except OverflowError:
            raise BadRecord(f"its time is {millis} ms since 1970, which is no year from 1 to 9999") from None
        return "".join(_shown(element, at) for element in elements(self.format))


def path_problem(format: str) -> str | None:
    """Why a path.format is none; None if it is one."""
    try:
        parts = list(elements(format))
    except WrongPattern as error:
        return str(error)
    if any(part.times and part.text not in LETTERS for part in parts):
        return f"it may have the letters {' '.join(LETTERS)}, text in single quotes, and characters that are no letters"
    shown = "".join(_shown(part, _EPOCH) for part in parts)
    if any(part.strip(".") == "" for part in shown.split("/")):
        return "a folder between slashes has no name"
    return None


def _shown(element: Element, at: datetime) -> str:
    letter, count, _ = element
    if not count:
        return letter
    if letter in "yY":
        return f"{at.year % 100:02}" if count == 2 else f"{at.year:0{count}}"
    if letter == "S":
        return f"{at.microsecond:06}"[:count].ljust(count, "0")
    number = {"M": at.month, "d": at.day, "H": at.hour, "m": at.minute, "s": at.second}[letter]
    return f"{number:0{count}}"


def of_kafka(record: ConnectRecord) -> int:
    """The time that Kafka has."""
    if record.millis is None:
        raise BadRecord("it has no timestamp, which timestamp.extractor=Record needs")
    return record.millis


@dataclass(frozen=True)
class OfField:
    """The time in a field of the value."""

    name: str

    def __call__(self, record: ConnectRecord) -> int:
        value = field_of(record.value, self.name)
        if isinstance(value, Timestamp):
            return value.count_of(1_000_000)
        if isinstance(value, Date):
            return value * DAY
        if isinstance(value, int) and not isinstance(value, bool):
            return int(value)
        if isinstance(value, str | TimestampText):
            try:
                read = datetime.fromisoformat(value)
            except ValueError:
                raise BadRecord(f"its field {self.name} is {value[:80]!r}, which is no time of ISO 8601") from None
            # Floor division of a timedelta does not round as division of floats does.
            return ((read if read.tzinfo else read.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
        raise BadRecord(f"its field {self.name} is no time, which timestamp.extractor=RecordField needs")


def field_of(part: Part, path: str) -> Any:
    """The value of a field of a struct or an object; a name with dots may be one of a field inside others."""
    value = part.value
    if isinstance(value, Mapping) and path in value:
        return value[path]
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise BadRecord(f"its value has no field {path}")
        value = value[name]
    return value


def _safe(text: str) -> str:
    """The text as a part of a folder's name: other characters than these are percent-encoded, as Hive reads them."""
    encoded = quote(text, safe=" -_.~:@+,()!$&';")
    if len(encoded) > LONGEST:
        raise BadRecord(f"its field for the name of a folder has {len(encoded)} characters; the most are {LONGEST}")
    return encoded
