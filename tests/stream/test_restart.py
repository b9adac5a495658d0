"""Windows and tables of a real stream: a restart continues with the state of the checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from drawn import same
from pyspark.sql import DataFrame, SparkSession, functions as F

from penstock import table, window
from penstock.keyed_state.buckets import REUSE
from penstock.table import Table

BASE = 1_709_208_000
"""2024-02-29 12:00:00 UTC, in seconds."""


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.readStream.schema("id int, k string, s long, v int").option("maxFilesPerTrigger", 1).json(str(folder))
    return rows.withColumn("at", F.timestamp_seconds(F.lit(BASE) + F.col("s"))).withWatermark("at", "10 seconds")


def arrive(folder: Path, number: int, rows: list[tuple[int, str, int, int]]) -> None:
    """A file, which is one batch, ordered by number."""
    text = "\n".join(json.dumps(dict(zip(("id", "k", "s", "v"), row, strict=True))) for row in rows)
    file = folder / f"{number}.json"
    file.write_text(text)
    os.utime(file, (BASE + number, BASE + number))


def run(frame: DataFrame, folder: Path) -> list[dict[str, Any]]:
    """The rows of a run to the end of the available files."""
    out = folder / "out"
    before = set(out.glob("*.json")) if out.exists() else set()
    query = frame.writeStream.format("json").option("checkpointLocation", str(folder / "checkpoint"))
    query.trigger(availableNow=True).start(str(out)).awaitTermination()
    return [json.loads(line) for file in set(out.glob("*.json")) - before for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_windows_and_totals_go_on_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()

    def frame() -> DataFrame:
        rows = stream(spark, source)
        minutes = rows.transform(
            window.tumbling, "1 minute", at="at", key="k", name="minutes", n="count(*)", total="sum(v)"
        )
        people = Table(rows.select("id", "k", "v", "s"), key=("id",), version="s")
        groups = table.aggregate(people, by="k", name="groups", n="count(*)", total="sum(v)")
        return minutes.select("k", "n", "total", "late", F.lit("w").alias("of")).unionByName(
            groups.df.select("k", "n", "total", F.col("deleted").alias("late"), F.lit("t").alias("of"))
        )

    arrive(source, 1, [(1, "a", 0, 5), (2, "a", 5, 6), (3, "b", 6, 1)])
    same(run(frame(), tmp_path), "| of | k | n | total |\n| t | a | 2 | 11 |\n| t | b | 1 | 1 |")
    arrive(source, 2, [(1, "b", 20, 7), (9, "c", 100, 1)])
    arrive(source, 3, [(2, "a", 30, 4)])
    same(
        run(frame(), tmp_path),
        """
        | of | k | n | total | late  |
        | t  | a | 1 | 6     | false |
        | t  | b | 2 | 8     | false |
        | t  | c | 1 | 1     | false |
        | t  | a | 1 | 4     | false |
        | w  | a | 2 | 11    | false |
        | w  | b | 2 | 8     | false |
        | w  | a | 1 | 4     | true  |
        """,
    )


@pytest.mark.slow
def test_two_windows_of_the_same_rows_both_end(spark: SparkSession, tmp_path: Path) -> None:
    """With one shuffle for both, the second had no watermark: it gave no row, ever."""
    source = tmp_path / "in"
    source.mkdir()
    arrive(source, 1, [(1, "a", 0, 5), (2, "b", 5, 6)])
    arrive(source, 2, [(3, "a", 100, 1)])
    arrive(source, 3, [(4, "a", 10, 1), (5, "c", 300, 1)])
    spark.conf.set(REUSE, "true")
    rows = stream(spark, source)
    first, second = (
        rows.transform(window.tumbling, "1 minute", at="at", key="k", name=name, n="count(*)").select(
            F.lit(name).alias("of"), "k", "n", "late"
        )
        for name in ("first", "second")
    )
    found = run(first.unionByName(second.where("late OR n > 0")), tmp_path)
    each = {
        name: sorted((row["k"], row["n"], row["late"]) for row in found if row["of"] == name)
        for name in ("first", "second")
    }
    assert each["first"] == each["second"] == [("a", 1, False), ("a", 1, False), ("a", 1, True), ("b", 1, False)]
