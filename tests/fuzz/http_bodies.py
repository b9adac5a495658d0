"""Bodies of `penstock ingest`: gzip, cut into events, decoded as their type or validated.

The reference is Python's json with jsonschema_rs for each event, and zlib member by member. An input is two bytes that
say how a body is read, and the body.
"""

from __future__ import annotations

import ctypes
import gzip
import json
import mmap
import random as randoms
import re
import zlib
from typing import Any

import jsonschema_rs
import numpy as np

from penstock.ingest.event_schema import Schema
from penstock.ingest.events import GREATEST, KeyedEvents, TopicFormat, elements
from penstock.ingest.exchange import GZIP, MEMBERS, RefusedRequest, unpack
from penstock.native import Array

from .mutate import mutated, noise
from .runner import Decoder, Difference

LARGEST, MOST_EVENTS, MOST_BYTES = 300, 6, 20_000
LINES, KEY, PACKED = 1, 2, 4
"""Bits of the second byte: an event on each line, a key for all, gzip."""
SMALL: dict[str, Any] = {"type": ["object", "string", "integer", "array"], "maxLength": 3}
ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["a", "n"],
    "properties": {
        "a": {"type": "string", "minLength": 2, "maxLength": 4},
        "n": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 1000},
        "i": {"type": ["integer", "null"], "exclusiveMinimum": -3, "maximum": 7},
        "e": {"enum": ["a", "bc", "\u00e9"]},
        "l": {"type": "array", "items": {"$ref": "#/$defs/small"}, "minItems": 1, "maxItems": 2},
        "t": {"type": "string", "format": "date-time"},
        "o": {
            "type": "object",
            "properties": {"k": {}, "b": {"type": "boolean"}},
            "additionalProperties": False,
        },
        "c": {"const": "x"},
        "r": {"$ref": "#"},
    },
    "additionalProperties": {"$ref": "#/$defs/small"},
    "$defs": {"small": SMALL},
}
PATTERN: dict[str, Any] = {"properties": {"a": {"pattern": "^a"}, "l": {"items": {"type": "string"}}}}
TYPED: dict[str, Any] = {
    "$defs": ORDER["$defs"],
    "type": "object",
    "required": ["a", "n"],
    "properties": {**ORDER["properties"], "r": {"$ref": "#/$defs/small"}},
}
CLOSED: dict[str, Any] = {**TYPED, "additionalProperties": False}
BARE: dict[str, Any] = {name: value for name, value in TYPED.items() if name not in ("type", "required")}
CASES: list[tuple[Any, tuple[str, ...]]] = [
    (None, ()),
    (None, ("o", "k")),
    (ORDER, ()),
    (ORDER, ("o", "k")),
    (PATTERN, ("a",)),
    (TYPED, ("o", "k")),
    (CLOSED, ("i",)),
    (BARE, ("n",)),
]
"""Schemas, and where the key is; the first byte says which."""
READINGS = [TopicFormat(Schema(one) if one else None, key, LARGEST, MOST_EVENTS) for one, key in CASES]
VALID = [jsonschema_rs.validator_for(one, validate_formats=True).is_valid if one else None for one, _ in CASES]

NUMBERS = ["0", "-0", "7", "-2", "12345678901234567890", "1.5", "-1.5", "999.99", "1e5", "1E+400", "1.0", "1e-30", "01"]
TEXTS = ['""', '"a"', '"ab"', '"bc"', '"\u00e9"', '"x"', '"{}[],:"', r'"\"}"', r'"\\"', r'"\u0041b"', r'"\ud800"']
TEXTS += [r'"\ud83d\ude00"', '"abcde"', '"2026-05-31T12:00:00+02:00"', '"2024-02-29T00:00:00.5Z"', '"\U0001f600"']
RIGHT = {
    "a": ['"ab"', '"abcd"', '"\u00e9\u00e9"', r'"\u0041bc"'],
    "n": ["0", "-1.5", "999.99", "3", "1e2"],
    "i": ["null", "7", "-2", "1.0"],
    "e": ['"a"', '"bc"', '"\u00e9"', r'"\u00e9"'],
    "l": ['["abc"]', "[{} , 1]", '[[[]],"a"]'],
    "t": ['"2026-05-31T12:00:00Z"', '"2026-02-28T23:59:59.123+01:30"', '"2024-02-29T00:00:00Z"'],
    "o": ["{}", '{"k":"v"}', '{"b":true,"k":-12}', '{"k":null}', '{"k":"\u00e9"}', '{"k":1.5}', '{"k":-0}'],
    "c": ['"x"'],
    "z": ['"abc"', "12", '{"a":{}}'],
}
REGION = 1 << 16
"""Bytes before a page that may not be read."""


