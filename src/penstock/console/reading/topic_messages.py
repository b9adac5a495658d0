"""Records of topics for the console: the last ones, those from a place on, a live tail, and downloads.

A page never reads more than its bounds: a search ends after `SEARCHED` records or `PATIENCE` seconds, and says where it
can go on. It reads windows of offsets, in all partitions at the same time: forwards from a place, or backwards from the
end. The windows grow while too few records match, as far as the time that is left allows. Of a window, a partition
keeps no more than its part of an answer.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from heapq import merge
from typing import Any

import pyarrow as pa

from penstock.codec.registry import Registry
from penstock.console.reading.masking import Mask
from penstock.console.reading.record_query import (
    BadQuery,
    Json,
    Offsets,
    RecordQuery,
    is_offset,
    milliseconds,
    offsets_of,
    query_of,
    text_of,
)
from penstock.console.reading.topic_list import PATIENCE as ANSWER, REQUEST
from penstock.errors import PenstockError
from penstock.kafka.brokers import Brokers
from penstock.kafka.record_view import view
from penstock.wire.errors import UnknownTopicOrPartition
from penstock.wire.fetcher import Unreadable
from penstock.wire.topic_records import Reader

MOST_DOWNLOADED = 10_000
"""The most records of a download."""
SEARCHED, WIDEST, PATIENCE = 200_000, 20_000, 8.0
"""The most records that a search reads, the widest window of a partition, and seconds for a search."""
FIRST, AT_ONCE = 50, 50
"""The first window of a partition, which shows how fast records are read, and records that are decoded at once."""
SHOWN, DOWNLOADED = 16 << 10, 1 << 20
"""The longest key, value or header of a page and of a download, in characters."""
MOST_HEADERS, HEADER = 100, 8 << 10
"""The most headers of a record that are shown, and their longest name and value in characters."""
MOST_BYTES, MOST_DOWNLOADED_BYTES, PIECE = 8 << 20, 48 << 20, 1 << 20
"""The most characters of all records of an answer and of a download, and about those of a piece of a download."""
ANSWER_BYTES, DECOMPRESSED = 4 << 20, 64 << 20
"""The most bytes of a broker's answer, and of a record batch."""
TICK, RATE, SILENT = 0.5, 50, 10.0
"""Seconds between two events of a tail, the most records a second, and seconds after which an event has no record."""


@dataclass
class FoundRecords:
    """Records in the order of their times; `newer` and `older` are the offsets at which a search goes on."""

    records: list[Json]
    more: bool
    places: Offsets
    skipped: int
    searched: int


@dataclass(frozen=True)
class Viewer:
    """Makes records what the page shows: decoded, masked and cut."""

    mask: Mask
    registry: Registry | None
    longest: int = SHOWN
    most: int = MOST_BYTES

    @classmethod
    def of(cls, mask: list[str], registry: str | None, longest: int = SHOWN, most: int = MOST_BYTES) -> Viewer:
        return cls(Mask(mask), Registry(registry) if registry else None, longest, most)

    def matching(self, partition: int, rows: Iterable[Json], query: RecordQuery) -> list[Json]:
        """The records that match, cut after that. It may ask the registry, so call it in a thread."""
        return [self.cut(record) for record in self._views(partition, rows) if query.matches(record)]

    def shown(self, partition: int, row: Json) -> Json:
        """The record, cut. It may ask the registry, so call it in a thread."""
        (record,) = self._views(partition, [row])
        return self.cut(record)

    def _views(self, partition: int, rows: Iterable[Json]) -> Iterator[Json]:
        # One at a time: as text, a record may be many times as long.
        for row in rows:
            yield self._masked(view({"partition": partition, **row}, self.registry))

    def _masked(self, record: Json) -> Json:
        if not self.mask:
            return record
        for part in ("key", "value"):
            if record[part] is not None:
                record[part] = self.mask.text(record[part], record[f"{part}_format"])
            record[f"{part}_problem"] = self.mask.text(record[f"{part}_problem"], "text")
        record["headers"] = self.mask.headers(record["headers"])
        return record

    def cut(self, record: Json) -> Json:
        """The record with its long strings cut."""
        headers = record["headers"][:MOST_HEADERS]
        cut = {
            "key": _cut(record["key"], self.longest),
            "value": _cut(record["value"], self.longest),
            "headers": [[_cut(key, HEADER), _cut(value, HEADER)] for key, value in headers],
        }
        return record | cut | {"truncated": any(cut[part] != record[part] for part in cut)}


def characters(record: Json) -> int:
    """About how large a record is that was cut."""
    texts = [record["key"], record["value"], *(part for header in record["headers"] for part in header)]
    return sum(len(text) for text in texts if text is not None)


