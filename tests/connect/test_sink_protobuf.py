"""Protobuf records of sinks: values drawn with Google's library, schemas with imports, and damaged bytes."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import struct
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, strategies as st
from protobuf_files import message_class

from penstock.codec.decode_protobuf import compiled, messages_of
from penstock.codec.registry import Registry
from penstock.connect.records.protobuf_data import ProtobufBytes
from penstock.connect.records.record import Date, NoValue, Part
from penstock.connect.records.semantic_types import NanoTime, ProtobufTimestamp, SemanticTypes
from penstock.connect.records.sink_converters import deserializer
from penstock.connect.sinks.cql.properties import CLASS
from penstock.connect.sinks.cql.tables import column_type
from penstock.connect.sinks.cql.values import cell
from penstock.connect.sinks.files.formats import ParquetRows, columns_of
from penstock.connect.sinks.jdbc.tables import column_type as jdbc_type
from penstock.connect.sinks.jdbc.values import text_of
from penstock.connect.worker.checks import check
from penstock.connect.worker.providers import Provided
from penstock.database.cql_types import parse_type
from penstock.errors import PenstockError
from penstock.postgres.postgres_columns import TargetColumn

EVENT = """syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";
import "google/type/date.proto"; import "google/type/timeofday.proto";
message Event {
  int32 id = 1; optional string name = 2; uint32 count = 3; uint64 big = 4; sfixed64 fixed = 5;
  bool flag = 6; bytes raw = 7; float share = 8; double price = 9; Kind kind = 10;
  repeated int64 counts = 11; map<int32, Inner> inners = 12; repeated Inner many = 13; Inner inner = 14;
  google.protobuf.StringValue text = 15; google.protobuf.UInt32Value number = 16;
  google.protobuf.Timestamp at = 17; google.type.Date day = 18; google.type.TimeOfDay time = 19;
  oneof one { string left = 20; int32 right = 21; }
  string ListFields = 22; Event next = 23;
  enum Kind { A = 0; B = 3; }
  message Inner { sint32 a = 1; optional bool b = 2; }
}
"""
MONEY = """syntax = "proto3"; package shop; import "confluent/meta.proto"; import "confluent/type/decimal.proto";
message Money { confluent.type.Decimal amount = 1;
  int32 cents = 2 [(confluent.field_meta) = {params: [{key: "connect.type", value: "int8"}]}]; }
