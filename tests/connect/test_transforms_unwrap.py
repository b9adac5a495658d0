"""Debezium's and ScyllaDB's transforms: rows instead of events, and tables that share a topic."""

from __future__ import annotations

from typing import Any

import pytest
from change_frames import INSERT, PARTITION_DELETE, RANGE_DELETE, ROW_DELETE, UPDATE, Table
from pyspark.sql import SparkSession
from smt_chains import DEBEZIUM, EXTRACT, KAFKA, SCYLLA, Sent, config_of, sent

from penstock.errors import PenstockError

USERS = Table({"id": "int", "name": "text"}, ["id"], name="shop.users")
ORDERS = Table({"id": "int", "at": "int", "name": "text"}, ["id"], ["at"])
CHANGES = [
    {"kind": INSERT, "key": (1,), "after": (1, "a")},
    {"kind": UPDATE, "key": (1,), "before": (1, "a"), "after": (1, "b")},
    {"kind": PARTITION_DELETE, "key": (1,), "before": (1, "b")},
    {"kind": PARTITION_DELETE, "key": (2,)},
]
A, B, GONE = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}, {"id": 2, "name": None}


def unwrapped(spark: SparkSession, **options: str) -> list[Sent]:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return sent(spark, USERS, CHANGES, config_of(EXTRACT | named))


def marked(row: dict[str, Any], deleted: str) -> dict[str, Any]:
    return row | {"__deleted": deleted}


LIVE = [marked(A, "false"), marked(B, "false")]
KEYS = {2: [1, 1], 4: [1, 1, 1, 2], 6: [1, 1, 1, 1, 2, 2]}
DEAD = [marked(B, "true"), marked(GONE, "true")]


@pytest.mark.slow_after(3)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [A, B]),
        ({"drop_tombstones": "false"}, [A, B, None, None]),
        ({"delete_handling_mode": "none"}, [A, B, None, None]),
        ({"delete_handling_mode": "rewrite"}, [*LIVE, *DEAD]),
        ({"delete_tombstone_handling_mode": "drop"}, [A, B]),
        ({"delete_tombstone_handling_mode": "tombstone"}, [A, B, None, None]),
        ({"delete_tombstone_handling_mode": "rewrite-with-tombstone"}, [*LIVE, DEAD[0], None, DEAD[1], None]),
    ],
)
def test_deletes_go_as_the_mode_says(spark: SparkSession, options: dict[str, str], expected: list[Any]) -> None:
    records = unwrapped(spark, **options)
    assert [record.value for record in records] == expected
    assert [record.key["id"] for record in records] == KEYS[len(expected)]
    live = records[0].value_schema
    assert live and (live["name"], live["optional"]) == ("p.shop.users.After", False)


@pytest.mark.slow
def test_members_of_the_event_are_added_to_rows_and_headers(spark: SparkSession) -> None:
    records = unwrapped(
        spark,
        delete_tombstone_handling_mode="rewrite-with-tombstone",
        add_fields="op,source.db,table_name:table,transaction.id,snapshot,nothing",
        add_headers="op,ts_ms:read,sequence",
        add_headers_prefix="h.",
    )
    added = {"__op": "c", "__source_db": "shop", "__table": "users", "__transaction_id": None, "__snapshot": "false"}
    assert records[0].value == LIVE[0] | added
    assert records[2].value == DEAD[0] | added | {"__op": "d"}
    assert records[0].headers == [("h.op", "c"), ("h.read", "1709208001200"), ("h.sequence", None)]
    assert records[3].headers == [("h.op", "d")]
    schema = records[0].value_schema
    assert schema and schema["fields"][-1] == {
        "type": "string",
        "optional": True,
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": "true,last,false,incremental"},
        "field": "__snapshot",
    }


def test_rows_are_routed_by_a_text_column(spark: SparkSession) -> None:
    records = unwrapped(spark, route_by_field="name", delete_handling_mode="rewrite")
    assert [record.topic for record in records] == ["a", "b", "b", "p.shop.users"]
    for column in ("id", "nothing"):
        with pytest.raises(PenstockError, match=f"no string column '{column}'"):
            unwrapped(spark, route_by_field=column)
    with pytest.raises(PenstockError, match=r"an event has no field 'change'.*add\.fields"):
        unwrapped(spark, add_fields="change.ttl")


WITHOUT = {"type": f"{KAFKA}InsertHeader", "header": "without", "value.literal": '["name", "zz"]'}
DROP = EXTRACT | {"drop.fields.header.name": "without", "delete.tombstone.handling.mode": "rewrite-with-tombstone"}


def test_a_header_lists_fields_to_drop(spark: SparkSession) -> None:
    records = sent(spark, USERS, CHANGES, config_of(WITHOUT, DROP | {"add.fields": "op", "route.by.field": "name"}))
    left = [{"id": 1, "__deleted": "false"}, {"id": 1, "__deleted": "true"}, {"id": 2, "__deleted": "true"}]
    expected = [left[0] | {"__op": "c"}, left[0] | {"__op": "u"}, left[1] | {"__op": "d"}, None]
    assert [record.value for record in records] == [*expected, left[2] | {"__op": "d"}, None]
    assert [record.topic for record in records[:3]] == ["a", "b", "b"]
    assert all(record.types == {"id": "int32", "__deleted": "string", "__op": "string"} for record in records[:3])
    assert [record.headers for record in records[:1]] == [[("without", '["name","zz"]')]]


