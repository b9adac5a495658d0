"""Which records of a topic a request asks for: a place, a number, and what they must contain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.durations import EPOCH
from penstock.errors import PenstockError

Json = dict[str, Any]
Offsets = dict[int, int]

MOST = 500
"""The most records of a page."""
LONGEST = 18
"""The most digits of an offset."""


class BadQuery(PenstockError):
    """A parameter of the request is not valid."""


@dataclass(frozen=True)
class RecordQuery:
    """Which records: `start` is "latest", "earliest", an ISO time, an offset, or "partition:offset,...".

    `before` are offsets by partition before which the last records end. `key` is the whole key as it is shown, `text` a
    part of the key, the value or a header.
    """

    topic: str
    partition: int | None = None
    start: str = "latest"
    before: str = ""
    limit: int = 50
    key: str = ""
    text: str = ""

    @property
    def searches(self) -> bool:
        return bool(self.key or self.text)

    def matches(self, record: Json) -> bool:
        if self.key and record["key"] != self.key:
            return False
        wanted = self.text.lower()
        shown = (record["key"], record["value"], *(part for header in record["headers"] for part in header))
        return not wanted or any(wanted in (text or "").lower() for text in shown)


def query_of(parameters: Mapping[str, Any], most: int = MOST) -> RecordQuery:
    """A query from the parameters of a request; raises BadQuery."""
    partition, limit = parameters.get("partition"), parameters.get("limit") or "50"
    if partition and not is_offset(partition):
        raise BadQuery(f"partition is not a number: {partition!r}", next="give 0 or more, or leave it out")
    if not is_offset(limit) or not 0 < int(limit) <= most:
        raise BadQuery(f"limit is not a number from 1 to {most}: {limit!r}", next="give a number of records")
    return RecordQuery(
        parameters["topic"],
        int(partition) if partition else None,
        parameters.get("from") or "latest",
        parameters.get("before") or "",
        int(limit),
        parameters.get("key") or "",
        parameters.get("filter") or "",
    )


def offsets_of(text: str) -> Offsets | None:
    """Offsets by partition from "0:12,1:40"; None if it is something else."""
    pairs = [part.partition(":") for part in text.split(",")]
    if not all(is_offset(p) and is_offset(at) for p, _, at in pairs):
        return None
    return {int(p): int(at) for p, _, at in pairs}


def text_of(offsets: Offsets) -> str:
    """Offsets by partition as `offsets_of` reads them."""
    return ",".join(f"{p}:{at}" for p, at in sorted(offsets.items()))


def is_offset(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= LONGEST


def milliseconds(text: str) -> int:
    """A time as milliseconds since 1970, 0 for those before; raises BadQuery."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise BadQuery(
            f"from is not latest, earliest, a time or an offset: {text!r}",
            next='write a time as "2026-05-31T12:00:00Z"',
        ) from None
    # To Kafka, times below 0 are the beginning and the end of a topic.
    return max(0, ((time if time.tzinfo else time.replace(tzinfo=UTC)) - EPOCH) // timedelta(milliseconds=1))