def fitting(records: Iterable[Json], most: int = MOST_BYTES) -> int:
    """How many of the first of these records fit into an answer of so many characters."""
    count = size = 0
    for record in records:
        size += characters(record)
        if size > most:
            break
        count += 1
    return count


def _cut(text: str | None, most: int) -> str | None:
    return text if text is None or len(text) <= most else text[:most]


@asynccontextmanager
async def opened(kafka: Json) -> AsyncIterator[Reader]:
    """A reader of a Kafka, which is described as by `Brokers.as_json`."""
    brokers = Brokers.from_json(kafka)
    client = await asyncio.to_thread(brokers.client)
    async with Reader(
        brokers.servers, patience=ANSWER, request_timeout=REQUEST, client_id="penstock-console", **client
    ) as reader:
        yield reader


async def page(kafka: Json, parameters: Json, mask: list[str], registry: str | None = None) -> Json:
    """The records that a page shows, with where to go on: `newer`, or `older` before the last records."""
    query = query_of(parameters)
    matches = await _found(kafka, query, Viewer.of(mask, registry))
    forwards = query.start != "latest"
    return {
        "records": matches.records,
        "more": matches.more,
        "newer" if forwards else "older": text_of(matches.places),
        "skipped_batches": matches.skipped,
        "searched": matches.searched,
    }


async def download(
    kafka: Json, parameters: Json, mask: list[str], form: str, registry: str | None = None
) -> AsyncGenerator[str, None]:
    """The records as lines of JSON or CSV; a last line says so if they are not all."""
    query = query_of(parameters, MOST_DOWNLOADED)
    write = {"ndjson": _ndjson, "csv": _csv}.get(form)
    if write is None:
        raise BadQuery(f"{form!r} is not a form of download", next="give as=ndjson or as=csv")
    matches = await _found(kafka, query, Viewer.of(mask, registry, DOWNLOADED, MOST_DOWNLOADED_BYTES))
    if form == "csv":
        yield _row(CSV)
    piece = ""
    for record in matches.records:
        piece += write(record)
        if len(piece) > PIECE:
            yield piece
            piece = ""
    if piece:
        yield piece
    if matches.more:
        where = text_of(matches.places)
        said = f"not all: {len(matches.records)} records; the rest {'before' if query.start == 'latest' else 'from'}"
        yield f"# {said} {where}\n" if form == "csv" else json.dumps({"cut": f"{said} {where}"}) + "\n"


async def tail(
    kafka: Json, parameters: Json, mask: list[str], registry: str | None = None
) -> AsyncGenerator[Json, None]:
    """New records twice a second, at most `RATE` a second, and how many were left out."""
    query, viewer = query_of(parameters), Viewer.of(mask, registry)
    most = int(RATE * TICK)
    async with opened(kafka) as reader:
        at = await _partitions(reader, query)
        if query.start != "latest":
            at = await _starts(reader, query)
        # Now new records cannot be missed.
        yield {"records": [], "skipped": 0}
        last_sent = time.monotonic()
        while True:
            begun = time.monotonic()
            ends = await reader.latest(query.topic)
            ends = {p: end for p, end in ends.items() if query.partition in (None, p)}
            if not ends:
                raise BadQuery(f"{query.topic} has no partition {query.partition} any more", next="begin again")
            window = WIDEST // len(ends) if query.searches else most
            # Offsets below the last known end are those of a topic that was made again.
            begin = {p: max(_or_start(at.get(p, 0), end), end - window) for p, end in ends.items()}
            left_out = sum(begin[p] - _or_start(at.get(p, 0), end) for p, end in ends.items())
            matched, newest = await _window(reader, query, begin, ends, viewer, most)
            shown = newest[len(newest) - fitting(reversed(newest)) :]
            left_out += matched - len(shown)
            if shown or left_out or begun > last_sent + SILENT:
                last_sent = begun
                yield {"records": shown, "skipped": left_out}
            at = ends
            await asyncio.sleep(max(0.0, begun + TICK - time.monotonic()))


def _or_start(at: int, end: int) -> int:
    return at if at <= end else 0


async def _window(
    reader: Reader, query: RecordQuery, begin: Offsets, end: Offsets, viewer: Viewer, most: int
) -> tuple[int, list[Json]]:
    """How many records of a window match, and the newest `most` of them by time."""
    begin = {p: at for p, at in begin.items() if at < end[p]}
    newest: list[Json] = []
    matched = 0
    if begin:
        async with aclosing(rows_of(reader, query.topic, begin, end, lambda _: None)) as tables:
            async for partition, rows in tables:
                records = await asyncio.to_thread(viewer.matching, partition, rows, query)
                matched += len(records)
                newest = sorted(newest + records, key=_by_time)[-most:]
    return matched, newest


