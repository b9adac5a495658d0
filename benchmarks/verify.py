"""A comparison of two tables: penstock verify beside a join, as migration tools do it.

    python benchmarks/verify.py --rows 1000000 --json verify.json

The join reads each row of one table with the Python driver, by ranges of tokens in Spark's tasks, looks its key up in
the other table, many at a time, and compares values and write times: extra rows of the other table it cannot see. Both
compare the same two equal tables in turn, in two keyspaces of one node. A line has rows a second, and CPU seconds for a
million rows, of the comparison and the node together.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from _measure import Run, SampledCpu, report, rows_of, tree_cpu, turns
from cdc_source import DDL, TABLE, connect, fill
from penstock import replicate
from penstock.database.access import Access
from penstock.database.cql_connection import connection
from penstock.local import services
from penstock.local.services import Services
from penstock.replicate.row_digests import BUCKETS, bounds
from penstock.spark_runtime.session import spark as spark_session

OURS, THEIRS = "penstock verify", "a join by lookups"
COPY = "copy.visits"
VALUES = ("name", "price", "seen", "ref", "note", "n", "ok")
RANGES, IN_FLIGHT = 16, 64


def copy(hosts: str, folder: Path) -> None:
    """The same rows in another keyspace, with their write times."""
    connect(hosts).execute(DDL[0].replace("bench", "copy"))
    both = (TABLE, COPY, "--from", hosts, "--to", hosts, "--name", "copy", "--create", "--start", "earliest")
    command = [sys.executable, "-m", "penstock", "replicate", *both, "--once", "--checkpoints", str(folder)]
    subprocess.run(command, check=True)


def joined(spark: SparkSession, hosts: str) -> int:
    """The number of rows that differ, found by lookups."""
    edges = [BUCKETS * number // RANGES for number in range(RANGES + 1)]
    columns = ", ".join(f"{name}, WRITETIME({name})" for name in VALUES)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        session = connection(Access(hosts)).rows
        scan = session.prepare(f"SELECT id, at, tags, {columns} FROM {TABLE} WHERE token(id) > ? AND token(id) <= ?")
        look = session.prepare(f"SELECT id, at, tags, {columns} FROM {COPY} WHERE id = ? AND at = ?")
        different, waiting = 0, deque[tuple[Any, Any]]()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for row in session.execute(scan, bounds(edges[number], edges[number + 1])):
                    waiting.append((row, session.execute_async(look, row[:2])))
                    if len(waiting) == IN_FLIGHT:
                        known, future = waiting.popleft()
                        different += future.result().one() != known
        different += sum(future.result().one() != known for known, future in waiting)
        yield pa.record_batch({"different": pa.array([different], pa.int64())})

    found = spark.range(0, RANGES, 1, RANGES).mapInArrow(work, "different bigint").collect()
    return sum(row[0] for row in found)


def verified(spark: SparkSession, hosts: str) -> int:
    source, target = (replicate.side(table, hosts=hosts) for table in (TABLE, COPY))
    return replicate.verify(spark, source, target, settle=0).different


def timed(work: Callable[[SparkSession, str], int], spark: SparkSession, found: Services, rows: int) -> Run:
    """Compare once; raises if it finds a difference."""
    own, node = SampledCpu(os.getpid()), found.pids["cassandra"]
    began, cpu = time.perf_counter(), own.look() + tree_cpu(node)
    if different := work(spark, found.cql):
        raise SystemExit(f"{different} rows differ")
    return Run(rows, time.perf_counter() - began, own.look() + tree_cpu(node) - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = services.up(Path(place), only=["cassandra"])
        try:
            fill(found.cql, options.rows)
            copy(found.cql, Path(place) / "checkpoints")
            subjects: dict[str, Callable[[SparkSession, str], int]] = {OURS: verified, THEIRS: joined}
            runs: dict[str, list[Run]] = {name: [] for name in subjects}
            spark = spark_session("verify")
            # Both run once before they are measured.
            for _, name in turns(subjects, options.rounds + 1):
                runs[name].append(timed(subjects[name], spark, found, options.rows))
            rows = rows_of("compare", {name: some[1:] for name, some in runs.items()}, THEIRS)
            report(rows, options.json)
        finally:
            services.down(Path(place))


if __name__ == "__main__":
    main()
