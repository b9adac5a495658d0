"""ExtractNewRecordState and ByLogicalTableRouter with options of all kinds, on events with odd rows."""

from __future__ import annotations

from typing import Any

import pytest
from change_frames import INSERT, PARTITION_DELETE, ROW_DELETE, SNAPSHOT, UPDATE, Table
from pyspark.sql import SparkSession
from smt_chains import DEBEZIUM, EXTRACT, KAFKA, SCYLLA, TOMBSTONE, Sent, config_of, sent

USERS = Table({"id": "int", "name": "text"}, ["id"], name="shop.users")
ORDERS = Table({"id": "int", "at": "int", "name": "text"}, ["id"], ["at"])
CHANGES: list[dict[str, Any]] = [
    {"kind": INSERT, "key": (1,), "after": (1, "a")},
    {"kind": SNAPSHOT, "key": (2,), "after": (2, "b")},
    {"kind": UPDATE, "key": (3,), "before": (3, "a"), "after": (3, None)},
    {"kind": PARTITION_DELETE, "key": (4,), "before": (4, "d")},
]
ROUTER = {"type": f"{DEBEZIUM}ByLogicalTableRouter", "topic.regex": r"p\.(\w+)\.(.*)", "topic.replacement": "all.$1"}


def values(records: list[Sent]) -> list[Any]:
    return [record.value for record in records]


def test_the_newer_option_counts_and_modes_are_read_in_any_case(spark: SparkSession) -> None:
    options = {
        "delete.tombstone.handling.mode": "Rewrite-With-TOMBSTONE",
        "delete.handling.mode": "DROP",
        "drop.tombstones": "true",
        "add.fields": "op:operation,after.name:new,before.none",
        "add.fields.prefix": "",
        "add.headers": "op,source.keyspace_name",
        "drop.fields.header.name": "no-such-header",
    }
    records = sent(spark, USERS, CHANGES, config_of(EXTRACT | options))
    assert values(records) == [
        {"id": 1, "name": "a", "__deleted": "false", "operation": "c", "new": "a"},
        {"id": 2, "name": "b", "__deleted": "false", "operation": "r", "new": "b"},
        {"id": 3, "name": None, "__deleted": "false", "operation": "u", "new": None},
        {"id": 4, "name": "d", "__deleted": "true", "operation": "d", "new": None},
        None,
    ]
    rows = [("c", "shop"), ("r", "shop"), ("u", "shop"), ("d", "shop")]
    assert [record.headers for record in records[:4]] == [
        [("__op", op), ("__source_keyspace_name", keyspace)] for op, keyspace in rows
    ]
    # A tombstone has no event, so only its operation is known.
    assert records[4].headers == [("__op", "d")]


def test_a_predicate_keeps_events_of_some_records_beside_rows_of_others(spark: SparkSession) -> None:
    unwrap = EXTRACT | {"delete.tombstone.handling.mode": "rewrite", "predicate": "marked"}
    mark = {"type": f"{KAFKA}HeaderFrom$Value", "fields": "op", "headers": "none", "operation": "copy"}
    records = sent(
        spark,
        USERS,
        CHANGES,
        config_of(
            {"type": f"{KAFKA}InsertHeader", "header": "h", "value.literal": "x", "predicate": "gone"},
            mark | {"predicate": "gone", "negate": "true"},
            unwrap,
            gone=TOMBSTONE,
            marked={"type": f"{KAFKA}predicates.HasHeaderKey", "name": "none"},
        ),
    )
    assert [record.value and record.value.get("__deleted") for record in records] == ["false"] * 3 + ["true", None]
    assert records[-1].headers == [("h", "x")] and records[-1].key == {"id": 4}


def test_rows_of_tables_with_clustering_columns_keep_their_keys(spark: SparkSession) -> None:
    changes: list[dict[str, Any]] = [
        {"kind": ROW_DELETE, "key": (1, 2)},
        {"kind": ROW_DELETE, "key": (1, 3), "before": (3, 1, "x")},
        # A delete of a partition has no row, and is dropped with its range.
        {"kind": PARTITION_DELETE, "key": (1, None)},
        {"kind": INSERT, "key": (1, 4), "after": (4, 1, None)},
    ]
    mode = {"delete.tombstone.handling.mode": "rewrite"}
    records = sent(spark, ORDERS, changes, config_of(EXTRACT | mode))
    assert values(records) == [
        {"at": 2, "id": 1, "name": None, "__deleted": "true"},
        {"at": 3, "id": 1, "name": "x", "__deleted": "true"},
        {"at": 4, "id": 1, "name": None, "__deleted": "false"},
    ]
    assert [record.key for record in records] == [{"id": 1, "at": at} for at in (2, 3, 4)]


def test_records_that_are_not_events_pass_unchanged(spark: SparkSession) -> None:
    twice = (EXTRACT, EXTRACT | {"delete.tombstone.handling.mode": "drop"}, {"type": f"{SCYLLA}ScyllaFlattenColumns"})
    assert values(sent(spark, USERS, CHANGES, config_of(*twice))) == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
        {"id": 3, "name": None},
    ]


LEGACY: list[dict[str, Any]] = [
    {"kind": INSERT, "key": (1,), "after": (1, "a"), "delta": ("a",), "written": ["name"]},
    {"kind": UPDATE, "key": (2,), "after": (2, None), "delta": (None,), "written": ["name"]},
]


@pytest.mark.parametrize(("form", "cells"), [("legacy", False), ("LEGACY", False), ("Advanced", True)])
def test_cells_are_opened_unless_the_format_is_the_advanced_one(spark: SparkSession, form: str, cells: bool) -> None:
    step = {"type": f"{SCYLLA}ScyllaExtractNewRecordState", "cdc.output.format": form}
    (first, _) = sent(spark, USERS, LEGACY, config_of(step), format="legacy")
    assert first.value == {"id": 1, "name": {"value": "a"} if cells else "a"}


def test_tables_that_do_not_match_stay_in_their_topics(spark: SparkSession) -> None:
    other = ROUTER | {"topic.regex": "q.*", "topic.replacement": "none"}
    empty = ROUTER | {"topic.regex": r"p.*", "topic.replacement": ""}
    records = sent(spark, USERS, CHANGES[:1], config_of(other, empty))
    assert (records[0].topic, records[0].key) == ("p.shop.users", {"id": 1})
    assert records[0].value_schema and records[0].value_schema["name"] == "p.shop.users.Envelope"


def test_a_shared_topic_has_names_for_avro_and_the_old_topic_as_the_table(spark: SparkSession) -> None:
    router = ROUTER | {
        "topic.replacement": "9-all.$1",
        "schema.name.adjustment.mode": "AVRO",
        # The expression does not match the whole topic, so the identifier is the topic.
        "key.field.regex": "shop",
        "key.field.replacement": "x",
        "logical.table.cache.size": "1",
    }
    insert, *_, tombstone = sent(spark, USERS, CHANGES, config_of(router))
    assert {insert.topic, tombstone.topic} == {"9-all.shop"}
    assert tombstone.key == {"id": 4, "__dbz__physicalTableIdentifier": "p.shop.users"}
    assert insert.key_schema and insert.key_schema["name"] == "_9_all.shop.Key"
    assert insert.types["after"] == "_9_all.shop.Value"
    assert insert.value_schema and insert.value_schema["name"] == "_9_all.shop.Envelope"
    assert [field["optional"] for field in insert.key_schema["fields"]] == [True, False]
