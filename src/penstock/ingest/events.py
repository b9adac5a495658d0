"""The events of a request: cut out of its body as they were sent, and checked, but never encoded again.

Most bodies are good, and `scan_kernel` finds that out without decoding them. Other bodies, and those of topics without
a plan, are decoded and validated here, which says what is wrong with which event. NDJSON is cut at line feeds, which
JSON has only between its tokens; so a value over several lines is refused. An array is cut by the decoder, which
returns the bytes of each element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.ingest.event_schema import Numbered, Schema
from penstock.ingest.responses import SHOWN, Problem, Refused
from penstock.ingest.scan_kernel import cut, elements, room
from penstock.ingest.schema_plan import SchemaPlan, plan
from penstock.native import Array
from penstock.native.text_slices import Texts, column

LINES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines"})
# Browsers' sendBeacon sends text as text/plain, and other types only after a preflight.
JSON = frozenset({"application/json", "text/plain"})
SPACE = b" \t\r\n"
GROUP = 64 << 10
"""Bytes of events that are decoded and validated together. Nothing else runs in Python meanwhile, other threads
included, and what is decoded takes up to 25 times as much memory."""

_elements = msgspec.json.Decoder(list[msgspec.Raw])
_any = msgspec.json.Decoder()
_fields = msgspec.json.Decoder(dict, float_hook=lambda text: 0.0)
"""The fields of an object; numbers that no double can hold are allowed, because no event is encoded again."""


class _Object(msgspec.Struct):
    """Any JSON object: its fields are skipped, but have to be JSON."""


_object = msgspec.json.Decoder(_Object)


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events for one topic, with the key of each, one key for all, or none."""

    values: Texts
    keys: Texts | bytes | None
    size: int
    """Bytes of the body in which they came."""

    @classmethod
    def of(cls, values: Sequence[bytes], keys: Sequence[bytes | None] | bytes | None, size: int) -> Events:
        return cls(Texts.of(values), keys if keys is None or isinstance(keys, bytes) else Texts.of(keys), size)

    @property
    def count(self) -> int:
        return len(self.values.starts)

    def key_texts(self) -> Texts:
        """The key of each event."""
        return self.keys if isinstance(self.keys, Texts) else Texts.same(self.keys, self.count)


@dataclass(frozen=True, slots=True)
class EventFormat:
    """How the events of a topic are read: validated if there is a schema, with a key if there is a path to it."""

    schema: Schema | None
    key: tuple[str, ...]
    largest: int
    most: int
    _plan: SchemaPlan | None = field(init=False, repr=False)
    _keyless: SchemaPlan | None = field(init=False, repr=False)
    _rooms: list[Array] = field(init=False, repr=False)
    """Buffers for `cut`, one for each thread that reads."""

    def __post_init__(self) -> None:
        document = self.schema.document if self.schema else True
        object.__setattr__(self, "_plan", plan(document, self.key))
        object.__setattr__(self, "_keyless", plan(document, ()))
        object.__setattr__(self, "_rooms", [])

    def read(self, body: bytes, *, lines: bool, key: bytes | None) -> tuple[Events, list[Problem]]:
        """The good events of a body, and what is wrong with the others; `key` overrides a key in the event."""
        found = self.scan(body, lines=lines, key=key)
        return (found, []) if found else self.examine(body, lines=lines, key=key)

    def scan(self, body: bytes, *, lines: bool, key: bytes | None) -> Events | None:
        """The events of a body if all are surely good; None says nothing about them."""
        chosen = self._plan if key is None else self._keyless
        if chosen is None:
            return None
        space = self._rooms.pop() if self._rooms else room(self.most)
        found = cut(body, chosen, lines=lines, largest=self.largest, room=space)
        self._rooms.append(space)
        if found is None:
            return None
        values, keys = found
        return Events(values, key if keys is None else keys, len(body))

    def examine(self, body: bytes, *, lines: bool, key: bytes | None) -> tuple[Events, list[Problem]]:
        """As `read`, by decoding and validating, which takes ten times as long and says what is wrong."""
        values = split_lines(body, self.most) if lines else split(body, self.most)
        if not values:
            raise Refused(400, "there is no event in the body")
        with_keys = key is None and bool(self.key)
        problems: list[Problem] = []
        keys: list[bytes | None] = []
        for start, end in _groups(values):
            wrong, found = self._examine_group(values[start:end], start, with_keys, SHOWN - len(problems))
            problems += wrong
            keys += found
        good = values
        chosen = keys if with_keys else key
        if problems:
            good, chosen = _without({one.index for one in problems}, values, chosen)
            problems.sort(key=lambda one: (one.index, one.path))
        return Events.of(good, chosen, len(body)), problems

    def _decoder(self, with_keys: bool) -> Callable[[bytes], Any]:
        """The decoder of an event; without a schema, fields are decoded only if they have the key."""
        if self.schema:
            return _any.decode
        return _fields.decode if with_keys else _object_of

    def _examine_group(
        self, values: list[bytes], start: int, with_keys: bool, most: int
    ) -> tuple[list[Problem], list[bytes | None]]:
        """The problems of these events, whose first has index `start`, and the key of each event if `with_keys`."""
        if len(values) == 1 and len(values[0]) > self.largest:
            return [self._too_large(values[0], start)], [None]
        decoded, problems = decode(self._decoder(with_keys), values)
        problems = [Problem(start + one.index, one.path, one.reason) for one in problems]
        problems += [
            self._too_large(value, index) for index, value in enumerate(values, start) if len(value) > self.largest
        ]
        bad = {one.index for one in problems}
        if self.schema:
            events = zip(decoded, values, strict=True)
            numbered = [Numbered(index, event, len(value)) for index, (event, value) in enumerate(events, start)]
            problems += self.schema.problems([one for one in numbered if one.index not in bad], most)
        if not with_keys:
            return problems, []
        keys, wrong = keys_of(decoded, self.key, start, {one.index for one in problems})
        return problems + wrong, keys

    def _too_large(self, value: bytes, index: int) -> Problem:
        return Problem(index, "", f"the event has {len(value)} bytes; at most {self.largest} are taken")


