"""Four stream jobs beside Kafka Streams, Quix Streams and Bytewax: events a second, CPU, and delay.

    python benchmarks/streams.py --events 300000 --json streams.json
    python benchmarks/streams.py --peers PYTHON           # a Python that has quixstreams and bytewax
    python benchmarks/streams.py --delay                  # at 5 000 events a second
    python benchmarks/streams.py --growth                 # state of 10^4 and of 10^6 keys

The jobs: stateless (parse, filter, map), enrich (by a table), tumbling (count by key in minutes, early results) and
session (the same in sessions of 30 s); all read the same topic of JSON events of 150 bytes and write JSON to another.
Each run of each subject is a process of its own, which starts cold. A rate is that of the last half of the events, in
which all are warm; what a start costs is `first_s`, the seconds until a first result is in Kafka. All take `--cores`
threads. Kafka Streams comes from its jars, and keeps its state in RocksDB, as it does by default.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

import _stream_data as data
from _measure import quantile, tell, turns
from _stream_delay import delays
from _stream_jobs import JOBS, Topics
from _stream_peers import (
    ENDLESS,
    PYTHON_PEERS,
    Sample,
    compile_java,
    endless,
    java_command,
    kafka_streams,
    our_command,
    penstock,
    python_peer,
)
from penstock.local.services import down, up

PEER = "kafka-streams"
LACKING = {("quix", "session")}
"""What a peer has no operator for."""
LOOK = 0.1
"""Seconds between looks for a first result."""


class FirstResult:
    """Looks at the topic of results, while the block lasts."""

    def __init__(self, topics: Topics) -> None:
        self._topics, self._ended, self._began = topics, threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._look)
        self.seconds: float | None = None
        """From the begin of the block."""

    def __enter__(self) -> FirstResult:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        consumer = Consumer({"bootstrap.servers": self._topics.servers, "group.id": "bench-looks"})
        parts = [TopicPartition(self._topics.results, number) for number in range(data.PARTITIONS)]
        while not self._ended.wait(LOOK):
            if any(consumer.get_watermark_offsets(part, timeout=10)[1] for part in parts):
                self.seconds = time.monotonic() - self._began
                break
        consumer.close()


def row(case: str, subject: str, samples: list[Sample], first: float | None) -> dict[str, Any]:
    """Rate and CPU of the last half, and the seconds until the first result."""
    total = samples[-1].events
    half = next(sample for sample in samples if sample.events >= total / 2)
    events, seconds = total - half.events, samples[-1].at - half.at
    return {
        "case": case,
        "subject": subject,
        "rate_per_s": round(events / seconds),
        "cpu_s_per_million": round((samples[-1].cpu - half.cpu) / events * 1e6, 2),
        "first_s": first and round(first, 1),
        "whole_s": round(samples[-1].at - samples[0].at, 1),
    }


Subject = Callable[[str, Topics, int, Path], list[Sample]]


def subjects(options: argparse.Namespace, folder: Path) -> dict[str, Subject]:
    classes = folder / "classes"
    classes.mkdir()
    path = compile_java(classes)
    made: dict[str, Subject] = {
        "penstock": lambda job, topics, events, place: penstock(job, topics, events, options.cores, place),
        PEER: lambda job, topics, events, place: kafka_streams(path, job, topics, events, options.cores, place),
    }
    for peer in PYTHON_PEERS if options.peers else ():
        made[peer] = lambda job, topics, events, place, peer=peer: python_peer(  # type: ignore[misc]
            options.peers, peer, job, topics, events, options.cores, place
        )
    return {name: made[name] for name in made if not options.only or name in options.only}


def compare(
    servers: str, made: dict[str, Subject], options: argparse.Namespace, jobs: list[str], keys: int, folder: Path
) -> list[dict[str, Any]]:
    """Each job by each subject in turn: the median run of each. Each run is a line on standard error."""
    run = uuid.uuid4().hex[:8]
    events, people = f"bench-events-{run}", f"bench-people-{run}"
    rows: list[dict[str, Any]] = []
    with data.topics(servers, [events, people]):
        data.fill(servers, events, (data.events(at, size, keys) for at, size in data.chunks(options.events)))
        if "enrich" in jobs:
            data.fill(servers, people, (data.people(at, size) for at, size in data.chunks(keys)))
        for job in jobs:
            able = [name for name in made if (name, job) not in LACKING]
            found: dict[str, list[dict[str, Any]]] = {name: [] for name in able}
            for number, name in turns(able, options.rounds):
                results = f"bench-results-{run}-{job}-{number}-{name}"
                place = folder / results
                place.mkdir()
                topics = Topics(servers, events, people, results)
                with data.topics(servers, [results]), FirstResult(topics) as first:
                    samples = made[name](job, topics, options.events, place)
                found[name].append(row(f"{job}/{keys} keys", name, samples, first.seconds))
                print(json.dumps(found[name][-1]), file=sys.stderr, flush=True)
            rows += best(found)
    return rows


def best(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The median run of each subject, with its rate over Kafka Streams'."""
    medians = {name: sorted(runs, key=lambda one: one["rate_per_s"])[len(runs) // 2] for name, runs in found.items()}
    peer = medians.get(PEER, {}).get("rate_per_s")
    return [one | {"ratio": round(one["rate_per_s"] / peer, 2) if peer else None} for one in medians.values()]


def delay(servers: str, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """P50 and P99 of the two jobs whose results carry the event's time, at `--rate` events a second."""
    classes = folder / "delay-classes"
    classes.mkdir()
    path, rows = compile_java(classes), []
    for job in [job for job in options.jobs if job in ("stateless", "enrich")]:
        for subject in ("penstock", PEER):
            run = uuid.uuid4().hex[:8]
            topics = Topics(servers, *(f"bench-{what}-{run}" for what in ("events", "people", "results")))
            place = folder / run
            place.mkdir()
            with data.topics(servers, [topics.events, topics.people, topics.results]):
                data.fill(servers, topics.people, (data.people(at, size) for at, size in data.chunks(10_000)))
                command = (
                    [*java_command(path, job, topics, ENDLESS, options.cores, place), "100"]
                    if subject == PEER
                    else [*our_command(job, topics, ENDLESS, options.cores, place), "endless"]
                )
                with endless(command):
                    found = delays(topics, options.rate, options.seconds)
            what = {"p50_ms": round(quantile(found, 0.5)), "p99_ms": round(quantile(found, 0.99))}
            case = f"delay/{job}/{options.rate} per s"
            rows.append({"case": case, "subject": subject, **what, "results": len(found)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=12_000_000, help="events of a run (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="users (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each subject and job (default: %(default)s)")
    parser.add_argument("--cores", type=int, default=2, help="threads of each subject (default: %(default)s)")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), help="only these jobs")
    parser.add_argument("--only", nargs="+", help="only these subjects")
    parser.add_argument("--growth", action="store_true", help="tumbling, ours, with 10^4 and 10^6 keys")
    parser.add_argument("--delay", action="store_true", help="delays instead of rates")
    parser.add_argument("--rate", type=int, default=5_000, help="events a second for delays (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="of counted delays (default: %(default)s)")
    parser.add_argument("--peers", type=Path, help="a Python with quixstreams and bytewax")
    parser.add_argument("--servers", help="a broker that runs (default: start one)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            servers = options.servers or up(folder / "services", only=["kafka"]).kafka
            made = subjects(options, folder)
            if options.delay:
                rows = delay(servers, options, folder)
            elif options.growth:
                made = {"penstock": made["penstock"]}
                rows = [
                    one
                    for keys in (10_000, 1_000_000)
                    for one in compare(servers, made, options, ["tumbling"], keys, folder)
                ]
            else:
                rows = compare(servers, made, options, options.jobs, options.keys, folder)
        finally:
            if not options.servers:
                down(folder / "services")
    tell(rows, options.json)


if __name__ == "__main__":
    main()
