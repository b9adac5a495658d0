"""Events and their schemas, member by member, from change frames that the tests build."""

from __future__ import annotations

import datetime as dt
import json
import re

import pytest
from change_frames import AT, INSERT, PARTITION_DELETE, RANGE_DELETE, ROW_DELETE, UPDATE, Table
from event_records import assert_fits, events, optional, struct, values
from hypothesis import Phase, example, given, settings, strategies as some
from pyspark.sql import SparkSession, functions as F

import penstock
from penstock import cdc
from penstock.codec.avro import adjusted as avro_adjusted, avro_schema
from penstock.codec.connect_schema import avro_name, column_schema
from penstock.database.cql_types import CqlType
from penstock.errors import PenstockError

USERS = Table({"id": "int", "name": "text"}, ["id"], name="shop.users")
ORDERS = Table({"z": "int", "b": "int", "a": "int", "v": "text"}, ["z", "b"], ["a"])


def test_an_event_is_the_connectors_byte_for_byte(spark: SparkSession) -> None:
    (row,) = events(spark, USERS, [{"kind": UPDATE, "key": (1,), "before": (1, "a"), "after": (1, None)}])
    assert (row.topic, row.key) == ("p.shop.users", '{"id":1}')
    assert row.value == (
        f'{{"source":{{"version":"{penstock.__version__}","connector":"scylla","name":"p","ts_ms":1709208000123,'
        '"snapshot":"false","db":"shop","sequence":null,"ts_us":1709208000123456,"ts_ns":1709208000123000000,'
        '"keyspace_name":"shop","table_name":"users"},"before":{"id":1,"name":"a"},"after":{"id":1,"name":null},'
        '"op":"u","ts_ms":1709208001200,"transaction":null,"ts_us":null,"ts_ns":null}'
    )


def test_the_key_is_partition_columns_then_clustering_columns_each_by_name(spark: SparkSession) -> None:
    (row,) = events(spark, ORDERS, [{"kind": INSERT, "key": (1, 2, 3)}])
    assert row.key == '{"b":2,"z":1,"a":3}'


