"""Debezium's semantic types as cells: what a schema's name says of numbers, text, bytes and structs."""

from __future__ import annotations

import base64
import datetime as dt
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from cassandra.util import Duration
from cql_values import to_bytes
from hypothesis import given, strategies as st

from penstock.codec.avro_value import AvroSchema
from penstock.connect.records.avro_data import ConnectReader, connect_schema
from penstock.connect.records.json_data import of_json
from penstock.connect.records.record import Date, Part, TimeOfDay, Timestamp
from penstock.connect.records.semantic_types import SemanticTypes
from penstock.connect.sinks.cql.tables import UnlikeTable, column_type
from penstock.connect.sinks.cql.values import cell
from penstock.connect.sinks.destination import Unfit
from penstock.database.cql_types import CqlType, parse_type

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
TYPES = {
    **dict.fromkeys(("Date", "Time", "Year"), "int32"),
    **dict.fromkeys(("MicroTime", "NanoTime", "Timestamp", "MicroTimestamp", "NanoTimestamp"), "int64"),
    **dict.fromkeys(("MicroDuration", "NanoDuration"), "int64"),
    **dict.fromkeys(("ZonedTime", "ZonedTimestamp", "Interval", "IsoDate", "IsoTime", "IsoTimestamp"), "string"),
}


def kind(text: str) -> CqlType:
    return parse_type(text, {"place": (("wkb", "srid"), ("blob", "int"))})


def schema_of(name: str) -> dict[str, Any]:
    """The schema of a field, by the last part of its name."""
    if name in TYPES:
        return {"type": TYPES[name], "optional": True, "name": f"io.debezium.time.{name}"}
    data: dict[str, Any] = {"optional": True, "name": f"io.debezium.data.{name}"}
    scaled = [{"field": "scale", "type": "int32"}, {"field": "value", "type": "bytes"}]
    shape = [{"field": "wkb", "type": "bytes"}, {"field": "srid", "type": "int32", "optional": True}]
    if name == "VariableScaleDecimal":
        return {**data, "type": "struct", "fields": scaled}
    if name.startswith("geometry."):
        return {**data, "type": "struct", "fields": shape}
    return {**data, "type": "bytes" if name == "Bits" else "string"}


def read(schema: dict[str, Any], payload: Any) -> Any:
    """The value of a record that JsonConverter wrote, as a sink has it."""
    text = json.dumps({"schema": schema, "payload": payload}, default=lambda data: base64.b64encode(data).decode())
    return SemanticTypes()(of_json(text.encode(), enveloped=True)).value


def made(name: str, payload: Any) -> Any:
    return read(schema_of(name), payload)


def long(number: int, width: int = 8) -> bytes:
    return number.to_bytes(width, "big", signed=True)


def lasting(months: int, days: int, nanos: int) -> bytes:
    found = to_bytes(kind("duration"), Duration(months, days, nanos))
    assert found
    return found


