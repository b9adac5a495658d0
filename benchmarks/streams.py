"""Four stream jobs beside Kafka Streams, Quix Streams and Bytewax: events a second, CPU, and delay.

    python benchmarks/streams.py --events 300000 --json streams.json
    python benchmarks/streams.py --peers PYTHON           # a Python that has quixstreams and bytewax
    python benchmarks/streams.py --delay                  # at 5 000 events a second
    python benchmarks/streams.py --growth                 # state of 10^4 and of 10^6 keys

The jobs: stateless (parse, filter, map), enrich (by a table), tumbling (count by key in minutes, early results) and
session (the same in sessions of 30 s); all read the same topic of JSON events of 150 bytes and write JSON to another.
A rate is that of the last four fifths of the events: no start of a process is in it. All take `--cores` threads.
Kafka Streams comes from its jars, and keeps its state in RocksDB, as it does by default.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import _stream_data as data
from _measure import quantile, tell, tree_cpu, turns
from _stream_delay import delays
from _stream_jobs import JOBS, Topics
from _stream_peers import PYTHON_PEERS, Sample, compile_java, endless, kafka_streams, python_peer
from penstock import kafka, write
from penstock.local.services import down, up
from penstock.session import spark

BATCHES = 10
"""Of a run of ours: then the first fifth is two of them."""
PEER = "kafka-streams"
LACKING = {("quix", "session")}
"""What a peer has no operator for."""
LOOK = 0.1  # seconds: what a look costs is counted as ours


def ours(session: SparkSession, job: str, topics: Topics, events: int, folder: Path) -> list[Sample]:
    """A sample after each batch."""
    frame = JOBS[job](session, topics, events // BATCHES)
    query = write(frame, kafka.sink(topics.results, servers=topics.servers)).start(
        checkpoint=folder / "checkpoint", trigger="once"
    )
    found = [Sample(0, time.time(), tree_cpu(os.getpid()))]
    seen = -1
    while query.isActive:
        last = query.lastProgress
        if last and last["batchId"] > seen and last["numInputRows"]:
            seen = last["batchId"]
            done = sum(one["numInputRows"] for one in query.recentProgress)
            found.append(Sample(done, time.time(), tree_cpu(os.getpid())))
        time.sleep(LOOK)
    query.awaitTermination()
    return found


def row(case: str, subject: str, samples: list[Sample]) -> dict[str, Any]:
    """Rate and CPU of the last four fifths."""
    total = samples[-1].events
    first = next(sample for sample in samples if sample.events >= total / 5)
    events, seconds = total - first.events, samples[-1].at - first.at
    cpu = (samples[-1].cpu - first.cpu) / events * 1e6
    return {"case": case, "subject": subject, "rate_per_s": round(events / seconds), "cpu_s_per_million": round(cpu, 2)}


Subject = Callable[[str, Topics, int, Path], list[Sample]]


def subjects(session: SparkSession, options: argparse.Namespace, folder: Path) -> dict[str, Subject]:
    classes = folder / "classes"
    classes.mkdir()
    path = compile_java(classes)
    made: dict[str, Subject] = {
        "penstock": partial(ours, session),
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
    """Each job by each subject in turn; medians are left to the reader, one row a run."""
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
                with data.topics(servers, [results]):
                    samples = made[name](job, Topics(servers, events, people, results), options.events, place)
                found[name].append(row(f"{job}/{keys} keys", name, samples))
                print(json.dumps(found[name][-1]), file=sys.stderr, flush=True)
            rows += best(found)
    return rows


def best(found: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The median run of each subject, with its rate over Kafka Streams'."""
    medians = {name: sorted(runs, key=lambda one: one["rate_per_s"])[len(runs) // 2] for name, runs in found.items()}
    peer = medians.get(PEER, {}).get("rate_per_s")
    return [one | {"ratio": round(one["rate_per_s"] / peer, 2) if peer else None} for one in medians.values()]


@contextmanager
def running(
    session: SparkSession, subject: str, job: str, topics: Topics, path: list[str], folder: Path
) -> Iterator[None]:
    """A job that goes on until the end of the block."""
    if subject == PEER:
        with endless(path, job, topics, folder):
            yield
        return
    frame = JOBS[job](session, topics, 1_000_000)
    query = write(frame, kafka.sink(topics.results, servers=topics.servers, options={"linger.ms": "0"}))
    started = query.start(checkpoint=folder / "checkpoint", trigger="0 seconds")
    try:
        yield
    finally:
        started.stop()


def delay(servers: str, session: SparkSession, options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
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
                with running(session, subject, job, topics, path, place):
                    found = delays(topics, options.rate, options.seconds)
            what = {"p50_ms": round(quantile(found, 0.5)), "p99_ms": round(quantile(found, 0.99))}
            case = f"delay/{job}/{options.rate} per s"
            rows.append({"case": case, "subject": subject, **what, "results": len(found)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=3_000_000, help="events of a run (default: %(default)s)")
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
            session = spark(cores=options.cores, memory="2g")
            made = subjects(session, options, folder)
            if options.delay:
                rows = delay(servers, session, options, folder)
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