@pytest.mark.slow
@given(some.lists(some.text(some.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=30))
@settings(max_examples=5, phases=[Phase.generate])
@example(["\U0001f600", 'a\U0001f600\U0010ffff\uffff"\\é\n\U00010000', "\ufffd", "\\ud83d", "\u2028\x7f\x1f"])
def test_characters_beyond_16_bits_are_escaped_in_keys_as_jackson_does(spark: SparkSession, texts: list[str]) -> None:
    """Compaction and partitioning use a key's bytes, and the topic also holds records of the connector."""
    table = Table({"k": "text", "v": "int"}, ["k"])
    rows = events(spark, table, [{"kind": INSERT, "key": (text,)} for text in texts])
    assert [json.loads(row.key) for row in rows] == [{"k": text} for text in texts]
    beyond = re.compile("[\U00010000-\U0010ffff]")
    assert not any(beyond.search(row.key) for row in rows)
    # No other character is escaped: without these characters the key is what Spark writes.
    plain = [{"kind": INSERT, "key": (beyond.sub("", text),)} for text in texts]
    assert [re.sub(r"(?<!\\)\\uD[89AB]..\\uD[CDEF]..", "", row.key) for row in rows] == [
        row.key for row in events(spark, table, plain)
    ]


def test_a_tombstone_follows_its_delete(spark: SparkSession) -> None:
    changes = [{"kind": INSERT, "key": (1,)}, {"kind": PARTITION_DELETE, "key": (1,)}, {"kind": INSERT, "key": (1,)}]
    rows = events(spark, USERS, changes)
    assert [value and value["op"] for value in values(rows)] == ["c", "d", None, "c"]
    assert {row.key for row in rows} == {'{"id":1}'}
    without = events(spark, USERS, changes, tombstones=False)
    assert [value["op"] for value in values(without)] == ["c", "d", "c"]


def test_deleted_ranges_are_events_without_tombstones(spark: SparkSession) -> None:
    rows = events(
        spark,
        ORDERS,
        [
            {"kind": RANGE_DELETE, "key": (1, 2, None), "range": ((3,), False, (None,), True)},
            {"kind": RANGE_DELETE, "key": (1, 2, None), "range": ((3,), True, (9,), False)},
            {"kind": PARTITION_DELETE, "key": (1, 2, None)},
            {"kind": ROW_DELETE, "key": (1, 2, 3)},
        ],
    )
    assert [value and value.get("range") for value in values(rows)] == [
        {"start": {"a": 3}, "start_inclusive": False, "end": None, "end_inclusive": True},
        {"start": {"a": 3}, "start_inclusive": True, "end": {"a": 9}, "end_inclusive": False},
        {"start": None, "start_inclusive": True, "end": None, "end_inclusive": True},
        None,
        None,
    ]
    assert [row.key for row in rows[:3]] == ['{"b":2,"z":1,"a":null}'] * 3
    assert "range" not in values(rows)[3] and rows[4].value is None


def test_a_range_of_several_columns_names_their_order(spark: SparkSession) -> None:
    table = Table({"pk": "int", "day": "int", "seq": "int"}, ["pk"], ["day", "seq"], descending=["day"])
    changes: list[dict[str, object]] = [
        {"kind": RANGE_DELETE, "key": (1, None, None), "range": ((9, None), True, (3, 5), False)},
        {"kind": PARTITION_DELETE, "key": (1, None, None)},
    ]
    ranged, whole = (value["range"] for value in values(events(spark, table, changes)))
    assert ranged["order"] == whole["order"] == ["day DESC", "seq ASC"]
    assert (ranged["start"], ranged["end"]) == ({"day": 9, "seq": None}, {"day": 3, "seq": 5})


def test_the_primary_key_stands_where_it_is_placed(spark: SparkSession) -> None:
    change = {"kind": UPDATE, "key": (1,), "before": (1, "a"), "after": (1, "b")}
    (row,) = events(spark, USERS, [change], placement=["payload-key", "payload-diff"], payload_key_name="pk")
    (value,) = values([row])
    assert row.key is None
    assert (value["before"], value["after"], value["pk"]) == ({"name": "a"}, {"name": "b"}, {"id": 1})
    assert list(value) == ["source", "before", "after", "pk", "op", "ts_ms", "transaction", "ts_us", "ts_ns"]


def test_headers_hold_the_text_of_key_columns_also_on_the_tombstone(spark: SparkSession) -> None:
    columns = {"at": "timestamp", "b": "blob", "n": "double", "t": "frozen<tuple<int, text>>", "v": "int"}
    table = Table(columns, ["n"], ["at", "b", "t"])
    key = (0.5, AT, b"\x00", (1, "x"))
    delete, tombstone = events(spark, table, [{"kind": ROW_DELETE, "key": key}], placement=["kafka-headers"])
    assert [(header.key, bytes(header.value).decode()) for header in delete.headers] == [
        ("ck.at", "Thu Feb 29 12:00:00 UTC 2024"),
        ("ck.b", "AA=="),
        ("pk.n", "0.5"),
        ("ck.t", '{"field_0":1,"field_1":"x"}'),
    ]
    assert tombstone.headers == delete.headers
    early = dt.datetime(33, 4, 3, tzinfo=dt.UTC)
    first, _ = events(
        spark, table, [{"kind": ROW_DELETE, "key": (0.5, early, b"", (1, "x"))}], placement=["kafka-headers"]
    )
    assert bytes(first.headers[0].value).endswith(b" UTC 33")


def test_a_topic_may_be_a_name_or_a_column(spark: SparkSession) -> None:
    change = [{"kind": INSERT, "key": (1,)}]
    assert events(spark, USERS, change, topic="t")[0].topic == "t"
    assert events(spark, USERS, change, topic=F.concat(F.lit("t."), F.col("op")))[0].topic == "t.c"
    assert events(spark, USERS, change, prefix="a b")[0].topic == "a_b.shop.users"


def test_a_write_time_beyond_nanoseconds_has_none(spark: SparkSession) -> None:
    frame = USERS.frame(spark, [{"kind": INSERT, "key": (1,)}]).withColumn("ts", F.timestamp_micros(F.lit(10**16)))
    (value,) = values(cdc.events(frame, prefix="p").collect())
    assert (value["source"]["ts_us"], value["source"]["ts_ns"]) == (10**16, None)


WIDE = Table(
    {
        "k": "frozen<map<int, text>>",
        "c": "timeuuid",
        "m": "map<text, frozen<list<int>>>",
        "t": "frozen<tuple<date, frozen<u>>>",
        "u": "u",
        "s": "set<smallint>",
    },
    ["k"],
    ["c"],
    # More fields than Spark's metadata keeps in order.
    {"u": {"z": "int", "y": "blob", "x": "double", "w": "float", "v": "tinyint", "a": "timestamp"}},
)
WIDE_ROW = ("c", {1: "a"}, {"x": [1]}, [1], (None, (1, b"", 0.5, 0.5, 1, AT)), (1, b"", 0.5, 0.5, 1, AT))


def test_schemas_are_the_connectors(spark: SparkSession) -> None:
    change = {"kind": INSERT, "key": ({1: "a"}, "c"), "after": WIDE_ROW}
    (row,) = events(spark, WIDE, [change], schemas=True, prefix="my-app")
    key, value = json.loads(row.key), json.loads(row.value)
    # Structs inside key columns have no namespace, as in the connector.
    entry = struct("MapEntry_INT_VARCHAR", False, key=optional("int32"), value=optional("string"))
    column = {"type": "array", "items": entry, "optional": True}
    assert key["schema"] == struct("my_app.shop.orders.Key", False, k=column, c=optional("string"))
    assert key["payload"] == {"k": [{"key": 1, "value": "a"}], "c": "c"}
    envelope = value["schema"]
    assert (envelope["name"], envelope["optional"]) == ("my_app.shop.orders.Envelope", False)
    members = {member["field"]: member for member in envelope["fields"]}
    assert [members[name]["name"] for name in ("before", "after")] == [
        "my_app.shop.orders.Before",
        "my_app.shop.orders.After",
    ]
    assert value["payload"] == values(events(spark, WIDE, [change], prefix="my-app"))[0] | {
        "ts_ms": value["payload"]["ts_ms"]
    }
    columns = {column["field"]: column for column in members["after"]["fields"]}
    base = "my_app.shop.orders."
    assert columns["m"]["items"]["name"] == f"{base}MapEntry_VARCHAR_List_INT"
    assert columns["t"]["name"] == f"{base}Tuple_DATE_UDT_u"
    assert columns["u"]["name"] == f"{base}UDT_u"
    assert [field["field"] for field in columns["u"]["fields"]] == ["z", "y", "x", "w", "v", "a"]
    assert columns["s"] == {"type": "array", "items": optional("int16"), "optional": True, "field": "s"}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "placement", [["kafka-key", "payload-key", "payload-after"], ["payload-before", "payload-after"]]
)
def test_every_payload_fits_its_schema(spark: SparkSession, placement: list[str]) -> None:
    rows = events(
        spark,
        WIDE,
        [
            {"kind": UPDATE, "key": ({1: "a"}, "c"), "before": WIDE_ROW, "after": WIDE_ROW},
            {"kind": RANGE_DELETE, "key": ({1: "a"}, None), "range": (("c",), True, (None,), True)},
        ],
        schemas=True,
        placement=placement,
    )
    for text in [text for row in rows for text in (row.key, row.value) if text]:
        message = json.loads(text)
        assert_fits(message["payload"], message["schema"])
    with_range = [any(f["field"] == "range" for f in json.loads(row.value)["schema"]["fields"]) for row in rows]
    assert with_range == [False, True]


