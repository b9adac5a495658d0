"""Values of records as cells: against the bytes of the Python driver, what is refused, and mappings."""

from __future__ import annotations

import base64
import datetime as dt
import json
import struct
from decimal import Decimal
from typing import Any

import pytest
from cql_values import to_bytes
from hypothesis import given, strategies as st

from penstock.codec.avro_value import AvroSchema
from penstock.connect.records.avro_data import connect_schema
from penstock.connect.records.json_data import of_json
from penstock.connect.records.record import ConnectRecord, Date, NoValue, Part, TimeOfDay, Timestamp
from penstock.connect.sinks.cql.mapping import NoField, WrongMapping, mapping
from penstock.connect.sinks.cql.tables import column_type
from penstock.connect.sinks.cql.values import cell
from penstock.connect.sinks.destination import Unfit
from penstock.database.cql_types import CqlType, parse_type

WIDTHS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def kind(text: str) -> CqlType:
    return parse_type(text, {"address": (("street", "zip"), ("text", "int"))})


@given(st.integers(-(1 << 70), 1 << 70), st.sampled_from([int, str, float, Decimal]))
def test_integers_are_whole_or_refused(number: int, made: Any) -> None:
    value = made(number)
    exact = number if made is not float else int(value)
    for name, bits in WIDTHS.items():
        if -(1 << bits - 1) <= exact < 1 << bits - 1:
            assert cell(kind(name), value) == exact.to_bytes(bits // 8, "big", signed=True)
        else:
            with pytest.raises(Unfit, match=name):
                cell(kind(name), value)
    if made is not float:
        assert cell(kind("varint"), value) == to_bytes(kind("varint"), exact)


@given(st.floats(allow_nan=False))
def test_doubles_stay_and_decimals_have_their_shortest_digits(value: float) -> None:
    assert cell(kind("double"), value) == struct.pack(">d", value)
    if value - value == 0:
        assert cell(kind("decimal"), value) == to_bytes(kind("decimal"), Decimal(repr(value)))
        assert cell(kind("double"), repr(value)) == struct.pack(">d", value)
    else:
        with pytest.raises(Unfit):
            cell(kind("decimal"), value)


EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MILLI = dt.timedelta(milliseconds=1)


@given(st.integers(-62_135_510_400_000, 253_402_200_000_000), st.integers(-14 * 60, 14 * 60))
def test_timestamps_are_read_from_every_notation(millis: int, zone: int) -> None:
    at, wanted = EPOCH + millis * MILLI, millis.to_bytes(8, "big", signed=True)
    text = at.astimezone(dt.timezone(dt.timedelta(minutes=zone))).isoformat(timespec="milliseconds")
    plain = f"{at.replace(tzinfo=None).isoformat()}Z"
    for value in (Timestamp(millis), millis, str(millis), text, text.replace("T", " "), f"'{text}'", plain):
        assert cell(kind("timestamp"), value) == wanted, value


@given(st.dates(), st.times())
def test_dates_and_times(day: dt.date, at: dt.time) -> None:
    days = (day - dt.date(1970, 1, 1)).days
    nanos = ((at.hour * 60 + at.minute) * 60 + at.second) * 10**9 + at.microsecond * 1000
    assert (
        cell(kind("date"), Date(days)) == cell(kind("date"), day.isoformat()) == (days + (1 << 31)).to_bytes(4, "big")
    )
    assert cell(kind("time"), at.isoformat()) == nanos.to_bytes(8, "big")
    assert cell(kind("time"), TimeOfDay(nanos // 10**6)) == (nanos // 10**6 * 10**6).to_bytes(8, "big")


@given(st.binary(max_size=40))
def test_blobs_are_bytes_hexadecimal_or_base64(data: bytes) -> None:
    for value in (data, "0x" + data.hex(), base64.b64encode(data).decode()):
        assert cell(kind("blob"), value) == data


@given(st.lists(st.integers(-5, 5), max_size=6))
def test_collections_and_their_json_text(values: list[int]) -> None:
    listed = cell(kind("list<int>"), values)
    assert listed == cell(kind("list<int>"), json.dumps(values)) and listed is not None
    assert int.from_bytes(listed[:4], "big") == len(values)
    as_set = cell(kind("set<int>"), values)
    assert as_set is not None and int.from_bytes(as_set[:4], "big") == len(set(values))
    entries = {str(one): one for one in values}
    assert cell(kind("map<text, int>"), entries) == cell(kind("map<text, int>"), json.dumps(entries))


@pytest.mark.parametrize(
    ("text", "value", "said"),
    [
        ("int", 1 << 31, "32 bits"),
        ("int", 1.5, "is no int"),
        ("int", True, "is no int"),
        ("int", "1_0", "is no int"),
        ("bigint", Timestamp(5), "is no bigint"),
        ("text", 5, "is no text"),
        ("ascii", "ü", "is no ascii"),
        ("float", 1e39, "is no float"),
        ("double", (1 << 53) + 1, "would round it"),
        ("decimal", "1e", "is no decimal"),
        ("boolean", "yes", "is no boolean"),
        ("blob", "no base64!", "neither base64"),
        ("uuid", "6d3f1c8e0d4f4b5c9b0e0a8a3ad3a5d1", "is no uuid"),
        ("timeuuid", "6d3f1c8e-0d4f-4b5c-9b0e-0a8a3ad3a5d1", "version is 1"),
        ("inet", "1.2.3", "is no inet"),
        ("duration", "", "is no duration"),
        ("timestamp", "2026-02-30T00:00:00Z", "is no timestamp"),
        ("timestamp", "2026-01-01T00:00:00.0001Z", "milliseconds"),
        ("date", 5, "is no date"),
        ("date", "2026-1-1", "such as"),
        ("time", "24:00", "is no time"),
        ("time", TimeOfDay(86_400_000), "is no time"),
        ("list<int>", [1, None], "contains a null"),
        ("list<int>", {"a": 1}, "is no list<int>"),
        ("vector<float, 2>", [1.0], "has 1 elements"),
        ("frozen<tuple<int, text>>", [1], "has 1 fields"),
        ("frozen<address>", {"city": "x"}, "no field city"),
        ("list<int>", "[" * 100_000, "is no list<int>"),
    ],
)
def test_what_a_column_cannot_hold_is_refused(text: str, value: Any, said: str) -> None:
    with pytest.raises(Unfit, match=said):
        cell(kind(text), value)


def test_durations_have_fractions_of_seconds() -> None:
    assert cell(kind("duration"), "PT1.5S") == cell(kind("duration"), "1s500ms")
    assert cell(kind("duration"), "-PT1.5S") == cell(kind("duration"), "-1s500ms")
    assert cell(kind("duration"), "'P1Y2M3DT4H'") == cell(kind("duration"), "1y2mo3d4h")


def test_fields_of_user_types_go_by_name() -> None:
    made = cell(kind("frozen<address>"), {"zip": 5})
    assert made == struct.pack(">iii", -1, 4, 5)


# Mappings.


def record(**parts: Any) -> ConnectRecord:
    given = {"key": Part(None, {"id": 1}), "value": Part(None, {"a": {"b": 2}, "c": None}), **parts}
    headers = (("h", Part(None, "x")), ("o", Part(None, {"a": 1})))
    return ConnectRecord("t", 0, 0, 0, given["key"], given["value"], headers)


def test_a_mapping_names_fields_of_all_sides() -> None:
    made = mapping('id = key.id,"My Col"=value."a".b , whole=value, seen=now(),h= header.h, "a.b" = key')
    found = {name: source.of(record()) for name, source in made.items()}
    assert found["id"] == 1 and found["My Col"] == 2 and found["h"] == "x" and found["a.b"] == {"id": 1}
    assert found["whole"] == {"a": {"b": 2}, "c": None} and len(found["seen"]) == 36
    assert mapping("c=value.c.d")["c"].of(record()) is None
    assert mapping("c=value.c")["c"].of(record(value=Part(None, None))) is None


@pytest.mark.parametrize("text", ["", " ", "a", "a=", "=b", "a=other.b", "a=header", "a=value.b,a=key", "a=value.b c"])
def test_a_wrong_mapping_is_refused(text: str) -> None:
    with pytest.raises(WrongMapping):
        mapping(text)


@pytest.mark.parametrize("text", ["a=value.x", "a=header.x", "a=header.o", "a=key.id.x"])
def test_a_record_without_a_mapped_field_says_so(text: str) -> None:
    with pytest.raises(NoField):
        mapping(text)["a"].of(record())


# Schemas.

DECIMAL = (
    b'{"schema": {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "0"}}, '
    b'"payload": "%b"}'
)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "not JSON"),
        (b"[NaN]", "not JSON"),
        (b'{"payload": 1}', "schemas.enable=false"),
        (b'{"schema": {"type": "int8"}, "payload": 200}', "no int8"),
        (b'{"schema": {"type": "int8"}, "payload": null}', "null for a required int8"),
        (DECIMAL % base64.b64encode(b"\x7f" * 2000), "decimal of 2000 bytes"),
        (b'{"schema": {"type": "other"}, "payload": 1}', "unknown type"),
        (b'{"schema": {"type": "struct", "fields": [{"type": "int8"}]}, "payload": {}}', "named fields"),
        (b'{"schema": {"type": "array"}, "payload": []}', "has the type"),
        (b"[" * 200_000, "not JSON"),
    ],
)
def test_bytes_that_are_no_record_are_refused(data: bytes, said: str) -> None:
    with pytest.raises(NoValue, match=said):
        of_json(data, enveloped=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
UNUSUAL = [
    b"123456789012345678901234567890",
    b"18446744073709551616",
    b"-0.0",
    b"1E-7",
    b'"\\ud800"',
    b'{"a":1,"a":2}',
    b"\xef\xbb\xbf[1]",
    '"a"'.encode("utf-16"),
]


@given(JSON)
def test_json_is_read_as_by_python(value: Any) -> None:
    assert of_json(json.dumps(value).encode(), enveloped=False) == Part(None, value)


@pytest.mark.parametrize("data", UNUSUAL)
def test_unusual_json_is_read_as_by_python(data: bytes) -> None:
    found = of_json(data, enveloped=False).value
    assert (repr(found), type(found)) == (repr(json.loads(data)), type(json.loads(data)))


@given(st.integers(), st.text(), JSON, st.booleans())
def test_a_value_behind_a_known_schema_is_read_as_with_any_schema(
    n: int, text: str, inside: Any, compact: bool
) -> None:
    """Compact records are those whose schema is not read again; a field may be called as the payload is."""
    fields = [
        {"field": "payload", "type": "int64", "optional": True},
        {"field": "schema", "type": "string", "default": ',"payload":'},
    ]
    schema = {"type": "struct", "fields": fields, "parameters": {"payload": "x"}}
    separators = (",", ":") if compact else None
    data = json.dumps({"schema": schema, "payload": {"payload": n, "schema": text}}, separators=separators).encode()
    if -(1 << 63) <= n < 1 << 63:
        wanted = Part(schema, {"payload": n, "schema": text})
        assert of_json(data, enveloped=True) == of_json(data, enveloped=True) == wanted
    else:
        with pytest.raises(NoValue, match="no int64"):
            of_json(data, enveloped=True)
    more = data[:-1] + b',"other":' + json.dumps(inside).encode() + b"}"
    with pytest.raises(NoValue, match='only "schema" and "payload"'):
        of_json(more, enveloped=True)


@pytest.mark.parametrize("member", ["schema", "payload"])
def test_records_that_are_nested_too_deep_are_bad_at_any_depth(member: str) -> None:
    """Some are as deep as can be read, but not written into a message, or compared."""
    for depth in range(800, 1000):
        deep = '{"a":' * depth + "1" + "}" * depth
        members = {"schema": '{"type":"int8"}', "payload": "1", member: deep}
        data = f'{{"schema":{members["schema"]},"payload":{members["payload"]}}}'.encode()
        with pytest.raises(NoValue):
            of_json(data, enveloped=True)


def test_missing_fields_have_their_default() -> None:
    schema = {"type": "struct", "fields": [{"field": "a", "type": "int32", "default": 7}]}
    assert of_json(json.dumps({"schema": schema, "payload": {}}).encode(), enveloped=True).value == {"a": 7}


def test_columns_are_made_of_avro_schemas() -> None:
    fields = [
        ({"type": "int", "connect.type": "int8"}, "tinyint"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "decimal"),
        (["null", {"type": "long", "logicalType": "timestamp-micros"}], "timestamp"),
        ({"type": "array", "items": "string"}, "list<text>"),
        ({"type": "map", "values": {"type": "array", "items": "long"}}, "map<text, frozen<list<bigint>>>"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "text"),
    ]
    named = [{"name": f"f{number}", "type": of} for number, (of, _) in enumerate(fields)]
    avro = AvroSchema.of(json.dumps({"type": "record", "name": "r", "fields": named}))
    schema = connect_schema(avro)
    assert schema and [column_type(field) for field in schema["fields"]] == [wanted for _, wanted in fields]


def test_an_avro_record_that_contains_itself_has_fields_without_a_column() -> None:
    fields: list[dict[str, Any]] = [{"name": name, "type": ["null", "node"]} for name in ("left", "right")]
    fields += [{"name": "all", "type": {"type": "array", "items": "node"}}, {"name": "id", "type": "int"}]
    schema = connect_schema(AvroSchema.of(json.dumps({"type": "record", "name": "node", "fields": fields})))
    assert schema and [(one["field"], one["type"]) for one in schema["fields"]] == [
        ("left", ""),
        ("right", ""),
        ("all", ""),
        ("id", "int32"),
    ]
    twice: dict[str, Any] = {"type": "record", "name": "n0", "fields": [{"name": "id", "type": "int"}]}
    for number in range(1, 30):
        pair = [{"name": "a", "type": twice}, {"name": "b", "type": f"n{number - 1}"}]
        twice = {"type": "record", "name": f"n{number}", "fields": pair}
    schema = connect_schema(AvroSchema.of(json.dumps(twice)))
    assert schema and schema["fields"][0]["fields"] is schema["fields"][1]["fields"]
