"""Aggregates as strings: their types and results."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession

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