def rows_of(
    reader: Reader, topic: str, begin: Offsets, end: Offsets, skip: Callable[[Unreadable], None]
) -> AsyncGenerator[tuple[int, list[Json]], None]:
    """The rows of each table as Python objects, since each is decoded by itself."""

    async def rows() -> AsyncGenerator[tuple[int, list[Json]], None]:
        tables = reader.read(
            topic,
            start=begin,
            end={p: end[p] for p in begin},
            max_bytes=ANSWER_BYTES,
            max_decompressed_bytes=DECOMPRESSED,
            pass_over=skip,
        )
        async with aclosing(tables):
            async for partition, table in tables:
                at = table.schema.get_field_index("timestamp")
                table = table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64()))
                for batch in table.to_batches(max_chunksize=1000):
                    yield partition, batch.to_pylist()

    return rows()


@dataclass
class PartitionRecords:
    """The first or the newest of a partition's records: at most `most`, and at most so many characters, but one."""

    most: int
    most_characters: int
    newest: bool
    records: deque[Json] = field(default_factory=deque)
    characters: int = 0
    dropped: bool = False
    """Whether there were more."""

    def add(self, record: Json) -> None:
        """Add the next record, in the order of offsets."""
        if self.dropped and not self.newest:
            return
        self.records.append(record)
        self.characters += characters(record)
        while len(self.records) > 1 and (len(self.records) > self.most or self.characters > self.most_characters):
            self.dropped = True
            self.characters -= characters(self.records.popleft() if self.newest else self.records.pop())


@dataclass
class _Search:
    """The progress of a search: where each partition has been read to, and what matched there."""

    query: RecordQuery
    viewer: Viewer
    matched: dict[int, list[Json]]
    searched: int = 0
    skipped: int = 0
    characters: int = 0
    deadline: float = field(default_factory=lambda: time.monotonic() + PATIENCE)
    full: set[int] = field(default_factory=set)
    """Partitions of which a window had more records than it holds."""
    width: int = FIRST

    @property
    def over(self) -> bool:
        late = time.monotonic() > self.deadline
        return late or self.searched >= SEARCHED or self.characters >= self.viewer.most

    def lacks(self, partition: int) -> bool:
        """Any partition may have the first or last records, so each needs as many as are wanted."""
        return partition not in self.full and len(self.matched[partition]) < self.query.limit

    async def read(self, reader: Reader, begin: Offsets, end: Offsets, *, newest: bool) -> dict[int, PartitionRecords]:
        """The matching records of a window by partition: the first ones, or the `newest`."""

        def skip(batch: Unreadable) -> None:
            self.skipped += 1

        began, before = time.monotonic(), self.searched
        most = self.viewer.most // len(self.matched)
        windows = {p: PartitionRecords(self.query.limit, most, newest) for p in begin}
        async with aclosing(rows_of(reader, self.query.topic, begin, end, skip)) as tables:
            async for partition, rows in tables:
                self.searched += len(rows)
                for some in (rows[at : at + AT_ONCE] for at in range(0, len(rows), AT_ONCE)):
                    for record in await asyncio.to_thread(self.viewer.matching, partition, some, self.query):
                        windows[partition].add(record)
        for partition, window in windows.items():
            self.characters += window.characters
            if window.dropped:
                self.full.add(partition)
        self._widen(len(begin), self.searched - before, time.monotonic() - began)
        return windows

    def _widen(self, partitions: int, read: int, seconds: float) -> None:
        """The next window is wider, but not wider than what can be read in the time that is left."""
        left = max(0.0, self.deadline - time.monotonic())
        readable = int(read / max(seconds, 0.001) * left) // partitions if read else WIDEST
        self.width = max(1, min(self.width * 4, WIDEST, readable))


async def _found(kafka: Json, query: RecordQuery, viewer: Viewer) -> FoundRecords:
    async with opened(kafka) as reader:
        try:
            ends = await _partitions(reader, query)
            earliest = {p: at for p, at in (await reader.earliest(query.topic)).items() if p in ends}
            search = _Search(query, viewer, {p: [] for p in ends})
            if query.start == "latest":
                return await _backwards(reader, search, earliest, await _before(reader, query, ends))
            start = {p: max(at, earliest[p]) for p, at in (await _starts(reader, query)).items()}
            return await _forwards(reader, search, start, ends)
        except UnknownTopicOrPartition:
            where = f"Kafka at {kafka['servers']}"
            raise NoTopic(f"there is no topic {query.topic}", where=where, next="choose one of /api/topics") from None


class NoTopic(PenstockError):
    """The topic does not exist."""