def _groups(values: list[bytes]) -> Iterator[tuple[int, int]]:
    """The starts and ends of groups of at most `GROUP` bytes, or of one larger event."""
    start, size = 0, 0
    for index, value in enumerate(values):
        if size and size + len(value) > GROUP:
            yield start, index
            start, size = index, 0
        size += len(value)
    yield start, len(values)


def split_lines(body: bytes, most: int) -> list[bytes]:
    """The lines that are not empty, without the white space around them; `Refused` if there are more than `most`."""
    values: list[bytes] = []
    for line in BytesIO(body):
        if value := line.strip():
            values.append(value)
            if len(values) > most:
                raise _too_many(most)
    return values


def _too_many(most: int) -> Refused:
    return Refused(413, f"there are more than {most} events in the body; send fewer in each request")


def split(body: bytes, most: int) -> list[bytes]:
    """The elements of an array, or the one event that the body is; `Refused` if there are more than `most`."""
    body = body.strip(SPACE)
    if body[:1] != b"[":
        return [body] if body else []
    if elements(np.frombuffer(body, np.uint8), most) > most:
        raise _too_many(most)
    try:
        return list(map(bytes, _elements.decode(body)))
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(400, f"the body is not valid JSON: {_said(error)}") from None


def decode(one: Callable[[bytes], Any], values: list[bytes]) -> tuple[list[Any], list[Problem]]:
    """Each value decoded (None if it is not valid), and the problems."""
    try:
        return list(map(one, values)), []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # one by one, to find out which
    decoded: list[Any] = []
    problems: list[Problem] = []
    for index, value in enumerate(values):
        try:
            decoded.append(one(value))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            decoded.append(None)
            problems.append(Problem(index, "", _said(error)))
    return decoded, problems


def keys_of(
    events: list[Any], path: tuple[str, ...], start: int, bad: set[int]
) -> tuple[list[bytes | None], list[Problem]]:
    """The key of each event, a string or an integer; None where there is none. The first event has index `start`."""
    keys: list[bytes | None] = []
    problems: list[Problem] = []
    for index, event in enumerate(events, start):
        found = event
        for step in path:
            found = found.get(step) if found.__class__ is dict else None
        if found.__class__ is str:
            keys.append(found.encode())
        elif found.__class__ is int:
            keys.append(b"%d" % found)
        elif found is None:
            keys.append(None)
        else:
            keys.append(None)
            if index not in bad:
                problems.append(Problem(index, "/" + "/".join(path), "a key must be a string or an integer"))
    return keys, problems


def _without(
    bad: set[int], values: list[bytes], keys: list[bytes | None] | bytes | None
) -> tuple[list[bytes], list[bytes | None] | bytes | None]:
    kept = [index for index in range(len(values)) if index not in bad]
    if keys is not None and not isinstance(keys, bytes):
        keys = [keys[index] for index in kept]
    return [values[index] for index in kept], keys


def _object_of(value: bytes) -> _Object:
    value.decode()  # a decoder that skips strings does not check their bytes
    return _object.decode(value)


def _said(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return f"it is not valid UTF-8: {error.reason}"
    return str(error)


# Events as columns for the Kafka client.


def table(lot: Sequence[Events], times: Sequence[int] | None = None) -> pa.RecordBatch:
    """The events of all lots, in order: `value`, `key` if any has one, and `timestamp` (ms) if `times` are given."""
    columns = {"value": column([events.values for events in lot])}
    if any(events.keys is not None for events in lot):
        columns["key"] = column([events.key_texts() for events in lot])
    if times is not None:
        columns["timestamp"] = pa.array(np.repeat(times, [events.count for events in lot]), pa.int64())
    return pa.record_batch(columns)


def warm() -> None:
    """Compile the loops from a body to columns, or load them from disk."""
    reading = EventFormat(None, ("k",), 100, 1)
    events, _ = reading.read(b'{"k":"v"}', lines=True, key=None)
    table([events])
    reading.examine(b'[{"k":"v"}]', lines=False, key=None)
