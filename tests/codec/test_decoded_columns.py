"""Columns of records: those of a schema that are asked for, and every kind of value in Protobuf."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from protobuf_files import message_class
from pyspark.sql import types as sql

from penstock.codec.decode_columns import chosen, schemas_of, struct_of
from penstock.codec.decode_protobuf import REASON, ProtobufDecoder, columns_of, compiled, decode_values
from penstock.codec.registry import Registry
from penstock.errors import PenstockError

HAS = sql.StructType().add("id", sql.IntegerType()).add("name", sql.StringType())


@pytest.mark.usefixtures("spark")
def test_a_schema_is_a_type_or_ddl() -> None:
    assert struct_of(HAS, "here") is HAS
    made = struct_of("id int NOT NULL, price decimal(5,2), tags array<string>", "here")
    assert made.simpleString() == "struct<id:int,price:decimal(5,2),tags:array<string>>"
    assert [field.nullable for field in made] == [False, True, True]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("text", "said"),
    [("id integr", "the schema cannot be read: .*"), ("int", "the schema has no columns: 'int'")],
)
def test_a_schema_that_is_none_is_refused(text: str, said: str) -> None:
    with pytest.raises(PenstockError, match=rf"{said}.*\(kafka.read of t\).*id int NOT NULL, name string"):
        struct_of(text, "kafka.read of t")


def test_the_wanted_columns_of_a_registered_schema_are_taken() -> None:
    assert chosen(HAS, None, "s") is HAS
    wanted = sql.StructType().add("name", sql.StringType(), False)
    assert chosen(HAS, wanted, "s") is wanted
    with pytest.raises(PenstockError, match=r"the newest schema has no field nam \(s\).*use its fields: id, name"):
        chosen(HAS, sql.StructType().add("nam", sql.StringType()), "s")
    with pytest.raises(
        PenstockError, match=r"id is int in the newest schema, not bigint \(s\).*read it as int, and cast"
    ):
        chosen(HAS, sql.StructType().add("id", sql.LongType()), "s")


class Subject(Registry):
    """A registry with one subject of these kinds of schemas."""

    kinds: tuple[str, ...] = ()

    def schemas(self, subject: str) -> list[tuple[int, str, str]]:
        return [(number, f"schema {number}", kind) for number, kind in enumerate(self.kinds, 7)]


def test_schemas_of_another_kind_are_told_with_their_format() -> None:
    registry = Subject("http://registry:1")
    object.__setattr__(registry, "kinds", ("AVRO", "AVRO"))
    assert schemas_of(registry, "s", "AVRO", "x") == [(7, "schema 7"), (8, "schema 8")]
    object.__setattr__(registry, "kinds", ("AVRO", "PROTOBUF", "JSON"))
    said = (
        r"the subject s has schemas of the kind JSON, PROTOBUF \(http://registry:1\).*read the topic with format=\"x\""
    )
    with pytest.raises(PenstockError, match=said):
        schemas_of(registry, "s", "AVRO", '"x"')


# Protobuf.

ALL = """syntax = "proto3"; import "google/protobuf/timestamp.proto"; import "google/type/date.proto";
enum Kind { NONE = 0; SOME = 3; }
message All {
  bool bo = 1; bytes by = 2; double d = 3; float f = 4; string s = 5; Kind kind = 6;
  int32 i32 = 7; int64 i64 = 8; uint32 u32 = 9; uint64 u64 = 10; sint32 s32 = 11; sint64 s64 = 12;
  fixed32 f32 = 13; fixed64 f64 = 14; sfixed32 sf32 = 15; sfixed64 sf64 = 16;
  optional int32 maybe = 17; repeated string many = 18; map<int32, Part> parts = 19; Part part = 20;
  google.protobuf.Timestamp at = 21; google.type.Date day = 22; repeated google.type.Date days = 23;
  oneof one { string left = 24; Part right = 25; }
  message Part { int32 n = 1; repeated Kind kinds = 2; }
}
"""
FRAME = b"\0\0\0\0\7\0"
CLASS, FILES = message_class(ALL), compiled(ALL, "a test")
COLUMNS = columns_of(FILES, None, "a test")
DECODER = ProtobufDecoder(COLUMNS, {7: FILES})
NUMBERS = {
    **{name: st.integers(-(2**31), 2**31 - 1) for name in ("i32", "s32", "sf32")},
    **{name: st.integers(-(2**63), 2**63 - 1) for name in ("i64", "s64", "sf64")},
    **{name: st.integers(0, 2**32 - 1) for name in ("u32", "f32")},
    **{name: st.integers(0, 2**64 - 1) for name in ("u64", "f64")},
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
DAYS = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
PART = st.fixed_dictionaries(
    {"n": st.integers(-5, 5), "kinds": st.lists(st.sampled_from(["NONE", "SOME"]), max_size=2)}
)
VALUES = st.fixed_dictionaries(
    {
        **NUMBERS,
        "bo": st.booleans(),
        "by": st.binary(max_size=8),
        "d": st.floats(allow_nan=False),
        "f": st.floats(width=32, allow_nan=False),
        "s": TEXTS,
        "kind": st.sampled_from(["NONE", "SOME"]),
        "maybe": st.none() | st.integers(0, 5),
        "many": st.lists(TEXTS, max_size=3),
        "parts": st.dictionaries(st.integers(0, 3), PART, max_size=2),
        "part": st.none() | PART,
        "at": st.none() | st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC)),  # noqa: DTZ001
        "day": st.none() | DAYS,
        "days": st.lists(DAYS, max_size=2),
    }
)


def day(value: dt.date) -> dict[str, int]:
    return {"year": value.year, "month": value.month, "day": value.day}


def message(values: dict[str, Any]) -> bytes:
    """A record with these values, written by Google's library."""
    given = {name: value for name, value in values.items() if value is not None} | {
        "days": [day(d) for d in values["days"]]
    }
    if values["day"]:
        given["day"] = day(values["day"])
    if at := given.pop("at", None):
        seconds = (at.replace(microsecond=0) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)).total_seconds()
        given["at"] = {"seconds": int(seconds), "nanos": at.microsecond * 1000}
    parts = given.pop("parts")
    made = CLASS(**given)
    for key, part in parts.items():
        made.parts[key].CopyFrom(CLASS.Part(**part))
    return bytes(FRAME + made.SerializeToString())


