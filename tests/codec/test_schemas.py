"""Connect schemas of any table, and their forms for registries, judged by the libraries that read them."""

from __future__ import annotations

import json
import re
from typing import Any

import fastavro
import pytest
from cql_values import TYPES
from hypothesis import HealthCheck, given, settings, strategies as st
from jsonschema_rs import Draft7Validator, meta
from protobuf_files import message_class
from pyspark.sql import types as sql

from penstock.codec.avro import adjusted, avro_schema, field_name
from penstock.codec.change_frame import Layout, is_change_frame, layout
from penstock.codec.connect_schema import (
    Schema,
    avro_name,
    column_schema,
    envelope_schema,
    key_schema,
    spark_type,
)
from penstock.codec.protobuf import protobuf_schema
from penstock.codec.text_formats import json_schema
from penstock.database.cql_types import CqlType, parse_type
from penstock.errors import PenstockError
from penstock.wire.topic_names import topic_name

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LIST = ("array", "map")


@st.composite
def tables(draw: st.DrawFn) -> Layout:
    """A table with one or two key columns of scalars, and values of any types."""
    values = draw(st.lists(TYPES, max_size=3))
    clustering = draw(st.booleans())
    types = {"id": CqlType("int"), **({"at": CqlType("timestamp")} if clustering else {})}
    types |= {f"v{number}": kind for number, kind in enumerate(values)}
    key = ("id", "at")[: 1 + clustering]
    return Layout("shop", "orders", ("id",), key[1:], key, tuple(sorted(types)), types)


@st.composite
def envelopes(draw: st.DrawFn) -> Schema:
    table = draw(tables())
    return envelope_schema(
        table,
        "p",
        images=(draw(st.booleans()), draw(st.booleans())),
        payload_key=draw(st.sampled_from([None, "key"])),
        ranged=bool(table.clustering_key) and draw(st.booleans()),
        cells=False,
        extended=draw(st.booleans()),
    )


def inner(schema: Schema) -> list[Schema]:
    """A schema and all schemas inside it."""
    parts = [*schema.get("fields", ()), *(schema[part] for part in ("items", "keys", "values") if part in schema)]
    return [schema, *(each for part in parts for each in inner(part))]


ANY = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@ANY
@given(envelopes())
def test_any_envelope_is_a_valid_avro_schema(schema: Schema) -> None:
    fastavro.parse_schema(avro_schema(adjusted(schema)))


@ANY
@given(envelopes())
def test_any_envelope_is_a_valid_json_schema(schema: Schema) -> None:
    made = json_schema(schema)
    meta.validate(made)
    Draft7Validator(made)
    indexes = [field["connect.index"] for field in made["properties"].values()]
    assert indexes == list(range(len(schema["fields"])))


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(envelopes())
def test_any_envelope_is_a_protobuf_file_unless_it_has_lists_of_lists(schema: Schema) -> None:
    nested = any(each["type"] == "array" and each["items"]["type"] in LIST for each in inner(schema))
    if nested:
        with pytest.raises(PenstockError, match="Protobuf has no lists or maps directly inside lists or maps"):
            protobuf_schema(schema)
        return
    made = message_class(protobuf_schema(schema)).DESCRIPTOR
    assert made.full_name == "p.shop.orders.Envelope"
    assert [field.name for field in made.fields] == [field["field"] for field in schema["fields"]]
    assert [field.number for field in made.fields] == list(range(1, len(schema["fields"]) + 1))


@ANY
@given(envelopes())
def test_the_spark_type_of_a_payload_has_the_fields_of_its_schema(schema: Schema) -> None:
    kind = spark_type(schema)
    assert isinstance(kind, sql.StructType) and kind.names == [field["field"] for field in schema["fields"]]
    plain = {"boolean", "bytes", "double", "float", "string", "int8", "int16", "int32", "int64"}
    assert {each["type"] for each in inner(schema)} <= plain | {"struct", "array"}


@given(tables(), st.text("abc", min_size=1, max_size=3))
def test_a_key_has_its_columns_all_optional(table: Layout, prefix: str) -> None:
    schema = key_schema(table, prefix)
    assert (schema["type"], schema["optional"], schema["name"]) == ("struct", False, f"{prefix}.shop.orders.Key")
    assert [(field["field"], field["optional"]) for field in schema["fields"]] == [(name, True) for name in table.key]


