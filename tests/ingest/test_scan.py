"""The loop that reads bodies without decoding finds what decoding and validating finds, or leaves the body to them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from penstock.ingest.event_schema import Schema
from penstock.ingest.events import EventFormat
from penstock.ingest.responses import Refused
from penstock.ingest.scan_kernel import DEPTH, cut, room
from penstock.ingest.schema_plan import plan

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "order",
    "type": "object",
    "required": ["a", "n"],
    "properties": {
        "a": {"type": "string", "minLength": 2, "maxLength": 4},
        "n": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 1000},
        "i": {"type": ["integer", "null"], "exclusiveMinimum": -3, "maximum": 7},
        "e": {"enum": ["a", "bc", "\u00e9"]},
        "l": {"type": "array", "items": {"$ref": "#/$defs/small"}, "minItems": 1, "maxItems": 2},
        "t": {"format": "date-time"},
        "o": {"type": "object", "properties": {"k": {}, "b": {"type": "boolean"}}, "additionalProperties": False},
        "c": {"const": "x"},
        "r": {"$ref": "#"},
    },
    "additionalProperties": {"$ref": "#/$defs/small"},
    "$defs": {"small": {"type": ["object", "string", "integer", "array"], "maxLength": 3}},
}
ANYTHING = plan(True, ())
assert ANYTHING
READINGS = {
    "any": EventFormat(None, (), 200, 5),
    "keyed": EventFormat(None, ("o", "k"), 200, 5),
    "schema": EventFormat(Schema(ORDER), (), 200, 5),
    "schema and key": EventFormat(Schema(ORDER), ("o", "k"), 200, 5),
}

NUMBERS = [
    "0",
    "-0",
    "7",
    "-2",
    "12345678901234567890",
    "1.5",
    "-1.5",
    "999.99",
    "1e5",
    "1E+400",
    "1.0",
    "01",
    "1.",
    "-",
]
NUMBERS += ["0.1000000000000000055511151231257827", "1" * 400, "1e-30", "+1", ".5", "NaN", "999.99999999999999999"]
TEXTS = [
    '""',
    '"a"',
    '"bc"',
    '"\u00e9"',
    '"x"',
    '"{}[],:"',
    r'"\"}"',
    r'"\\"',
    r'"\u0041b"',
    r'"\ud83d\ude00"',
    r'"\ud800"',
]
TEXTS += [r'"\x"', '"a\tb"', '"abcd"', '"abcde"', '"\U0001f600\U0001f600"', '"2026-02-28T23:59:59.5Z"', '"\x7f"']
TEXTS += [
    '"2026-05-31T12:00:00+02:00"',
    '"2026-02-30T00:00:00Z"',
    '"2026-05-31t12:00:00z"',
    '"2026-05-31T24:00:00Z"',
    '"',
]
NAMES = [
    '"a"',
    '"n"',
    '"i"',
    '"e"',
    '"l"',
    '"t"',
    '"o"',
    '"c"',
    '"r"',
    '"k"',
    '"b"',
    r'"\u0061"',
    '"z"',
    '"\u00e9"',
    "a",
]

spaces = st.sampled_from(["", "", "", " ", "\t", "\r", "\n", "  ", "\x0b"])
leaves = st.sampled_from(NUMBERS + TEXTS + ["true", "false", "null", "nul", "{}", "[]"])


def listed(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    parts = st.lists(st.tuples(spaces, inner), max_size=3)
    return st.tuples(parts, spaces).map(lambda made: "[" + ",".join(a + b for a, b in made[0]) + made[1] + "]")


def named(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(spaces, st.sampled_from(NAMES), spaces, inner, spaces)
    joined = st.lists(pair, max_size=5).map(lambda pairs: ",".join(f"{a}{k}{b}:{v}{c}" for a, k, b, v, c in pairs))
    return joined.map(lambda inside: "{" + inside + "}")


values = st.recursive(leaves, lambda inner: listed(inner) | named(inner), max_leaves=6)
right = {
    "a": st.sampled_from(['"ab"', '"abcd"', '"\u00e9\u00e9"', r'"\u0041bc"']),
    "n": st.sampled_from(["0", "-1.5", "999.99", "3", "1e2"]),
    "i": st.sampled_from(["null", "7", "-2", "1.0"]),
    "e": st.sampled_from(['"a"', '"bc"', '"\u00e9"', r'"\u00e9"']),
    "l": st.sampled_from(['["abc"]', "[{} , 1]", '[[[]],"a"]']),
    "t": st.sampled_from(['"2026-05-31T12:00:00Z"', '"2026-02-28T23:59:59.123+01:30"', '"2024-02-29T00:00:00Z"', "3"]),
    "o": st.sampled_from(
        ["{}", '{"k":"v"}', '{"b":true,"k":-12}', '{"k":null}', '{"k":"\u00e9"}', '{"k":1.5}', '{"k":-0}']
    ),
    "c": st.just('"x"'),
    "z": st.sampled_from(['"abc"', "12", '{"a":{}}']),
}


@st.composite
def orders(draw: st.DrawFn) -> str:
    """A valid event, or one with a small error."""
    names = ["a", "n", *draw(st.lists(st.sampled_from(sorted(right)), max_size=5, unique=True))]
    names = draw(st.permutations(list(dict.fromkeys(names))))
    return "{" + ",".join(f'{draw(spaces)}"{name}":{draw(right[name])}' for name in names) + "}"


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, bool]:
    """Events as lines or as an array, mostly with no or few errors; and whether they are lines."""
    lines = draw(st.booleans())
    events = draw(st.lists(st.one_of(orders(), orders(), named(values), values), min_size=1, max_size=4))
    texts = [draw(spaces) + event + draw(spaces) for event in events]
    text = "\n".join(texts) if lines else f"{draw(spaces)}[{','.join(texts)}]" if draw(st.booleans()) else texts[0]
    body = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = draw(st.integers(0, len(body)))
        body[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from([b"", b'"', b"\\", b"\xff", b"{", b"}", b",", b"\n", b"0"])
        )
    return bytes(body), lines


def verdict(read: Any, body: bytes, lines: bool, key: bytes | None) -> object:
    try:
        found, problems = read(body, lines=lines, key=key)
    except Refused as why:
        return why.document()
    return found.values.listed(), found.key_texts().listed(), found.size, problems


@settings(max_examples=1500)
@given(bodies(), st.sampled_from(sorted(READINGS)), st.sampled_from([None, None, b"key"]))
def test_the_loop_says_what_decoding_says(made: tuple[bytes, bool], name: str, key: bytes | None) -> None:
    body, lines = made
    reading = READINGS[name]
    assert verdict(reading.read, body, lines, key) == verdict(reading.examine, body, lines, key)


@settings(max_examples=300)
@given(bodies())
def test_what_the_loop_takes_python_takes(made: tuple[bytes, bool]) -> None:
    body, lines = made
    assert ANYTHING
    found = cut(body, ANYTHING, lines=lines, largest=100_000, room=room(10))
    if found:
        assert all(isinstance(json.loads(value or b""), dict) for value in found[0].listed())


plain = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text(max_size=9)
)


@given(st.lists(plain, min_size=1, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_what_encoders_write_is_taken_by_the_loop(
    events: list[dict[str, Any]], ascii_only: bool, indent: int | None
) -> None:
    sent = [json.dumps(event, ensure_ascii=ascii_only, indent=indent).encode() for event in events]
    assert ANYTHING
    found = cut(b"[" + b", ".join(sent) + b"]", ANYTHING, lines=False, largest=100_000, room=room(10))
    assert found and found[0].listed() == sent
    if not indent:
        found = cut(b"\n\n".join(sent), ANYTHING, lines=True, largest=100_000, room=room(10))
        assert found and found[0].listed() == sent


@pytest.mark.parametrize("name", READINGS)
def test_usual_events_are_taken_by_the_loop(name: str) -> None:
    events = [{"a": "abc", "n": n, "t": "2026-05-31T12:00:00.25Z", "o": {"k": f"u-{n}", "b": True}} for n in range(5)]
    body, document = b"\n".join(map(msgspec.json.encode, events)), ORDER if "schema" in name else True
    made = plan(document, READINGS[name].key)
    assert made
    found = cut(body, made, lines=True, largest=200, room=room(5))
    assert found and [json.loads(value or b"") for value in found[0].listed()] == events
    if "key" in name:
        assert found[1] and found[1].listed() == [b"u-%d" % n for n in range(5)]
    assert cut(body, made, lines=True, largest=200, room=room(4)) is None
    assert cut(body, made, lines=True, largest=20, room=room(5)) is None


def test_values_may_be_nested_deeply_or_not_at_all() -> None:
    for depth in (DEPTH - 1, DEPTH, 3 * DEPTH):
        body = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
        assert ANYTHING
        assert (cut(body, ANYTHING, lines=True, largest=1000, room=room(1)) is not None) == (depth < DEPTH)
        assert READINGS["any"].read(body, lines=True, key=None)[0].count == (len(body) <= 200)


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "a"},
        {"properties": {"a": {"anyOf": [{}]}}},
        {"properties": {"a": {"enum": [1]}}},
        {"properties": {"a": {"format": "uuid"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {}}},
        {"properties": {"a": False}},
        {"properties": {f"p{n}": {} for n in range(80)}},
        {"required": ["a"], "additionalProperties": False},
        {"minimum": 2**60},
        {"properties": {"a": {"$id": "urn:a"}}},
    ],
)
def test_schemas_with_anything_else_have_no_plan(schema: Any) -> None:
    assert plan(schema, ()) is None


def test_a_key_that_the_schema_does_not_allow_has_no_plan() -> None:
    assert plan({"additionalProperties": False, "properties": {"a": {}}}, ("b",)) is None
    assert plan({"additionalProperties": False, "properties": {"a": {}}}, ("a", "b")) is not None