def decoded(*records: bytes | None) -> list[dict[str, Any]]:
    array = decode_values(DECODER, pa.array(records, pa.binary()))
    array.validate(full=True)
    rows: list[dict[str, Any]] = array.to_pylist()
    return rows


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(VALUES, min_size=1, max_size=3))
def test_every_kind_of_field_arrives_as_it_was_written(rows: list[dict[str, Any]]) -> None:
    found = decoded(*(message(row) for row in rows))
    for row, values in zip(found, rows, strict=True):
        assert row.pop(REASON) is None
        assert (row.pop("left"), row.pop("right")) == (None, None)
        assert {**row, "parts": dict(row["parts"])} == values


def test_columns_hold_all_values_of_their_fields() -> None:
    kinds = {field.name: field.dataType.simpleString() for field in COLUMNS}
    assert {name for name, kind in kinds.items() if kind == "bigint"} == {"i64", "s64", "sf64", "u32", "f32"}
    assert {name for name, kind in kinds.items() if kind == "decimal(20,0)"} == {"u64", "f64"}
    assert kinds["parts"] == "map<int,struct<n:int,kinds:array<string>>>" and kinds["days"] == "array<date>"


def test_an_empty_message_has_the_defaults_and_what_is_not_there_is_null() -> None:
    (row,) = decoded(FRAME)
    assert row[REASON] is None
    assert [row[name] for name in ("bo", "by", "d", "s", "kind", "i32", "u64")] == [False, b"", 0.0, "", "NONE", 0, 0]
    assert [row[name] for name in ("maybe", "part", "at", "day", "left", "right")] == [None] * 6
    assert [row[name] for name in ("many", "parts", "days")] == [[], [], []]
    assert decoded(None) == [dict.fromkeys([*COLUMNS.names, REASON])]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"", "not in Confluent's wire format: no zero byte with a schema id at the start"),
        (b"\1\0\0\0\7\0", "not in Confluent's wire format: no zero byte with a schema id at the start"),
        (b"\0\0\0\7", "not in Confluent's wire format: no zero byte with a schema id at the start"),
        (b"\0\0\0\0\x08\0", "the registry had no schema with the id 8 when this query started"),
        (FRAME + b"\x0a", "not valid Protobuf for the schema 7"),
        (FRAME + b"\x2a\1\xff", "not valid Protobuf for the schema 7"),  # a string that is not UTF-8
        (
            FRAME + CLASS(day={"year": 2024, "month": 13, "day": 1}).SerializeToString(),
            "a time out of range: month must",
        ),
        (FRAME + CLASS(day={"year": 2024, "month": 1}).SerializeToString(), "a time out of range: day is out of range"),
        (FRAME + CLASS(at={"seconds": 253_402_300_800}).SerializeToString(), "a time out of range: date value out of"),
        (FRAME + CLASS(at={"seconds": 2**62}).SerializeToString(), "a time out of range: "),
    ],
)
def test_a_record_that_cannot_be_read_has_a_reason_and_the_others_are_read(record: bytes, reason: str) -> None:
    good = FRAME + b"\x38\5"
    rows = decoded(good, record, good)
    assert str(rows[1][REASON]).startswith(reason) and rows[0][REASON] is rows[2][REASON] is None
    assert [row["i32"] for row in rows] == [5, None, 5]


def test_an_unknown_number_of_an_enum_is_shown() -> None:
    assert decoded(FRAME + b"\x30\x63")[0]["kind"] == "99"


def test_values_of_an_older_schema_of_another_type_have_a_reason() -> None:
    older = compiled('syntax = "proto3"; message Old { string i32 = 1; int32 s = 2; }', "a test")
    columns = sql.StructType().add("i32", sql.IntegerType()).add("s", sql.StringType()).add("new", sql.LongType())
    found = decode_values(ProtobufDecoder(columns, {7: older}), pa.array([FRAME + b"\x0a\1x", FRAME + b"\x0a\0"]))
    assert [row[REASON] for row in found.to_pylist()] == ["i32 is not a valid int"] * 2
    assert found.field("new").null_count == 2


def test_a_file_that_does_not_compile_is_told_with_its_text(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        PenstockError, match=r"the Protobuf schema cannot be compiled \(schema 7\).*The schema is message {"
    ):
        compiled("message {", "schema 7")
    assert "the schema.proto" in capfd.readouterr().err
