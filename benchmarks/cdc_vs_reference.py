"""Changes into Kafka: penstock beside ScyllaDB's own connector in Kafka Connect, on one log, on the same cores.

    python benchmarks/cdc_vs_reference.py --reference DIR --connect DIR --json cdc_vs_reference.json

DIR are folders of jars (see _reference.py); without them only ours is measured. Both read one log in turn, from its
beginning, into a topic of their own: events a second from the start of the query or connector to the last record in
Kafka, and their CPU. Then rows are written at a steady rate: milliseconds from before a write to its event in a
consumer. The last line of a case has the ratios, ours over theirs (of latency and CPU: theirs over ours).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from _measure import AS_PEERS, Run, quantile, tell, tree_cpu, turns
from _paced import paced
from _reference import Connect, Reference, running
from cdc_source import ROWS_PER_BATCH, TABLE, fill
from penstock import cdc, kafka, write
from penstock.cdc.cdc_options import Image, Latency
from penstock.errors import PenstockError
from penstock.local import services
from penstock.local.services import Services
from penstock.spark_runtime.session import spark as spark_session

OURS, THEIRS = "penstock", "scylla-cdc-source-connector"
WARM_UP = "bench.warm_up", 5000  # a log, and its rows, that both read once before they are measured
LOG = "{'enabled': true}"
LOG_WITH_IMAGES = "{'enabled': true, 'preimage': true, 'postimage': true}"
# The least that the connector takes.
CATCHING_UP = timedelta(milliseconds=1)
PARTITIONS = 2
POLL = 0.05
PATIENCE = 1800.0  # seconds for the events of one run


class Bench:
    """The servers, both subjects, and how they are set; `session` is None if ours is not among them."""

    def __init__(self, found: Services, session: Any, connect: Connect | None, options: argparse.Namespace):
        self.found, self.spark, self.connect, self.options = found, session, connect, options

    @property
    def subjects(self) -> list[str]:
        return [OURS, THEIRS] if self.connect else [OURS]

    @contextmanager
    def reading(self, subject: str, table: str, name: str, confidence: timedelta) -> Iterator[str]:
        """The subject at work on a table, from the log's beginning; the topic it writes to."""
        topic = f"{name}.{table}"
        create_topic(self.found.kafka, topic)
        start = self._ours if subject == OURS else self._theirs
        with start(table, name, confidence):
            yield topic

    @contextmanager
    def _ours(self, table: str, name: str, confidence: timedelta) -> Iterator[None]:
        images: Image = "full" if self.options.images and self.options.format == "advanced" else "none"
        mode: Latency = "safe" if confidence == CATCHING_UP else self.options.latency
        changes = cdc.read(
            self.spark, table, hosts=self.found.cql, name=name, images=images, confidence=confidence, latency=mode
        )
        events = cdc.events(changes, prefix=name, format=self.options.format)
        with tempfile.TemporaryDirectory() as checkpoint:
            query = write(events, kafka.sink(servers=self.found.kafka, options=AS_PEERS)).start(
                checkpoint=checkpoint, trigger=timedelta(), name=name
            )
            try:
                yield
            finally:
                query.stop()

    @contextmanager
    def _theirs(self, table: str, name: str, confidence: timedelta) -> Iterator[None]:
        assert self.connect
        images = {f"cdc.include.{side}": "full" for side in ("before", "after")} if self.options.images else {}
        # The places are those it documents as the default, which it does not set itself.
        places = {"cdc.include.primary-key.placement": "kafka-key,payload-after,payload-before"}
        advanced = {"cdc.output.format": "advanced", **places, **images}
        self.connect.start(
            name,
            {
                "topic.prefix": name,
                "scylla.cluster.ip.addresses": self.found.cql,
                "scylla.table.names": table,
                "tasks.max": str(self.options.tasks),
                "scylla.confidence.window.size": str(confidence // timedelta(milliseconds=1)),
                **self._windows(confidence),
                **(advanced if self.options.format == "advanced" else {}),
            },
        )
        try:
            yield
        finally:
            self.connect.stop(name)

    @staticmethod
    def _windows(confidence: timedelta) -> dict[str, str]:
        """Its defaults for a log that lags; what makes it fastest when it is to keep up."""
        if confidence == CATCHING_UP:
            return {}
        return {"scylla.query.time.window.size": "250", "poll.interval.ms": "20"}

    def cpu(self, subject: str) -> float:
        """CPU seconds of a subject so far; Connect, Kafka and the database are children of this process."""
        theirs = tree_cpu(self.connect.pid) if self.connect else 0.0
        servers = sum(map(tree_cpu, self.found.pids.values()))
        return tree_cpu(os.getpid()) - theirs - servers if subject == OURS else theirs

    def catch_up(self, subject: str, table: str, events: int) -> Run:
        """The whole log of a table into a topic."""
        name = f"c{uuid.uuid4().hex[:8]}"
        began, cpu = time.perf_counter(), self.cpu(subject)
        with self.reading(subject, table, name, CATCHING_UP) as topic:
            self.await_records(topic, events)
            taken = Run(events, time.perf_counter() - began, self.cpu(subject) - cpu)
        delete_topic(self.found.kafka, topic)
        return taken

    def await_records(self, topic: str, count: int) -> None:
        """Until a topic has so many records."""
        consumer = Consumer({"bootstrap.servers": self.found.kafka, "group.id": topic})
        deadline = time.monotonic() + PATIENCE
        try:
            while (found := written(consumer, topic)) < count:
                for query in self.spark.streams.active:
                    if error := query.exception():
                        raise error
                if self.connect:
                    self.connect.check()
                if time.monotonic() > deadline:
                    raise PenstockError(f"{found} of {count} events came within {PATIENCE:.0f} s", where=topic)
                time.sleep(POLL)
        finally:
            consumer.close()

    def keep_up(self, subject: str) -> tuple[float, float, int]:
        """P50 and P99 in milliseconds at the steady rate, and how many events never came."""
        found, missing = self.delays(subject)
        return quantile(found, 0.5), quantile(found, 0.99), missing

    def delays(self, subject: str) -> tuple[list[float], int]:
        """The delays in milliseconds at the steady rate, sorted, and how many events never came."""
        name = f"l{uuid.uuid4().hex[:8]}"
        confidence = timedelta(seconds=self.options.confidence)
        with (
            paced(self.found.cql, name, self.options.rate) as table,
            self.reading(subject, table.name, name, confidence) as topic,
        ):
            return table.latencies(self.found.kafka, topic, PARTITIONS, self.options.seconds)


def create_topic(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        done.result()


def delete_topic(servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    for done in admin.delete_topics([topic]).values():
        done.result()


def written(consumer: Consumer, topic: str) -> int:
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in range(PARTITIONS)]
    return sum(ends)


def throughput(bench: Bench, events: int, rounds: int) -> list[dict[str, object]]:
    """Medians of events a second and of CPU seconds for a million events."""
    runs: dict[str, list[Run]] = {name: [] for name in bench.subjects}
    for name in bench.subjects:
        bench.catch_up(name, *WARM_UP)
    for _, name in turns(bench.subjects, rounds):
        runs[name].append(bench.catch_up(name, TABLE, events))
        print(name, runs[name][-1], file=sys.stderr, flush=True)
    case = f"catch_up/{bench.options.format}"
    rate = {name: statistics.median(run.rows / run.seconds for run in each) for name, each in runs.items()}
    cpu = {name: statistics.median(run.cpu / run.rows * 1e6 for run in each) for name, each in runs.items()}
    rows: list[dict[str, object]] = [
        {"case": case, "subject": name, "events_per_s": round(rate[name]), "cpu_s_per_million": round(cpu[name], 1)}
        for name in runs
    ]
    if bench.connect:
        ratios = {"rate_ratio": round(rate[OURS] / rate[THEIRS], 2), "cpu_ratio": round(cpu[THEIRS] / cpu[OURS], 2)}
        rows.append({"case": case, **ratios})
    return rows


def latency(bench: Bench, rounds: int) -> list[dict[str, object]]:
    """Medians over the rounds of P50 and P99, and the sum of the missing events."""
    taken: dict[str, list[tuple[float, float, int]]] = {name: [] for name in bench.subjects}
    for _, name in turns(bench.subjects, rounds):
        taken[name].append(bench.keep_up(name))
    case, rows, p99 = f"latency/{bench.options.rate}", list[dict[str, object]](), {}
    for name, each in taken.items():
        p50, p99[name], missing = (statistics.median(values) for values in zip(*each, strict=True))
        row = {"p50_ms": round(p50), "p99_ms": round(p99[name]), "missing": missing}
        rows.append({"case": case, "subject": name, **row})
    if bench.connect:
        rows.append({"case": case, "p99_ratio": round(p99[THEIRS] / p99[OURS], 2)})
    return rows


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, help="folder with the connector's jars")
    parser.add_argument("--connect", type=Path, help="folder with Kafka Connect's jars")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the log (default: %(default)s)")
    parser.add_argument("--images", action="store_true", help="a log with both images, and events that have them")
    parser.add_argument("--format", choices=("advanced", "legacy"), default="advanced", help="default: %(default)s")
    parser.add_argument("--cores", type=int, default=2, help="for each subject (default: %(default)s)")
    parser.add_argument(
        "--tasks", type=int, default=1, help="the connector's tasks.max: try 2, too (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each subject (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=5000, help="rows a second for latency (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="of a latency run (default: %(default)s)")
    parser.add_argument("--confidence", type=float, default=1, help="seconds both stay behind now (default: 1)")
    parser.add_argument("--latency", choices=("safe", "low"), default="low", help="our mode (default: %(default)s)")
    parser.add_argument("--only", choices=("throughput", "latency"), help="default: both")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    if (options.reference is None) != (options.connect is None):
        parser.error("--reference and --connect go together")
    return options


def measure(bench: Bench) -> list[dict[str, object]]:
    options, rows = bench.options, list[dict[str, object]]()
    if options.only != "latency":
        # With images a row is written twice: two log rows for its first write, three for the one that finds it there.
        writes, passes = (options.rows // 5, 2) if options.images else (options.rows, 1)
        log = LOG_WITH_IMAGES if options.images else LOG
        fill(bench.found.cql, WARM_UP[1], WARM_UP[0], log)
        for _ in range(passes):
            fill(bench.found.cql, writes, TABLE, log)
        rows += throughput(bench, writes // ROWS_PER_BATCH * ROWS_PER_BATCH * passes, options.rounds)
    if options.only != "throughput":
        rows += latency(bench, options.rounds)
    return rows


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        root = Path(folder)
        stack.callback(services.down, root / "services")
        found = services.up(root / "services")
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.cores])  # and what it starts
        session = spark_session("benchmark", cores=options.cores)
        stack.callback(session.stop)
        connect = None
        if options.reference:
            reference = Reference(options.reference, options.connect)
            connect = stack.enter_context(running(reference, root / "connect", found.kafka))
        rows = measure(Bench(found, session, connect, options))
    tell(rows, options.json)


if __name__ == "__main__":
    main()
