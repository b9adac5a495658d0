"""Rows of Spark into Delta tables: our sink beside Spark's Parquet writer and beside `deltalake.write_deltalake`.

    python benchmarks/delta.py --json delta.json

Each run writes the same kept frame in one batch on local[2], to a folder of this machine. `delta/append` stands beside
`DataFrameWriter.parquet`, which makes no table, and beside `write_deltalake` in this process. That gets the rows as
Arrow batches which are in memory already, so Spark is not in its time; with `collected` it gets them from `toArrow`, as
in a function of `foreachBatch`. In `delta/upsert` half of the keys are there; it stands beside `DeltaTable.merge` of
the same Arrow batches.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties, write_deltalake
from pyspark.sql import DataFrame

from _measure import Row, alternate, report, rows_of
from penstock import delta
from penstock.query.query import Batch
from penstock.spark_runtime.session import spark

PEERS = {"delta/append": "spark-parquet", "delta/upsert": "deltalake"}
BATCHES = itertools.count()
ZSTD = WriterProperties(compression="ZSTD")


def appends(frame: DataFrame, arrow: pa.Table, rows: int, folder: Path) -> dict[str, Callable[[], int]]:
    sink = delta.sink(folder / "ours")

    def ours() -> int:
        sink.save(frame, Batch("benchmark", next(BATCHES)))
        return rows

    def parquet() -> int:
        frame.write.option("compression", "zstd").parquet(str(folder / uuid.uuid4().hex))
        return rows

    def theirs() -> int:
        write_deltalake(folder / "theirs", arrow, mode="append", writer_properties=ZSTD)
        return rows

    def collected() -> int:
        write_deltalake(folder / "theirs", frame.toArrow(), mode="append", writer_properties=ZSTD)
        return rows

    return {"penstock": ours, "spark-parquet": parquet, "collected": collected, "deltalake": theirs}


def upserts(frame: DataFrame, arrow: pa.Table, rows: int, folder: Path) -> dict[str, Callable[[], int]]:
    half = arrow.slice(0, rows // 2)

    def fresh() -> Path:
        path = folder / uuid.uuid4().hex
        write_deltalake(path, half, writer_properties=ZSTD)
        return path

    def ours() -> int:
        delta.sink(fresh(), key="id").save(frame, Batch("benchmark", next(BATCHES)))
        return rows

    def theirs() -> int:
        table = DeltaTable(fresh())
        merger = table.merge(arrow, "t.id = s.id", source_alias="s", target_alias="t", writer_properties=ZSTD)
        merger.when_matched_update_all().when_not_matched_insert_all().execute()
        return rows

    return {"penstock": ours, "deltalake": theirs}


def measure(folder: Path, rows: int, rounds: int) -> list[Row]:
    session = spark("benchmark")
    frame = session.range(rows, numPartitions=2).selectExpr(
        "id", "concat('user-', id % 1000) AS name", "timestamp_millis(1700000000000 + id) AS at",
        "id / 7 AS amount", "concat('a note of about forty characters: ', id) AS note",
    ).persist()  # fmt: skip
    arrow = frame.toArrow()
    found: list[Row] = []
    cases = {"delta/append": appends(frame, arrow, rows, folder), "delta/upsert": upserts(frame, arrow, rows, folder)}
    for case, subjects in cases.items():
        alternate(subjects, 1)  # warms up the JVM
        found += rows_of(case, alternate(subjects, rounds), PEERS[case])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        report(measure(Path(name), options.rows, options.rounds), options.json)


if __name__ == "__main__":
    main()
