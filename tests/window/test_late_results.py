"""Late results of a window and sinks with a key: a total is never replaced by the few rows that came after it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from cassandra.cluster import Session
from keyspaces import new_keyspace
from postgres_server import new_table, query
from pyspark.sql import DataFrame, SparkSession, functions as F
from shuffles import one_partition

import penstock as ps
from penstock import cql, kafka, window
from penstock.errors import PenstockError
from penstock.kafka.broker_check import unmet
from penstock.local.services import Services
from penstock.query import real_time
from penstock.query.query import Sink
from penstock.table import Table

Change = Callable[[DataFrame], DataFrame]
REFUSED = r"only the rows that came late.*ps\.only\(\"NOT late\", sink\)"
NOWHERE = "127.0.0.1:1"


def same(rows: DataFrame) -> DataFrame:
    return rows


def minutes(clicks: DataFrame, emit: window.windows.Emit = "final") -> DataFrame:
    timed = clicks.withWatermark("ts", "1 second")
    return window.tumbling(timed, "1 minute", at="ts", key="page", name="minutes", emit=emit, n="count(*)")


@pytest.fixture
def counted(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A stream of clicks in minutes, which never starts."""
    return minutes(spark.readStream.schema("page string, ts timestamp").json(str(tmp_path)))


@pytest.fixture(scope="module")
def target(cql: Session) -> Iterator[str]:
    with new_keyspace(cql, "late") as name:
        cql.execute(f"CREATE TABLE {name}.minutes (page text, start timestamp, n bigint, PRIMARY KEY (page, start))")
        yield name


KEPT: dict[str, Change] = {
    "as it is": same,
    "under other names": lambda rows: rows.withColumnsRenamed({"late": "after", "window_start": "start"}),
    "without the flag": lambda rows: rows.drop("late"),
    "final, which late ones are, too": lambda rows: rows.where("final"),
    "through a function of batches": lambda rows: rows.mapInArrow(lambda batches: batches, rows.schema),
    "in a union with those that are not late": lambda rows: rows.where("NOT late").unionByName(rows),
    "late ones alone": lambda rows: rows.where("late"),
    "late ones among others": lambda rows: rows.where("NOT late OR n > 5"),
    "with a key of their own, which several have": lambda rows: rows.withColumn("page", F.struct("page", "late")),
}
EXCLUDED: dict[str, Change] = {
    "not late": lambda rows: rows.where("NOT late"),
    "late = false": lambda rows: rows.where("n > 1 AND late = false"),
    "not true": lambda rows: rows.where("late != true"),
    "no null": lambda rows: rows.where("NOT (coalesce(late, false) OR n > 5)"),
    "under another name": lambda rows: rows.withColumnRenamed("late", "after").where("NOT after"),
    "and then without the flag": lambda rows: rows.where("final AND NOT late").drop("late", "final"),
    "added up": lambda rows: rows.groupBy("page", "window_start").agg(F.sum("n").alias("n")),
}


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("change", KEPT.values(), ids=KEPT)
def test_a_key_with_the_start_of_the_window_takes_no_late_results(counted: DataFrame, change: Change) -> None:
    rows = change(counted)
    start = next(name for name in rows.columns if "start" in name)
    with pytest.raises(PenstockError, match=REFUSED):
        ps.write(rows, kafka.sink("minutes", servers=NOWHERE, key=["page", start]))
    with pytest.raises(PenstockError, match=REFUSED):
        ps.write(Table(rows, ("page", start), "n"), kafka.sink("minutes", servers=NOWHERE))


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("change", EXCLUDED.values(), ids=EXCLUDED)
def test_a_condition_that_excludes_late_results_is_enough(counted: DataFrame, change: Change) -> None:
    ps.write(change(counted), kafka.sink("minutes", servers=NOWHERE, key=["page", "window_start"]))


