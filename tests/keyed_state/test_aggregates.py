"""Aggregates as strings: their types and results."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.types import DecimalType

from penstock import table, window
from penstock.errors import PenstockError
from penstock.table import Table

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
MICROS = 1_780_000_000_000_001


@pytest.fixture(scope="module")
def clicks(spark: SparkSession) -> DataFrame:
    rows = [("a", NOON, MICROS, ["x"], date(2024, 2, 29)), ("a", NOON.replace(second=9), MICROS, None, None)] * 3
    return spark.createDataFrame(rows, "user string, ts timestamp, micros long, tags array<string>, day date").coalesce(
        1
    )


def test_a_mean_of_integers_whose_sum_is_no_double(clicks: DataFrame) -> None:
    made = window.tumbling(clicks, "1 minute", at="ts", key="user", name="w", mean="avg(micros)", n="count(*)")
    assert [(row.mean, row.n) for row in made.collect()] == [(MICROS, 6)]
    users = Table(
        clicks.selectExpr("user", "monotonically_increasing_id() AS id", "micros", "1 AS v"), key=("id",), version="v"
    )
    means = table.aggregate(users, by="user", name="means", mean="avg(micros)")
    assert [row["mean"] for row in means.df.collect()] == [MICROS]


def test_the_first_and_last_of_times_and_texts(clicks: DataFrame) -> None:
    asked = {"first": "min(ts)", "last": "max(ts)", "whole": "max(to_timestamp_ntz(ts))", "day": "min(day)"}
    exact = {"who": "max(user)", "raw": "max(binary(user))", "sure": "min(true)", "price": "max(decimal(1.5))"}
    made = window.tumbling(clicks, "1 minute", at="ts", key="user", name="w", emit="final", **asked, **exact)
    (row,) = made.selectExpr("*", "unix_seconds(last) - unix_seconds(first) AS seconds").collect()
    assert (row.seconds, row.whole.second, row.day, row.who, row.sure) == (9, 9, date(2024, 2, 29), "a", True)


def test_what_has_no_order_has_no_max(clicks: DataFrame) -> None:
    for argument in ("tags", "struct(user)", "map(user, user)", "ts - ts"):
        with pytest.raises(PenstockError, match=r"max does not take .*\(top=\).*min, max for strings and times"):
            window.tumbling(clicks, "1 minute", at="ts", key="user", name="w", top=f"max({argument})")


# Decimals: results have the types and the values of Spark's own functions.

AMOUNTS = ["0.10", "0.20", "-0.05", "12345678901234567890123.45", "9.99", None]


@pytest.mark.parametrize("kind", ["decimal(25,2)", "decimal(38,2)", "decimal(38,18)", "decimal(5,5)", "decimal(34,0)"])
def test_decimals_are_exact_and_as_in_spark(spark: SparkSession, kind: str) -> None:
    asked: dict[str, Any] = {"total": "sum(x)", "mean": "avg(x)", "least": "min(x)", "most": "max(x)", "n": "count(x)"}
    texts = spark.createDataFrame([(f"k{row % 2}", one) for row, one in enumerate(AMOUNTS * 7)], "k string, t string")
    rows = texts.selectExpr("k", f"try_cast(t AS {kind}) AS x", "timestamp'2024-02-29 12:00:00' AS ts").coalesce(1)
    made = window.tumbling(rows, "1 minute", at="ts", key="k", name="w", **asked).select("k", *asked)
    own = rows.groupBy("k").agg(*(F.expr(text).alias(name) for name, text in asked.items()))
    assert [field.dataType for field in made.schema] == [field.dataType for field in own.schema]
    assert sorted(made.collect()) == sorted(own.collect())


def test_totals_of_a_table_with_decimals_are_exact(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(1, 1, "0.10"), (2, 2, "0.20"), (3, 3, "7.77"), (3, 4, "0.05")], "id int, v int, t string"
    )
    prices = Table(
        rows.selectExpr("'eu' AS region", "id", "v", "cast(t AS decimal(10,2)) AS x").coalesce(1), ("id",), "v"
    )
    made = table.aggregate(prices, by="region", name="r", total="sum(x)", mean="avg(x)")
    (row,) = made.df.collect()
    assert (row.total, row["mean"]) == (Decimal("0.35"), Decimal("0.116667"))
    assert made.df.schema["total"].dataType == DecimalType(20, 2)


@pytest.mark.parametrize(("kind", "most"), [("bigint", 2**63 - 1), ("decimal(38,0)", 10**38 - 1)])
def test_a_sum_that_has_no_room_is_an_error(spark: SparkSession, kind: str, most: int) -> None:
    rows = spark.createDataFrame([(str(most),), ("1",)], "t string").coalesce(1)
    rows = rows.selectExpr("'a' AS k", f"cast(t AS {kind}) AS x", "timestamp'2024-02-29 12:00:00' AS ts")
    made = window.tumbling(rows, "1 minute", at="ts", key="k", name="w", total="sum(x)")
    with pytest.raises(Exception, match=r"a sum has more digits than .* has room for.*total.*another name="):
        made.collect()
    # With room for each digit of the sum there is no error.
    (row,) = window.tumbling(
        rows.where("x > 1"), "1 minute", at="ts", key="k", name="w", total="sum(x)", low="min(x)"
    ).collect()
    assert (row.total, row.low) == (most, most)


def test_text_with_numbers_is_to_be_cast(clicks: DataFrame) -> None:
    with pytest.raises(
        PenstockError, match=r"sum does not take string.*total=\"sum\(cast\(user as decimal\(38, 9\)\)\)\""
    ):
        window.tumbling(clicks, "1 minute", at="ts", key="user", name="w", total="sum(user)")
