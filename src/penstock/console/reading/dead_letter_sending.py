"""Dead letters are sent again, to the topic that their headers name.

A letter is sent with its own key, value and headers, without those of the error. Nothing remembers that it was sent, so
it can be sent twice, but only one request at a time sends letters of a topic, and each request says where the next one
goes on.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from penstock.console.reading.dead_letter_topics import LOOKED, TOPIC, Letter, letters_of, range_of
from penstock.console.reading.masking import Mask
from penstock.console.reading.record_query import BadQuery, Json, Offsets, offsets_of, text_of
from penstock.console.reading.topic_messages import opened
from penstock.errors import PenstockError
from penstock.kafka.brokers import Brokers
from penstock.serve.json_bodies import whole_number
from penstock.wire.errors import KafkaError
from penstock.wire.topic_records import Reader

if TYPE_CHECKING:
    from penstock.wire.producer.producer import Producer

MOST_SENT = 10_000
"""The most letters that are sent with one request."""
DELIVERY = timedelta(seconds=20)

_sending: set[tuple[str, str]] = set()
"""The topics, by servers, whose letters are being sent."""


class AlreadySending(PenstockError):
    """Letters of this topic are being sent: another request could send the same ones."""

    retriable = True


async def send(kafka: Json, topic: str, which: Json, mask: list[str]) -> Json:
    """Send letters again; `which` is {"letters": [[partition, offset], ...]}, {"reason": ...} or {"all": true}.

    A reason is one that the page shows, so `mask` is that of the page. Returns how many were acknowledged, by topic,
    and each that was not with the reason. A request sends at most `MOST_SENT`: `next` is the body of the request that
    goes on where this one ended, None at the end; it did not look at `left` records, and `error` is why it ended early.
    Raises AlreadySending.
    """
    place = kafka["servers"], topic
    if place in _sending:
        raise AlreadySending(f"letters of {topic} are being sent already", next="wait for its end, then look again")
    _sending.add(place)
    try:
        return await (_send_chosen if "letters" in which else _send_part)(kafka, topic, which, Mask(mask))
    finally:
        _sending.discard(place)


async def _send_chosen(kafka: Json, topic: str, which: Json, mask: Mask) -> Json:
    missing, why = set(_places(which["letters"])), "there is no dead letter at this offset"
    async with _opened_to_send(kafka, topic) as (reader, sending, starts, ends):
        there = {(p, at) for p, at in missing if p in ends and starts[p] <= at < ends[p]}
        async with aclosing(_at(reader, topic, there)) as letters:
            try:
                async for letter in letters:
                    missing.discard((letter.partition, letter.offset))
                    await sending.send(letter)
            except KafkaError as error:
                sending.require_some(error)
                why = f"it was not read: {error}"
    failed = [_failed(p, at, why) for p, at in sorted(missing)]
    return sending.report(failed) | {"left": 0, "next": None, "error": None}


async def _send_part(kafka: Json, topic: str, which: Json, mask: Mask) -> Json:
    """Send all letters, or those of a reason, between `from` and `until`, as far as one request may."""
    reason, why, full = _wanted(which), None, False
    begin, until = _bounds(which, "from"), _bounds(which, "until")
    async with _opened_to_send(kafka, topic) as (reader, sending, starts, ends):
        _require_partitions(ends, begin | until)
        # What is written from now on is not sent: a letter that fails again would be sent for ever.
        ends = {p: min(end, until.get(p, end)) for p, end in ends.items()}
        reached = {p: min(max(begin.get(p, 0), starts[p]), end) for p, end in ends.items()}
        async with aclosing(letters_of(reader, topic, dict(reached), ends)) as letters:
            try:
                async for letter in letters:
                    wanted = reason in (None, letter.reason(mask))
                    if full := wanted and sending.count == MOST_SENT:
                        break
                    if wanted:
                        await sending.send(letter)
                    reached[letter.partition] = letter.offset + 1
            except KafkaError as error:
                sending.require_some(error)
                why = f"the next letters cannot be read: {error}"
    if not full and not why:
        return sending.report() | {"left": 0, "next": None, "error": None}
    asked = {"all": True} if reason is None else {"reason": reason}
    next = asked | {"from": text_of(reached), "until": text_of(ends)}
    return sending.report() | {"left": sum(ends[p] - at for p, at in reached.items()), "next": next, "error": why}


def _wanted(which: Json) -> str | None:
    """The reason of the letters, None for all; raises BadQuery."""
    reason = which.get("reason")
    if which.get("all") is not True and not (isinstance(reason, str) and reason):
        raise BadQuery(
            "the body does not say which letters",
            next='send {"letters": [[partition, offset]]}, {"reason": "..."} or {"all": true}',
        )
    return reason


def _bounds(which: Json, name: str) -> Offsets:
    """Where the letters begin or end, by partition; empty if the body does not say it. Raises BadQuery."""
    text = which.get(name, "")
    bounds = offsets_of(text) if isinstance(text, str) and text else {}
    if bounds is None or not isinstance(text, str):
        raise BadQuery(
            f"{name} is not a list of offsets: {text!r}", next='write "partition:offset,..." or leave it out'
        )
    return bounds


def _require_partitions(there: Offsets, named: Offsets) -> None:
    if missing := sorted(named.keys() - there.keys()):
        raise BadQuery(f"there is no partition {missing[0]}", next=f"name partitions from 0 to {len(there) - 1}")


@asynccontextmanager
async def _opened_to_send(kafka: Json, topic: str) -> AsyncGenerator[tuple[Reader, _Sending, Offsets, Offsets], None]:
    """A reader, a sending that has ended after the block, and the offsets at which the topic begins and ends."""
    async with opened(kafka) as reader:
        _, ends, starts = await range_of(reader, topic, LOOKED)
        existing = set(await reader.topics())
        async with _producer(kafka) as producer:
            sending = _Sending(topic, existing, producer)
            yield reader, sending, starts, ends
            await sending.end()


@asynccontextmanager
async def _producer(kafka: Json) -> AsyncGenerator[Producer, None]:
    from penstock.wire.producer.producer import Producer

    brokers = Brokers.from_json(kafka)
    client = await asyncio.to_thread(brokers.client)
    options = {"delivery_timeout": DELIVERY, "client_id": "penstock-console", **client}
    async with Producer(brokers.servers, **options) as producer:
        yield producer


class _Sending:
    """Letters are sent as they are read: of all that are under way, only the places stay in memory."""

    def __init__(self, topic: str, existing: set[str], producer: Producer) -> None:
        self._topic, self._existing, self._producer = topic, existing, producer
        self._futures: list[tuple[int, int, str, asyncio.Future[Any]]] = []
        self._sent = Counter[str]()
        self._failed: list[Json] = []
        self.count = 0
        """How many letters were taken, also those that failed."""

    async def send(self, letter: Letter) -> None:
        self.count += 1
        if why := _not_sendable(letter, self._topic, self._existing):
            self._failed.append(_failed(letter.partition, letter.offset, why))
            return
        to = str(letter.header(TOPIC))
        try:
            future = await self._producer.send(to, letter.value, key=letter.key, headers=letter.own_headers)
        except (KafkaError, ValueError) as error:
            self._failed.append(_failed(letter.partition, letter.offset, str(error)))
            return
        self._futures.append((letter.partition, letter.offset, to, future))

    def require_some(self, error: KafkaError) -> None:
        """Raise the error if no letter was taken before it: then there is nothing else to tell."""
        if not self.count:
            raise error

    async def end(self) -> None:
        """Wait until each is acknowledged or has failed."""
        for partition, offset, to, future in self._futures:
            try:
                await future
                self._sent[to] += 1
            except KafkaError as error:
                self._failed.append(_failed(partition, offset, str(error)))

    def report(self, others: Sequence[Json] = ()) -> Json:
        """What was sent and what failed, the `others` too; the log says it as well."""
        sent, failed = self._sent, [*others, *self._failed]
        names = ", ".join(sorted(sent)) or "no topic"
        print(f"sent {sent.total()} dead letters of {self._topic} to {names}, {len(failed)} failed", file=sys.stderr)
        return {"sent": sent.total(), "topics": dict(sent), "failed": failed}


async def _at(reader: Reader, topic: str, wanted: set[tuple[int, int]]) -> AsyncGenerator[Letter, None]:
    """The letters at places, which are read in runs of offsets that are near each other."""
    for partition, begin, end in runs(wanted):
        async for letter in letters_of(reader, topic, {partition: begin}, {partition: end}):
            if (letter.partition, letter.offset) in wanted:
                yield letter


def runs(places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Runs of at most 1000 offsets of a partition that have all places: partition, first offset, and end."""
    run: tuple[int, int, int] | None = None
    for partition, offset in sorted(places):
        if run is not None and run[0] == partition and offset < run[1] + 1000:
            run = partition, run[1], offset + 1
            continue
        if run is not None:
            yield run
        run = partition, offset, offset + 1
    if run is not None:
        yield run


def _places(letters: Any) -> list[tuple[int, int]]:
    pairs = letters if isinstance(letters, list) else []
    right = all(
        isinstance(pair, list) and len(pair) == 2 and all(whole_number(each) is not None for each in pair)
        for pair in pairs
    )
    if not pairs or not right or len(pairs) > MOST_SENT:
        raise BadQuery("letters is not a list of [partition, offset]", next=f"give 1 to {MOST_SENT} pairs of numbers")
    return [(partition, offset) for partition, offset in pairs]


def _not_sendable(letter: Letter, own: str, existing: set[str]) -> str:
    """Why a letter cannot be sent, "" if it can: anybody who writes to the topic may have made up its headers."""
    to = letter.header(TOPIC)
    if not to:
        return "its headers name no topic: it is a cell of a change, or another program made it"
    if to == own:
        return f"its headers name {own} itself"
    if to.startswith("__"):
        return f"its headers name {to}, which is Kafka's own"
    return "" if to in existing else f"there is no topic {to}"


def _failed(partition: int, offset: int, why: str) -> Json:
    return {"partition": partition, "offset": offset, "why": why}