class Guard:
    """Memory whose end is followed by a page that may not be read: a loop that goes on ends the process."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, REGION + mmap.PAGESIZE)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        behind = ctypes.c_void_p(self._bytes.ctypes.data + REGION)
        done = libc.mprotect(behind, ctypes.c_size_t(mmap.PAGESIZE), 0)
        assert done == 0, ctypes.get_errno()

    def holding(self, data: bytes) -> Array:
        """The bytes, right before that page."""
        place = self._bytes[REGION - len(data) : REGION]
        place[:] = np.frombuffer(data, np.uint8)
        return place


GUARD = Guard()


def _value(random: randoms.Random, depth: int = 0) -> str:
    kind = random.randrange(6 if depth < 3 else 3)
    if kind == 0:
        return random.choice(NUMBERS)
    if kind == 1:
        return random.choice(TEXTS)
    if kind == 2:
        return random.choice(("true", "false", "null", "nul", "{}", "[]"))
    inner = [_value(random, depth + 1) for _ in range(random.randrange(4))]
    if kind == 3:
        return "[" + ",".join(inner) + "]"
    return "{" + ",".join(f"{_space(random)}{random.choice(_NAMES)}:{one}" for one in inner) + "}"


_NAMES = [f'"{name}"' for name in (*RIGHT, "k", "b", "\u00e9")] + [r'"\u0061"', "a"]


def _space(random: randoms.Random) -> str:
    return random.choice((" ", "\t", "\r", "\n", "  ", "\x0b")) if random.random() < 0.15 else ""


def _order(random: randoms.Random) -> str:
    """An event that is right, or nearly so."""
    names = list(dict.fromkeys(["a", "n", *random.choices(list(RIGHT), k=random.randrange(5))]))
    random.shuffle(names)
    return "{" + ",".join(f'{_space(random)}"{name}":{random.choice(RIGHT[name])}' for name in names) + "}"


def _draw(random: randoms.Random) -> bytes:
    how = random.choice((0, 0, 0, 0, KEY, PACKED)) | random.choice((0, LINES))
    count = random.choice((0, 1, 1, 1, 2, 2, 3, MOST_EVENTS, MOST_EVENTS + 1))
    events = [_value(random) if random.random() < 0.1 else _order(random) for _ in range(count)]
    if how & LINES:
        text = "\n".join(_space(random) + one + _space(random) for one in events)
    else:
        text = f"{_space(random)}[{','.join(events)}]{_space(random)}" if len(events) != 1 else events[0]
    body = text.encode("utf-8", "surrogatepass")
    chance = random.random()
    if chance < 0.02:
        body = noise(random, 200)
    elif chance < 0.35:
        body = mutated(random, body)
    if how & PACKED:
        at = random.randrange(len(body) + 1)
        parts = [body] if random.random() < 0.5 else [body[:at], b"", body[at:]]
        body = b"".join(gzip.compress(part, random.choice((0, 6)), mtime=0) for part in parts)
        if random.random() < 0.4:
            body = mutated(random, body)
    return bytes([random.randrange(len(CASES)), how]) + body


def _check(data: bytes) -> bool:
    case, how = (data[0] % len(CASES), data[1]) if len(data) >= 2 else (0, 0)
    body: bytes | None = data[2:]
    if how & PACKED:
        body = _unpacked(data[2:])
        if body is None:
            return False
    assert body is not None
    key = b"key" if how & KEY else None
    lines = bool(how & LINES)
    reading = READINGS[case]
    scanned = reading.scan(body, lines=lines, key=key)
    _check_bounds(body)
    try:
        events, problems = reading.examine(body, lines=lines, key=key)
    except RefusedRequest as why:
        if scanned:
            raise Difference(f"the type accepts what decoding refuses: {why.detail}") from None
        _check_refusal(body, lines)
        return False
    if scanned and (problems or _listed(scanned) != _listed(events)):
        raise Difference(f"the type finds {_listed(scanned)}, decoding {_listed(events)}, {problems}")
    _check_events(body, case, lines, key, events, {one.index for one in problems})
    return not problems


def _listed(events: KeyedEvents) -> tuple[list[bytes | None], list[bytes | None]]:
    return events.values.listed(), events.key_texts().listed()


def _unpacked(packed: bytes) -> bytes | None:
    """What ours makes of it; None if both refuse it."""
    reference: bytes | None = b""
    left, members = packed, 0
    try:
        while left and reference is not None:
            member = zlib.decompressobj(GZIP)
            reference += member.decompress(left, MOST_BYTES + 1 - len(reference))
            members += 1
            reference = reference if member.eof and len(reference) <= MOST_BYTES and members <= MEMBERS else None
            left = member.unused_data
    except zlib.error:
        reference = None
    try:
        ours: bytes | None = unpack(packed, b"gzip", most=MOST_BYTES)
    except RefusedRequest:
        ours = None
    if ours != reference:
        raise Difference(f"gzip: {ours!r}, not {reference!r}")
    return ours


def _check_bounds(body: bytes) -> None:
    """The loop that counts elements reads nothing behind the body, and what is there changes nothing."""
    if len(body) > REGION:
        return
    places = [GUARD.holding(body)]
    places += [np.frombuffer(body + behind, np.uint8)[: len(body)] for behind in (b'"}]' * 11, b"0123456789abcdef")]
    counts = {elements(place, MOST_EVENTS) for place in places}
    if len(counts) > 1:
        raise Difference(f"elements: {counts}")


def _constant(name: str) -> Any:
    raise ValueError(name)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object, with what is not a value of its own: of a name that comes twice both values have to be right."""
    made = dict(pairs)
    if len(made) < len(pairs) and (lost := [value for _, value in pairs if _has_surrogates(value)]):
        made["lost"] = lost
    return made


