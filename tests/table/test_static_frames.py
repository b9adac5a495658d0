"""Windows, tables, joins and members over frames that are not streams: all cases in one Spark job."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from datasketches import compact_theta_sketch
from pyspark.sql import DataFrame, SparkSession, functions as F
from shuffles import one_partition

from penstock import join, segment, table, window
from penstock.errors import PenstockError
from penstock.segment.member_tables.member_counts import minutes
from penstock.segment.member_tables.member_schema import BUCKETS, bucket_of
from penstock.table import Table

Row = dict[str, Any]
WITH_NULLS = {"ignoreNullFields": "false"}

CLICKS = """
    SELECT * FROM VALUES
        ('ann', 'de', 1, 1, DATE '2024-02-29', 1.50BD), ('ann', 'de', 9, 5, DATE '2024-03-01', 2.25BD),
        ('ann', 'de', 61, NULL, NULL, NULL), ('bob', NULL, 59, 7, DATE '1969-12-31', -0.01BD),
        ('bob', NULL, 119, -7, DATE '2024-02-29', 0.00BD), (NULL, 'fr', 60, 2, NULL, 9.99BD),
        ('ann', 'de', NULL, 99, NULL, 99.99BD)
    AS (who, land, s, v, day, price)
"""
USERS = """
    SELECT * FROM VALUES
        (1, 'eu', 10, 1, false), (2, 'eu', 20, 1, false), (3, 'us', 5, 1, false), (1, 'us', 11, 2, false),
        (2, 'eu', 0, 3, true), (2, 'eu', 21, 2, false), (4, NULL, NULL, 1, NULL), (3, 'us', 6, 1, false)
    AS (id, region, v, version, gone)
"""
CITIES = """
    SELECT * FROM VALUES ('eu', 'Bonn', 1), ('us', 'Reno', 1), ('eu', 'Graz', 2), ('as', 'Ulsan', 1)
    AS (region, city, n)
"""
AGES = """
    SELECT id, age, timestamp_seconds(n) AS at FROM VALUES (1, 30, 1), (1, 31, 2), (3, 50, 1), (9, 90, 1)
    AS (id, age, n)