NOON = 12 * 3600 * 10**9
SCALED = {"scale": 2, "value": b"\x04\xd2"}
POINT = {"wkb": b"\x01\x02", "srid": 4326}
CASES: list[tuple[str, Any, str, Any]] = [
    ("Date", 20_484, "date", (20_484 + (1 << 31)).to_bytes(4, "big")),
    ("Date", -1, "text", b"1969-12-31"),
    ("Date", 20_484, "int", long(20_484, 4)),
    ("Date", 4_000_000, "text", b"+12921-08-18"),
    ("Date", -800_000, "text", b"-0221-09-04"),
    ("Date", 20_484, "timestamp", "is no timestamp"),
    ("Time", 43_200_000, "time", long(NOON)),
    ("MicroTime", 43_200_000_001, "time", long(NOON + 1000)),
    ("NanoTime", NOON + 1, "time", long(NOON + 1)),
    ("NanoTime", NOON + 1, "text", b"12:00:00.000000001"),
    ("MicroTime", 43_200_500_000, "text", b"12:00:00.500"),
    # MySQL's TIME is also a span.
    ("MicroTime", -3_600_000_000, "time", "is no time"),
    ("MicroTime", 86_400_000_000, "time", "is no time"),
    ("MicroTime", -3_600_000_000, "duration", lasting(0, 0, -3600 * 10**9)),
    ("MicroTime", -(838 * 3600 + 59 * 60 + 59) * 10**6, "text", b"-838:59:59"),
    ("MicroTime", -3_600_000_000, "bigint", long(-3_600_000_000)),
    ("Timestamp", -1, "timestamp", long(-1)),
    ("MicroTimestamp", 1_001, "timestamp", long(1)),
    ("MicroTimestamp", -1, "timestamp", long(-1)),
    ("NanoTimestamp", -1, "timestamp", long(-1)),
    ("NanoTimestamp", 1_999_999, "timestamp", long(1)),
    ("MicroTimestamp", 1_769_860_800_123_456, "text", b"2026-01-31T12:00:00.123456Z"),
    ("MicroTimestamp", 1_769_860_800_000_000, "text", b"2026-01-31T12:00:00Z"),
    ("MicroTimestamp", 1_769_860_800_123_456, "bigint", long(1_769_860_800_123_456)),
    ("MicroTimestamp", 1_769_860_800_123_456, "int", "32 bits"),
    ("MicroTimestamp", 1_769_860_800_123_456, "decimal", to_bytes(kind("decimal"), Decimal(1_769_860_800_123_456))),
    ("MicroTimestamp", 1_769_860_800_123_456, "double", to_bytes(kind("double"), 1_769_860_800_123_456.0)),
    ("MicroTimestamp", 1_769_860_800_123_456, "date", r"\(timestamp\) is no date"),
    ("ZonedTimestamp", "2026-01-31T12:00:00.123456+01:00", "timestamp", long(1_769_857_200_123)),
    ("ZonedTimestamp", "1969-12-31T23:59:59.9999Z", "timestamp", long(-1)),
    ("ZonedTimestamp", "+12026-01-31T12:00:00Z", "timestamp", long(1_769_860_800_000 + 25 * 146_097 * 86_400_000)),
    ("ZonedTimestamp", "2026-01-31T12:00:00.123456Z", "text", b"2026-01-31T12:00:00.123456Z"),
    ("ZonedTimestamp", "infinity", "timestamp", "is no timestamp, such as"),
    ("IsoTimestamp", "2026-01-31T12:00:00.000001Z", "timestamp", long(1_769_860_800_000)),
    ("IsoDate", "2026-01-31Z", "date", (20_484 + (1 << 31)).to_bytes(4, "big")),
    ("IsoTime", "12:00:00.5Z", "time", long(NOON + 500_000_000)),
    ("ZonedTime", "12:00:00+00:00", "time", long(NOON)),
    ("ZonedTime", "12:00:00+02:00", "time", "is no time"),
    ("Year", 2026, "int", long(2026, 4)),
    ("Year", 2026, "text", b"2026"),
    ("Interval", "P1Y2M3DT4H5M6.78S", "duration", lasting(14, 3, 14_706_780 * 10**6)),
    ("Interval", "P0Y0M-3DT0H0M-0.5S", "duration", lasting(0, -3, -500 * 10**6)),
    ("Interval", "P0Y1M-3DT0H0M0S", "duration", "one sign"),
    ("MicroDuration", 1_500_000, "duration", lasting(0, 0, 1500 * 10**6)),
    ("NanoDuration", -1, "duration", lasting(0, 0, -1)),
    ("MicroDuration", (1 << 63) - 1, "duration", "is no duration"),
    ("MicroDuration", -1_500_000, "text", b"-PT1.500S"),
    ("MicroDuration", 1_500_000, "bigint", long(1_500_000)),
    ("Uuid", "6d3f1c8e-0d4f-4b5c-9b0e-0a8a3ad3a5d1", "uuid", bytes.fromhex("6d3f1c8e0d4f4b5c9b0e0a8a3ad3a5d1")),
    ("Uuid", "6d3f1c8e-0d4f-4b5c-9b0e-0a8a3ad3a5d1", "text", b"6d3f1c8e-0d4f-4b5c-9b0e-0a8a3ad3a5d1"),
    ("Json", '{"a": [1]}', "text", b'{"a": [1]}'),
    ("Json", '{"a": 1}', "map<text, int>", to_bytes(kind("map<text, int>"), [("a", 1)])),
    ("Xml", "<a/>", "text", b"<a/>"),
    ("Enum", "red", "text", b"red"),
    ("Ltree", "a.b", "text", b"a.b"),
    ("EnumSet", "a,b", "set<text>", to_bytes(kind("set<text>"), ["a", "b"])),
    ("EnumSet", "a,b", "list<text>", to_bytes(kind("list<text>"), ["a", "b"])),
    ("EnumSet", "", "set<text>", bytes(4)),
    ("EnumSet", "a,b", "text", b"a,b"),
    ("Bits", b"\x02\x01", "bigint", long(258)),
    ("Bits", b"\xff", "tinyint", "8 bits"),
    ("Bits", b"\x01\x00", "blob", b"\x01\x00"),
    ("Bits", b"\x01", "boolean", b"\x01"),
    ("Bits", b"\x00", "boolean", b"\x00"),
    ("Bits", b"\x02", "boolean", "is no boolean"),
    ("Bits", b"\xff" * 5000, "varint", "is no varint"),
    ("VariableScaleDecimal", SCALED, "decimal", to_bytes(kind("decimal"), Decimal("12.34"))),
    ("VariableScaleDecimal", SCALED, "text", b"12.34"),
    ("VariableScaleDecimal", SCALED, "double", to_bytes(kind("double"), 12.34)),
    ("VariableScaleDecimal", SCALED, "int", "is no int"),
    ("VariableScaleDecimal", {"scale": -2, "value": b"\x0c"}, "varint", to_bytes(kind("varint"), 1200)),
    ("VariableScaleDecimal", {"scale": (1 << 31) - 1, "value": b"\x0c"}, "varint", "is no varint"),
    ("VariableScaleDecimal", {"scale": 0, "value": b"\x7f" * 2000}, "decimal", "is no decimal"),
    ("geometry.Point", POINT, "blob", b"\x01\x02"),
    ("geometry.Geometry", POINT, "text", b"0102"),
    ("geometry.Geography", POINT, "frozen<place>", b"\0\0\0\2\1\2\0\0\0\4\0\0\x10\xe6"),
    ("geometry.Point", POINT, "int", "is no int"),
    *((name, None, "text", None) for name in (*TYPES, "VariableScaleDecimal", "Bits", "EnumSet", "geometry.Point")),
]