def test_user_types_of_any_name_have_one_in_avro() -> None:
    kind = CqlType("udt", (CqlType("int"),), True, ("a",), "My type")
    made = avro_schema(avro_adjusted(column_schema(kind, "p.ks.t.")))
    assert made[1]["name"] == "UDT_My_type"


@pytest.mark.parametrize(
    ("name", "adjusted"),
    [("shop.ks.t", "shop.ks.t"), ("my-app.ks.t", "my_app.ks.t"), ("1a", "_1a"), ("-a", "_a"), ("é.t$", "_.t_")],
)
def test_schema_names_are_adjusted_as_debezium_does(name: str, adjusted: str) -> None:
    assert avro_name(name) == adjusted


def test_an_unknown_place_is_refused(spark: SparkSession) -> None:
    frame = USERS.frame(spark, [])
    with pytest.raises(PenstockError, match="unknown placement of the primary key: payload "):
        cdc.events(frame, prefix="p", placement=["kafka-key", "payload"])  # type: ignore[list-item]


def test_a_frame_stays_one_of_changes_until_it_loses_columns(spark: SparkSession) -> None:
    frame = USERS.frame(spark, [{"kind": INSERT, "key": (1,)}]).where("op = 'c'").withColumn("more", F.lit(1))
    assert len(cdc.events(frame, prefix="p").collect()) == 1
    with pytest.raises(PenstockError, match=r"has lost the columns after, ts \(changes of shop.users\)"):
        cdc.events(frame.drop("after", "ts"), prefix="p")
    with pytest.raises(PenstockError, match="does not hold changes of a table"):
        cdc.events(spark.range(1), prefix="p")
