"""The events of a request: cut out of its body as they were sent, and checked, but never encoded again.

Most bodies are good, and the type of `event_schema` finds that out while it decodes what the schema names. Other
bodies, and those of topics without a type, are decoded whole and validated, which says what is wrong with which event.
NDJSON is cut at line feeds, which JSON has only between its tokens; so a value over several lines is refused. An array
is cut by the decoder, which returns the bytes of each element.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from msgspec.json import Decoder

from penstock.ingest.event_schema import KEY, Numbered, Schema, event_decoder
from penstock.ingest.exchange import SHOWN, EventProblem, RefusedRequest
from penstock.native import Array
from penstock.native.jit import compiled
from penstock.native.text_slices import Texts, column

LINES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"})
# Browsers' sendBeacon sends text as text/plain, and other types only after a preflight.
JSON = frozenset({"application/json", "text/plain"})
SPACE = b" \t\r\n"
GROUP = 64 << 10
"""Bytes of events that are decoded and validated together. Nothing else runs in Python meanwhile, other threads
included, and what is decoded takes up to 25 times as much memory."""

WORD = 8
"""Bytes."""
ZERO, ONES, FEEDS = np.uint64(0), np.uint64(0x0101010101010101), np.uint64(0x0A0A0A0A0A0A0A0A)
HIGHS = np.uint64(0x8080808080808080)
"""The highest bit of each byte."""
TRUNCATED = "Input data was truncated"
HALF_PAIR = re.compile(rb"(?<!\\)(?:\\\\)*\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")
"""The first half of a surrogate pair alone: msgspec takes the end of its string for the end of the data."""
GREATEST = sys.float_info.max
_WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoders raise for bytes that are no JSON, or not of their type."""

_elements = Decoder(list[msgspec.Raw])
_any = Decoder()
_wide = Decoder(float_hook=lambda text: max(-GREATEST, min(float(text), GREATEST)))
"""Takes numbers that no double can hold for the greatest double, because no event is encoded again."""
_fields = Decoder(dict, float_hook=lambda text: 0.0)


class _Object(msgspec.Struct):
    """Any JSON object: its fields are skipped, but have to be JSON."""


_object = Decoder(_Object)


@dataclass(frozen=True, slots=True, eq=False)
class KeyedEvents:
    """Events for one topic, with the key of each, one key for all, or none."""

    values: Texts
    keys: Texts | bytes | None
    size: int
    """Bytes of the body in which they came."""

    @classmethod
    def of(cls, values: Sequence[bytes], keys: Sequence[bytes | None] | bytes | None, size: int) -> KeyedEvents:
        return cls(Texts.of(values), keys if keys is None or isinstance(keys, bytes) else Texts.of(keys), size)

    @property
    def count(self) -> int:
        return len(self.values.starts)

    def key_texts(self) -> Texts:
        """The key of each event."""
        return self.keys if isinstance(self.keys, Texts) else Texts.same(self.keys, self.count)


