"""What a running pipeline takes: processes, memory, CPU without events, and the time to its first event.

    python benchmarks/footprint.py --tables 1 5 --json footprint.json

`penstock run` with a query for each of some tables, as in the README, and a pipeline of real-time mode from a topic to
a topic. Memory is the sum over the processes: `rss_mb` of what each has resident, `pss_mb` with shared pages divided
among those that share them, which is what the machine has less. CPU is in percent of a core, over `--seconds` without
events. There is no peer: the targets are 6 processes and 1 GB for a table, 60 MB for each further one, and 3 percent.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from _measure import penstock_run, tell, tree_cpu
from first_event import at_the_end, await_record
from penstock.local.services import down, up
from penstock_demo import child
from penstock_demo.node import connect

TABLES = """import penstock as ps
from penstock import cdc, kafka

@ps.pipeline(every="1 second")
def pipeline(spark):
    tables = [f"foot.t{{number}}" for number in range({count})]
    changes = [cdc.read(spark, table, hosts="{cql}", name=table, confidence="1 second") for table in tables]
    sink = kafka.sink(servers="{kafka}", prefix="foot")
    return [ps.write(frame, sink, name=f"t{{number}}") for number, frame in enumerate(changes)]
"""
EARLY = """import penstock as ps
from penstock import kafka

@ps.pipeline(every="real-time")
def pipeline(spark):
    rows = kafka.read(spark, "foot-in", servers="{kafka}", schema="id int", name="rows")
    return ps.write(rows.selectExpr("to_json(struct(id)) AS value"), kafka.sink("foot-out", servers="{kafka}"))
"""
SETTLING = 85.0
"""Seconds after the first event: Spark ends a Python worker that had no task for a minute, and then we its daemon."""


def taken(process: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
    """What a process and those below it take when they have nothing to do."""
    time.sleep(SETTLING)
    before = tree_cpu(process.pid)
    time.sleep(seconds)
    cpu = (tree_cpu(process.pid) - before) / seconds
    pids = [process.pid, *(one.pid for one in child.below(process.pid))]
    memory = [_memory(pid) for pid in pids]
    return {
        "processes": len(pids),
        "rss_mb": sum(one["Rss"] for one in memory) >> 10,
        "pss_mb": sum(one["Pss"] for one in memory) >> 10,
        "idle_cpu_percent": round(cpu * 100, 1),
    }


def _memory(pid: int) -> dict[str, int]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


def of_tables(count: int, kafka: str, cql: str, folder: Path, seconds: float) -> dict[str, Any]:
    file = folder / "tables.py"
    file.write_text(TABLES.format(count=count, cql=cql, kafka=kafka))
    with connect(cql) as session:
        session.execute("DROP KEYSPACE IF EXISTS foot")
        session.execute("CREATE KEYSPACE foot WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
        for number in range(count):
            session.execute(f"CREATE TABLE foot.t{number} (id int PRIMARY KEY) WITH cdc = {{'enabled': true}}")
            session.execute(f"INSERT INTO foot.t{number} (id) VALUES (1)")
        readers = [at_the_end(kafka, f"foot.foot.t{number}") for number in range(count)]
        began = time.monotonic()
        with penstock_run(f"{file}:pipeline", folder) as process:
            first = max(await_record(reader, process, began) for reader in readers)
            return {"case": f"{count} tables", "first_event_s": round(first, 1)} | taken(process, seconds)


def in_real_time(kafka: str, folder: Path, seconds: float) -> dict[str, Any]:
    file = folder / "early.py"
    file.write_text(EARLY.format(kafka=kafka))
    at_the_end(kafka, "foot-in").close()
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce("foot-in", '{"id": 1}')
    producer.flush()
    reader = at_the_end(kafka, "foot-out")
    began = time.monotonic()
    with penstock_run(f"{file}:pipeline", folder) as process:
        first = await_record(reader, process, began)
        return {"case": "real-time", "first_event_s": round(first, 1)} | taken(process, seconds)


def further(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What each table takes beyond the first, from the smallest and the largest number of tables."""
    counted = sorted((int(row["case"].split()[0]), row) for row in rows if row["case"].endswith("tables"))
    (few, first), (many, last) = counted[0], counted[-1]
    names = ("processes", "rss_mb", "pss_mb", "idle_cpu_percent")
    return {"case": "each further table"} | {
        name: round((last[name] - first[name]) / (many - few), 1) for name in names
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", type=int, nargs="+", default=[1, 5], help="numbers of tables (default: 1 5)")
    parser.add_argument("--seconds", type=float, default=30, help="without events (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        try:
            found = up(root / "services", only=["kafka", "cassandra"])
            for count in options.tables:
                folder = root / str(count)
                folder.mkdir()
                rows.append(of_tables(count, found.kafka, found.cql, folder, options.seconds))
            (root / "early").mkdir()
            rows.append(in_real_time(found.kafka, root / "early", options.seconds))
        finally:
            down(root / "services")
    if len(set(options.tables)) > 1:
        rows.append(further(rows))
    tell(rows, options.json)


if __name__ == "__main__":
    main()
