"""Avro values for people, compared with fastavro; wrong and hostile bytes cost neither time nor memory."""

from __future__ import annotations

import io
import json
import time
import tracemalloc
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pytest
from hypothesis import given, strategies as st
from waiting import patience

from penstock.codec.avro_value import MOST_DEPTH, AvroSchema, NotAvro

INNER = {"type": "record", "name": "Inner", "fields": [{"name": "deep", "type": ["null", "int"]}]}
EVENT: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "namespace": "shop.events",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "n", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "price", "type": "double"},
        {"name": "counts", "type": {"type": "array", "items": "long"}},
        {"name": "names", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "again", "type": "Kind"},
        {"name": "many", "type": {"type": "array", "items": INNER}},
        {"name": "one", "type": "shop.events.Inner"},
        {"name": "ok", "type": "boolean"},
    ],
}
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
INT = st.integers(-(1 << 31), (1 << 31) - 1)
INNERS = st.fixed_dictionaries({"deep": st.none() | INT})
EVENTS = st.fixed_dictionaries(
    {
        "id": INT,
        "n": LONG,
        "name": st.none() | st.text(),
        "price": st.floats(allow_nan=False, allow_infinity=False),
        "counts": st.lists(LONG),
        "names": st.dictionaries(st.text(), st.none() | st.text()),
        "kind": st.sampled_from("AB"),
        "again": st.sampled_from("AB"),
        "many": st.lists(INNERS),
        "one": INNERS,
        "ok": st.booleans(),
    }
)
OURS = AvroSchema.of(json.dumps(EVENT))


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def read(schema: Any, value: Any) -> Any:
    return AvroSchema.of(json.dumps(schema)).value(written(schema, value))


@given(EVENTS)
def test_what_fastavro_writes_is_read(event: dict[str, Any]) -> None:
    assert OURS.value(written(EVENT, event)) == event


@given(EVENTS, st.data())
def test_changed_bytes_are_refused_or_another_value_that_json_can_hold(
    event: dict[str, Any], data: st.DataObject
) -> None:
    changed = bytearray(written(EVENT, event))
    for at in data.draw(st.lists(st.integers(0, len(changed) - 1), max_size=4)):
        changed[at] = data.draw(st.integers(0, 255))
    cut = bytes(changed[: data.draw(st.integers(0, len(changed)))])
    with suppress(NotAvro):
        json.dumps(OURS.value(cut))


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"type": "int", "logicalType": "date"}, date(2026, 5, 31), "2026-05-31"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            datetime(2026, 5, 31, 12, 0, 0, 7000, UTC),
            "2026-05-31T12:00:00.007Z",
        ),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
            "1969-12-31T23:59:59.999999Z",
        ),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 1_000, "1970-01-01T00:00:01.000"),
        ({"type": "int", "logicalType": "time-millis"}, 3_723_004, "01:02:03.004"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-12.30"), "-12.30"),
        ({"type": "string", "logicalType": "uuid"}, UUID(int=7), str(UUID(int=7))),
        ({"type": "long", "logicalType": "timestamp-millis"}, 1 << 62, 1 << 62),
        ({"type": "int", "logicalType": "never heard of"}, 5, 5),
        ("bytes", b"\x00\xff", "0x00ff"),
        ({"type": "fixed", "name": "Two", "size": 2}, b"\x00\xff", "0x00ff"),
        ("double", float("nan"), "nan"),
        ("float", float("inf"), "inf"),
        (["null", "string"], None, None),
    ],
)
def test_values_are_shown_as_people_write_them(schema: Any, value: Any, text: Any) -> None:
    assert read(schema, value) == text


def hostile(schema: Any, data: bytes) -> None:
    """Refused at once, with some megabytes."""
    parsed = AvroSchema.of(json.dumps(schema))
    tracemalloc.start()
    began = time.monotonic()
    try:
        with pytest.raises(NotAvro):
            parsed.value(data)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < patience(20)


LIST = {"type": "record", "name": "List", "fields": [{"name": "next", "type": ["null", "List"]}]}
MANY = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2^63 - 1
LEAST = b"\xff" * 9 + b"\x01"  # -2^63


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        (LIST, b"\x02" * 100_000 + b"\0"),
        ({"type": "array", "items": "null"}, MANY + b"\0"),
        ({"type": "array", "items": "null"}, LEAST + b"\0\0"),
        ({"type": "array", "items": "long"}, MANY + b"\0"),
        ({"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}}, MANY + b"\0"),
        ({"type": "map", "values": "null"}, MANY + b"\0"),
        ("bytes", MANY),
        ("string", b"\x03"),
        ("long", b"\xff" * 20),
        ({"type": "fixed", "name": "Big", "size": 1 << 60}, b""),
        ("int", b"\0\0"),
    ],
)
def test_hostile_bytes_are_refused_at_little_cost(schema: Any, data: bytes) -> None:
    hostile(schema, data)


def test_a_value_may_be_as_deep_as_is_allowed() -> None:
    half = (MOST_DEPTH - 2) // 2
    assert AvroSchema.of(json.dumps(LIST)).value(b"\x02" * half + b"\0")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "7",
        '"nobody"',
        "[" * 100_000,
        '{"type": "record"}',
        '{"type": "record", "name": "R"}',
        '{"type": "array"}',
        '{"type": "fixed", "name": "F", "size": -1}',
        '{"type": "enum", "name": "E", "symbols": 7}',
        '{"type": "array", "items": ' * 100 + '"int"' + "}" * 100,
    ],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(NotAvro):
        AvroSchema.of(text)


ROWS = {"name": "R", "type": "record"}
LONG_NAME = "x" * 5000


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {**ROWS, "fields": [{"name": LONG_NAME, "type": "null"}]}},
        {"type": "array", "items": {"type": "enum", "name": "E", "symbols": [LONG_NAME]}},
        {"type": "array", "items": {"type": "bytes", "logicalType": "decimal", "scale": 1000}},
    ],
)
def test_a_few_bytes_do_not_become_megabytes_of_names(schema: Any) -> None:
    # 90,000 items of at most one byte.
    data = b"\xa0\xfe\x0a" + b"\x00" * 90_001
    tracemalloc.start()
    try:
        with pytest.raises(NotAvro, match="characters of names"):
            json.dumps(AvroSchema.of(json.dumps(schema)).value(data))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