"""


def frames(spark: SparkSession) -> dict[str, DataFrame]:
    clicks = spark.sql(CLICKS).withColumn("at", F.timestamp_seconds("s"))
    users = Table(spark.sql(USERS), key=("id",), version="version", deleted="gone")
    cities = Table(spark.sql(CITIES), key=("region",), version="n")
    ages = Table(spark.sql(AGES), key=("id",), version="at")
    timed: dict[str, Any] = {"at": "at", "name": "w"}
    values = {"n": "count(*)", "known": "count(v)", "total": "sum(v * 2)", "mean": "avg(v)", "low": "min(v)"}
    exact = {"first": "min(day)", "top": "max(price)", "last": "max(who)", "small": "min(price < 0)"}
    stream = spark.sql("SELECT * FROM VALUES (1, 'x'), (2, 'y'), (3, 'z'), (NULL, 'w') AS (id, page)")

    def add(total: Row, row: Row) -> Row:
        return {"ids": sorted([*total["ids"], row["id"]])}

    def subtract(total: Row, row: Row) -> Row:
        return {"ids": [id for id in total["ids"] if id != row["id"]]}

    folded = table.fold(
        users, by="region", name="f", initial={"ids": []}, add=add, subtract=subtract, returns="ids array<int>"
    )
    regions = table.aggregate(users, by="region", name="r", n="count(*)", total="sum(v)", mean="avg(v)")
    return {
        "tumbling": clicks.transform(window.tumbling, "1 minute", key="who", **timed, **values),
        "two keys": clicks.transform(window.tumbling, "1 day", key=["who", "land"], **timed, **exact),
        "hopping": clicks.transform(
            window.hopping, "2 minutes", every="1 minute", key="land", **timed, n="count(*)", total="sum(v)"
        ),
        "session": clicks.transform(window.session, "52 seconds", key="who", **timed, n="count(*)"),
        "changes": clicks.transform(window.tumbling, "1 hour", key="land", emit="changes", **timed, n="count(*)"),
        "totals": regions.df,
        "fold": folded.df,
        "tables": join.tables(users, ages, name="t").df,
        "full": join.tables(users, ages, name="t", how="full").df,
        "foreign key": join.foreign_key(users, cities, on="region", name="k", how="left").df,
        "stream": join.stream_table(stream, users, name="s"),
        "enriched": join.enrich(stream.withColumnRenamed("id", "user"), users, on="user", name="e"),
        "streams": join.streams(
            clicks.select("who", "s", "at").where("s < 60"),
            clicks.selectExpr("who", "s AS s2", "at AS at2").where("s >= 60"),
            on="who",
            at=("at", "at2"),
            within="1 minute",
            how="full",
        ).select("who", "s", "s2"),
    }


@pytest.fixture(scope="module")
def results(spark: SparkSession) -> Iterator[dict[str, list[Row]]]:
    """The rows of each case as JSON gives them."""
    with one_partition(spark):
        made = frames(spark)
        first, *rest = [
            frame.select(F.lit(name).alias("case"), F.to_json(F.struct("*"), WITH_NULLS).alias("row"))
            for name, frame in made.items()
        ]
        for frame in rest:
            first = first.unionAll(frame)
        found: dict[str, list[Row]] = {name: [] for name in made}
        for row in first.collect():
            found[row["case"]].append(json.loads(row["row"]))
    yield found


def picked(rows: list[Row], *columns: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row[column] for column in columns) for row in rows), key=repr)


def seconds(rows: list[Row]) -> list[Row]:
    """The rows with start and end of a window as "mm:ss" of the first hour of 1970."""
    return [row | {name: row[f"window_{name}"][14:19] for name in ("start", "end")} for row in rows]


@pytest.mark.slow
def test_tumbling_windows_of_a_frame_are_final_and_have_all_aggregates(results: dict[str, list[Row]]) -> None:
    rows = seconds(results["tumbling"])
    assert all(row["final"] and not row["late"] for row in rows)
    assert picked(rows, "who", "start", "n", "known", "total", "mean", "low") == sorted(
        [
            ("ann", "00:00", 2, 2, 12, 3.0, 1),
            ("ann", "01:00", 1, 0, None, None, None),
            ("bob", "00:00", 1, 1, 14, 7.0, 7),
            ("bob", "01:00", 1, 1, -14, -7.0, -7),
            (None, "01:00", 1, 1, 4, 2.0, 2),
        ],
        key=repr,
    )


def test_a_key_of_two_columns_and_aggregates_of_dates_decimals_and_strings(results: dict[str, list[Row]]) -> None:
    assert picked(results["two keys"], "who", "land", "first", "top", "last", "small") == sorted(
        [
            ("ann", "de", "2024-02-29", 2.25, "ann", False),
            ("bob", None, "1969-12-31", 0.0, "bob", False),
            (None, "fr", None, 9.99, None, False),
        ],
        key=repr,
    )


def test_hopping_windows_overlap_and_sessions_end_after_a_gap(results: dict[str, list[Row]]) -> None:
    assert picked(seconds(results["hopping"]), "land", "start", "end", "n", "total") == sorted(
        [
            ("de", "59:00", "01:00", 2, 6),
            ("de", "00:00", "02:00", 3, 6),
            ("de", "01:00", "03:00", 1, None),
            ("fr", "00:00", "02:00", 1, 2),
            ("fr", "01:00", "03:00", 1, 2),
            (None, "59:00", "01:00", 1, 7),
            (None, "00:00", "02:00", 2, 0),
            (None, "01:00", "03:00", 1, -7),
        ],
        key=repr,
    )
    # The gap is 52 seconds: from 9 to 61 is exactly that, so another session begins.
    assert picked(seconds(results["session"]), "who", "start", "end", "n") == sorted(
        [
            ("ann", "00:01", "01:01", 2),
            ("ann", "01:01", "01:53", 1),
            ("bob", "00:59", "01:51", 1),
            ("bob", "01:59", "02:51", 1),
            (None, "01:00", "01:52", 1),
        ],
        key=repr,
    )


def test_early_results_of_a_frame_come_before_the_final_ones(results: dict[str, list[Row]]) -> None:
    both = [(land, n, final) for land, n in (("de", 3), ("fr", 1), (None, 2)) for final in (False, True)]
    assert picked(results["changes"], "land", "n", "final") == sorted(both, key=repr)


def test_totals_of_a_table_are_those_of_its_latest_rows(results: dict[str, list[Row]]) -> None:
    # User 2 is deleted; of two rows of user 3 with one version the last counts.
    rows = [row for row in results["totals"] if not row["deleted"]]
    assert picked(rows, "region", "n", "total", "mean") == [("us", 2, 17, 8.5), (None, 1, 0, None)]
    folded = [row for row in results["fold"] if not row["deleted"]]
    assert picked(folded, "region", "ids") == [("us", [1, 3]), (None, [4])]


def test_tables_are_joined_by_key_and_by_foreign_key(results: dict[str, list[Row]]) -> None:
    inner = [row for row in results["tables"] if not row["deleted"]]
    assert picked(inner, "id", "region", "v", "age") == [(1, "us", 11, 31), (3, "us", 6, 50)]
    full = [row for row in results["full"] if not row["deleted"]]
    assert picked(full, "id", "region", "age") == [
        (1, "us", 31),
        (3, "us", 50),
        (4, None, None),
        (9, None, 90),
    ]
    linked = [row for row in results["foreign key"] if not row["deleted"]]
    assert picked(linked, "id", "region", "city") == [(1, "us", "Reno"), (3, "us", "Reno"), (4, None, None)]


def test_rows_of_a_stream_get_the_latest_row_of_a_table(results: dict[str, list[Row]]) -> None:
    assert picked(results["stream"], "id", "page", "region", "v") == [(1, "x", "us", 11), (3, "z", "us", 6)]
    assert picked(results["enriched"], "user", "page", "v") == [
        (1, "x", 11),
        (2, "y", None),
        (3, "z", 6),
        (None, "w", None),
    ]


def test_streams_are_joined_by_key_within_a_time(results: dict[str, list[Row]]) -> None:
    assert picked(results["streams"], "who", "s", "s2") == sorted(
        [("ann", 1, 61), ("ann", 9, 61), ("bob", 59, 119), (None, None, 60)], key=repr
    )


PERSONS = ["a", "é", "😀", "a\0b", "x" * 5000, "e\u0301", " ", "null", "-1"]


def test_membership_events_become_rows_of_members_and_sketches(spark: SparkSession) -> None:
    schema = "person string, segment string, event string, at timestamp, until timestamp, ttl int, `to` string"
    kinds: list[tuple[str, int]] = [("enter", 60), ("prolong", 1), ("leave", 0), ("expire", 0)]
    rows = spark.createDataFrame(
        [(person, kind, kind, None, None, ttl, "t") for person in PERSONS for kind, ttl in kinds], schema
    ).withColumn("at", F.timestamp_seconds(F.lit(61) + F.length("person") % 2 * 60))
    found = segment.members(rows).collect()
    columns = ["segment", "bucket", "person", "until", "changed", "ttl", "gone"]
    assert all(list(row.asDict()) == columns for row in found) and len(found) == 3 * len(PERSONS)
    assert {row.person: row.bucket for row in found} == {person: bucket_of(person) for person in PERSONS}
    assert all(0 <= row.bucket < BUCKETS for row in found)
    told = {row.segment: (row.ttl, row.gone) for row in found}
    assert told == {"enter": (60, False), "prolong": (1, False), "leave": (None, True)}
    counted = {
        (row.segment, row.at.minute): compact_theta_sketch.deserialize(bytes(row.members)).get_estimate()
        for row in minutes(rows).collect()
    }
    odd = sum(len(person) % 2 for person in PERSONS)
    assert counted == {
        (kind, minute): n for kind in ("enter", "prolong") for minute, n in ((1, len(PERSONS) - odd), (2, odd))
    }


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda clicks: window.tumbling(clicks, "1 minute", at="at", key="who", name="w"), "there are no aggregates"),
        (lambda clicks: tumbling(clicks, n=5), r"the argument n is an int \(window.tumbling\)\. Next: give a string"),
        (lambda clicks: tumbling(clicks, n="count"), "'count' is not an aggregate"),
        (lambda clicks: tumbling(clicks, n="sum(who)"), r"sum does not take string: 'sum\(who\)' .n="),
        (lambda clicks: tumbling(clicks, n="avg(at)"), "avg does not take timestamp"),
        (lambda clicks: tumbling(clicks, n="sum(v"), "'sum\\(v' is not an aggregate"),
        (lambda clicks: tumbling(clicks, n="sum(v))"), "Spark refuses"),
        (
            lambda clicks: tumbling(clicks, "999 microseconds", n="count(*)"),
            "size is too short: 999 microseconds.*1 milli",
        ),
        (lambda clicks: tumbling(clicks, "soon", n="count(*)"), "size is not a duration: 'soon'"),
        (lambda clicks: Table(clicks, ("who",), "price"), r"the version price is decimal\(4,2\)"),
        (lambda clicks: Table(clicks, ("who", "x"), "s", "y"), "the table has no column x, y"),
        (
            lambda clicks: table.aggregate(Table(clicks, ("who",), "s"), by="who", name="1", n="count(*)"),
            "'1_rows' is not a valid state name",
        ),
    ],
)
def test_a_wrong_call_is_refused_before_anything_runs(
    spark: SparkSession, build: Callable[[DataFrame], Any], said: str
) -> None:
    with pytest.raises(PenstockError, match=said):
        build(spark.sql(CLICKS).withColumn("at", F.timestamp_seconds("s")))


def tumbling(clicks: DataFrame, size: str = "1 minute", **aggregates: Any) -> DataFrame:
    return window.tumbling(clicks, size, at="at", key="who", name="w", **aggregates)
