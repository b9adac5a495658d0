"""Every operator of docs/streams.md on real streams: a restart between batches changes nothing in what a sink gets."""

from __future__ import annotations

import json
import os
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F
from shuffles import one_partition
from streams_page import LINES, names

import penstock as ps
from penstock import files
from penstock.table import Table

BASE = 1_709_208_000
"""2024-02-29 12:00:00 UTC, in seconds; times below are seconds after it."""
SCHEMAS = {
    "clicks": "id int, user string, page string, price int, s long, tags array<string>",
    "people": "user string, city string, balance int, v long",
    "phones": "user string, phone int, pv long",
    "places": "name string, country string, cv long",
    "orders": "user string, order int, s long",
}
TIMES = {"clicks": "ts", "orders": "ordered"}
UPDATED = {"`groupByKey`, `groupBy`", "`count`", "`reduce`", "`aggregate`"}
"""Spark's own aggregates without a window, which need its update mode: no sink of ours takes them."""
CHECKED = [(name, line) for name, line in LINES if name not in UPDATED]
WANTED = Path(__file__).parents[1] / "data/operators.json"
"""What a sink gets from a run without a restart: the name of each line, and a row of it."""
QUERIES = 5
BATCHES: list[dict[str, list[tuple[Any, ...]]]] = [
    {
        "clicks": [
            (1, "ann", "a", 1, 0, ["x", "y"]),
            (2, "ann", "b", 2, 10, None),
            (3, "bob", "a", 3, 70, ["x"]),
            (4, "ann", "a", 4, 65, None),
        ],
        "people": [("ann", "rome", 10, 1), ("bob", "rome", 20, 1), ("cid", "oslo", 5, 2)],
        "phones": [("ann", 111, 1), ("dan", 444, 1)],
        "places": [("rome", "it", 1), ("oslo", "no", 1)],
        "orders": [("ann", 7, 30), ("bob", 8, 75)],
    },
    # These meet the rows of the batch before: their windows, their versions and their partners.
    {
        "clicks": [
            (5, "bob", "a", 5, 80, ["z"]),
            (6, "cid", "b", 0, 100, None),
            (7, "ann", "c", 7, 600, None),
            (8, "cid", "a", 8, 5, None),
        ],
        "people": [("bob", "oslo", 25, 3), ("ann", "rome", 9, 0), ("ann", "rome", 12, 4)],
        "phones": [("bob", 222, 2), ("ann", 112, 5)],
        "places": [("rome", "italy", 2), ("paris", "fr", 1)],
        "orders": [("bob", 9, 90), ("ann", 10, 600)],
    },
]


def arrive(folder: Path, number: int) -> None:
    """The files of a batch, one of each stream."""
    for name, rows in BATCHES[number].items():
        columns = [column.split()[0] for column in SCHEMAS[name].split(", ")]
        (folder / name).mkdir(parents=True, exist_ok=True)
        file = folder / name / f"{number}.json"
        file.write_text("\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in rows))
        os.utime(file, (BASE + number, BASE + number))


def stream(spark: SparkSession, folder: Path, name: str) -> DataFrame:
    rows = spark.readStream.schema(SCHEMAS[name]).option("maxFilesPerTrigger", 1).json(str(folder / name))
    if name not in TIMES:
        return rows
    at = F.timestamp_seconds(F.lit(BASE) + F.col("s"))
    return rows.withColumn(TIMES[name], at).drop("s").withWatermark(TIMES[name], "10 seconds")


def operators(spark: SparkSession, folder: Path, lines: list[tuple[str, str]]) -> DataFrame:
    """The rows of some lines, each with the line's name."""
    known = names(*(stream(spark, folder, name) for name in SCHEMAS))
    frames = []
    for name, line in lines:
        made = eval(line, known)
        frame = made.df if isinstance(made, Table) else made
        frames.append(frame.select(F.lit(name).alias("name"), F.to_json(F.struct("*")).alias("row")))
    return reduce(DataFrame.unionAll, frames)


def run(spark: SparkSession, source: Path, folder: Path) -> None:
    """A run to the end of the files that are there. One query of all lines is planned for half a minute."""
    queries = []
    for number in range(QUERIES):
        query = ps.write(
            operators(spark, source, CHECKED[number::QUERIES]), files.sink(str(folder / f"out/query={number}"))
        )
        queries.append(query.start(checkpoint=folder / f"checkpoint/{number}", trigger="once"))
    for started in queries:
        started.awaitTermination()


def written(spark: SparkSession, folder: Path) -> Counter[tuple[str, str]]:
    rows = spark.read.parquet(str(folder / "out")).select("name", "row").collect()
    return Counter((row["name"], row["row"]) for row in rows)


@pytest.mark.slow
def test_a_restart_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    arrive(tmp_path / "in", 0)
    with one_partition(spark):
        run(spark, tmp_path / "in", tmp_path)
        before = written(spark, tmp_path)
        arrive(tmp_path / "in", 1)
        run(spark, tmp_path / "in", tmp_path)
    found = written(spark, tmp_path)
    wanted = Counter((name, row) for name, row in json.loads(WANTED.read_text()))
    assert found - wanted == wanted - found == Counter()
    operators_of = {name for name, _ in CHECKED}
    assert {name for name, _ in wanted} == operators_of
    assert {name for name, _ in found - before} == operators_of
    # What only the rows of both halves give, whatever the file says: a total, a version, a partner, a late row.
    given = {name: [json.loads(row) for of, row in found if of == name] for name in operators_of}
    totals = given["`KTable.groupBy().count`"]
    assert any((row["city"], row["count"], row["deleted"]) == ("oslo", 2, False) for row in totals)
    partners = given["`KTable.join` by a foreign key"]
    assert any((row["country"], row["user"]) == ("italy", "ann") for row in partners)
    assert any(row["late"] for row in given["late records"])
