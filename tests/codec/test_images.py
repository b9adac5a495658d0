"""The columns of the images in events: none, all, or only the columns that an update touched."""

from __future__ import annotations

from typing import Any

import pytest
from change_frames import AT, INSERT, ROW_DELETE, SNAPSHOT, UPDATE, Table
from event_records import events, values
from pyspark.sql import SparkSession

from penstock import cdc
from penstock.errors import PenstockError

ROWS = Table({"id": "int", "at": "timestamp", "name": "text", "tags": "set<text>"}, ["id"])
MILLIS = 1709208000123
OLD, NEW = (AT, 1, "a", ["x"]), (None, 1, "b", ["x", "y"])
CHANGES: list[dict[str, Any]] = [
    {"kind": INSERT, "key": (1,), "before": OLD, "after": NEW, "written": ["name"]},
    {"kind": UPDATE, "key": (1,), "before": OLD, "after": NEW, "written": ["at", "name"]},
    {"kind": UPDATE, "key": (1,), "before": OLD, "after": NEW, "written": []},
    {"kind": UPDATE, "key": (1,), "after": NEW, "written": ["tags"]},
    {"kind": ROW_DELETE, "key": (1,), "before": OLD},
]


def row(at: int | None, name: str | None, tags: list[str] | None) -> dict[str, Any]:
    return {"at": at, "id": 1, "name": name, "tags": tags}


def images(spark: SparkSession, **options: Any) -> list[tuple[Any, Any]]:
    rows = events(spark, ROWS, CHANGES, tombstones=False, **options)
    return [(value["before"], value["after"]) for value in values(rows)]


def test_only_updated_leaves_updates_the_columns_they_touched(spark: SparkSession) -> None:
    assert images(spark, images="only-updated") == [
        (row(MILLIS, "a", ["x"]), row(None, "b", ["x", "y"])),
        (row(MILLIS, "a", None), row(None, "b", None)),
        (row(None, None, None), row(None, None, None)),
        (None, row(None, None, ["x", "y"])),
        (row(MILLIS, "a", ["x"]), None),
    ]


def test_each_side_has_its_own_mode(spark: SparkSession) -> None:
    before, after = row(MILLIS, "a", ["x"]), row(None, "b", ["x", "y"])
    assert images(spark, images=("none", "full"))[1] == (None, after)
    assert images(spark, images=("full", "none"))[1] == (before, None)
    assert images(spark, images=("full", "only-updated"))[2] == (before, row(None, None, None))


def test_without_the_key_in_images_only_touched_columns_are_left(spark: SparkSession) -> None:
    without_key = {"at": None, "name": None, "tags": None}
    assert images(spark, images="only-updated", placement=["kafka-key"])[2] == (without_key, without_key)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("mode", ["none", "full", "only-updated"])
def test_a_row_of_a_snapshot_is_whole_in_every_mode(spark: SparkSession, mode: str) -> None:
    rows = [{"kind": SNAPSHOT, "key": (1,), "after": NEW, "written": []}, CHANGES[0]]
    read, inserted = values(events(spark, ROWS, rows, images=mode))
    assert (read["op"], read["source"]["snapshot"], read["before"]) == ("r", "true", None)
    assert read["after"] == row(None, "b", ["x", "y"])
    assert inserted["source"]["snapshot"] == "false"
    assert (inserted["after"] is None) == (mode == "none")


def test_an_unknown_mode_and_a_frame_without_touched_columns_are_refused(spark: SparkSession) -> None:
    frame = ROWS.frame(spark, [])
    with pytest.raises(PenstockError, match=r"unknown images 'updated'.*use 'none' or 'full' or 'only-updated'"):
        cdc.events(frame, prefix="p", images=("full", "updated"))  # type: ignore[arg-type]
    with pytest.raises(PenstockError, match=r"the argument images is a tuple of 1 element .*a tuple of 2 elements"):
        cdc.events(frame, prefix="p", images=("full",))  # type: ignore[arg-type]
    cdc.events(frame.drop("written"), prefix="p", images="full")
    with pytest.raises(PenstockError, match=r"has lost the columns written \(changes of shop.orders\)"):
        cdc.events(frame.drop("written"), prefix="p", images="only-updated")
