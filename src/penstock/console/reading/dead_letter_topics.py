"""Dead letters: which topics have them, and their reasons; `dead_letter_sending` sends them again.

A dead letter is a record with the headers of Kafka Connect's dead letter queues (KIP-298), as Penstock's own sink and
any Kafka Connect write them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from heapq import heappop, heappush

from penstock.console.reading.masking import Mask
from penstock.console.reading.record_query import Json, Offsets, is_offset, query_of
from penstock.console.reading.topic_messages import NoTopic, Viewer, fitting, opened, rows_of
from penstock.kafka.record_view import iso_time, plain_text
from penstock.wire.errors import ConnectionLost, KafkaError, RequestTimeout, UnknownTopicOrPartition
from penstock.wire.topic_records import Reader

PREFIX = "__connect.errors."
TOPIC, PARTITION, OFFSET = f"{PREFIX}topic", f"{PREFIX}partition", f"{PREFIX}offset"
MESSAGE, TABLE = f"{PREFIX}exception.message", f"{PREFIX}table"
LOOKED, LISTED = 10_000, 100
"""The newest letters of a topic whose reasons are counted, and the most reasons that are listed."""
MOST_KEPT = 64 << 20
"""About the most bytes of the newest letters, which stay in memory until all are read."""
NEWEST = 20
"""The last offsets of each partition in which a letter is looked for: the end of a transaction takes one, too."""
BUDGET = 6.0
"""Seconds for looking for letters in topics that have changed."""
QUOTED = re.compile(r"'[^']*'?|\"[^\"]*\"?")
NUMBER = re.compile(r"\d+")
LONGEST, LONGEST_TEXT = 300, 16 << 10
"""The most characters of a reason, and of the text that it is made of."""

_counted: dict[tuple[str, str], tuple[Offsets, Json | None]] = {}
"""What `counts` found, by servers and topic, with the ends of the topic then."""


@dataclass(frozen=True)
class Letter:
    """A dead letter; `to` is the topic that its headers name, None for a part of a change of a table."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @classmethod
    def of(cls, partition: int, row: Json) -> Letter | None:
        """None for a record that is no dead letter."""
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        if not any(name.startswith(PREFIX) for name, _ in headers):
            return None
        return cls(partition, row["offset"], row["timestamp"], row["key"], row["value"], headers)

    def header(self, name: str) -> str | None:
        """The last header of this name: a letter of a letter has them twice, the newest last."""
        values = [value for key, value in self.headers if key == name]
        return plain_text(values[-1]) if values else None

    def reason(self, mask: Mask) -> str:
        """The reason without the values in it, so that letters can be grouped; hidden if the mask hides it."""
        text = self.header(MESSAGE) or "no reason in its headers"
        return mask.text(NUMBER.sub("N", QUOTED.sub("'…'", text[:LONGEST_TEXT]))[:LONGEST], "text")

    @property
    def size(self) -> int:
        """In bytes."""
        own = len(self.key or b"") + len(self.value or b"")
        return own + sum(len(name) + len(value or b"") for name, value in self.headers)

    @property
    def origin(self) -> Json:
        partition, offset = self.header(PARTITION), self.header(OFFSET)
        return {
            "topic": self.header(TOPIC),
            "table": self.header(TABLE),
            "partition": int(partition) if partition and is_offset(partition) else None,
            "offset": int(offset) if offset and is_offset(offset) else None,
        }

    @property
    def own_headers(self) -> list[tuple[str, bytes | None]]:
        return [(name, value) for name, value in self.headers if not name.startswith(PREFIX)]


async def counts(kafka: Json, topics: Json, mask: list[str]) -> Json:
    """The topics whose newest records are dead letters, with the number of records and the newest reasons.

    `topics` are the ends of the topics' partitions by topic. Topics that have not changed are not looked at again, and
    new ones first; what is not looked at within `BUDGET` seconds is left to the next call. `looked_at` is the number of
    topics of which something is known.
    """
    hide, servers = Mask(mask), kafka["servers"]
    ends = {topic: {int(p): end for p, end in of.items()} for topic, of in topics.items()}
    for gone in [place for place in _counted if place[0] == servers and place[1] not in ends]:
        del _counted[gone]
    changed = [topic for topic in ends if _counted.get((servers, topic), ({}, None))[0] != ends[topic]]
    deadline = time.monotonic() + BUDGET
    async with opened(kafka) as reader:
        for topic in _in_turn(servers, changed):
            if time.monotonic() > deadline:
                break
            try:
                answer = await _count(reader, topic, ends[topic], hide)
            except (ConnectionLost, RequestTimeout):
                # Kafka is away, also for the other topics: no letters would look like none to care about.
                raise
            except KafkaError:
                # The topic was deleted meanwhile, or this user may not read it.
                answer = None
            # The last of all, so that of those that change all the time each has its turn.
            _counted.pop((servers, topic), None)
            _counted[servers, topic] = ends[topic], answer
    known = [answer for (of, topic), (_, answer) in _counted.items() if of == servers and topic in ends]
    return {"topics": sorted(filter(None, known), key=_by_topic), "looked_at": len(known)}