def test_what_a_header_lists_is_known_before_the_first_record(spark: SparkSession) -> None:
    table = Table({"id": "int", "tags": "frozen<list<text>>"}, ["id"])
    changes = [{"kind": INSERT, "key": (1,), "after": (1, ["id"])}]
    of_field = {"type": f"{KAFKA}HeaderFrom$Value", "fields": "op", "headers": "without", "operation": "copy"}
    own = DROP | {"drop.fields.header.name": "__after_tags", "add.headers": "after.tags"}
    for steps in ([of_field, DROP], [own]):
        with pytest.raises(PenstockError, match=r"each record would lose other fields.*insert the header with Ins"):
            sent(spark, table, changes, config_of(*steps))
    # The first header of the name counts, and one that is dropped does not.
    for steps in ([WITHOUT, of_field, DROP], [of_field, {"type": f"{KAFKA}DropHeaders", "headers": "without"}, DROP]):
        (record,) = sent(spark, table, changes, config_of(*steps))
        assert record.value == {"id": 1, "tags": ["id"], "__deleted": "false"}


def test_deleted_ranges_and_events_without_images_have_no_row(spark: SparkSession) -> None:
    changes: list[dict[str, Any]] = [
        {"kind": RANGE_DELETE, "key": (1, None), "range": ((3,), True, (9,), False)},
        {"kind": UPDATE, "key": (1, 2)},
        {"kind": ROW_DELETE, "key": (1, 2)},
    ]
    rewrite = EXTRACT | {"delete.tombstone.handling.mode": "rewrite"}
    (record,) = sent(spark, ORDERS, changes, config_of(rewrite))
    assert record.value == {"at": 2, "id": 1, "name": None, "__deleted": "true"}
    # The key may be only in the payload; without it there is only the mark.
    for places, expected in ((["payload-key", "payload-before"], 2), (["kafka-key"], None)):
        (record,) = sent(spark, ORDERS, changes, config_of(rewrite), placement=places)
        assert record.value.get("at") == expected and record.value["__deleted"] == "true"


LEGACY: list[dict[str, Any]] = [
    {"kind": INSERT, "key": (1,), "after": (1, "a"), "delta": ("a",)},
    {"kind": PARTITION_DELETE, "key": (1,)},
]


@pytest.mark.slow
def test_scylla_s_transform_opens_cells(spark: SparkSession) -> None:
    step = {"type": f"{SCYLLA}ScyllaExtractNewRecordState", "delete.handling.mode": "rewrite"}
    records = sent(spark, USERS, LEGACY, config_of(step), format="legacy")
    assert [record.value for record in records] == [marked(A, "false"), marked({"id": 1, "name": None}, "true")]
    assert records[0].types == {"id": "int32", "name": "string", "__deleted": "string"}
    (closed,) = sent(spark, USERS, LEGACY, config_of(EXTRACT), format="legacy")
    assert closed.value == {"id": 1, "name": {"value": "a"}}


def test_flattened_columns_stay_in_their_event(spark: SparkSession) -> None:
    step = {"type": f"{SCYLLA}ScyllaFlattenColumns"}
    insert, delete, tombstone = sent(spark, USERS, LEGACY, config_of(step), format="legacy")
    assert (insert.value["after"], insert.value["before"], insert.value["op"]) == (A, None, "c")
    assert (delete.value["before"], tombstone.value) == ({"id": 1, "name": None}, None)
    assert insert.value_schema and insert.value_schema["name"] == "p.shop.users.Envelope"


def test_tables_share_a_topic_with_keys_that_tell_them_apart(spark: SparkSession) -> None:
    router = {
        "type": f"{DEBEZIUM}ByLogicalTableRouter",
        "topic.regex": r"p\.(\w+)\.(.*)",
        "topic.replacement": "all.$1",
    }
    named = {"key.field.name": "table", "key.field.regex": r"p\.(.*)", "key.field.replacement": "$1"}
    insert, *_, tombstone = sent(spark, USERS, CHANGES, config_of(router | named))
    assert (insert.topic, insert.key, tombstone.key) == (
        "all.shop",
        {"id": 1, "table": "shop.users"},
        {"id": 2, "table": "shop.users"},
    )
    assert insert.key_schema and insert.value_schema and insert.key_schema["name"] == "all.shop.Key"
    assert insert.value_schema["name"] == "all.shop.Envelope"
    assert {insert.types["before"], insert.types["after"]} == {"all.shop.Value"}
    plain = router | {"key.enforce.uniqueness": "false"}
    row, *_ = sent(spark, USERS, CHANGES, config_of(plain, EXTRACT))
    assert (row.key, row.value) == ({"id": 1}, A)
    with pytest.raises(PenstockError, match="schemas are named after the topic"):
        sent(spark, USERS, CHANGES, config_of({"type": f"{KAFKA}TimestampRouter"}, router))
