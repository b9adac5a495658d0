"""Names that differ only in case, which CQL distinguishes and Spark by default does not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from change_frames import INSERT, RANGE_DELETE, UPDATE, Table
from event_records import events, values
from pyspark.sql import SparkSession, functions as F

from penstock import cdc
from penstock.codec.connect_schema import SETTING, require_told_apart
from penstock.errors import PenstockError

TABLE = Table(
    {"id": "int", "Id": "int", "c": "date", "C": "date", "v": "text", "V": "text", "U": "frozen<pair>", "u": "pair"},
    ["Id", "id"],
    ["c", "C"],
    udts={"pair": {"A": "int", "a": "date"}},
)
KEY = (1, 2, None, None)
# In byte order of the names: C, Id, U, V, c, id, u, v.
NEW = (None, 1, (10, None), "B", None, 2, (11, None), "b")
DELTA = ((10, None), "B", (11, None), "b")
ROWS: list[dict[str, Any]] = [
    {"kind": INSERT, "key": KEY, "after": NEW, "delta": DELTA, "written": ["U", "V", "u", "v"]},
    {"kind": UPDATE, "key": KEY, "before": NEW, "after": NEW, "delta": (None, "B", None, None), "written": ["V"]},
    {"kind": RANGE_DELETE, "key": KEY, "range": (None, True, None, True)},
]
ROW = {
    "Id": 1, "id": 2, "C": None, "c": None, "U": {"A": 10, "a": None}, "u": {"A": 11, "a": None}, "V": "B", "v": "b"
}  # fmt: skip


def test_each_column_and_field_has_its_own_value(spark: SparkSession) -> None:
    rows = events(spark, TABLE, ROWS, placement=["kafka-key", "kafka-headers", "payload-before", "payload-after"])
    insert, update, ranged = values(rows)
    assert (insert["after"], update["before"], update["after"]) == (ROW, ROW, ROW)
    assert ranged["range"]["start"] is None
    assert [(header.key, bytes(header.value)) for header in rows[0].headers] == [("pk.Id", b"1"), ("pk.id", b"2")]


@pytest.mark.slow
def test_an_update_shows_the_column_that_it_touched(spark: SparkSession) -> None:
    (update,) = values(events(spark, TABLE, ROWS[1:2], images="only-updated"))
    assert update["after"] == ROW | {"U": None, "u": None, "v": None}


def test_cells_have_their_own_value(spark: SparkSession) -> None:
    (update,) = values(events(spark, TABLE, ROWS[1:2], format="legacy"))
    cells = {name: value for name, value in update["after"].items() if name in "vV"}
    assert cells == {"V": {"value": "B"}, "v": None}


@pytest.mark.slow
def test_what_a_statement_wrote_has_its_own_value(spark: SparkSession) -> None:
    place = {name: F.lit(None) for name in ("ttl", "batch_seq_no", "end_of_batch")}
    place |= {"time": F.lit("t"), "stream_id": F.lit(b"s")}
    removed = F.lit(None).cast("struct<u:array<smallint>>")
    frame = TABLE.frame(spark, ROWS[:1]).withColumns(place | {"deleted_elements": removed})
    (insert,) = values(cdc.events(frame, prefix="p", format="extended").collect())
    assert insert["change"]["values"] == {name: ROW[name] for name in "UVuv"}


@pytest.fixture
def case_sensitive(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(SETTING, "true")
    yield
    spark.conf.unset(SETTING)


FIELDS = [{"type": "string", "optional": True, "field": name} for name in ("v", "V")]
SCHEMA = {"type": "struct", "name": "Row", "optional": False, "fields": FIELDS}
NESTED = {"type": "struct", "optional": False, "fields": [{"type": "array", "items": SCHEMA, "field": "rows"}]}


@pytest.mark.parametrize("schema", [SCHEMA, NESTED])
def test_formats_that_ask_for_names_say_what_to_set(spark: SparkSession, schema: dict[str, Any]) -> None:
    with pytest.raises(PenstockError, match=rf"fields v and V, which.*\(Row\).*{SETTING}"):
        require_told_apart(schema)


@pytest.mark.usefixtures("case_sensitive")
def test_a_session_that_tells_names_apart_sends_them(spark: SparkSession) -> None:
    require_told_apart(NESTED)
    assert values(events(spark, TABLE, ROWS[:1]))[0]["after"] == ROW
