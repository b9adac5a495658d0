"""Rows of Spark into PostgreSQL and into Parquet: our sinks beside Spark's own writers.

    python benchmarks/sinks.py --json sinks.json

Each run writes the same kept frame in one batch on local[2]. `postgres/append` stands beside Spark's JDBC writer with
batches of 10 000 rows and `reWriteBatchedInserts`. In `postgres/upsert` half of the keys are there; it stands beside
what one does with that writer: a staging table and INSERT ... ON CONFLICT. `files/append` stands beside
`DataFrameWriter.parquet`.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.sql import DataFrame

from _measure import Row, alternate, report, rows_of
from penstock import files, postgres
from penstock.local import jars
from penstock.local.services import down, up
from penstock.postgres.postgres_session import connected
from penstock.query.query import Batch
from penstock.spark_runtime.session import spark

PEER = "spark"
COLUMNS = "id bigint, name text, at timestamptz, amount double precision, note text"
UPSERT = """\
INSERT INTO theirs SELECT * FROM staged ON CONFLICT (id) DO UPDATE SET
name = excluded.name, at = excluded.at, amount = excluded.amount, note = excluded.note"""
BATCHES = itertools.count()


def execute(url: str, *statements: str) -> None:
    with connected(url, "benchmark") as session:
        for statement in statements:
            session.run(statement)
        session.commit()


def jdbc(frame: DataFrame, url: str, table: str) -> None:
    parts = urlsplit(url)
    address = f"jdbc:postgresql://{parts.hostname}:{parts.port}{parts.path}?reWriteBatchedInserts=true"
    login = {"user": parts.username or "", "password": parts.password or ""}
    options = {"url": address, **login, "dbtable": table, "batchsize": "10000", "driver": "org.postgresql.Driver"}
    frame.write.format("jdbc").options(**options).mode("append").save()


def appends(frame: DataFrame, url: str, rows: int) -> dict[str, Callable[[], int]]:
    def ours() -> int:
        execute(url, "DROP TABLE IF EXISTS ours", f"CREATE TABLE ours ({COLUMNS})")
        postgres.sink("ours", url=url).save(frame, Batch("benchmark", next(BATCHES)))
        return rows

    def theirs() -> int:
        execute(url, "DROP TABLE IF EXISTS theirs", f"CREATE TABLE theirs ({COLUMNS})")
        jdbc(frame, url, "theirs")
        return rows

    return {"penstock": ours, PEER: theirs}


def upserts(frame: DataFrame, url: str, rows: int) -> dict[str, Callable[[], int]]:
    half = f"SELECT n * 2, 'old', now(), 0, 'old' FROM generate_series(0, {rows // 2 - 1}) n"

    def fresh(table: str) -> None:
        execute(url, f"DROP TABLE IF EXISTS {table}", f"CREATE TABLE {table} ({COLUMNS}, PRIMARY KEY (id))")
        execute(url, f"INSERT INTO {table} {half}")

    def ours() -> int:
        fresh("ours")
        postgres.sink("ours", url=url, key="id").save(frame, Batch("benchmark", next(BATCHES)))
        return rows

    def theirs() -> int:
        fresh("theirs")
        execute(url, "DROP TABLE IF EXISTS staged", f"CREATE UNLOGGED TABLE staged ({COLUMNS})")
        jdbc(frame, url, "staged")
        execute(url, UPSERT)
        return rows

    return {"penstock": ours, PEER: theirs}


def parquet(frame: DataFrame, folder: Path, rows: int) -> dict[str, Callable[[], int]]:
    sink = files.sink(str(folder / "ours"))
    (folder / "ours" / "_staging").mkdir(parents=True)

    def ours() -> int:
        sink.save(frame, Batch("benchmark", next(BATCHES)))
        return rows

    def theirs() -> int:
        frame.write.option("compression", "zstd").parquet(str(folder / uuid.uuid4().hex))
        return rows

    return {"penstock": ours, PEER: theirs}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            url = up(folder / "services", only=["postgres"]).postgres
            report(measure(url, folder, options.rows, options.rounds), options.json)
        finally:
            down(folder / "services")


def measure(url: str, folder: Path, rows: int, rounds: int) -> list[Row]:
    conf: dict[str, Any] = {"spark.jars": ",".join(map(str, jars.fetch("spark") + jars.fetch("postgres")))}
    session = spark("benchmark", **conf)
    frame = session.range(rows, numPartitions=2).selectExpr(
        "id", "concat('user-', id % 1000) AS name", "timestamp_millis(1700000000000 + id) AS at",
        "id / 7 AS amount", "concat('a note of about forty characters: ', id) AS note",
    ).persist()  # fmt: skip
    frame.count()
    execute(url, f"CREATE TABLE ours ({COLUMNS})")
    postgres.sink("ours", url=url).records(frame)
    found: list[Row] = []
    cases = {
        "postgres/append": appends(frame, url, rows),
        "postgres/upsert": upserts(frame, url, rows),
        "files/append": parquet(frame, folder, rows),
    }
    for case, subjects in cases.items():
        alternate(subjects, 1)  # warms up the JVM
        found += rows_of(case, alternate(subjects, rounds), PEER)
    return found


if __name__ == "__main__":
    main()
