"""Protobuf records in columns: message indexes, recursive types, and damaged bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from growth import assert_linear
from hypothesis import given, strategies as st
from pyspark.sql import types as sql
from wire_rows import varint

from penstock.codec.decode_protobuf import REASON, ProtobufDecoder, columns_of, compiled, decode_values, indexes
from penstock.errors import PenstockError

TREE = """syntax = "proto3";
message Node { int32 id = 1; Node next = 2; map<string, Node> named = 3; repeated Pair pairs = 4; }
message Pair { Node left = 1; string name = 2; }
"""
OUTER = """syntax = "proto3";
message First { string a = 1; message Inner { string b = 1; } }
message Second { string a = 1; }
"""
FRAMED = b"\0\0\0\0\7"


TREES, OUTERS = (compiled(text, "a test") for text in (TREE, OUTER))
ID = sql.StructType().add("id", sql.IntegerType())
TEXT = sql.StructType().add("a", sql.StringType())


def values(columns: sql.StructType, files_of: bytes, *records: bytes) -> list[dict[str, object]]:
    found = decode_values(ProtobufDecoder(columns, {7: files_of}), pa.array([FRAMED + one for one in records]))
    found.validate(full=True)
    rows: list[dict[str, object]] = found.to_pylist()
    return rows


def test_a_message_type_that_holds_itself_is_named_when_the_columns_are_made() -> None:
    with pytest.raises(
        PenstockError, match=r"Node.next contains the message Node recursively.*subject.*name the columns"
    ):
        columns_of(TREES, None, "subject nodes-value")
    for field in ("named", "pairs"):
        with pytest.raises(PenstockError, match="contains the message Node recursively"):
            columns_of(TREES, [field], "subject nodes-value")
    # Two fields of the same message type are not a recursion.
    assert columns_of(TREES, ["id"], "").names == ["id"]
    twice = 'syntax = "proto3"; message A { B b = 1; B c = 2; } message B { int32 d = 1; }'
    assert columns_of(compiled(twice, "a test"), None, "").simpleString() == "struct<b:struct<d:int>,c:struct<d:int>>"


def test_an_older_type_that_holds_itself_is_read_as_far_as_the_columns_go() -> None:
    deep = b"\x08\x01\x12\x04\x08\x02\x12\x00"  # id 1, next (id 2, next ())
    assert values(sql.StructType([*ID, sql.StructField("next", ID)]), TREES, b"\0" + deep) == [
        {"id": 1, "next": {"id": 2}, REASON: None},
    ]
    assert (
        values(sql.StructType([*ID]).add("next", sql.StringType()), TREES, b"\0" + deep)[0][REASON]
        == "next is not a valid string"
    )


@pytest.mark.parametrize(
    ("path", "found"),
    [(b"\0", ([0], 1)), (b"\2\2", ([1], 2)), (varint(2) + b"\0\4", ([0, 2], 3)), (b"\2\x82\0", ([1], 3))]
    + [(path, None) for path in (b"", b"\1", b"\3\2", b"\2\1", b"\2", b"\xff" * 11, b"\2" + b"\x80" * 10 + b"\0")]
    + [(varint(2**31 - 1), None), (varint(1000) + b"\0" * 1000, None), (b"\2" + varint(2**31), None)],
)
def test_paths_of_indexes(path: bytes, found: tuple[list[int], int] | None) -> None:
    assert indexes(path, 0) == found


def test_a_path_leads_to_its_message_or_is_told() -> None:
    rows = values(TEXT, OUTERS, *(path + b"\x0a\x01x" for path in (b"\0", b"\2\2", b"\2\1", b"\2\6", b"\4\0\4")))
    assert [row["a"] for row in rows] == ["x", "x", None, None, None]
    assert [row[REASON] for row in rows[2:]] == [
        "no valid message indexes after the schema id 7",
        "the schema 7 has no message 3",
        "the schema 7 has no message 0.2",
    ]


def test_an_index_without_an_end_costs_nothing() -> None:
    protobuf = ProtobufDecoder(TEXT, {7: OUTERS})

    def refuse(size: int) -> None:
        record = FRAMED + b"\xff" * size
        assert decode_values(protobuf, pa.array([record])).to_pylist()[0][REASON].startswith("no valid message indexes")

    refuse(1)
    assert_linear(refuse, 1 << 18)


def test_depth_is_bounded() -> None:
    def nested(depth: int) -> bytes:
        made = b""
        for _ in range(depth):
            made = b"\x12" + plain(len(made)) + made
        return made

    rows = values(ID, TREES, b"\0" + nested(90), b"\0" + nested(5000))
    assert [row[REASON] for row in rows] == [None, "not valid Protobuf for the schema 7"]


def plain(number: int) -> bytes:
    """A varint without zigzag encoding."""
    out = b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def test_many_records_come_in_parts() -> None:
    rows = values(TEXT, OUTERS, *(b"\0\x0a\x80\x80\x04" + b"%d" % (n % 10) * (1 << 16) for n in range(40)))
    assert [str(row["a"])[0] for row in rows] == [str(n % 10) for n in range(40)]


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_have_a_reason(data: bytes) -> None:
    pairs = sql.ArrayType(sql.StructType().add("name", sql.StringType()))
    (row,) = values(sql.StructType([*ID]).add("next", ID).add("pairs", pairs), TREES, data)
    assert row[REASON] is None or row["id"] is None
