"""What a table cannot take of a topic is a problem of its record, and differing schemas are an error."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as F

from penstock.cdc.cdc_tables import frame_schema
from penstock.codec.change_frame import layout
from penstock.codec.connect_schema import spark_type
from penstock.database.cql_types import Column, CqlTable, CqlType
from penstock.errors import PenstockError
from penstock.replicate.change_events import EventFormat, event_changes, event_schema
from penstock.replicate.event_checks import require_fit
from penstock.replicate.event_members import EventMembers

INT, TEXT = CqlType("int"), CqlType("text")
TABLE = CqlTable(
    "ks",
    "t",
    (
        Column("pk", INT, "partition_key", 0),
        Column("a", TEXT, "clustering", 0),
        Column("s", INT, "static"),
        Column("v", INT, "regular"),
    ),
)
SOURCE = {"ts_us": 1_700_000_000_000_000, "keyspace_name": "ks", "table_name": "t"}
RAW = "key binary, value binary, partition int, offset long, timestamp timestamp, headers string, topic string"
ROW = {"pk": 1, "a": "x"}


def event(op: str, key: dict[str, Any], touched: list[str] | None, **more: Any) -> dict[str, Any]:
    change = None if touched is None else {"touched": touched, "values": dict.fromkeys(touched, 5)}
    return {"source": SOURCE, "row_key": key, "op": op, "change": change, "times": {}, **more}


EVENTS: list[tuple[Any, str | None]] = [
    (event("u", ROW, ["v"]), None),
    (event("u", {"pk": 1, "a": None}, ["s"]), None),
    (event("d", ROW, []), None),
    (event("d", {"pk": 1}, [], range={"start": None, "end": None}), None),
    (event("r", ROW, None, after={"v": 1, "s": None}), None),
    (event("u", ROW, ["v", "w"]), "it has values for w, which ks.t lacks"),
    (event("r", ROW, None, after={"v": 1, "w": 2}), "it has values for w, which ks.t lacks"),
    (event("u", {"id": 1, "a": "x"}, ["v"]), "its key has no pk, which is in the key of ks.t"),
    (event("u", {"pk": 1, "b": "x"}, ["v"]), "its key has no a"),
    (event("c", {"pk": 1, "b": "x"}, []), "its key has no a"),
    (event("d", {"pk": 1, "b": "x"}, []), "its key has no a"),
    (event("u", ROW, ["v"], source={**SOURCE, "table_name": "u"}), "it is of the table ks.u, not of ks.t"),
    (event("u", ROW, ["v"], times=None), "it is not an extended event with the times of writes"),
    (event("u", ROW, None), "it is not an extended event with the times of writes"),
    ({"source": SOURCE, "op": "c", "after": {"pk": 1}}, "cdc.output.format=extended and penstock.write.times=true"),
    ({"pk": 1, "v": 5}, "it is not an extended event with the times of writes"),
    ("text", "not a JSON object"),
]
"""Events, and a part of what is wrong with them."""


@pytest.mark.parametrize("schemas", [False, True])
def test_each_record_has_its_reason(spark: SparkSession, schemas: bool) -> None:
    values = [json.dumps({"schema": {}, "payload": one} if schemas and one != "text" else one) for one, _ in EVENTS]
    now = datetime.now(UTC)
    rows = [(None, text.encode(), 0, number, now, None, "t") for number, text in enumerate(values)]
    records = spark.createDataFrame([*rows, (b"tombstone", None, 0, len(rows), now, None, "t")], RAW)
    records = records.withColumn("headers", F.lit(None).cast("array<struct<key: string, value: binary>>"))
    found = event_changes(records, "t", TABLE, EventFormat("json", schemas=schemas), source=("ks", "t"))
    problems = [row.problem for row in found.select("problem").collect()]
    assert len(problems) == len(EVENTS)
    for number, ((given, wrong), told) in enumerate(zip(EVENTS, problems, strict=True)):
        assert (told is None) == (wrong is None), (given, told)
        if told is not None:
            assert wrong in told.reason, given
            assert (told.topic, told.offset, bytes(told.value).decode()) == ("t", number, values[number])


def other(*columns: Column) -> CqlTable:
    return CqlTable("ks", "t", columns)


DIFFERENT = {
    "column": (
        other(*TABLE.columns, Column("w", INT, "regular")),
        r"the target has no column w, which the events have.*ALTER TABLE ks.t ADD w",
    ),
    "key": (
        other(Column("pk", INT, "partition_key", 0), Column("b", TEXT, "clustering", 0), *TABLE.columns[2:]),
        r"different keys: the events have b, pk; ks.t has a, pk.*same PRIMARY KEY",
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_schemas_that_the_table_does_not_fit_are_an_error(spark: SparkSession, name: str) -> None:
    source, message = DIFFERENT[name]
    schema = spark_type(event_schema(layout(frame_schema(source, write_times=True))))
    decoder: Any = SimpleNamespace(schema=schema)
    with pytest.raises(PenstockError, match=message):
        require_fit(EventMembers(F.lit(None), decoder, exact=None, enveloped=False), TABLE, "t")
