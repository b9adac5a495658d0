"""Cutting bodies into events, and the problems of bad ones."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc

import msgspec
import numpy as np
import pytest
from growth import assert_linear, cost
from hypothesis import given, settings, strategies as st

from penstock.ingest.event_schema import TOO_LARGE_TO_SAY, Schema
from penstock.ingest.events import TopicFormat, elements
from penstock.ingest.exchange import LONGEST, MEMBERS, WINDOW, EventProblem, RefusedRequest, unpack

CLICK = {
    "type": "object",
    "required": ["user"],
    "properties": {
        "user": {"type": "object", "properties": {"id": {"type": "string", "minLength": 1}}},
        "price": {"type": "number", "minimum": 0},
        "at": {"type": "string", "format": "date-time"},
    },
}
ANY = TopicFormat(None, (), 1 << 20, 50)
CLICKS = TopicFormat(Schema(CLICK), ("user", "id"), 1000, 50)

# Numbers that a double can hold: others are refused when they are decoded.
texts = st.text(max_size=10)
leaves = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts | st.floats(-1e300, 1e300)
values = leaves | st.lists(leaves, max_size=3) | st.dictionaries(texts, leaves, max_size=3)
objects = st.dictionaries(texts, values, max_size=3)
spaces = st.text(" \t\r", max_size=2)


def encoded(event: object, indent: int | None, ascii_only: bool) -> bytes:
    return json.dumps(event, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")


@settings(max_examples=60)
@given(st.lists(st.tuples(objects, st.booleans(), spaces, spaces), min_size=1, max_size=5), st.booleans())
def test_lines_are_cut_where_the_sender_cut_them(events: list[tuple[object, bool, str, str]], last: bool) -> None:
    sent = [encoded(event, None, ascii_only) for event, ascii_only, _, _ in events]
    padded = [a.encode() + text + b.encode() for text, (_, _, a, b) in zip(sent, events, strict=True)]
    body = b"\n".join(padded) + (b"\n \n" if last else b"")
    found, problems = ANY.read(body, lines=True, key=None)
    assert (found.values.listed(), problems) == (sent, [])


@settings(max_examples=60)
@given(
    st.lists(st.tuples(objects, st.sampled_from([None, 0, 2]), st.booleans()), min_size=1, max_size=5),
    st.text(" \t\r\n", max_size=3),
)
def test_elements_of_an_array_are_the_bytes_that_were_sent(
    events: list[tuple[object, int | None, bool]], space: str
) -> None:
    sent = [encoded(*event) for event in events]
    pad = space.encode()
    body = pad + b"[" + pad + (pad + b"," + pad).join(sent) + pad + b"]" + pad
    found, problems = ANY.read(body, lines=False, key=None)
    assert (found.values.listed(), problems) == (sent, [])


@given(st.binary(max_size=60), st.booleans())
def test_whatever_is_accepted_is_json_for_others_too(body: bytes, lines: bool) -> None:
    try:
        found, _ = ANY.read(body, lines=lines, key=None)
    except RefusedRequest as why:
        assert why.status == 400
        return
    assert all(isinstance(json.loads(value or b""), dict) for value in found.values.listed())


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"a":1} {"b":2}', "trailing characters"),
        (b'{"a":1}{"b":\n2}', "trailing characters"),  # as many lines as values, and no line a value
        (b'{"a":\n1}', "truncated"),
        (b"[{}]", "Expected `object`, got `array`"),
        (b'{"a":NaN}', "invalid character"),
        (b'{"a":"\\ud800"}', "half of a surrogate pair"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_a_line_is_one_object(body: bytes, reason: str) -> None:
    found, problems = ANY.read(body, lines=True, key=None)
    assert found.count == 0
    assert reason in problems[0].reason


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "no event"),
        (b" \n ", "no event"),
        (b"[]", "no event"),
        (b'[{"a":1}', "not valid JSON"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_body_that_cannot_be_cut_is_refused_as_a_whole(body: bytes, detail: str) -> None:
    with pytest.raises(RefusedRequest, match=detail) as caught:
        ANY.read(body, lines=False, key=None)
    assert caught.value.status == 400


@pytest.mark.parametrize("reading", [ANY, TopicFormat(None, ("k",), 1000, 50), TopicFormat(Schema({}), (), 1000, 50)])
@pytest.mark.parametrize("lines", [True, False])
def test_events_that_are_no_utf_8_are_told_and_the_others_are_left(reading: TopicFormat, lines: bool) -> None:
    events = [b'{"a":"\xff"}', b'{"b":1}', b'{"\xc3":1}', '{"c":"é"}'.encode()]
    body = b"\n".join(events) if lines else b"[" + b",".join(events) + b"]"
    found, problems = reading.read(body, lines=lines, key=None)
    assert found.values.listed() == [events[1], events[3]]
    assert [one.index for one in problems] == [0, 2]
    assert all("not valid UTF-8" in one.reason for one in problems)


def test_bad_events_are_told_with_index_place_and_reason_and_the_others_are_left() -> None:
    events = [
        {"user": {"id": "a"}},
        {"user": {"id": ""}, "price": -1},
        {"user": {"id": 7}},
        {"at": "yesterday"},
        {"user": {"id": "b"}, "at": "2026-05-31T12:00:00Z"},
    ]
    body = b"\n".join(map(msgspec.json.encode, events)) + b"\nnonsense\n" + b'{"user":{"id":"' + b"x" * 1000 + b'"}}'
    found, problems = CLICKS.read(body, lines=True, key=None)
    assert found.key_texts().listed() == [b"a", b"b"]
    assert [json.loads(value or b"") for value in found.values.listed()] == [events[0], events[4]]
    assert [(one.index, one.path) for one in problems] == [
        (1, "/price"),
        (1, "/user/id"),
        (2, "/user/id"),
        (3, ""),
        (3, "/at"),
        (5, ""),
        (6, ""),
    ]
    assert problems[2].reason == '7 is not of type "string"'
    assert problems[6].reason == "the event has 1018 bytes; at most 1000 are taken"


@pytest.mark.parametrize(
    ("event", "key"),
    [({"k": {"id": "é"}}, "é".encode()), ({"k": {"id": -12}}, b"-12"), ({"k": {}}, None), ({"k": 3}, None), ({}, None)],
)
def test_the_key_is_text_or_a_whole_number_of_the_event(event: object, key: bytes | None) -> None:
    found, problems = TopicFormat(None, ("k", "id"), 1000, 50).read(msgspec.json.encode(event), lines=False, key=None)
    assert (found.key_texts().listed(), problems) == ([key], [])


@pytest.mark.parametrize("wrong", [True, 1.5, [1], {"a": 1}])
def test_other_keys_are_refused(wrong: object) -> None:
    body = msgspec.json.encode([{"k": "fine"}, {"k": wrong}])
    found, problems = TopicFormat(None, ("k",), 1000, 50).read(body, lines=False, key=None)
    assert found.key_texts().listed() == [b"fine"]
    assert problems == [EventProblem(1, "/k", "a key must be a string or an integer")]


@given(st.lists(st.binary(max_size=2000), max_size=3), st.integers(0, 5000))
def test_gzip_is_unpacked_up_to_the_limit(members: list[bytes], most: int) -> None:
    plain, packed = b"".join(members), b"".join(gzip.compress(one) for one in members)
    if len(plain) > most:
        with pytest.raises(RefusedRequest) as caught:
            unpack(packed, b"gzip", most=most)
        assert caught.value.status == 413
    else:
        assert unpack(packed, b"gzip", most=most) == plain


@pytest.mark.parametrize("cut", [1, 12, 30])
def test_gzip_that_ends_too_early_is_refused(cut: int) -> None:
    with pytest.raises(RefusedRequest, match="not valid gzip"):
        unpack(gzip.compress(b"some text" * 10)[:cut], b"gzip", most=1000)


def test_gzip_of_empty_members_is_refused_at_once() -> None:
    """8 MB took 95 CPU seconds when the rest was copied for each member."""
    with pytest.raises(RefusedRequest, match="members") as caught:
        unpack(gzip.compress(b"") * 400_000, b"gzip", most=8 << 20)
    assert caught.value.status == 400
    empty, large = gzip.compress(b"") * 2_000, gzip.compress(random.Random(0).randbytes(4 << 20), 0)
    apart = sum(cost(lambda part=part: unpack(part, b"gzip", most=8 << 20)) for part in (empty, large))  # type: ignore[misc]
    assert cost(lambda: unpack(empty + large, b"gzip", most=8 << 20)) < 3 * apart
    few = b"".join(gzip.compress(b"%d" % n) for n in range(MEMBERS))
    assert unpack(few, b"gzip", most=8 << 20) == b"".join(b"%d" % n for n in range(MEMBERS))


@pytest.mark.parametrize("size", [WINDOW - 1, WINDOW, WINDOW + 1, 5 * WINDOW])
def test_gzip_of_several_windows_is_unpacked(size: int) -> None:
    plain = random.Random(size).randbytes(size)
    packed = gzip.compress(plain, 0)
    for body in (packed, packed + packed, packed + gzip.compress(b"")):
        assert unpack(body, b"gzip", most=10 * size) == plain * (len(body) // len(packed))
    with pytest.raises(RefusedRequest, match="ends too early"):
        unpack(packed[:-1], b"gzip", most=10 * size)
    with pytest.raises(RefusedRequest, match="not valid gzip"):
        unpack(packed + b"\0", b"gzip", most=10 * size)


def test_events_with_very_many_errors_cost_no_more_than_the_errors_that_are_told() -> None:
    """Eight events of 100 000 wrong items took 27 CPU seconds."""
    reading = TopicFormat(Schema({"properties": {"a": {"items": {"type": "string"}}}}), (), 1 << 20, 50)

    def read(items: int) -> None:
        body = b"\n".join([b'{"a":[%b]}' % b",".join([b"1"] * items)] * 8)
        found, problems = reading.read(body, lines=True, key=None)
        assert found.count == 0
        assert problems == [EventProblem(index, "/a/0", '1 is not of type "string"') for index in range(8)]

    assert_linear(read, 25_000)


def test_reasons_and_places_are_cut() -> None:
    """An answer quoted 7.9 MB of the request."""
    reading = TopicFormat(Schema({"additionalProperties": {"anyOf": [{"type": "string"}]}}), (), 1 << 20, 50)
    events: list[object] = [{"b": [1] * 50_000}, {"c" * 2000: 1}, {"c" * 3000: [1] * 200}]
    _, problems = reading.read(msgspec.json.encode(events), lines=False, key=None)
    assert [one.index for one in problems] == [0, 1, 2]
    assert all(len(one.reason) <= LONGEST and len(one.path) <= LONGEST for one in problems)
    assert problems[0].reason.startswith("[1,1,1") and problems[0].reason.endswith("...")


def test_all_bad_events_are_counted_though_only_some_are_told_why() -> None:
    events: list[object] = [{"price": -1 if n % 3 else 1, "user": {}} for n in range(900)]
    reading = TopicFormat(Schema(CLICK), (), 1000, 1000)
    found, problems = reading.read(msgspec.json.encode(events), lines=False, key=None)
    assert found.count == 300
    assert sorted({one.index for one in problems}) == [n for n in range(900) if n % 3]
    assert [one.reason for one in problems[:2]] == ["-1 is less than the minimum of 0"] * 2


def test_a_large_event_that_is_bad_is_refused_without_a_search_for_the_reason() -> None:
    reading = TopicFormat(Schema({"properties": {"a": {"anyOf": [{"type": "string"}]}}}), (), 1 << 20, 50)
    body = b'{"a":[%b]}' % b",".join([b"1"] * 200_000)
    _, problems = reading.read(body, lines=False, key=None)
    assert [(one.index, one.path, one.reason) for one in problems] == [(0, "", TOO_LARGE_TO_SAY)]


@pytest.mark.parametrize(
    ("body", "lines"),
    [(b"[" + b"[]," * 2_000_000 + b"[]]", False), (b"12\n" * 2_000_000, True), (b"\n" * 8_000_000, True)],
)
def test_a_body_of_very_many_events_takes_no_memory_for_them(body: bytes, lines: bool) -> None:
    """An array of 4 million numbers took 500 MB before it was found to be too long."""
    tracemalloc.start()
    try:
        with pytest.raises(RefusedRequest) as caught:
            ANY.read(body, lines=lines, key=None)
        assert tracemalloc.get_traced_memory()[1] < len(body) + (1 << 20)
    finally:
        tracemalloc.stop()
    assert caught.value.detail.startswith("there is no event" if body[:1] == b"\n" else "there are more than 50 events")


@given(st.lists(values, min_size=1, max_size=8), st.integers(1, 10))
def test_elements_are_counted_as_they_are_decoded(events: list[object], most: int) -> None:
    body = json.dumps(events).encode("utf-8", "surrogatepass")
    assert elements(np.frombuffer(body, np.uint8), most) == min(len(events), most + 1)


@pytest.mark.parametrize("body", [b'"text"', b"5", b'[["u-1"]]', b"null", b'[{"user":"a"},7]'])
def test_without_a_schema_an_event_is_an_object_with_a_key_too(body: bytes) -> None:
    for reading in (ANY, TopicFormat(None, ("user",), 1000, 50)):
        _, problems = reading.read(body, lines=False, key=None)
        assert ["Expected `object`" in one.reason for one in problems] == [True]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"a":"\\ud800"}', "half of a surrogate pair"),
        (b'{"a":"\\uDBFFx"}', "half of a surrogate pair"),
        (b'{"a":"\\\\ud800"', "Input data was truncated"),
        (b'{"a":"x', "Input data was truncated"),
    ],
)
def test_what_is_no_text_is_told(body: bytes, said: str) -> None:
    for reading in (ANY, TopicFormat(None, ("a",), 1000, 50)):
        _, problems = reading.read(body, lines=False, key=None)
        assert said in problems[0].reason


def test_an_array_with_half_of_a_character_is_refused() -> None:
    with pytest.raises(RefusedRequest, match="half of a surrogate pair"):
        ANY.read(b'[{"a":"\\ud800"}]', lines=False, key=None)


def test_without_a_schema_numbers_that_no_double_holds_are_taken_with_a_key_too() -> None:
    sent = b'{"user":"a","n":[1e400,-1.5e-999]}'
    for path, key in (((), None), (("user",), b"a")):
        events, problems = TopicFormat(None, path, 1000, 50).read(sent, lines=False, key=None)
        assert (events.values.listed(), events.key_texts().listed(), problems) == ([sent], [key], [])
    _, problems = TopicFormat(None, ("n",), 1000, 50).read(b'{"n":1.5}', lines=False, key=None)
    assert [(one.path, one.reason) for one in problems] == [("/n", "a key must be a string or an integer")]