@given(TEXT)
def test_adjusted_names_are_those_of_avro_and_of_kafka(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", avro_name(name)) and avro_name(avro_name(name)) == avro_name(name)
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", field_name(name))
    assert re.fullmatch(r"[A-Za-z0-9._-]*", topic_name(name)) and len(topic_name(name)) == len(name)


UDTS = {"place": (("city", "at"), ("text", "date")), "my-type": (("a b",), ("int",))}


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("int", {"type": "int32", "optional": True}),
        ("varint", {"type": "string", "optional": True}),
        ("date", {"type": "int32", "optional": True, "name": "org.apache.kafka.connect.data.Date", "version": 1}),
        ("set<blob>", {"type": "array", "items": {"type": "bytes", "optional": True}, "optional": True}),
        ("vector<float, 2>", {"type": "array", "items": {"type": "float", "optional": True}, "optional": True}),
    ],
)
def test_columns_have_the_connector_s_types(text: str, schema: Schema) -> None:
    assert column_schema(parse_type(text, UDTS), "p.ks.t.") == schema


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("place", "p.ks.t.UDT_place"),
        ('"my-type"', "p.ks.t.UDT_my_type"),
        ("tuple<int, text>", "p.ks.t.Tuple_INT_VARCHAR"),
        ("tuple<frozen<list<text>>, frozen<place>>", "p.ks.t.Tuple_List_VARCHAR_UDT_place"),
    ],
)
def test_structs_are_named_after_their_types(text: str, name: str) -> None:
    assert column_schema(parse_type(text, UDTS), "p.ks.t.")["name"] == name
    # In a key the connector leaves the namespace out.
    assert column_schema(parse_type(text, UDTS), "")["name"] == name.removeprefix("p.ks.t.")


def test_a_map_is_a_list_of_entries() -> None:
    schema = column_schema(parse_type("map<int, frozen<place>>", UDTS), "n.")
    assert schema["type"] == "array" and schema["items"]["name"] == "n.MapEntry_INT_UDT_place"
    assert [field["field"] for field in schema["items"]["fields"]] == ["key", "value"]


# Names of messages and records that occur more than once.

PAIR = {
    "type": "struct",
    "name": "shop.Pair",
    "optional": True,
    "fields": [{"type": "int64", "optional": True, "field": "n"}],
}
BARE = {"type": "struct", "optional": True, "fields": [{"type": "string", "optional": False, "field": "s"}]}


def struct(*fields: tuple[str, Schema], name: str | None = "shop.Row") -> Schema:
    made: dict[str, Any] = {"type": "struct", "optional": False, "fields": [{**kind, "field": n} for n, kind in fields]}
    return made if name is None else {**made, "name": name}


def test_avro_defines_a_record_once_and_names_those_without_a_name() -> None:
    made = avro_schema(struct(("a", PAIR), ("b", PAIR), ("c", BARE), ("d", BARE)))
    kinds = [field["type"][1] for field in made["fields"]]
    assert kinds[0]["name"] == "Pair" and "namespace" not in kinds[0] and kinds[1] == "Pair"
    assert [(kind["namespace"], kind["name"]) for kind in kinds[2:]] == [
        ("io.confluent.connect.avro", "ConnectDefault"),
        ("io.confluent.connect.avro", "ConnectDefault2"),
    ]
    # Inside a record of another namespace the full name is needed.
    other = avro_schema(struct(("a", PAIR), ("x", struct(("b", PAIR), name="other.X"))))
    assert other["fields"][1]["type"]["fields"][0]["type"][1] == "shop.Pair"
    fastavro.parse_schema(other)


def test_avro_says_what_connect_has_and_avro_lacks() -> None:
    small = {"type": "int8", "optional": True}
    choice = {
        "type": "string",
        "optional": True,
        "name": "Enum",
        "version": 1,
        "parameters": {"allowed": "a"},
        "default": "a",
    }
    made = avro_schema(struct(("small", small), ("choice", choice), ("day", column_schema(CqlType("date"), ""))))
    fields = {field["name"]: field for field in made["fields"]}
    assert fields["small"]["type"] == ["null", {"type": "int", "connect.type": "int8"}]
    # A union begins with the type of its default.
    properties = {"connect.version": 1, "connect.parameters": {"allowed": "a"}, "connect.default": "a"}
    assert fields["choice"]["type"] == [{"type": "string", **properties, "connect.name": "Enum"}, "null"]
    assert fields["choice"]["default"] == "a" and fields["small"]["default"] is None
    assert fields["day"]["type"][1]["logicalType"] == "date"
    fastavro.parse_schema(made)


