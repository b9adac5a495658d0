"""Errors of windows, tables and joins at build time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

from penstock import join, segment, table, window
from penstock.errors import PenstockError
from penstock.keyed_state.buckets import REUSE
from penstock.table import Table

Build = Callable[[DataFrame], object]


def users(frame: DataFrame) -> Table:
    return Table(frame.withColumnRenamed("value", "id"), key=("id",), version="timestamp")


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda f: window.tumbling(f, "1 minute", at="timestamp", key="value", name="w", n="count(*)"),
            r"timestamp has no watermark \(window w\).*kafka.read",
        ),
        (
            lambda f: window.tumbling(f, "1 minute", at="ts", key="value", name="w", n="count(*)"),
            "the frame has no column ts.*use one of timestamp, value",
        ),
        (
            lambda f: window.tumbling(f, "1 minute", at="value", key="value", name="w", n="count(*)"),
            "the column value is bigint, not timestamp",
        ),
        (
            lambda f: window.tumbling(f, "1 minute", at="timestamp", key="value", name="w", emit="all", n="count(*)"),  # type: ignore[arg-type]
            "unknown emit 'all'.*'final' or 'changes'",
        ),
        (
            lambda f: window.hopping(
                f, "5 minutes", every="2 minutes", at="timestamp", key="value", name="w", n="count(*)"
            ),
            "windows of 5 minutes cannot begin every 2 minutes",
        ),
        (
            lambda f: window.session(
                f.withWatermark("timestamp", "1 second"),
                "1 minute",
                at="timestamp",
                key="value",
                name="w",
                n="median(x)",
            ),
            r"'median\(x\)' is not an aggregate \(n=\)",
        ),
        (
            lambda f: table.aggregate(users(f), by="id", name="t", n="sum(nope)"),
            r"Spark refuses 'nope': .*nope.* \(n=\)",
        ),
        (
            lambda f: window.session(
                f.withWatermark("timestamp", "1 second"),
                *("1 minute",),
                at="timestamp",
                key="value",
                name="my window",
                n="count(*)",
            ),
            "'my window' is not a valid state name",
        ),
        (lambda f: Table(f, key=("id",), version="value"), "the table has no column id"),
        (lambda f: Table(f.selectExpr("value", "'x' AS v"), key=("value",), version="v"), "the version v is string"),
        (
            lambda f: table.aggregate(users(f), by="id", name="t", most="max(id)"),
            "most cannot be subtracted.*use count, sum or avg, or table.fold",
        ),
        (
            lambda f: join.tables(users(f), Table(f, key=("value",), version="timestamp"), name="j"),
            "the tables have the keys id and value.*join.foreign_key",
        ),
        (
            lambda f: join.tables(users(f), users(f), name="j", how="right"),  # type: ignore[arg-type]
            "unknown how 'right'.*'inner' or 'left'",
        ),
        (
            lambda f: join.foreign_key(users(f), Table(f, key=("value",), version="timestamp"), on="no", name="j"),
            "the left table has no column no",
        ),
        (lambda f: join.enrich(f, users(f), on="user", name="j"), "the stream has no column user"),
        (
            lambda f: join.enrich(f, Table(f.selectExpr("1 AS id", "*"), ("id",), "timestamp"), on="value", name="j"),
            r"both sides have a column value .join j.*rename or drop it",
        ),
        (
            lambda f: join.foreign_key(
                Table(f.selectExpr("value AS id", "value AS city", "timestamp"), key=("id",), version="timestamp"),
                Table(f.selectExpr("value AS name", "'x' AS id", "timestamp"), key=("name",), version="timestamp"),
                on="city",
                name="j",
            ),
            r"both sides have a column id .join j.*rename or drop it",
        ),
        (
            lambda f: join.tables(
                users(f),
                Table(f.selectExpr("value AS id", "'2.1' AS version", "timestamp AS t"), key=("id",), version="t"),
                name="j",
            ),
            r"two columns would have the name version .state j.*rename the aggregate",
        ),
        (
            lambda f: table.aggregate(users(f), by="id", name="t", deleted="count(*)"),
            r"two columns would have the name deleted .state t",
        ),
        *[
            (
                lambda f, key=key, aggregates=aggregates: window.tumbling(
                    f.withWatermark("timestamp", "1 second").selectExpr(
                        "*", "value AS n_count", "array(value) AS tags"
                    ),
                    *("1 minute",),
                    **{"at": "timestamp", "key": key, "name": "w", **aggregates},
                ),
                said,
            )
            for key, aggregates, said in (
                ("value", {"value": "count(*)"}, "two columns would have the name value .state w"),
                ("value", {"late": "count(*)"}, "two columns would have the name late .state w"),
                ("n_count", {"n": "count(*)"}, "two columns would have the name n_count .state w"),
                (["value", "value"], {"n": "count(*)"}, "two columns would have the name value .state w"),
                ("tags", {"n": "count(*)"}, "the column tags is array<bigint> and cannot be a key .state w.*to_json"),
            )
        ],
    ],
)
def test_a_wrong_call_is_refused(spark: SparkSession, build: Build, said: str) -> None:
    frame = spark.readStream.format("rate").load()
    with pytest.raises(PenstockError, match=said):
        build(frame)


def per_minute(frame: DataFrame, name: str, at: str = "timestamp") -> DataFrame:
    return window.tumbling(frame, "1 minute", at=at, key="value", name=name, n="count(*)")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "between",
    [
        lambda made, _: made.withWatermark("window_end", "0 seconds").withColumnRenamed("window_end", "t"),
        lambda made, _: made.select("value", F.current_timestamp().alias("t")).withWatermark("t", "1 minute"),
        lambda made, ids: join.enrich(made.withColumn("t", F.col("window_start")), ids, on="value", name="e"),
        lambda made, _: made.withColumnRenamed("window_start", "t").unionByName(made, allowMissingColumns=True),
    ],
)
def test_a_window_over_the_rows_of_a_window_is_refused(
    spark: SparkSession, between: Callable[[DataFrame, Table], DataFrame]
) -> None:
    clicks = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    made = between(per_minute(clicks, "first"), users(clicks))
    with pytest.raises(PenstockError, match=r"would wait forever \(window second\).*to a topic"):
        per_minute(made, "second", "t")
    rule = segment.rule("much", when="true", ttl="1 day", to="much")
    with pytest.raises(PenstockError, match=r"would wait forever \(segment.match 'many'\)"):
        segment.match(made, [rule], key="value", at="t", name="many", clock="events")


def test_a_window_may_follow_a_join_with_a_table_and_be_followed_by_one(spark: SparkSession) -> None:
    clicks = spark.readStream.format("rate").load().withWatermark("timestamp", "1 second")
    ids = Table(clicks.selectExpr("value AS id", "timestamp AS at"), key=("id",), version="at")
    known = join.enrich(clicks, ids, on="value", name="known")
    counted = join.enrich(per_minute(known, "minutes"), ids, on="value", name="again")
    assert counted.isStreaming
    past = per_minute(spark.sql("SELECT 1 AS value, now() AS timestamp"), "first")
    per_minute(past, "second", "window_end")


def test_a_state_says_which_setting_it_needs_where_none_can_be_set(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a declarative pipeline is defined."""

    def refuse(conf: object, name: str, value: str) -> None:
        raise PySparkException(f"[SESSION_MUTATION_IN_DECLARATIVE_PIPELINE] {name}")

    before, said = str(spark.conf.get(REUSE)), rf"needs the setting {REUSE}=false \(state people_rows\).*configuration"
    spark.conf.set(REUSE, "true")
    with monkeypatch.context() as declared:
        declared.setattr(type(spark.conf), "set", refuse)
        with pytest.raises(PenstockError, match=said):
            table.count(users(spark.readStream.format("rate").load()), by="id", name="people")
    spark.conf.set(REUSE, before)