def test_a_part_is_as_the_condition(counted: DataFrame) -> None:
    to = kafka.sink("minutes", servers=NOWHERE, key=["page", "window_start"])
    rest = kafka.sink("rest", servers=NOWHERE)
    ps.write(counted, ps.only("NOT late", to, columns=["page", "window_start", "n"]), ps.only("late", rest))
    (fault,) = unmet(ps.write(counted, ps.only("late", rest)), timedelta(seconds=1))
    assert NOWHERE in str(fault)
    for part, columns, said in (("NOT later", None, "later"), ("NOT late", ["pages"], "pages"), ("NOT (", None, "NOT")):
        with pytest.raises(PenstockError, match=f"Spark refuses the part .*{said}.*use the frame's columns: page, "):
            ps.write(counted, ps.only(part, to, columns=columns))
    with pytest.raises(PenstockError, match=REFUSED):
        ps.write(counted, ps.only("late", to))
    with pytest.raises(PenstockError, match="a sink of a table takes all its rows"):
        ps.write(Table(counted, ("page",), "n"), ps.only("NOT late", to))


def test_records_whose_key_only_chooses_a_partition_may_be_late_results(counted: DataFrame) -> None:
    for key in "page", ["page", "late"], None:
        ps.write(counted, kafka.sink("minutes", servers=NOWHERE, key=key))


def test_late_results_of_real_time_mode_are_refused_too(spark: SparkSession, tmp_path: Path) -> None:
    clicks = spark.readStream.schema("page string, ts timestamp, timestamp timestamp").json(str(tmp_path))
    with real_time.building(True):
        rows = minutes(clicks, emit="changes")
    to = kafka.sink("minutes", servers=NOWHERE, key=["page", "window_start"])
    with pytest.raises(PenstockError, match=REFUSED):
        ps.write(rows, to)
    ps.write(rows.where("NOT late"), to)


@pytest.mark.slow
def test_tables_of_a_database_take_no_late_results(
    counted: DataFrame, services: Services, target: str, postgres: str
) -> None:
    rows = counted.withColumnRenamed("window_start", "start").drop("window_end", "final")
    with new_table(postgres, "page text, start timestamptz, n bigint, PRIMARY KEY (page, start)") as table:
        refusing: list[Sink] = [
            ps.postgres.sink(table, url=postgres, key=["page", "start"]),
            cql.sink(f"{target}.minutes", hosts=services.cql),
        ]
        for sink in refusing:
            with pytest.raises(PenstockError, match=REFUSED):
                ps.write(rows.drop("late"), sink)
            ps.write(rows.where("NOT late").drop("late"), sink)
        ps.write(rows.drop("late"), ps.postgres.sink(table, url=postgres))


@pytest.mark.slow
def test_clicks_after_the_total_are_added_and_replace_nothing(
    spark: SparkSession, postgres: str, tmp_path: Path
) -> None:
    """As docs/sinks.md has it: totals by key, late results appended, and a sum over both."""
    folder = tmp_path / "in"
    folder.mkdir()

    def arrive(number: int, *times: str) -> None:
        file = folder / f"{number}.json"
        file.write_text("\n".join(json.dumps({"page": "/", "ts": f"2026-05-31T07:{time}Z"}) for time in times))
        os.utime(file, (number, number))

    columns = "page text, window_start timestamptz, n bigint"
    with (
        new_table(postgres, f"{columns}, PRIMARY KEY (page, window_start)") as totals,
        new_table(postgres, columns) as rest,
    ):

        def run() -> None:
            clicks = spark.readStream.schema("page string, ts timestamp").option("maxFilesPerTrigger", 1)
            rows = minutes(clicks.json(str(folder)))
            names = ["page", "window_start", "n"]
            both = [
                ps.only("NOT late", ps.postgres.sink(totals, url=postgres, key=names[:2]), columns=names),
                ps.only("late", ps.postgres.sink(rest, url=postgres), columns=names),
            ]
            with one_partition(spark):
                ps.write(rows, *both).start(checkpoint=tmp_path / "both", trigger="once").awaitTermination()

        arrive(1, "00:01", "00:02", "00:03", "00:04")
        arrive(2, "05:00")
        run()
        arrive(3, "00:05")
        arrive(4, "05:01")
        arrive(5, "00:06", "00:07")
        arrive(6, "05:02")
        run()
        assert query(postgres, f"SELECT n FROM {totals}") == [(4,)]
        assert query(postgres, f"SELECT n FROM {rest} ORDER BY n") == [(1,), (2,)]