@pytest.mark.parametrize(("name", "payload", "column", "wanted"), CASES)
def test_values_of_semantic_types(name: str, payload: Any, column: str, wanted: bytes | str | None) -> None:
    value = made(name, payload)
    if isinstance(wanted, str):
        with pytest.raises(Unfit, match=wanted):
            cell(kind(column), value)
    else:
        assert cell(kind(column), value) == wanted


UNITS = {"Timestamp": 10**6, "MicroTimestamp": 1000, "NanoTimestamp": 1}


@given(st.sampled_from(sorted(UNITS)), st.integers(-(1 << 63), (1 << 63) - 1))
def test_timestamps_of_all_units_are_rounded_down_to_milliseconds(name: str, count: int) -> None:
    value, nanos = made(name, count), count * UNITS[name]
    assert cell(kind("timestamp"), value) == long(nanos // 10**6)
    assert cell(kind("bigint"), value) == long(count)
    text = cell(kind("text"), value)
    assert text
    # Its text is the same moment.
    assert cell(kind("timestamp"), made("IsoTimestamp", text.decode())) == long(nanos // 10**6)
    micros = nanos // 1000
    if abs(micros) < 60_000_000_000_000_000 and nanos == micros * 1000:
        assert dt.datetime.fromisoformat(text.decode()) == EPOCH + micros * dt.timedelta(microseconds=1)


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_days_of_any_year(days: int) -> None:
    text = cell(kind("text"), made("Date", days))
    assert text and cell(kind("date"), text.decode()) == cell(kind("date"), made("Date", days))
    assert list(map(int, text.decode().rsplit("-", 2))) == list(map(int, str(np.datetime64(days, "D")).rsplit("-", 2)))


@given(st.binary(max_size=8), st.integers(-5, 5))
def test_decimals_of_any_scale(unscaled: bytes, scale: int) -> None:
    value = Decimal(int.from_bytes(unscaled, "big", signed=True)).scaleb(-scale)
    given = made("VariableScaleDecimal", {"scale": scale, "value": unscaled})
    assert given == value and cell(kind("decimal"), given) == to_bytes(kind("decimal"), value)


def test_semantic_types_inside_other_values() -> None:
    at = schema_of("MicroTimestamp")
    schema = {
        "type": "struct",
        "fields": [
            {"field": "all", "type": "array", "items": at},
            {"field": "by", "type": "map", "keys": {"type": "string"}, "values": at},
            {"field": "in", "type": "struct", "fields": [{**at, "field": "at"}, {"field": "n", "type": "int64"}]},
            {"field": "plain", "type": "array", "items": {"type": "int64"}},
        ],
    }
    given = {"all": [1_000, None], "by": {"a": 2_000}, "in": {"at": 3_000, "n": 4_000}, "plain": [5_000]}
    value = read(schema, given)
    assert value == given
    assert cell(kind("list<timestamp>"), value["all"][:1]) == long(1, 4) + long(8, 4) + long(1)
    assert cell(kind("map<text, timestamp>"), value["by"]) == long(1, 4) + long(1, 4) + b"a" + long(8, 4) + long(2)
    assert cell(kind("timestamp"), value["in"]["at"]) == long(3)
    assert cell(kind("timestamp"), value["in"]["n"]) == long(4_000)
    assert type(value["plain"][0]) is int


def test_a_name_for_another_type_says_nothing() -> None:
    assert type(read({"type": "string", "name": "io.debezium.time.MicroTimestamp"}, "x")) is str
    assert SemanticTypes()(Part(None, {"a": 1})) == Part(None, {"a": 1})


def test_connects_own_times_as_text() -> None:
    found = [cell(kind("text"), value) for value in (Date(0), TimeOfDay(1), Timestamp(-1), Decimal("1.50"))]
    assert found == [b"1970-01-01", b"00:00:00.001", b"1969-12-31T23:59:59.999Z", b"1.50"]


@pytest.mark.parametrize(
    ("names", "column"),
    [
        (("Date", "IsoDate"), "date"),
        (("Time", "MicroTime", "NanoTime", "ZonedTime", "IsoTime"), "time"),
        (("Timestamp", "MicroTimestamp", "NanoTimestamp", "ZonedTimestamp", "IsoTimestamp"), "timestamp"),
        (("Interval", "MicroDuration", "NanoDuration"), "duration"),
        (("Year",), "int"),
        (("Uuid",), "uuid"),
        (("Json", "Xml", "Enum", "Ltree"), "text"),
        (("EnumSet",), "set<text>"),
        (("Bits",), "blob"),
        (("VariableScaleDecimal",), "decimal"),
    ],
)
def test_columns_that_are_made_for_semantic_types(names: tuple[str, ...], column: str) -> None:
    assert {column_type(schema_of(name)) for name in names} == {column}
    lists = {column_type({"type": "array", "items": schema_of(name)}) for name in names}
    assert lists == {f"list<frozen<{column}>>" if "<" in column else f"list<{column}>"}


def test_no_column_is_made_for_a_geometry() -> None:
    with pytest.raises(UnlikeTable, match="as blob or text for its WKB"):
        column_type(schema_of("geometry.Point"))


def test_avro_schemas_have_semantic_types() -> None:
    decimal = {
        **{"type": "record", "name": "VariableScaleDecimal", "namespace": "io.debezium.data"},
        "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    }
    at = {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"}
    fields = [{"name": "at", "type": ["null", at]}, {"name": "price", "type": decimal}]
    fields.append({"name": "again", "type": ["null", "io.debezium.data.VariableScaleDecimal"]})
    avro = AvroSchema.of(json.dumps({"type": "record", "name": "Value", "namespace": "shop", "fields": fields}))
    schema = connect_schema(avro)
    assert schema and [column_type(field) for field in schema["fields"]] == ["timestamp", "decimal", "decimal"]
    found = SemanticTypes()(Part(schema, avro.value(b"\x02\xd0\x0f\x04\x04\x04\xd2\x00", ConnectReader))).value
    assert found == {"at": 1000, "price": Decimal("12.34"), "again": None}
    assert cell(kind("timestamp"), found["at"]) == long(1)
