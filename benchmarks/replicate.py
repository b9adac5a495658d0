"""Rows from a change log into a table of another node: penstock beside the replicator of scylla-cdc-java.

    python benchmarks/replicate.py --rows 200000 --replicator DIR --json replicate.json

DIR is a folder with the replicator's jar and what it needs: `mvn package -pl scylla-cdc-replicator -am` in the sources
of scylla-cdc-java makes one in scylla-cdc-replicator/target/fat-jar. Without it only ours is measured. Both apply one
log in turn to a table on a second node, which is emptied in between: rows a second from the first applied row to the
last, and the CPU of the subject; the CPU of the nodes is told apart. Then rows are written at a steady rate, and the
lag is measured at the target: from before a write to when it can be read there.

The replicator only knows port 9042, so the source has it at 127.0.0.1, and the target at 127.0.0.2 through a forwarder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from _measure import Run, quantile, tell, tree_cpu, turns
from cdc_source import DDL, ROWS_PER_BATCH, TABLE, connect, fill
from penstock.local import services
from penstock.local.services import Services

OURS, THEIRS = "penstock", "scylla-cdc-replicator"
PORT, ELSEWHERE = 9042, "127.0.0.2"
POLL, COUNT_EVERY = 0.02, 0.5
PATIENCE = 1800.0
FORWARD = """
import asyncio, sys