"""
ORDER = """syntax = "proto3"; package shop; import "shop/money.proto";
message Order { message Line { int32 id = 1; Money price = 2; } repeated Line lines = 1; }
message Other { message A {} message B { Money price = 1; } }
"""
EVENTS = message_class(EVENT)
ANSWERS: dict[str, Any] = {
    "/schemas/ids/1": {"schema": EVENT, "schemaType": "PROTOBUF"},
    "/schemas/ids/2": {
        "schema": ORDER,
        "schemaType": "PROTOBUF",
        "references": [{"name": "shop/money.proto", "subject": "money", "version": 3}],
    },
    "/subjects/money/versions/3": {"schema": MONEY, "schemaType": "PROTOBUF"},
    "/schemas/ids/3": {"schema": '"string"'},
    "/schemas/ids/4": {"schema": "message", "schemaType": "PROTOBUF"},
    "/schemas/ids/5": {
        "schema": ORDER,
        "schemaType": "PROTOBUF",
        "references": [{"name": "../../money.proto", "subject": "money", "version": 3}],
    },
    "/schemas/ids/6": {
        "schema": ORDER,
        "schemaType": "PROTOBUF",
        "references": [{"name": f"{n}.proto", "subject": "money", "version": 3} for n in range(200)],
    },
}


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    """A registry of the answers in ANSWERS."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = ANSWERS.get(self.path)
            body = json.dumps({"error_code": 40403, "message": "not found"} if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Registry(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


def framed(number: int, message: bytes, path: bytes = b"\0") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + path + message


FLOATS = st.floats(width=32, allow_nan=False)
INNERS = st.fixed_dictionaries({"a": st.integers(-(1 << 31), (1 << 31) - 1), "b": st.none() | st.booleans()})
TIMES = st.datetimes(timezones=st.just(dt.UTC))
FIELDS = {
    "id": st.integers(-(1 << 31), (1 << 31) - 1),
    "name": st.none() | st.text(),
    "count": st.integers(0, (1 << 32) - 1),
    "big": st.integers(0, (1 << 64) - 1),
    "fixed": st.integers(-(1 << 63), (1 << 63) - 1),
    "flag": st.booleans(),
    "raw": st.binary(),
    "share": FLOATS,
    "price": st.floats(allow_nan=False),
    "kind": st.sampled_from(["A", "B"]),
    "counts": st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=3),
    "inners": st.dictionaries(st.integers(-5, 5), INNERS, max_size=2),
    "many": st.lists(INNERS, max_size=2),
    "inner": st.none() | INNERS,
    "text": st.none() | st.text(),
    "number": st.none() | st.integers(0, (1 << 32) - 1),
    "at": st.none() | TIMES,
    "day": st.none() | st.dates(),
    "time": st.none() | st.times(),
    "one_0": st.none()
    | st.fixed_dictionaries({"left": st.text(), "right": st.none()})
    | st.fixed_dictionaries({"left": st.none(), "right": st.integers(0, 9)}),
    "ListFields": st.text(),
}
PLAIN = ("id", "name", "count", "big", "fixed", "flag", "raw", "share", "price")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def message_of(row: dict[str, Any], of: Any = None) -> Any:
    """The message with these fields."""
    made = EVENTS() if of is None else of
    for name in (*PLAIN, "ListFields", "a", "b"):
        if row.get(name) is not None:
            setattr(made, name, row[name])
    if of is not None:
        return made
    made.kind = {"A": 0, "B": 3}[row["kind"]]
    made.counts.extend(row["counts"])
    for one in row["many"]:
        message_of(one, made.many.add())
    for key, one in row["inners"].items():
        message_of(one, made.inners[key])
    if row["inner"] is not None:
        made.inner.SetInParent()
        message_of(row["inner"], made.inner)
    for name in ("text", "number"):
        if row[name] is not None:
            getattr(made, name).SetInParent()
            getattr(made, name).value = row[name]
    if (at := row["at"]) is not None:
        since = at - EPOCH
        made.at.SetInParent()
        made.at.seconds, made.at.nanos = since.days * 86400 + since.seconds, since.microseconds * 1000
    if (day := row["day"]) is not None:
        made.day.year, made.day.month, made.day.day = day.year, day.month, day.day
    if (time := row["time"]) is not None:
        made.time.SetInParent()
        made.time.hours, made.time.minutes = time.hour, time.minute
        made.time.seconds, made.time.nanos = time.second, time.microsecond * 1000
    for name, value in (row["one_0"] or {}).items():
        if value is not None:
            setattr(made, name, value)
    return made


def expected(row: dict[str, Any]) -> dict[str, Any]:
    at, day, time = row["at"], row["day"], row["time"]
    seconds = None if time is None else (time.hour * 60 + time.minute) * 60 + time.second
    times = {
        "at": None if at is None else ProtobufTimestamp((at - EPOCH) // dt.timedelta(microseconds=1) * 1000),
        "day": None if day is None else Date((day - EPOCH.date()).days),
        "time": None if seconds is None else NanoTime((seconds * 1_000_000 + time.microsecond) * 1000),
    }
    return {**row, **times, "next": None}


@given(st.fixed_dictionaries(FIELDS))
def test_messages_are_read_as_they_were_written(registry: Registry, row: dict[str, Any]) -> None:
    read = ProtobufBytes(registry)
    found = read(framed(1, message_of(row).SerializeToString()))
    assert found.value == expected(row)
    assert [type(found.value[name]) for name in ("at", "day", "time")] == [
        type(None) if row[name] is None else kind
        for name, kind in (("at", ProtobufTimestamp), ("day", Date), ("time", NanoTime))
    ]
    assert found.schema and {one["field"] for one in found.schema["fields"]} == set(found.value)
    flat = ProtobufBytes(registry, flat=True)(framed(1, message_of(row).SerializeToString())).value
    assert flat == {"left": None, "right": None} | {**(row["one_0"] or {})} | {
        name: value for name, value in expected(row).items() if name != "one_0"
    }


YEAR_1, YEAR_9999 = dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)


@given(
    st.sampled_from([YEAR_1, YEAR_9999]) | TIMES.map(lambda at: at.replace(microsecond=0)),
    st.sampled_from([0, 1, 999, 1_000, 999_999_999]) | st.integers(0, 999_999_999),
)
def test_times_have_all_their_digits_in_each_column_that_has_them(
    registry: Registry, second: dt.datetime, nanos: int
) -> None:
    event = EVENTS()
    since = second - EPOCH
    event.at.seconds, event.at.nanos = since // dt.timedelta(seconds=1), nanos
    event.time.hours, event.time.minutes, event.time.seconds = second.hour, second.minute, second.second
    event.time.nanos = nanos
    part = SemanticTypes()(ProtobufBytes(registry)(framed(1, event.SerializeToString())))
    at, time = part.value["at"], part.value["time"]
    clock = (second - second.replace(hour=0, minute=0, second=0)) // dt.timedelta(seconds=1) * 10**9 + nanos
    micros = dt.timedelta(microseconds=nanos // 1000)

    assert cell(parse_type("time", {}), time) == clock.to_bytes(8, "big")
    millis = (since + micros) // dt.timedelta(milliseconds=1)
    assert cell(parse_type("timestamp", {}), at) == millis.to_bytes(8, "big", signed=True)
    text = (cell(parse_type("text", {}), at) or b"").decode().removesuffix("Z")
    assert text.ljust(20, ".").ljust(29, "0") == f"{second.replace(tzinfo=None).isoformat()}.{nanos:09}"
    shown = [
        text_of(TargetColumn("c", column, column, column, False, False), value, dt.UTC) or ""
        for column, value in (("timestamptz", at), ("time", time))
    ]
    assert dt.datetime.fromisoformat(shown[0]) == second + micros
    assert dt.time.fromisoformat(shown[1]) == (second + micros).time()
    row = _in_parquet(part)
    assert row["at"].cast("int64").as_py() == (since + micros) // dt.timedelta(microseconds=1)
    assert row["time"].cast("int64").as_py() == clock


def _in_parquet(part: Part) -> dict[str, Any]:
    """The times as a file has them, beside whose fields `next` has no column."""
    assert part.schema
    times = {**part.schema, "fields": [one for one in part.schema["fields"] if one["field"] in ("at", "time")]}
    rows = ParquetRows("none", columns_of)
    rows.add(Part(times, part.value))
    table = pq.read_table(io.BytesIO(rows.data()))
    return {name: table[name][0] for name in table.column_names}


def test_columns_of_messages(registry: Registry) -> None:
    schema = ProtobufBytes(registry, flat=True)(framed(1, b"")).schema
    assert schema and schema["name"] == "Event"
    kinds = {one["field"]: one for one in schema["fields"]}
    simple = {name: column_type(kinds[name]) for name in FIELDS.keys() - {"inners", "many", "inner", "one_0"}}
    assert simple == {
        **{"id": "int", "name": "text", "count": "bigint", "big": "bigint", "fixed": "bigint", "flag": "boolean"},
        **{"raw": "blob", "share": "float", "price": "double", "kind": "text", "counts": "list<bigint>"},
        **{"text": "text", "number": "bigint", "at": "timestamp", "day": "date", "time": "time", "ListFields": "text"},
    }
    assert [jdbc_type(kinds[name]) for name in ("at", "day", "time")] == ["timestamp", "date", "time"]
    assert kinds["next"]["type"] == "" and kinds["inner"]["type"] == "struct"
    assert kinds["inners"]["keys"]["type"] == "int32" and kinds["many"]["items"]["fields"][1]["field"] == "b"


def test_schemas_have_imports_and_messages_are_found_by_their_indexes(registry: Registry) -> None:
    read = ProtobufBytes(registry)
    # price (amount 12.34 with the scale 2, cents -1), within a line of id 5
    money = b"\x0a\x06\x0a\x02\x04\xd2\x18\x02" + b"\x10" + b"\xff" * 9 + b"\x01"
    line = b"\x08\x05\x12" + bytes([len(money)]) + money
    wanted = {"amount": Decimal("12.34"), "cents": -1}
    assert read(framed(2, b"\x0a" + bytes([len(line)]) + line)).value == {"lines": [{"id": 5, "price": wanted}]}
    # The second message of the file, and in it the second one.
    nested = read(framed(2, b"\x0a" + bytes([len(money)]) + money, path=b"\4\2\2"))
    assert nested.value == {"price": wanted}
    assert nested.schema and [column_type(one) for one in nested.schema["fields"][0]["fields"]] == [
        "decimal",
        "tinyint",
    ]


def test_enums_are_numbers_and_unions_lose_their_index_where_the_converter_says_so(registry: Registry) -> None:
    config = {
        "value.converter": "io.confluent.connect.protobuf.ProtobufConverter",
        "value.converter.schema.registry.url": registry.url,
        "value.converter.int.for.enums": "true",
        "value.converter.generate.index.for.unions": "false",
    }
    found = deserializer("value", config)(framed(1, b"\x50\x03\xa8\x01\x07")).value
    assert found["kind"] == 3 and found["one"] == {"left": None, "right": 7}
    assert ProtobufBytes(registry)(framed(1, b"\x50\x09")).value["kind"] == "9"


def test_files_that_are_registered_as_descriptors_have_imports_too() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(
        compiled(ORDER, "a test", {"shop/money.proto": MONEY}),
    )
    texts = {file.name: base64.b64encode(file.SerializeToString()).decode() for file in files.file}
    imports = {"shop/money.proto": texts["shop/money.proto"]}
    again = compiled(texts[files.file[-1].name], "a test", imports)
    assert [one.name for one in messages_of(again)] == ["Order", "Other"]
    loops = descriptor_pb2.FileDescriptorProto(name="a.proto", dependency=["b.proto", "c.proto"])
    names = ("a.proto", "b.proto", "c.proto")
    each = {name: base64.b64encode(loops.SerializeToString()).decode() for name in names}
    with pytest.raises(PenstockError, match="import each other"):
        compiled(each["a.proto"], "a test", each)


@pytest.mark.parametrize("name", ["../a.proto", "/a.proto", "a/../b.proto", "--x.proto", "a", "a" * 300 + ".proto"])
def test_an_import_stays_in_its_folder(name: str) -> None:
    with pytest.raises(PenstockError, match="not the name of a file"):
        compiled(EVENT, "a test", {name: MONEY})


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "does not begin with the id"),
        (b"\1\0\0\0\1\0", "does not begin with the id"),
        (framed(1, b"", path=b""), "no valid message indexes"),
        (framed(1, b"", path=b"\xff" * 20), "no valid message indexes"),
        (framed(1, b"", path=b"\2\4"), "no message 2"),
        (framed(1, b"\xff"), "not a value of its schema 1"),
        (framed(1, b"\x0a\x01x"), None),  # an unknown field by its wire type
        (framed(1, b"\x12\x01\xff"), "not a value of its schema 1"),
        (framed(1, b"\x6a\0" * 100_000), "more than 200000 fields"),
        (framed(1, b"\x8a\x01\x0b\x08" + b"\xff" * 9 + b"\1"), None),  # a second before 1970
        (framed(1, b"\x8a\x01\x0b\x08" + b"\x80" * 9 + b"\1"), "has the Timestamp seconds: -92233"),
        (framed(1, b"\x8a\x01\x0b\x10" + b"\xff" * 9 + b"\1"), "has the Timestamp nanos: -1"),
        (framed(1, b"\x92\x01\0"), "has the Date without fields"),
        (framed(1, b"\x9a\x01\x02\x08\x18"), "has the Time hours: 24"),
        (framed(2, b"\x0a\x0a\x12\x08\x0a\x06\x0a\x02\x04\xd2\x18\x02"), None),
        (framed(3, b""), "its schema 3 is of AVRO"),
        (framed(4, b""), "its schema 4 cannot be read: the Protobuf schema cannot be compiled"),
        (framed(5, b""), "its schema 5 cannot be read: the Protobuf schema imports '../../money.proto'"),
        (framed(6, b""), "its schema 6 cannot be read: the schema 6 refers to more than 100 schemas"),
        (framed(7, b""), "its schema 7 cannot be read: the schema registry refuses"),
    ],
)
def test_bytes_that_are_no_message_are_refused(registry: Registry, data: bytes, said: str | None) -> None:
    read = ProtobufBytes(registry)
    if said is None:
        assert read(data).value
    else:
        with pytest.raises(NoValue, match=said):
            read(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(registry: Registry, data: bytes) -> None:
    try:
        found = ProtobufBytes(registry)(framed(1, data)).value
    except NoValue:
        return
    assert set(found) == {*FIELDS, "next"}


def test_messages_are_nested_as_deep_as_googles_library_reads(registry: Registry) -> None:
    def nested(depth: int) -> bytes:
        data = b""
        for _ in range(depth):
            data = b"\xba\x01" + _varint(len(data)) + data
        return data

    assert ProtobufBytes(registry)(framed(1, nested(60))).value["next"]["next"]
    for depth in (200, 5000):
        with pytest.raises(NoValue, match="not a value"):
            ProtobufBytes(registry)(framed(1, nested(depth)))


def _varint(number: int) -> bytes:
    return struct.pack("B", number) if number < 128 else struct.pack("B", number & 127 | 128) + _varint(number >> 7)


def test_a_missing_compiler_is_an_error_of_the_configuration(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {
        "name": "x",
        "connector.class": CLASS,
        "topics": "t",
        "scylladb.keyspace": "ks",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "io.confluent.connect.protobuf.ProtobufConverter",
        "value.converter.schema.registry.url": registry.url,
    }
    assert not check(config, Provided(), ask=False).errors
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    (said,) = check(config, Provided(), ask=False).errors["value.converter"]
    assert "needs a compiler" in said and "protobuf]" in said
