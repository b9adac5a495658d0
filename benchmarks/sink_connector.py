"""Records of a topic into a table: `penstock connect` beside ScyllaDB's own sink connector in Kafka Connect.

    python benchmarks/sink_connector.py --reference DIR --connect DIR --json sink_connector.json

DIR are folders of jars (see _reference.py); without them only ours is measured. Both run the same configuration of
io.connect.scylladb.ScyllaDbSinkConnector in turn, in a worker that was started for the run, on the same topic, which
is full before, into a table that was made for the run. Case `good`: every record fits. Case `bad`: one of a hundred has
text for a column of integers, with errors.tolerance=all and a topic of dead letters: how many records came nowhere.

rate_per_s is from the request that makes the connector to the last row, marginal_per_s from the first row to the last.
The node counts the rows itself, and after the last they are counted in the table. A ratio is ours over theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, TopicPartition

from _measure import Run, SampledCpu, rows_of, tell, tree_cpu, turns
from _reference import Connect, Reference, running, serving
from _stream_data import PARTITIONS, chunks, fill, topics
from cdc_source import DDL, connect
from penstock.errors import PenstockError
from penstock.local import cql_node, ports, services
from penstock.local.services import Services

OURS, THEIRS = "penstock", "kafka-connect-scylladb"
CASES = ("good", "bad")
KEYSPACE = "bench"
TABLE = "CREATE TABLE {table} (id bigint PRIMARY KEY, name text, price double, n int, at bigint, ok boolean)"
EVERY = 100  # one of so many records is bad
WARM_UP = 20_000  # records that both write once before they are measured
JSON = "org.apache.kafka.connect.json.JsonConverter"
POLL, LOOK = 0.05, 0.5  # seconds between looks at the node's count, and at the worker
COMMITS = (
    "offset.flush.interval.ms=5000\n"  # after its last records Connect may wait that long; the default is a minute
)
GROUPED = ("commitlog_sync_group_window", "native_transport_max_threads", "concurrent_writes")
RANGES = 64
STALL = 120.0  # seconds without a row after which a run is over


@dataclass(frozen=True)
class Outcome:
    """What one run wrote, and took; `first` is the seconds to the first look that saw rows, and how many it saw.

    `repeats` are the writes beyond one for each row.
    """

    run: Run
    first: tuple[float, int]
    node_cpu: float
    rows: int
    repeats: int
    dead_letters: int
    problem: str

    @property
    def marginal(self) -> float:
        """Rows a second from the first to the last."""
        seconds, rows = self.first
        return (self.run.rows - rows) / max(self.run.seconds - seconds, POLL)


class Bench:
    """The servers, both subjects, and how they are set."""

    def __init__(self, found: Services, options: argparse.Namespace, folder: Path) -> None:
        self.found, self.options, self.folder = found, options, folder
        self.session = connect(found.cql)
        self.session.execute(DDL[0])
        self.subjects = [OURS, THEIRS] if options.reference else [OURS]

    def run(self, subject: str, topic: str, records: int) -> Outcome:
        """The whole topic into a new table, by a new worker."""
        name = f"s{uuid.uuid4().hex[:8]}"
        good = records - bad_ones(topic, records)
        self._empty(topic)
        with topics(self.found.kafka, [dead := f"dead.{name}"]), self._worker(subject, name) as worker:
            cpu, node = SampledCpu(worker.pid), self.found.pids["cassandra"]
            began, used, node_used = time.perf_counter(), cpu.look(), tree_cpu(node)
            worker.ask("PUT", f"/connectors/{name}/config", self._config(subject, topic, dead))
            table = Rows(self.session, topic, good)
            run, first, problem = table.follow(worker, name, began, cpu)
            node_used = tree_cpu(node) - node_used
            if not problem:
                self._await_positions(topic, name)
            rows, letters = count(self.session, topic), sum(ends(self.found.kafka, dead))
            repeats = table.written() - rows
        run = Run(run.rows, run.seconds, run.cpu - used)
        return Outcome(run, first, node_used, rows, repeats, letters, problem)

    def _empty(self, topic: str) -> None:
        self.session.execute(f"DROP TABLE IF EXISTS {KEYSPACE}.{topic}")
        self.session.execute(TABLE.format(table=f"{KEYSPACE}.{topic}"))

    def _worker(self, subject: str, name: str) -> AbstractContextManager[Connect]:
        folder = self.folder / name
        if subject == THEIRS:
            reference = Reference(self.options.reference, self.options.connect)
            return running(reference, folder, self.found.kafka, settings=COMMITS)
        folder.mkdir()
        file = folder / "worker.properties"
        file.write_text(f"bootstrap.servers={self.found.kafka}\nconfig.storage.topic=configs-{name}\n")
        url = f"http://{ports.HOST}:{ports.free(set())}"
        command = [sys.executable, "-m", "penstock", "connect", str(file), "--listen", url, "--metrics", "none"]
        return serving(
            [*command, "--data", str(folder), "--cores", str(self.options.cores)], url, folder / "connect.log"
        )

    def _config(self, subject: str, topic: str, dead: str) -> dict[str, str]:
        host, port = self.found.cql.split(":")
        converters = {f"{side}.converter": JSON for side in ("key", "value")}
        schemas = {f"{side}.converter.schemas.enable": "false" for side in ("key", "value")}
        return {
            "connector.class": "io.connect.scylladb.ScyllaDbSinkConnector",
            "topics": topic,
            "tasks.max": str(self.options.tasks),
            "scylladb.contact.points": host,
            "scylladb.port": port,
            "scylladb.loadbalancing.localdc": "datacenter1",
            "scylladb.keyspace": KEYSPACE,
            "scylladb.keyspace.create.enabled": "false",
            "scylladb.table.manage.enabled": "false",
            "scylladb.offset.storage.table.enable": "false",
            "scylladb.consistency.level": "LOCAL_QUORUM",
            "behavior.on.error": "LOG",
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": dead,
            "errors.deadletterqueue.topic.replication.factor": "1",
            "errors.deadletterqueue.context.headers.enable": "true",
            **converters,
            **schemas,
            **(dict(self.options.theirs) if subject == THEIRS else {}),
        }

    def _await_positions(self, topic: str, name: str) -> None:
        """Until the connector has said of every record that it is done with it: dead letters come before that."""
        parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        consumer = Consumer({"bootstrap.servers": self.found.kafka, "group.id": f"connect-{name}"})
        deadline = time.monotonic() + STALL
        try:
            wanted = ends(self.found.kafka, topic)
            while [part.offset for part in consumer.committed(parts, timeout=10)] != wanted:
                if time.monotonic() > deadline:
                    raise PenstockError(f"{name} has not committed the end of its topic", where=topic)
                time.sleep(POLL)
        finally:
            consumer.close()


class Rows:
    """Waits for the rows of a table, by the node's own count of its writes: a look at it costs next to nothing."""

    def __init__(self, session: Any, table: str, wanted: int) -> None:
        self.session, self.table, self.wanted = session, table, wanted
        self.select = session.prepare(
            "SELECT count FROM system_views.local_write_latency WHERE keyspace_name = ? AND table_name = ?"
        )

    def written(self) -> int:
        found = self.session.execute(self.select, (KEYSPACE, self.table)).one()
        return int(found[0]) if found else 0

    def follow(self, worker: Connect, name: str, began: float, cpu: SampledCpu) -> tuple[Run, tuple[float, int], str]:
        """Until all rows are there, a task has failed, or nothing comes: the run, its first look, and the problem."""
        first, again, last, looked, problem = (0.0, 0), 0, (began, 0), began, ""
        while not problem:
            written, now = self.written(), time.perf_counter()
            if written and not first[1]:
                first = now - began, written
            if written > last[1]:
                last = now, written
            if written >= self.wanted + again:
                used = cpu.look()
                again = written - count(self.session, self.table)
                if written - again >= self.wanted:
                    return Run(self.wanted, now - began, used), first, ""
            if now - looked > LOOK:
                looked = now
                cpu.look()
                problem = failed(worker, name) or ("no row comes" if now - last[0] > STALL else "")
            time.sleep(POLL)
        if not (rows := count(self.session, self.table)):
            raise PenstockError(f"{name} wrote nothing: {problem}", where=str(worker.log), next="read that log")
        return Run(rows, last[0] - began, cpu.look()), first, problem