_json = json.JSONDecoder(parse_constant=_constant, object_pairs_hook=_object)


def _loads(value: bytes) -> Any:
    """By Python's json; what is not UTF-8 becomes surrogates, as half surrogates do."""
    return _json.decode(value.decode("utf-8", "surrogateescape"))


def _reference(body: bytes, lines: bool) -> list[Any] | None:
    """The events, `ValueError` in the place of a line that is not JSON; None if the body is not JSON."""
    if lines:
        return [_line(one) for one in filter(None, map(bytes.strip, body.split(b"\n")))]
    try:
        found = _loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else [found]


def _line(value: bytes) -> Any:
    try:
        return _loads(value)
    except (ValueError, RecursionError):
        return ValueError


def _check_refusal(body: bytes, lines: bool) -> None:
    events = _reference(body, lines)
    if events is None or not 0 < len(events) <= MOST_EVENTS or _is_special(body):
        return
    if not lines and _has_surrogates(events):
        return  # halves of surrogate pairs are found when the array is cut
    if not lines and len(events) == 1 and body.strip(b" \t\r\n")[:1] != b"[":
        raise Difference("one event is refused as a whole")
    raise Difference(f"a body of {len(events)} events is refused as a whole")


def _is_special(body: bytes) -> bool:
    """Whether it is nested deeply, or has numbers of very many digits: both have bounds that differ."""
    return body.count(b"[") + body.count(b"{") > 400 or re.search(rb"[0-9]{300}", body) is not None


def _check_events(body: bytes, case: int, lines: bool, key: bytes | None, events: KeyedEvents, bad: set[int]) -> None:
    values, keys = _listed(events)
    for value in values:
        if value is None or value not in body or len(value) > LARGEST:
            raise Difference(f"an event that was not sent: {value!r}")
    reference = _reference(body, lines)
    if reference is None:
        if not bad and not _is_special(body):
            raise Difference("what is not JSON is taken")
        return
    if len(values) + len(bad) != len(reference):
        raise Difference(f"{len(values)} good events and {len(bad)} bad ones of {len(reference)}")
    good = iter(zip(values, keys, strict=True))
    for index, event in enumerate(reference):
        right, wanted = _judged(event, case, key)
        if index in bad:
            # Which bytes stood for an event is not known here: how many they were decides too.
            if right and not _is_special(body) and len(body) <= LARGEST:
                raise Difference(f"event {index} is good: {event!r}")
            continue
        value, found = next(good)
        assert value is not None
        if not _same(_loads(value), event):
            raise Difference(f"event {index} is {value!r}, not {event!r}")
        if not right:
            raise Difference(f"event {index} is bad: {value!r}")
        if found != wanted:
            raise Difference(f"event {index} has the key {found!r}, not {wanted!r}")


def _judged(event: Any, case: int, key: bytes | None) -> tuple[bool, bytes | None]:
    """Whether the event is good, and its key."""
    valid, path = VALID[case], CASES[case][1]
    if event is ValueError or _has_surrogates(event):
        return False, None
    if valid is None and not isinstance(event, dict):
        return False, None
    if valid is not None and not valid(_finite(event)):
        return False, None
    if key is not None or not path:
        return True, key
    for step in path:
        event = event.get(step) if isinstance(event, dict) else None
    if isinstance(event, str):
        return True, event.encode()
    if isinstance(event, bool) or not (event is None or isinstance(event, int)):
        return False, None
    return True, None if event is None else b"%d" % event


def _has_surrogates(event: Any) -> bool:
    try:
        json.dumps(event, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _finite(event: Any) -> Any:
    """The event with the greatest double for greater numbers."""
    if isinstance(event, list):
        return list(map(_finite, event))
    if isinstance(event, dict):
        return {name: _finite(value) for name, value in event.items()}
    return max(-GREATEST, min(event, GREATEST)) if isinstance(event, float) else event


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and json.dumps(one) == json.dumps(other)


DECODER = Decoder(name="http_bodies", draw=_draw, check=_check)