@dataclass(frozen=True, slots=True)
class TopicFormat:
    """How the events of a topic are read: validated if there is a schema, with a key if there is a path to it."""

    schema: Schema | None
    key: tuple[str, ...]
    largest: int
    most: int
    _keyed: Decoder[Any] | None = field(init=False, repr=False)
    _keyless: Decoder[Any] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        document = self.schema.document if self.schema else True
        object.__setattr__(self, "_keyed", event_decoder(document, self.key))
        object.__setattr__(self, "_keyless", event_decoder(document, ()))

    def read(self, body: bytes, *, lines: bool, key: bytes | None) -> tuple[KeyedEvents, list[EventProblem]]:
        """The good events of a body, and what is wrong with the others; `key` overrides a key in the event."""
        events = self.scan(body, lines=lines, key=key)
        return (events, []) if events else self.examine(body, lines=lines, key=key)

    def scan(self, body: bytes, *, lines: bool, key: bytes | None) -> KeyedEvents | None:
        """The events of a body if all are surely good; None says nothing about them."""
        decoder = self._keyed if key is None else self._keyless
        if decoder is None or not _is_text(body):
            return None
        try:
            if lines and len(body) <= GROUP and (texts := _whole_lines(body)):
                events = decoder.decode_lines(body)
                if len(events) != len(texts.starts):
                    return None
                keys = self._keys(events, key)
            else:
                values = _cut_lines(body, self.most) if lines else split(body, self.most)
                groups = [(0, len(values))] if len(body) <= GROUP else _groups(values)
                decoded = (list(map(decoder.decode, values[start:end])) for start, end in groups)
                keys = [event_key for events in decoded for event_key in self._keys(events, key)]
                texts = Texts.of(values)
        except (*_WRONG, RefusedRequest):
            return None
        if not 0 < len(texts.starts) <= self.most or texts.lengths.max() > self.largest:
            return None
        return KeyedEvents(texts, Texts.of(keys) if keys else key, len(body))

    def _keys(self, events: list[Any], key_of_all: bytes | None) -> list[bytes | None]:
        """The keys of typed events; empty if all have `key_of_all`, or there is no path to a key."""
        if key_of_all is not None or not self.key:
            return []
        for _ in self.key:
            events = [getattr(event, KEY, None) for event in events]
        return list(map(_key, events))

    def examine(self, body: bytes, *, lines: bool, key: bytes | None) -> tuple[KeyedEvents, list[EventProblem]]:
        """As `read`, by decoding and validating, which takes ten times as long and says what is wrong."""
        values = split_lines(body, self.most) if lines else split(body, self.most)
        if not values:
            raise RefusedRequest(400, "there is no event in the body")
        with_keys = key is None and bool(self.key)
        problems: list[EventProblem] = []
        keys: list[bytes | None] = []
        for start, end in _groups(values):
            wrong, group_keys = self._examine_group(values[start:end], start, with_keys, SHOWN - len(problems))
            problems += wrong
            keys += group_keys
        good = values
        chosen = keys if with_keys else key
        if problems:
            good, chosen = _without({problem.index for problem in problems}, values, chosen)
            problems.sort(key=lambda problem: (problem.index, problem.path))
        return KeyedEvents.of(good, chosen, len(body)), problems

    def _decoder(self, with_keys: bool) -> Callable[[bytes], Any]:
        """The decoder of an event; without a schema, fields are decoded only if they have the key."""
        if self.schema:
            return _value
        return _fields.decode if with_keys else _object_of

    def _examine_group(
        self, values: list[bytes], start: int, with_keys: bool, most: int
    ) -> tuple[list[EventProblem], list[bytes | None]]:
        """The problems of these events, whose first has index `start`, and the key of each event if `with_keys`."""
        if len(values) == 1 and len(values[0]) > self.largest:
            return [self._too_large(values[0], start)], [None]
        decoded, problems = decode(self._decoder(with_keys), values)
        problems = [EventProblem(start + problem.index, problem.path, problem.reason) for problem in problems]
        problems += [
            self._too_large(value, index) for index, value in enumerate(values, start) if len(value) > self.largest
        ]
        bad = {problem.index for problem in problems}
        if self.schema:
            events = zip(decoded, values, strict=True)
            numbered = [Numbered(index, event, len(value)) for index, (event, value) in enumerate(events, start)]
            problems += self.schema.problems([event for event in numbered if event.index not in bad], most)
        if not with_keys:
            return problems, []
        keys, wrong = keys_of(decoded, self.key, start, {problem.index for problem in problems})
        return problems + wrong, keys

    def _too_large(self, value: bytes, index: int) -> EventProblem:
        return EventProblem(index, "", f"the event has {len(value)} bytes; at most {self.largest} are taken")


def _groups(values: list[bytes]) -> Iterator[tuple[int, int]]:
    """The starts and ends of groups of at most `GROUP` bytes, or of one larger event."""
    start, size = 0, 0
    for index, value in enumerate(values):
        if size and size + len(value) > GROUP:
            yield start, index
            start, size = index, 0
        size += len(value)
    yield start, len(values)