def failed(worker: Connect, name: str) -> str:
    """The last line of the trace of a task that has failed."""
    return next((trace.strip().splitlines()[-1] for trace in worker.failures(name)), "")


def count(session: Any, table: str) -> int:
    """The rows of a table, by ranges of tokens: a million rows at once take longer than the node waits."""
    bounds = [*range(-(1 << 63), 1 << 63, (1 << 64) // RANGES), (1 << 63) - 1]
    text = f"SELECT count(*) FROM {KEYSPACE}.{table} WHERE token(id) > %s AND token(id) <= %s"
    return sum(int(session.execute(text, pair, timeout=120).one()[0]) for pair in pairwise(bounds))


def ends(servers: str, topic: str) -> list[int]:
    """The end of each partition."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "ends"})
    try:
        parts = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        return [int(consumer.get_watermark_offsets(part, timeout=10)[1]) for part in parts]
    finally:
        consumer.close()


def bad_ones(topic: str, records: int) -> int:
    return records // EVERY if topic.startswith("bad") else 0


def records_of(topic: str, total: int) -> Iterator[pa.RecordBatch]:
    """Objects as keys and values; of a topic of bad ones the last of each hundred has text as `n`."""
    for first, size in chunks(total):
        numbers = np.arange(first, first + size)
        ids = pa.array(numbers).cast(pa.string())
        n = pa.array(numbers % 1000).cast(pa.string())
        if bad_ones(topic, total):
            n = pc.if_else(pa.array(numbers % EVERY == EVERY - 1), '"many"', n)
        text = [
            *('{"id":', ids, ',"name":"name of ', ids, '","price":', pa.array(numbers + 0.25).cast(pa.string())),
            *(',"n":', n, ',"at":', pa.array(1_709_208_000_000 + numbers).cast(pa.string()), ',"ok":'),
            *(pc.if_else(pa.array(numbers % 2 == 0), "true", "false"), "}"),
        ]
        values = pc.binary_join_element_wise(*text, "")
        keys = pc.binary_join_element_wise('{"id":', ids, "}", "")
        yield pa.record_batch({"key": keys.cast(pa.binary()), "value": values.cast(pa.binary())})


def measure(bench: Bench, case: str) -> list[dict[str, Any]]:
    """A row for each subject: medians of the rounds; of the records that came nowhere, the most."""
    records, outcomes = bench.options.records, {subject: list[Outcome]() for subject in bench.subjects}
    with topics(bench.found.kafka, [case, warm := f"{case}_warm_up"]):
        for topic, size in (case, records), (warm, min(records, WARM_UP)):
            fill(bench.found.kafka, topic, records_of(topic, size))
        for subject in bench.subjects:
            bench.run(subject, warm, min(records, WARM_UP))
        for _, subject in turns(bench.subjects, bench.options.rounds):
            outcomes[subject].append(bench.run(subject, case, records))
            print(case, subject, outcomes[subject][-1], file=sys.stderr, flush=True)
    peer = THEIRS if THEIRS in outcomes else OURS
    rows = rows_of(case, {name: [one.run for one in each] for name, each in outcomes.items()}, peer)
    marginal = {name: statistics.median(one.marginal for one in each) for name, each in outcomes.items()}
    return [
        asdict(row)
        | {"marginal_per_s": round(marginal[name]), "marginal_ratio": round(marginal[name] / marginal[peer], 3)}
        | told(outcomes[name], records)
        for name, row in zip(outcomes, rows, strict=True)
    ]


def told(outcomes: list[Outcome], records: int) -> dict[str, Any]:
    """What became of the records in the run that lost the most, and the node's CPU for each million of rows."""
    worst = max(outcomes, key=lambda one: records - one.rows - one.dead_letters)
    node = statistics.median(one.node_cpu / max(one.run.rows, 1) * 1e6 for one in outcomes)
    lost = records - worst.rows - worst.dead_letters
    problem = {"problem": worst.problem} if worst.problem else {}
    about = {"rows": worst.rows, "repeats": worst.repeats, "dead_letters": worst.dead_letters, "lost": lost}
    return {"node_cpu_s_per_million": round(node, 1), **about, **problem}


def setting(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, help="folder with the connector's jars")
    parser.add_argument("--connect", type=Path, help="folder with Kafka Connect's jars")
    parser.add_argument("--records", type=int, default=200_000, help="of the topic (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each subject (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=1, help="tasks.max of both: try 2, too (default: %(default)s)")
    parser.add_argument("--cores", type=int, default=2, help="for each subject (default: %(default)s)")
    parser.add_argument(
        "--theirs", type=setting, action="append", default=[], metavar="NAME=VALUE", help="a setting of the peer only"
    )
    parser.add_argument("--only", choices=CASES, help="default: both")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    if (options.reference is None) != (options.connect is None):
        parser.error("--reference and --connect go together")
    return options


@contextmanager
def periodic() -> Iterator[None]:
    """Within the block nodes start as Cassandra's own settings have it: they sync their commit log every 10 seconds.

    Those of `penstock up` let writers wait for a sync together; their few threads write some 7 000 rows a second at
    most, whoever sends them.
    """

    def settings(place: Any) -> str:
        found = {name: value for name, value in json.loads(own(place)).items() if name not in GROUPED}
        return json.dumps(found | {"commitlog_sync": "periodic", "commitlog_sync_period": "10s"})

    own = cql_node._configuration
    with patch.object(cql_node, "_configuration", settings):
        yield


def main() -> None:
    options = arguments()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        stack.callback(services.down, folder / "services")
        with periodic():
            found = services.up(folder / "services", only=["kafka", "cassandra"])
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])  # and what it starts
        bench = Bench(found, options, folder)
        for case in [options.only] if options.only else CASES:
            rows += measure(bench, case)
    tell(rows, options.json)


if __name__ == "__main__":
    main()
