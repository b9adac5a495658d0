"""The connector's older format: cells, scalars only, what the statement wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest
from change_frames import AT, INSERT, PARTITION_DELETE, RANGE_DELETE, ROW_DELETE, UPDATE, Table
from event_records import assert_fits, events, optional, struct, values
from pyspark.sql import SparkSession

from penstock import cdc
from penstock.errors import PenstockError

COLUMNS = {
    "z": "int",
    "ck": "frozen<tuple<int, text>>",
    "a": "date",
    "at": "timestamp",
    "l": "list<int>",
    "u": "frozen<u>",
    "v": "text",
}
ROWS = Table(COLUMNS, ["z"], ["ck", "a"], {"u": {"x": "int"}})
KEY = (1, (2, "c"), AT.date())
ALL_KEYS = {"a": 19782, "z": 1}
READ_MILLIS = 1709208001200

Changes = list[dict[str, Any]]


def legacy(spark: SparkSession, changes: Changes, table: Table = ROWS, **options: Any) -> list[Any]:
    return values(events(spark, table, changes, format="legacy", **options))


def cells(at: Any, v: Any) -> dict[str, Any]:
    return {"a": 19782, "at": at, "v": v, "z": 1}


def test_a_write_shows_its_own_columns_as_cells(spark: SparkSession) -> None:
    changes: Changes = [
        {"kind": INSERT, "key": KEY, "delta": (AT, None, None, "x")},
        {"kind": UPDATE, "key": KEY, "delta": (None, None, None, None), "deleted": ["v"], "written": ["v"]},
        {"kind": UPDATE, "key": KEY, "delta": (None, {"id": 1}, None, None), "deleted": ["l"], "written": ["l"]},
    ]
    found = legacy(spark, changes)
    assert [(value["op"], value["before"], value["after"]) for value in found] == [
        ("c", None, cells({"value": 1709208000123}, {"value": "x"})),
        ("u", None, cells(None, {"value": None})),
        ("u", None, cells(None, None)),
    ]
    assert list(found[0]) == ["source", "before", "after", "op", "ts_ms", "transaction", "ts_us", "ts_ns"]


def test_the_key_is_its_scalar_columns_by_name(spark: SparkSession) -> None:
    (row,) = events(spark, ROWS, [{"kind": INSERT, "key": KEY}], format="legacy")
    assert row.key == '{"a":19782,"z":1}'
    nested = Table({"k": "frozen<list<int>>"}, ["k"])
    delete, tombstone = events(spark, nested, [{"kind": PARTITION_DELETE, "key": ([1],)}], format="legacy")
    assert (delete.key, json.loads(delete.value)["before"], tombstone.key) == ("{}", {}, "{}")


def test_a_delete_shows_the_key_or_the_preimage_and_has_a_tombstone(spark: SparkSession) -> None:
    old = (AT.date(), AT, (2, "c"), [1], (1,), "x", 1)
    changes: Changes = [{"kind": ROW_DELETE, "key": KEY}, {"kind": ROW_DELETE, "key": KEY, "before": old}]
    unknown, _, known, tombstone = legacy(spark, changes)
    assert (unknown["before"], unknown["after"]) == (cells(None, None), None)
    assert (known["before"], known["after"]) == (cells({"value": 1709208000123}, {"value": "x"}), None)
    assert tombstone is None
    assert len(legacy(spark, changes, tombstones=False)) == 2


def test_a_preimage_stands_in_before(spark: SparkSession) -> None:
    old = (AT.date(), AT, (2, "c"), [1], (1,), None, 1)
    change: dict[str, Any] = {"key": KEY, "before": old, "delta": (None, None, None, None), "deleted": ["v"]}
    for value in legacy(spark, [{"kind": INSERT, **change}, {"kind": UPDATE, **change}]):
        # A column that the statement set to null has a cell, even if it was null before.
        assert value["before"] == cells({"value": 1709208000123}, {"value": None})
        assert value["after"] == cells(None, {"value": None})


def test_the_finer_clocks_are_set_but_for_writes_with_a_preimage(spark: SparkSession) -> None:
    old = (AT.date(), AT, (2, "c"), [1], (1,), "x", 1)
    changes: Changes = [
        {"kind": UPDATE, "key": KEY, "before": old},
        {"kind": UPDATE, "key": KEY},
        {"kind": ROW_DELETE, "key": KEY, "before": old},
    ]
    found = [(value["ts_ms"], value["ts_us"], value["ts_ns"]) for value in legacy(spark, changes, tombstones=False)]
    finer = (READ_MILLIS, READ_MILLIS * 1000 + 456, READ_MILLIS * 1_000_000 + 456_000)
    assert found == [(READ_MILLIS, None, None), finer, finer]


def test_schemas_have_cells_and_no_collections(spark: SparkSession) -> None:
    old = (AT.date(), AT, (2, "c"), [1], (1,), "x", 1)
    changes: Changes = [
        {"kind": UPDATE, "key": KEY, "before": old, "delta": (None, None, None, "y")},
        {"kind": RANGE_DELETE, "key": (1, None, None), "range": (((2, "c"), None), True, (None, None), True)},
    ]
    rows = events(spark, ROWS, changes, format="legacy", schemas=True, prefix="my-app")
    for text in [text for row in rows for text in (row.key, row.value)]:
        message = json.loads(text)
        assert_fits(message["payload"], message["schema"])
    members = {member["field"]: member for member in json.loads(rows[0].value)["schema"]["fields"]}
    date = {"type": "int32", "optional": True, "name": "org.apache.kafka.connect.data.Date", "version": 1}
    at = {"type": "int64", "optional": True, "name": "org.apache.kafka.connect.data.Timestamp", "version": 1}
    base = "my_app.shop.orders."
    columns = {
        "a": date,
        "at": struct(f"{base}at.Cell", True, value=at),
        "v": struct(f"{base}v.Cell", True, value=optional("string")),
        "z": optional("int32"),
    }
    for side in ("Before", "After"):
        assert members[side.lower()] == struct(f"{base}{side}", True, **columns) | {"field": side.lower()}
    assert json.loads(rows[0].key)["schema"] == struct(f"{base}Key", False, a=date, z=optional("int32"))
    assert json.loads(rows[1].value)["payload"]["range"]["start"] == {"ck": {"field_0": 2, "field_1": "c"}, "a": None}


@pytest.mark.parametrize(
    ("choice", "named"),
    [
        ({"images": "only-updated"}, "images"),
        ({"placement": ["kafka-key"], "payload_key_name": "pk"}, "placement, payload_key_name"),
    ],
)
def test_choices_that_this_format_lacks_are_refused(spark: SparkSession, choice: dict[str, Any], named: str) -> None:
    with pytest.raises(PenstockError, match=rf"legacy format does not support {named} \(cdc.events\).*advanced"):
        cdc.events(ROWS.frame(spark, []), prefix="p", format="legacy", **choice)


def test_an_unknown_format_and_a_frame_without_the_statement_are_refused(spark: SparkSession) -> None:
    frame = ROWS.frame(spark, [])
    with pytest.raises(PenstockError, match=r"unknown format 'Legacy' .*use 'advanced' or 'legacy'"):
        cdc.events(frame, prefix="p", format="Legacy")  # type: ignore[arg-type]
    with pytest.raises(PenstockError, match=r"has lost the columns delta, deleted"):
        cdc.events(frame.drop("delta", "deleted"), prefix="p", format="legacy")