async def _partitions(reader: Reader, query: RecordQuery) -> Offsets:
    """The ends of the partitions that are asked for."""
    ends = await reader.latest(query.topic)
    if query.partition is None:
        return ends
    if query.partition not in ends:
        raise BadQuery(f"{query.topic} has no partition {query.partition}", next=f"give 0 to {len(ends) - 1}")
    return {query.partition: ends[query.partition]}


async def _starts(reader: Reader, query: RecordQuery) -> Offsets:
    """The offsets at which a query begins."""
    if query.start == "earliest":
        starts = await reader.earliest(query.topic)
    elif is_offset(query.start):
        starts = dict.fromkeys(await reader.partitions(query.topic), int(query.start))
    elif (offsets := offsets_of(query.start)) is not None:
        ends = await reader.latest(query.topic)
        starts = ends | _in_topic(query, offsets, ends)
    else:
        starts = await reader.at_time(query.topic, milliseconds(query.start))
    return {p: at for p, at in starts.items() if query.partition in (None, p)}


async def _before(reader: Reader, query: RecordQuery, ends: Offsets) -> Offsets:
    if not query.before:
        return ends
    offsets = offsets_of(query.before)
    if offsets is None:
        raise BadQuery(f"before is not offsets by partition: {query.before!r}", next='write it as "0:12,1:40"')
    offsets = _in_topic(query, offsets, await reader.latest(query.topic))
    return {p: min(end, offsets.get(p, end)) for p, end in ends.items()}


def _in_topic(query: RecordQuery, offsets: Offsets, ends: Offsets) -> Offsets:
    """The offsets, whose partitions the topic must have; raises BadQuery."""
    if missing := sorted(offsets.keys() - ends.keys()):
        raise BadQuery(f"there is no partition {missing[0]} in {query.topic}", next=f"give 0 to {len(ends) - 1}")
    return offsets


def _by_time(record: Json) -> tuple[str, int, int]:
    # Records of a partition are merged in the order of their offsets, also where a later one has an earlier time: a
    # search goes on at one offset of each partition, and all that was shown must be on one side of it.
    return record["timestamp"] or "", record["partition"], record["offset"]


async def _forwards(reader: Reader, search: _Search, start: Offsets, ends: Offsets) -> FoundRecords:
    """The first records from `start` on."""
    at = dict(start)
    while begin := {p: at[p] for p in at if at[p] < ends[p] and search.lacks(p)}:
        if search.over:
            break
        until = {p: min(ends[p], begin[p] + search.width) for p in begin}
        at |= until
        for partition, window in (await search.read(reader, begin, until, newest=False)).items():
            search.matched[partition] += window.records
            if window.dropped:
                at[partition] = window.records[-1]["offset"] + 1
    records = list(merge(*search.matched.values(), key=_by_time))
    count = fitting(records[: search.query.limit], search.viewer.most)
    shown, rest = records[:count], records[count:]
    for record in sorted(rest, key=lambda record: record["offset"], reverse=True):
        at[record["partition"]] = record["offset"]
    more = any(at[p] < ends[p] for p in at)
    return FoundRecords(shown, more, at, search.skipped, search.searched)


async def _backwards(reader: Reader, search: _Search, first: Offsets, ends: Offsets) -> FoundRecords:
    """The last records before `ends`."""
    at = dict(ends)
    while until := {p: at[p] for p in at if at[p] > first[p] and search.lacks(p)}:
        if search.over:
            break
        begin = {p: max(first[p], until[p] - search.width) for p in until}
        at |= begin
        for partition, window in (await search.read(reader, begin, until, newest=True)).items():
            search.matched[partition] = [*window.records, *search.matched[partition]]
            if window.dropped:
                at[partition] = window.records[0]["offset"]
    records = list(merge(*(some[::-1] for some in search.matched.values()), key=_by_time, reverse=True))
    count = fitting(records[: search.query.limit], search.viewer.most)
    shown, rest = records[:count][::-1], records[count:]
    for record in sorted(rest, key=lambda record: record["offset"]):
        at[record["partition"]] = record["offset"] + 1
    more = any(at[p] > first[p] for p in at)
    return FoundRecords(shown, more, at, search.skipped, search.searched)


CSV = ("partition", "offset", "timestamp", "key", "value", "headers")
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of a cell that spreadsheets run as a formula."""


def _ndjson(record: Json) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _csv(record: Json) -> str:
    headers = json.dumps(record["headers"], ensure_ascii=False)
    texts = [_cell(record["key"]), _cell(record["value"]), headers]
    return _row([record["partition"], record["offset"], record["timestamp"], *texts])


def _cell(text: str | None) -> str:
    return "" if text is None else f"'{text}" if text.startswith(FORMULA) else text


def _row(values: Any) -> str:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(values)
    return buffer.getvalue()