def test_a_protobuf_message_has_another_name_than_the_field_beside_it() -> None:
    named = PAIR | {"name": "pair"}
    text = protobuf_schema(
        struct(
            ("pair", named),
            ("again", named),
            ("bare", BARE),
            ("many", {"type": "array", "items": BARE, "optional": True}),
        )
    )
    made = message_class(text).DESCRIPTOR
    kinds = {field.name: field.message_type.full_name for field in made.fields}
    assert kinds == {
        "pair": "shop.Row.pairMessage",
        "again": "shop.Row.pairMessage",
        "bare": "shop.Row.bare_message",
        "many": "shop.Row.many_message",
    }
    assert message_class(protobuf_schema(struct(("a", BARE), name=None))).DESCRIPTOR.full_name == "ConnectDefault1"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "string", "optional": True}, "a Protobuf record is a message, not a plain string"),
        (
            struct(("m", {"type": "map", "values": {"type": "array", "items": BARE}, "optional": True})),
            r"inside lists or maps: 'm' \(Row\).*format=\"avro\"",
        ),
    ],
)
def test_what_protobuf_lacks_is_refused(schema: Schema, said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        protobuf_schema(schema)


# The description of the table in a change frame.


def frame(**more: sql.DataType) -> sql.StructType:
    """The schema of a change frame of `shop.orders` with the key id."""
    place = sql.StructType().add("at", sql.DateType()).add("city", sql.StringType())
    row = sql.StructType().add("id", sql.IntegerType()).add("v", place)
    about = {
        "penstock.table": "shop.orders",
        "penstock.partition_key": ["id"],
        "penstock.clustering_key": [],
        "penstock.cql": {"id": "int", "v": "place"},
        "penstock.udts": {"place": {"city": "text", "at": "date"}},
    }
    made = sql.StructType().add("op", sql.StringType())
    made = (
        made.add("key", sql.StructType().add("id", sql.IntegerType()), True, about).add("before", row).add("after", row)
    )
    for name in ("operation", "ts", "read_ts"):
        made = made.add(name, sql.StringType())
    for name, kind in more.items():
        made = made.add(name, kind)
    return made


def without(schema: sql.StructType, *names: str) -> sql.StructType:
    return sql.StructType([field for field in schema if field.name not in names])


def test_a_table_is_read_from_its_frame_with_its_fields_in_the_frame_s_order() -> None:
    """JSON, in which Spark keeps the description, has no order of members."""
    found = layout(frame())
    assert (found.full_name, found.key, found.columns, found.partition_key) == (
        "shop.orders",
        ("id",),
        ("id", "v"),
        ("id",),
    )
    assert found.types["v"].fields == ("at", "city") and [str(kind) for kind in found.types["v"].args] == [
        "date",
        "text",
    ]
    assert found.fields("key") == {"id": CqlType("int")} and list(found.fields("before")) == ["id", "v"]
    assert {name: str(kind) for name, kind in found.fields("delta").items()} == {"v": "frozen<place>"}
    assert {name: str(kind) for name, kind in found.fields("deleted_elements").items()} == {
        "v": "frozen<set<smallint>>"
    }
    # It survives Spark's own serialisation.
    assert layout(sql.StructType.fromJson(json.loads(frame().json()))) == found


@pytest.mark.parametrize("lost", [["op"], ["after", "ts"], ["operation", "read_ts"]])
def test_lost_columns_are_named(lost: list[str]) -> None:
    with pytest.raises(PenstockError, match=rf"has lost the columns {', '.join(lost)} \(changes of shop.orders\)"):
        layout(without(frame(), *lost))


def test_a_column_that_the_table_cannot_have_is_not_missed() -> None:
    # Without a clustering key there is no range, without collections there are no removed elements.
    with pytest.raises(PenstockError, match="has lost the columns written, delta, deleted_elements "):
        layout(frame(), ("written", "delta", "deleted_elements"))
    assert layout(frame(delta=sql.StructType()), ("delta", "range"))


def test_another_frame_is_refused() -> None:
    assert is_change_frame(frame()) and not is_change_frame(without(frame(), "key"))
    with pytest.raises(PenstockError, match=r"does not hold changes of a table \(columns op, before"):
        layout(without(frame(), "key"))
    with pytest.raises(PenstockError, match="does not hold changes of a table"):
        layout(sql.StructType().add("key", sql.StringType()))
