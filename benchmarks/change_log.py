"""What the change log costs a Cassandra node: its CPU for writes with no log, a log, a log with images.

    python benchmarks/change_log.py --json change_log.json

Only CPU is compared, because the Python driver and not the node limits the rate. The peer is the same node's table
without a log; `ratio` is its CPU over the case's, so one half means that the log doubles the CPU of a write.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from cassandra.cluster import Cluster, Session
from cassandra.concurrent import execute_concurrent_with_args

from _measure import Row, Run, report, tree_cpu, turns
from penstock.local.services import down, up

KEYSPACE = "CREATE KEYSPACE cost WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
COLUMNS = "id int, c int, a int, b text, d double, e bigint, PRIMARY KEY (id, c)"
PEER = "no_log"
TABLES = {
    PEER: "",
    "log": " WITH cdc = {'enabled': true}",
    "log_preimage": " WITH cdc = {'enabled': true, 'preimage': 'full'}",
    "log_both_images": " WITH cdc = {'enabled': true, 'preimage': 'full', 'postimage': true}",
}
WARM_UP = 2  # rounds in which the node still compiles
KEYS = 20_000  # later rounds write rows that exist, as the images are for


def write(session: Session, pid: int, table: str, count: int) -> Run:
    insert = session.prepare(f"INSERT INTO cost.{table} (id, c, a, b, d, e) VALUES (?, ?, ?, ?, ?, ?)")
    values = ((i * 7919 % KEYS, i % 4, i, f"value-{i}", i * 0.5, i) for i in range(count))
    began, cpu = time.perf_counter(), tree_cpu(pid)
    execute_concurrent_with_args(session, insert, values, concurrency=128)
    return Run(count, time.perf_counter() - began, tree_cpu(pid) - cpu)


def measure(session: Session, pid: int, writes: int, rounds: int) -> dict[str, list[Run]]:
    """The counted rounds of each table; the tables take turns, so that what else runs here hits all alike."""
    session.execute(KEYSPACE)
    for table, options in TABLES.items():
        session.execute(f"CREATE TABLE cost.{table} ({COLUMNS}){options}")
    runs: dict[str, list[Run]] = {table: [] for table in TABLES}
    for _, table in turns(runs, WARM_UP + rounds):
        runs[table].append(write(session, pid, table, writes))
    return {table: done[WARM_UP:] for table, done in runs.items()}


def rows(runs: dict[str, list[Run]]) -> list[Row]:
    cpu = {table: statistics.median(run.cpu / run.rows * 1e6 for run in done) for table, done in runs.items()}
    rate = {table: statistics.median(run.rows / run.seconds for run in done) for table, done in runs.items()}
    return [
        Row(table, "penstock", round(rate[table], 1), round(cpu[table], 1), round(cpu[PEER] / cpu[table], 3))
        for table in runs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--writes", type=int, default=30_000, help="writes in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="counted rounds (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            services = up(root, only=["cassandra"])
            host, port = services.cql.split(":")
            with Cluster([host], port=int(port)) as cluster:
                session = cluster.connect()
                session.default_timeout = 60
                runs = measure(session, services.pids["cassandra"], options.writes, options.rounds)
        finally:
            down(root)
    report(rows(runs), options.json)


if __name__ == "__main__":
    main()
