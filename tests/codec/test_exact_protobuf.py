"""Protobuf with lists as messages: null, empty and elements that are null differ, at any depth."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, strategies as some
from pyspark.sql import SparkSession, functions as F, types as st

from penstock.codec.connect_schema import spark_type
from penstock.codec.decode_protobuf import ProtobufDecoder, columns_of, compiled, decode_values
from penstock.codec.exact_protobuf import _Encoder, bare_type, unwrapped, wrapped
from penstock.codec.protobuf import protobuf_schema

NUMBER: dict[str, Any] = {"type": "int64", "optional": True}
TEXT: dict[str, Any] = {"type": "string", "optional": True}
LIST: dict[str, Any] = {"type": "array", "items": NUMBER, "optional": True}
PAIR: dict[str, Any] = {
    "type": "struct",
    "name": "a.Pair",
    "optional": False,
    "fields": [{**TEXT, "field": "key"}, {**LIST, "field": "list"}],
}
DATE: dict[str, Any] = {"type": "int32", "optional": True, "name": "org.apache.kafka.connect.data.Date", "version": 1}
SCHEMA: dict[str, Any] = {
    "type": "struct",
    "name": "a.Event",
    "optional": False,
    "fields": [
        {**NUMBER, "field": "plain"},
        {**DATE, "field": "day"},
        {**LIST, "field": "list"},
        {"type": "array", "items": LIST, "optional": True, "field": "lists"},
        {"type": "array", "items": PAIR, "optional": True, "field": "pairs"},
        {**PAIR, "optional": True, "field": "pair"},
    ],
}
FILES = compiled(protobuf_schema(wrapped(SCHEMA)), "a test")
FRAME = b"\0\0\0\0\x07"
numbers = some.none() | some.integers(-(2**63), 2**63 - 1)
lists = some.none() | some.lists(numbers, max_size=3)
pairs = some.fixed_dictionaries({"key": some.none() | some.text(max_size=3), "list": lists})
events = some.fixed_dictionaries(
    {
        "plain": numbers,
        "day": some.none() | some.integers(-(2**31), 2**31 - 1),
        "list": lists,
        "lists": some.none() | some.lists(lists, max_size=3),
        "pairs": some.none() | some.lists(pairs, max_size=2),
        "pair": some.none() | pairs,
    }
)


def decoded(given: list[dict[str, Any]]) -> pa.Array:
    columns = columns_of(FILES, None, "a test")
    encoder = _Encoder(SCHEMA, FILES)
    payloads = pa.array(given, pa.struct([(one.name, one.type) for one in ARROW]))
    framed = pa.array([FRAME + value for value in encoder.all(payloads).to_pylist()])
    return decode_values(ProtobufDecoder(columns, {7: FILES}), framed)


_list, _pair = pa.list_(pa.int64()), pa.struct([("key", pa.string()), ("list", pa.list_(pa.int64()))])
ARROW = pa.schema(
    [
        ("plain", pa.int64()),
        ("day", pa.int32()),
        ("list", _list),
        ("lists", pa.list_(_list)),
        ("pairs", pa.list_(_pair)),
        ("pair", _pair),
    ]
)


def bare(value: Any, schema: dict[str, Any]) -> Any:
    """The value without the messages around lists and elements."""
    if value is None:
        return None
    if schema["type"] == "struct":
        return {one["field"]: bare(value[one["field"]], one) for one in schema["fields"]}
    if schema["type"] != "array":
        return value
    items = schema["items"]
    return [bare(one["value"] if items["optional"] else one, items) for one in value["values"] or ()]


@given(some.lists(events, min_size=1, max_size=3))
def test_an_event_comes_back_as_it_was(given: list[dict[str, Any]]) -> None:
    found = decoded(given).to_pylist()
    assert [one.pop("_penstock_reason") for one in found] == [None] * len(given)
    assert [bare(one, SCHEMA) for one in found] == given


def test_columns_come_back_as_they_were(spark: SparkSession) -> None:
    given: list[dict[str, Any]] = [
        {"plain": 1, "day": -3_000_000, "list": [], "lists": [None, [], [None, 2]], "pairs": [], "pair": None},
        {"plain": None, "day": None, "list": None, "lists": None, "pairs": None, "pair": {"key": "", "list": []}},
        {"plain": 0, "day": 0, "list": [0], "lists": [], "pairs": [{"key": None, "list": None}], "pair": None},
    ]
    columns = columns_of(FILES, None, "a test")
    rows = [{name: value for name, value in one.items() if name[0] != "_"} for one in decoded(given).to_pylist()]
    frame = spark.createDataFrame([tuple(row[name] for name in columns.names) for row in rows], columns)
    whole = frame.select(F.struct(*columns.names).alias("event"))
    kind = whole.schema["event"].dataType
    back = whole.select(unwrapped(F.col("event"), kind, SCHEMA).alias("event"))
    assert [row["event"].asDict(recursive=True) for row in back.collect()] == given
    made = bare_type(kind, SCHEMA)
    assert isinstance(made, st.StructType) and made.simpleString() == spark_type(SCHEMA).simpleString()