def _is_text(body: bytes) -> bool:
    """Whether all is UTF-8; decoders do not check the bytes of strings that they skip."""
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _whole_lines(body: bytes) -> Texts | None:
    """The lines of a body, none of which is empty; None if a line does not begin with { and end with }.

    So no object is on several lines: in JSON, no object follows another without a comma. If there are as many objects
    as lines, each line is one.
    """
    data = np.frombuffer(body, np.uint8)
    # Two braces and a line feed, but for the last line.
    slices = np.empty((2, len(body) // 3 + 1), np.int64)
    count = _objects(data, data[: len(data) & -WORD].view(np.uint64), *slices)
    if count <= 0:
        return None
    starts, lengths = slices[:, :count].copy()
    return Texts(body, starts, lengths)


@compiled
def _objects(data: Array, words: Array, starts: Array, lengths: Array) -> int:
    """The number of lines, and where they are; -1 if a line does not begin with { and end with }.

    `words` are the bytes in eights; most of them have no line feed, which is found by one test (Bit Twiddling Hacks,
    "Determine if a word has a zero byte").
    """
    count, start, end = 0, 0, len(data)
    for at in range(0, end, WORD):
        if at // WORD < len(words):
            word = words[at // WORD] ^ FEEDS
            if (word - ONES) & ~word & HIGHS == ZERO:
                continue
        for i in range(at, min(at + WORD, end)):
            if data[i] == 0x0A:
                if i < start + 2 or data[start] != 0x7B or data[i - 1] != 0x7D or count == len(starts):
                    return -1
                starts[count], lengths[count] = start, i - start
                count, start = count + 1, i + 1
    if start < end:
        if end < start + 2 or data[start] != 0x7B or data[end - 1] != 0x7D or count == len(starts):
            return -1
        starts[count], lengths[count] = start, end - start
        count += 1
    return count


def _cut_lines(body: bytes, most: int) -> list[bytes]:
    """As `split_lines`, in a quarter of the time; empty if the body has more than `most` line feeds."""
    parts = body.split(b"\n", most)
    return [] if b"\n" in parts[-1] else list(filter(None, map(bytes.strip, parts)))


def split_lines(body: bytes, most: int) -> list[bytes]:
    """The lines that are not empty, without the white space around them; raises RefusedRequest for more than `most`."""
    values: list[bytes] = []
    for line in BytesIO(body):
        if value := line.strip():
            values.append(value)
            if len(values) > most:
                raise _too_many(most)
    return values


def _too_many(most: int) -> RefusedRequest:
    return RefusedRequest(413, f"there are more than {most} events in the body; send fewer in each request")


def split(body: bytes, most: int) -> list[bytes]:
    """The elements of an array, or the one event that the body is; `RefusedRequest` if there are more than `most`."""
    body = body.strip(SPACE)
    if body[:1] != b"[":
        return [body] if body else []
    if body.count(b",") >= most and elements(np.frombuffer(body, np.uint8), most) > most:
        raise _too_many(most)
    try:
        return list(map(bytes, _elements.decode(body)))
    except (msgspec.DecodeError, RecursionError) as error:
        raise RefusedRequest(400, f"the body is not valid JSON: {_said(error, body)}") from None


@compiled
def elements(data: Array, most: int) -> int:
    """The number of elements in a JSON array, or `most` + 1 if there are more.

    If the bytes are not JSON, it counts at least the elements before the first error.
    """
    depth, count, at, in_string = 0, 1, 0, False
    while at < len(data):
        here = data[at]
        if in_string:
            if here == 0x5C:
                at += 1
            in_string = here != 0x22
        elif here == 0x22:
            in_string = True
        elif here == 0x5B or here == 0x7B:
            depth += 1
        elif here == 0x5D or here == 0x7D:
            depth -= 1
        elif here == 0x2C and depth == 1:
            count += 1
            if count > most:
                return count
        at += 1
    return count


def decode(decoder: Callable[[bytes], Any], values: list[bytes]) -> tuple[list[Any], list[EventProblem]]:
    """Each value decoded (None if it is not valid), and the problems."""
    try:
        return list(map(decoder, values)), []
    except _WRONG:
        pass  # one by one, to find out which
    decoded: list[Any] = []
    problems: list[EventProblem] = []
    for index, value in enumerate(values):
        try:
            decoded.append(decoder(value))
        except _WRONG as error:
            decoded.append(None)
            problems.append(EventProblem(index, "", _said(error, value)))
    return decoded, problems


def keys_of(
    events: list[Any], path: tuple[str, ...], start: int, bad: set[int]
) -> tuple[list[bytes | None], list[EventProblem]]:
    """The key of each event, a string or an integer; None where there is none. The first event has index `start`."""
    keys: list[bytes | None] = []
    problems: list[EventProblem] = []
    for index, event in enumerate(events, start):
        value = event
        for step in path:
            value = value.get(step) if value.__class__ is dict else None
        keys.append(_key(value))
        if keys[-1] is None and value is not None and index not in bad:
            problems.append(EventProblem(index, "/" + "/".join(path), "a key must be a string or an integer"))
    return keys, problems


def _key(value: Any) -> bytes | None:
    """The key that a value is; None if it is not a string or an integer."""
    if value.__class__ is str:
        return value.encode()
    return b"%d" % value if value.__class__ is int else None


def _without(
    bad: set[int], values: list[bytes], keys: list[bytes | None] | bytes | None
) -> tuple[list[bytes], list[bytes | None] | bytes | None]:
    good = [index for index in range(len(values)) if index not in bad]
    if keys is not None and not isinstance(keys, bytes):
        keys = [keys[index] for index in good]
    return [values[index] for index in good], keys


def _value(value: bytes) -> Any:
    try:
        return _any.decode(value)
    except msgspec.ValidationError:  # a number beyond the doubles
        return _wide.decode(value)


def _object_of(value: bytes) -> _Object:
    value.decode()  # a decoder that skips strings does not check their bytes
    return _object.decode(value)


def _said(error: Exception, value: bytes) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not valid UTF-8: {error.reason}"
    if str(error) == TRUNCATED and HALF_PAIR.search(value):
        return "it has half of a surrogate pair, which is not a character"
    return str(error)


# Events as columns for the Kafka client.


def table(parts: Sequence[KeyedEvents], times: Sequence[int] | None = None) -> pa.RecordBatch:
    """The events of all parts, in order: `value`, `key` if any has one, and `timestamp` (ms) if `times` are given."""
    columns = {"value": column([events.values for events in parts])}
    if any(events.keys is not None for events in parts):
        columns["key"] = column([events.key_texts() for events in parts])
    if times is not None:
        columns["timestamp"] = pa.array(np.repeat(times, [events.count for events in parts]), pa.int64())
    return pa.record_batch(columns)
