"""Checkpoints that an earlier build wrote: how they were made, and how this build continues them.

`python tests/support/earlier_builds.py FOLDER` makes them with the build that is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as F

import penstock as ps
from penstock import files, join, segment, table, window
from penstock.table import Table

BASE = 1_709_208_000
"""2024-02-29 12:00:00 UTC, in seconds."""
HERE = "/where/it/was/made"
"""In the files of a checkpoint instead of the folder in which it was made."""
FIRST = [(1, "a", 0, 5), (2, "a", 5, 6), (3, "b", 6, 1)]
RULES = [
    segment.rule("twice", when=segment.count("k = 'a'", at_least=2, within="1 minute"), ttl="1 hour", to="t"),
    segment.rule("large", when="v > 4", ttl="20 seconds", to="t"),
]


def arrive(folder: Path, number: int, rows: list[tuple[int, str, int, int]]) -> None:
    """A file, which is a batch, behind those of lower numbers."""
    file = folder / f"{number}.json"
    file.write_text("\n".join(json.dumps(dict(zip(("id", "k", "s", "v"), row, strict=True))) for row in rows))
    os.utime(file, (BASE + number, BASE + number))


def _stream(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.readStream.schema("id int, k string, s long, v int").option("maxFilesPerTrigger", 1).json(str(folder))
    return rows.withColumn("at", F.timestamp_seconds(F.lit(BASE) + F.col("s")))


def windows(spark: SparkSession, source: Path) -> DataFrame:
    rows = _stream(spark, source).withWatermark("at", "10 seconds")
    made = rows.transform(window.tumbling, "1 minute", at="at", key="k", name="minutes", n="count(*)", total="sum(v)")
    return made.select("k", "n", "total", "late")


def sessions(spark: SparkSession, source: Path) -> DataFrame:
    rows = _stream(spark, source).withWatermark("at", "10 seconds")
    made = rows.transform(window.session, "30 seconds", at="at", key="k", name="sessions", n="count(*)")
    return made.select("k", "n", "late")


def tables(spark: SparkSession, source: Path) -> DataFrame:
    rows = _stream(spark, source)
    people = Table(rows.select("id", "k", "v", "s"), key=("id",), version="s")
    groups = table.aggregate(people, by="k", name="groups", n="count(*)", total="sum(v)").df
    left = Table(rows.select("id", "k", "s"), key=("id",), version="s")
    right = Table(rows.select("id", "v", "s"), key=("id",), version="s")
    joined = join.tables(left, right, name="joined").df
    return groups.select("k", "n", "total", F.lit(None).cast("int").alias("id")).unionByName(
        joined.select("k", F.lit(None).cast("long").alias("n"), F.col("v").cast("long").alias("total"), "id")
    )


def members(spark: SparkSession, source: Path) -> DataFrame:
    rows = _stream(spark, source).withColumn("person", F.col("id").cast("string"))
    made = segment.match(rows, RULES, key="person", name="members", at="at", clock="events", buckets=2)
    return made.select("person", "segment", "event")


QUERIES: dict[str, Callable[[SparkSession, Path], DataFrame]] = {
    "windows": windows,
    "sessions": sessions,
    "tables": tables,
    "members": members,
}


def run(spark: SparkSession, folder: Path, name: str) -> None:
    """A run of the query over all files that are there now."""
    frame = QUERIES[name](spark, folder / "in")
    query = ps.write(frame, files.sink(str(folder / name / "out")))
    query.start(checkpoint=folder / name / "checkpoint", trigger="once").awaitTermination()


def restored(archive: Path, folder: Path) -> Path:
    """The folder with what an earlier build made, as if it had been made there."""
    shutil.unpack_archive(archive, folder)
    _replace(folder, HERE, str(folder))
    for number, file in enumerate(sorted((folder / "in").glob("*.json")), 1):
        os.utime(file, (BASE + number, BASE + number))
    return folder


def _replace(folder: Path, old: str, new: str) -> None:
    for file in [each for each in folder.rglob("*") if each.is_file()]:
        data = file.read_bytes()
        if old.encode() in data and b"\x00" not in data:
            file.write_bytes(data.replace(old.encode(), new.encode()))
            file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def make(spark: SparkSession, folder: Path) -> None:
    (folder / "in").mkdir(parents=True)
    arrive(folder / "in", 1, FIRST)
    arrive(folder / "in", 2, [(1, "b", 20, 7)])
    for name in QUERIES:
        run(spark, folder, name)
    _replace(folder, str(folder), HERE)


if __name__ == "__main__":
    from penstock.spark_runtime.session import spark as session

    make(session("make"), Path(sys.argv[1]).resolve())
