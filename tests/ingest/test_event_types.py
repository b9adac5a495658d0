"""The type of a schema's events accepts what decoding and validating accepts, or leaves the event to them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from penstock.ingest.event_schema import Schema, event_decoder
from penstock.ingest.events import TopicFormat
from penstock.ingest.exchange import RefusedRequest

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
        "r": {"$ref": "#/$defs/small"},
    },
    "$defs": {"small": {"type": ["object", "string", "integer", "array"], "maxLength": 3}},
}
CLOSED = {**ORDER, "additionalProperties": False}
BARE: dict[str, Any] = {name: value for name, value in ORDER.items() if name not in ("type", "required")}
READINGS = {
    "any": TopicFormat(None, (), 200, 5),
    "keyed": TopicFormat(None, ("o", "k"), 200, 5),
    "schema": TopicFormat(Schema(ORDER), (), 200, 5),
    "schema and key": TopicFormat(Schema(ORDER), ("o", "k"), 200, 5),
    "no other fields": TopicFormat(Schema(CLOSED), ("i",), 200, 5),
    "any type": TopicFormat(Schema(BARE), ("n",), 200, 5),
    "only the validator": TopicFormat(Schema({**ORDER, "additionalProperties": {"$ref": "#/$defs/small"}}), (), 200, 5),
}
UNBOUNDED = TopicFormat(None, (), 100_000, 10)

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
    except RefusedRequest as why:
        return why.document()
    return found.values.listed(), found.key_texts().listed(), found.size, problems


@pytest.mark.slow
@settings(max_examples=1500)
@given(bodies(), st.sampled_from(sorted(READINGS)), st.sampled_from([None, None, b"key"]))
def test_a_type_says_what_decoding_says(made: tuple[bytes, bool], name: str, key: bytes | None) -> None:
    body, lines = made
    reading = READINGS[name]
    assert verdict(reading.read, body, lines, key) == verdict(reading.examine, body, lines, key)


@settings(max_examples=300)
@given(bodies())
def test_what_is_accepted_python_accepts(made: tuple[bytes, bool]) -> None:
    body, lines = made
    found = UNBOUNDED.scan(body, lines=lines, key=None)
    if found:
        assert all(isinstance(json.loads(value or b""), dict) for value in found.values.listed())


plain = st.dictionaries(
    st.text(max_size=5), st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text(max_size=9)
)


@given(st.lists(plain, min_size=1, max_size=5), st.booleans(), st.sampled_from([None, 1]))
def test_what_encoders_write_is_accepted(events: list[dict[str, Any]], ascii_only: bool, indent: int | None) -> None:
    sent = [json.dumps(event, ensure_ascii=ascii_only, indent=indent).encode() for event in events]
    found = UNBOUNDED.scan(b"[" + b", ".join(sent) + b"]", lines=False, key=None)
    assert found and found.values.listed() == sent
    if not indent:
        found = UNBOUNDED.scan(b"\n\n".join(sent), lines=True, key=None)
        assert found and found.values.listed() == sent


@pytest.mark.parametrize("name", [name for name in READINGS if name != "only the validator"])
def test_usual_events_are_accepted(name: str) -> None:
    events = [
        {"a": "abc", "n": n, "i": n, "t": "2026-05-31T12:00:00.25Z", "o": {"k": f"u-{n}", "b": True}} for n in range(5)
    ]
    body, reading = b"\n".join(map(msgspec.json.encode, events)), READINGS[name]
    found = reading.scan(body, lines=True, key=None)
    assert found and [json.loads(value or b"") for value in found.values.listed()] == events
    keys = {("o", "k"): [b"u-%d" % n for n in range(5)], (): [None] * 5}.get(reading.key, [b"%d" % n for n in range(5)])
    assert found.key_texts().listed() == keys
    assert TopicFormat(reading.schema, reading.key, 200, 4).scan(body, lines=True, key=None) is None
    assert TopicFormat(reading.schema, reading.key, 20, 5).scan(body, lines=True, key=None) is None


def test_values_may_be_nested_deeply_but_not_without_end() -> None:
    for depth in (50, 100_000):
        body = b'{"a":' + b"[" * depth + b"]" * depth + b"}"
        found = TopicFormat(None, (), 1 << 20, 1).scan(body, lines=True, key=None)
        assert (found is not None) == (depth == 50)


others = st.none() | st.sampled_from("0123456789-:+.Z ")
dates = st.sampled_from(
    ["2026-05-31", "2026-02-28", "2024-02-29", "2026-04-31", "2026-13-01", "0000-01-01", "9999-12-31"]
)
hours = st.sampled_from(["12:00:00", "23:59:59.5", "23:59:60", "24:00:00", "12:60:00", "00:00:00.123456789", "12:00"])
zones = st.sampled_from(["Z", "z", "+01:30", "-23:59", "+24:00", "+0130", ""])


@settings(max_examples=500)
@given(dates, st.sampled_from("TTTt "), hours, zones, st.integers(0, 30), others)
def test_times_that_are_accepted_are_valid(
    date: str, between: str, hour: str, zone: str, at: int, other: str | None
) -> None:
    time = date + between + hour + zone
    if other is not None:
        time = time[:at] + other + time[at + 1 :]
    reading = TopicFormat(Schema({"properties": {"t": {"format": "date-time"}}}), (), 200, 1)
    body = json.dumps({"t": time}).encode()
    assert reading.scan(body, lines=True, key=None) is None or not reading.examine(body, lines=True, key=None)[1]


bounds = st.sampled_from([-1, 0, 1.5, 2**53, 2**53 + 1, -(2**63), 2**63, 1e20, 1.0])
amounts = st.sampled_from(["-1", "0", "1", "1.5", "2", "9007199254740992", "9007199254740993", "9007199254740994.0"])
amounts |= st.sampled_from(["9223372036854775807", "9223372036854775808", "-9223372036854775809", "1e20", "1e400"])


@settings(max_examples=500)
@given(
    st.dictionaries(
        st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]), bounds, min_size=1, max_size=3
    ),
    st.sampled_from([{}, {"type": "integer"}, {"type": "number"}, {"type": ["integer", "number"]}]),
    amounts,
)
def test_bounds_are_the_validator_s(limits: dict[str, Any], type: dict[str, Any], amount: str) -> None:
    reading = TopicFormat(Schema({"properties": {"n": {**type, **limits}}}), (), 200, 1)
    body = b'{"n":%b}' % amount.encode()
    assert reading.scan(body, lines=True, key=None) is None or not reading.examine(body, lines=True, key=None)[1]


@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "a"},
        {"properties": {"a": {"anyOf": [{}]}}},
        {"properties": {"a": {"enum": [1]}}},
        {"properties": {"a": {"enum": ["b"], "minLength": 2}}},
        {"properties": {"a": {"format": "uuid"}}},
        {"properties": {"a": False}},
        {"properties": {"a": {"$ref": "#"}}},
        {"properties": {"a": {"$ref": "#/$defs/missing"}}},
        {"properties": {"a": {"items": [{}]}}},
        {"additionalProperties": {"type": "string"}},
        {"required": ["a"], "additionalProperties": False},
        {"properties": {"a": {"minimum": 2**70}}},
        {"properties": {"a": {"minimum": 1, "exclusiveMinimum": 1.5}}},
        {"properties": {"a": {"minimum": 2**53 + 1}}},
        {"properties": {"a": {"minLength": 2.0}}},
        {"properties": {"a": {"type": "file"}}},
        {"properties": {"a": {"$id": "urn:a"}}},
        {"properties": {"\x00": {"type": "string"}}},
        {"type": "string"},
        False,
    ],
)
def test_schemas_with_anything_else_have_no_type(schema: Any) -> None:
    assert event_decoder(schema, ()) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"required": ["k"]}}},
        {"properties": {f"p{n}": {"type": "string"} for n in range(200)}},
        {"properties": {"a b": {"type": "string"}, "class": {"type": "integer"}, "\u00e9": {"type": "null"}}},
        {
            "$defs": {
                f"d{n}": {"properties": {"a": {"$ref": f"#/$defs/d{n + 1}"}, "b": {"$ref": f"#/$defs/d{n + 1}"}}}
                for n in range(40)
            }
            | {"d40": {"type": "string"}},
            "properties": {"a": {"$ref": "#/$defs/d0"}},
        },
    ],
)
def test_schemas_of_many_or_strange_names_have_a_type(schema: Any) -> None:
    assert event_decoder(schema, ()) is not None


def test_a_key_that_the_schema_does_not_allow_has_no_type() -> None:
    closed = {"additionalProperties": False, "properties": {"a": {}}}
    assert event_decoder(closed, ("b",)) is None
    assert event_decoder(closed, ("a", "b")) is not None
    assert event_decoder({"properties": {"a": {"type": "boolean"}}}, ("a",)) is None
