"""Each advice about a column's type is followed here, and the values stay what they were."""

from __future__ import annotations

import datetime as dt
import json
import re
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F, types as st

from penstock.spark_runtime.casts import advice

PERSON = "struct<first:string,last:string>"
AT = dt.datetime(2026, 5, 31, 7, 0, 0, 123_000, dt.UTC)
MILLIS = 1_780_210_800_123
NAMED = "named_struct('last', 'Lee', 'first', 'Ann')"
ANN = {"first": "Ann", "last": "Lee"}
CASES: list[tuple[str, str, Any]] = [
    (f"{MILLIS}L", "timestamp", AT),
    (f"CAST({MILLIS} AS double)", "timestamp", AT),
    (f"CAST({MILLIS} AS decimal(20,0))", "timestamp", AT),
    (f"{MILLIS}L", "timestamp_ntz", AT.replace(tzinfo=None)),
    (f"array({MILLIS}L, NULL)", "array<timestamp>", [AT, None]),
    (f"map('a', {MILLIS}L)", "map<string,timestamp>", {"a": AT}),
    (f"map({MILLIS}L, 1)", "map<timestamp,bigint>", {AT: 1}),
    (f"named_struct('at', {MILLIS}L)", "struct<at:timestamp>", {"at": AT}),
    ("20000", "date", dt.date(2024, 10, 4)),
    (f"TIMESTAMP '{AT.isoformat()}'", "bigint", MILLIS),
    ("DATE '2024-10-04'", "int", 20_000),
    ("DATE '2024-10-04'", "bigint", 20_000),
    ("2.7D", "int", 3),
    ("-2.5BD", "bigint", -3),
    ("7L", "int", 7),
    ("1.25BD", "string", "1.25"),
    ("1.25BD", "decimal(38,1)", Decimal("1.3")),
    ("'2026-05-31T07:00:00.123Z'", "timestamp", AT),
    (NAMED, PERSON, ANN),
    (f"array({NAMED}, NULL)", f"array<{PERSON}>", [ANN, None]),
    (f"map('a', {NAMED})", f"map<string,{PERSON}>", {"a": ANN}),
    (f"named_struct('p', {NAMED}, 'n', 1)", f"struct<n:bigint,p:{PERSON}>", {"n": 1, "p": ANN}),
    ("named_struct('last', 'Lee')", PERSON, {"first": None, "last": "Lee"}),
    ("named_struct('last', 'Lee', 'more', 1, 'first', 'Ann')", PERSON, ANN),
    (f"if(false, {NAMED}, NULL)", PERSON, None),
]


def followed(frame: DataFrame, told: str) -> DataFrame:
    """The frame as the advice's code changes it."""
    code = re.search(r"frame\.withColumn\(.*\)(?=$|[,; ])", told)
    assert code, told
    # What follows the code is in words, perhaps with other code.
    text = code[0]
    while True:
        try:
            made: DataFrame = eval(text, {"frame": frame, "F": F})
        except SyntaxError:
            text = text[: text.rindex(")", 0, len(text) - 1) + 1]
        else:
            return made


@pytest.mark.parametrize(("sql", "wanted", "value"), CASES, ids=lambda one: str(one)[:60])
def test_followed_advice_keeps_the_value(spark: SparkSession, sql: str, wanted: str, value: Any) -> None:
    frame = spark.range(1).selectExpr(f"{sql} AS v")
    kind = st.DataType.fromDDL(wanted)
    made = followed(frame, advice("v", frame.schema["v"].dataType, kind))
    assert made.schema["v"].dataType.simpleString() == kind.simpleString()
    (found,) = made.toArrow()["v"].to_pylist()
    assert (dict(found) if isinstance(kind, st.MapType) else found) == value


def test_structs_become_text_as_json(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr(f"{NAMED} AS `my person`")
    told = advice("my person", frame.schema["my person"].dataType, st.StringType())
    assert json.loads(followed(frame, told).collect()[0]["my person"]) == ANN


def test_units_that_the_code_assumes_are_told() -> None:
    assert "if the numbers are milliseconds" in advice("at", st.LongType(), st.TimestampType())
    assert "F.timestamp_seconds or F.timestamp_micros" in advice("at", st.LongType(), st.TimestampType())
    assert "days since 1970" in advice("at", st.LongType(), st.DateType())
    assert "for milliseconds since 1970" in advice("at", st.TimestampType(), st.LongType())


NUMBER, NAMES = st.IntegerType(), st.StructType().add("first", st.StringType())


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (NUMBER, st.ArrayType(NUMBER)),
        (st.MapType(st.StringType(), NUMBER), NAMES),
        (st.DoubleType(), st.BinaryType()),
        (NAMES, NUMBER),
    ],
    ids=str,
)
def test_what_cannot_be_converted_is_not_advised(given: st.DataType, wanted: st.DataType) -> None:
    assert advice("v", given, wanted) == f"make it {wanted.simpleString()} in the frame"