async def pump(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()

async def serve(reader, writer):
    other, to = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    await asyncio.gather(pump(reader, to), pump(other, writer), return_exceptions=True)

async def main():
    async with await asyncio.start_server(serve, sys.argv[2], int(sys.argv[3])) as server:
        await server.serve_forever()

asyncio.run(main())
"""


class Bench:
    """Both nodes, and both subjects."""

    def __init__(self, source: Services, target: Services, options: argparse.Namespace, folder: Path) -> None:
        self.source, self.target, self.options, self.folder = source, target, options, folder
        self.session = connect(target.cql)
        self.running: subprocess.Popen[bytes] | None = None
        self.subjects: dict[str, Callable[[], Any]] = {OURS: self._ours}
        if options.replicator:
            self.subjects[THEIRS] = self._theirs

    def empty(self) -> None:
        """Make the target's table anew."""
        self.session.execute(f"DROP TABLE IF EXISTS {TABLE}")
        self.session.execute(DDL[0])
        self.session.execute(DDL[1].partition(" WITH cdc")[0].format(table=TABLE))

    def count(self) -> int:
        """Rows of the target."""
        found = self.session.execute(f"SELECT count(*) FROM {TABLE}", timeout=120).one()
        return int(found[0])

    def catch_up(self, subject: str) -> Run:
        """Apply the whole log."""
        self.empty()
        partitions = self.options.rows // ROWS_PER_BATCH
        with self.subjects[subject]() as process:
            self._await(lambda: self.session.execute(f"SELECT id FROM {TABLE} LIMIT 1").one())
            began, cpu, there = time.perf_counter(), tree_cpu(process.pid), self._partitions()
            self._await(lambda: self._partitions() == partitions and self.count() == self.options.rows, COUNT_EVERY)
            seconds, used = time.perf_counter() - began, tree_cpu(process.pid) - cpu
        return Run(self.options.rows - there * ROWS_PER_BATCH, seconds, used)

    def _partitions(self) -> int:
        return len(list(self.session.execute(f"SELECT DISTINCT id FROM {TABLE}", timeout=120)))

    def _await(self, reached: Callable[[], Any], every: float = POLL) -> None:
        deadline = time.monotonic() + PATIENCE
        while not reached():
            if time.monotonic() > deadline:
                raise SystemExit(f"not there after {PATIENCE:.0f} s")
            if self.running and self.running.poll() is not None:
                log = (self.folder / "log").read_text()
                raise SystemExit(f"the subject has ended; its log ends with\n{log[-2000:]}")
            time.sleep(every)

    @contextmanager
    def _ours(self) -> Iterator[subprocess.Popen[bytes]]:
        both = (TABLE, "--from", self.source.cql, "--to", self.target.cql)
        name = f"bench-{time.time_ns()}"
        command = [sys.executable, "-m", "penstock", "replicate", *both, "--name", name, "--start", "earliest"]
        with self._running([*command, "--checkpoints", str(self.folder / "checkpoints"), "--metrics", "none"]) as found:
            yield found

    @contextmanager
    def _theirs(self) -> Iterator[subprocess.Popen[bytes]]:
        keyspace, table = TABLE.split(".")
        names = ("-k", keyspace, "-t", table, "-s", "127.0.0.1", "-d", ELSEWHERE, "-cl", "QUORUM")
        jars = str(Path(self.options.replicator) / "*")
        with self._running(["java", "-cp", jars, "com.scylladb.cdc.replicator.Main", *names]) as found:
            yield found

    @contextmanager
    def _running(self, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / "log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
            self.running = process
            try:
                yield process
            finally:
                self.running = None
                process.terminate()

    def lag(self, subject: str) -> list[float]:
        """Milliseconds from before a write to when the target has it, for one write of each second at a steady rate."""
        self.empty()
        source = connect(self.source.cql)
        insert = source.prepare(f"INSERT INTO {TABLE} (id, at, n) VALUES (?, 0, 1)")
        select = self.session.prepare(f"SELECT n FROM {TABLE} WHERE id = ? AND at = 0")
        base, ends = time.time_ns(), threading.Event()
        open_probes: dict[int, float] = {}

        def write() -> None:
            number = 0
            while not ends.wait(1 / self.options.rate):
                number += 1
                if number % self.options.rate == 0:
                    open_probes[base + number] = time.perf_counter()
                source.execute_async(insert, (base + number,))

        found: list[float] = []
        with self.subjects[subject]():
            self._write_one_and_await(source.prepare(f"INSERT INTO {TABLE} (id, at) VALUES (?, 0)"), select, base)
            writer = threading.Thread(target=write, daemon=True)
            writer.start()
            until = time.monotonic() + self.options.seconds
            while open_probes or time.monotonic() < until:
                if time.monotonic() > until:
                    ends.set()
                for number, began in list(open_probes.items()):
                    if self.session.execute(select, (number,)).one() is not None:
                        found.append((time.perf_counter() - began) * 1000)
                        del open_probes[number]
                time.sleep(POLL)
            writer.join()
        return sorted(found)

    def _write_one_and_await(self, insert: Any, select: Any, number: int) -> None:
        """Wait until the subject has started."""
        connect(self.source.cql).execute(insert, (number,))
        self._await(lambda: self.session.execute(select, (number,)).one())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rate", type=int, default=1000, help="writes a second while the lag is measured")
    parser.add_argument("--seconds", type=int, default=60, help="how long the lag is measured; 0: not")
    parser.add_argument("--replicator", type=Path, help="folder of the replicator's jars")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        roots = folder / "source", folder / "target"
        source = services.up(roots[0], cql_port=PORT, only=["cassandra"])
        stack.callback(services.down, roots[0])
        target = services.up(roots[1], only=["cassandra"])
        stack.callback(services.down, roots[1])
        forward = [sys.executable, "-c", FORWARD, target.cql.split(":")[1], ELSEWHERE, str(PORT)]
        if options.replicator:
            forwarder = subprocess.Popen(forward)
            stack.callback(forwarder.kill)
        fill(source.cql, options.rows)
        measure(Bench(source, target, options, folder), options)


def measure(bench: Bench, options: argparse.Namespace) -> None:
    runs: dict[str, list[Run]] = {subject: [] for subject in bench.subjects}
    rows: list[dict[str, Any]] = []
    for _, subject in turns(bench.subjects, options.rounds):
        run = bench.catch_up(subject)
        runs[subject].append(run)
        rate, cpu = round(run.rows / run.seconds), round(run.cpu / run.rows * 1e6, 1)
        rows.append({"case": "catch up", "subject": subject, "rate_per_s": rate, "cpu_s_per_million": cpu})
        tell(rows[-1:], None)
    for subject in bench.subjects if options.seconds else ():
        lags = bench.lag(subject)
        parts = {f"p{part}_ms": round(quantile(lags, part / 100)) for part in (50, 95, 99)}
        rows.append({"case": f"lag at {options.rate} writes/s", "subject": subject, **parts})
        tell(rows[-1:], None)
    if THEIRS in runs:
        rates = {name: statistics.median(run.rows / run.seconds for run in some) for name, some in runs.items()}
        rows.append({"case": "catch up", "ratio": round(rates[OURS] / rates[THEIRS], 2)})
        tell(rows[-1:], None)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