def _in_turn(servers: str, topics: list[str]) -> list[str]:
    """The topics that were never looked at, then those whose last look is longest ago."""
    looked = {topic: turn for turn, (of, topic) in enumerate(_counted) if of == servers}
    return sorted(topics, key=lambda topic: looked.get(topic, -1))


def _by_topic(answer: Json) -> str:
    return str(answer["topic"])


async def _count(reader: Reader, topic: str, ends: Offsets, mask: Mask) -> Json | None:
    starts = await reader.earliest(topic)
    begin = _newest(starts, ends, NEWEST * len(ends))
    if not [True async for _ in letters_of(reader, topic, begin, ends)]:
        return None
    begin = _newest(starts, ends, 1000)
    reasons = Counter([letter.reason(mask) async for letter in letters_of(reader, topic, begin, ends)])
    records = sum(ends[p] - starts.get(p, 0) for p in ends)
    return {"topic": topic, "records": records, "reasons": dict(reasons.most_common(LISTED))}


def _newest(starts: Mapping[int, int], ends: Mapping[int, int], most: int) -> Offsets:
    """Where the newest records begin, at most about `most` of all partitions."""
    each = max(1, most // max(1, len(ends)))
    return {p: max(starts.get(p, 0), end - each) for p, end in ends.items()}


async def letters_of(reader: Reader, topic: str, begin: Offsets, ends: Offsets) -> AsyncGenerator[Letter, None]:
    """The dead letters among the records between these offsets, those of a partition in their order."""
    begin = {p: at for p, at in begin.items() if at < ends[p]}
    if not begin:
        return
    async with aclosing(rows_of(reader, topic, begin, ends, lambda _: None)) as tables:
        async for partition, rows in tables:
            for row in rows:
                if (letter := Letter.of(partition, row)) is not None:
                    yield letter


async def page(
    kafka: Json, topic: str, parameters: Json, mask: list[str], registry: str | None, messages: bool
) -> Json:
    """The reasons of a topic's newest dead letters, and the newest letters, of one reason if `reason` is given."""
    query, wanted = query_of({**parameters, "topic": topic}), parameters.get("reason")
    viewer, reasons, newest = Viewer.of(mask, registry), _Reasons(), _Newest(query.limit)
    async with opened(kafka) as reader:
        begin, ends, starts = await range_of(reader, topic, LOOKED)
        async for letter in letters_of(reader, topic, begin, ends):
            reason = letter.reason(viewer.mask)
            reasons.add(reason, letter.timestamp)
            if wanted in (None, "", reason) and messages:
                newest.add(letter)
    records = await asyncio.to_thread(lambda: [_shown(letter, viewer) for letter in newest.letters()])
    records = records[len(records) - fitting(reversed(records)) :]
    return {
        "topic": topic,
        "reasons": reasons.listed(),
        "records": records,
        "more": newest.count > len(records),
        "looked_at_all": all(begin[p] <= starts[p] for p in begin),
    }


def _shown(letter: Letter, viewer: Viewer) -> Json:
    row = {
        "offset": letter.offset,
        "timestamp": letter.timestamp,
        "key": letter.key,
        "value": letter.value,
        "headers": [{"key": key, "value": value} for key, value in letter.headers],
    }
    return viewer.shown(letter.partition, row) | {"reason": letter.reason(viewer.mask), "origin": letter.origin}


async def range_of(reader: Reader, topic: str, most: int) -> tuple[Offsets, Offsets, Offsets]:
    """Where the newest records begin, the ends, and where the topic begins; raises NoTopic."""
    try:
        starts, ends = await reader.earliest(topic), await reader.latest(topic)
    except UnknownTopicOrPartition:
        raise NoTopic(f"there is no topic {topic}", next="choose one of /api/dead-letters") from None
    return _newest(starts, ends, most), ends, starts


@dataclass
class _Newest:
    """The `most` newest of the letters that were added; fewer if they are large."""

    most: int
    count: int = 0
    """How many were added."""
    _heap: list[tuple[int, int, int, Letter]] = field(default_factory=list)
    _size: int = 0

    def add(self, letter: Letter) -> None:
        self.count += 1
        self._size += letter.size
        heappush(self._heap, (letter.timestamp, letter.partition, letter.offset, letter))
        while len(self._heap) > self.most or (self._size > MOST_KEPT and len(self._heap) > 1):
            self._size -= heappop(self._heap)[3].size

    def letters(self) -> list[Letter]:
        """Oldest first."""
        return [letter for *_, letter in sorted(self._heap)]


class _Reasons:
    """Reasons with their count and the times of their first and last letter."""

    def __init__(self) -> None:
        self._by_reason: dict[str, list[int]] = {}

    def add(self, reason: str, timestamp: int) -> None:
        count, first, last = self._by_reason.get(reason, (0, timestamp, timestamp))
        self._by_reason[reason] = [count + 1, min(first, timestamp), max(last, timestamp)]

    def listed(self) -> list[Json]:
        most = sorted(self._by_reason.items(), key=lambda entry: (-entry[1][0], entry[0]))[:LISTED]
        return [
            {"reason": reason, "count": count, "first": iso_time(first), "last": iso_time(last)}
            for reason, (count, first, last) in most
        ]
