"""How long an event takes: our pipelines in real-time mode, in micro-batches and with Python, beside Kafka Streams.

    python benchmarks/latency.py --seconds 60 --json latency.json
    python benchmarks/latency.py --cases changes --rate 5000
    python benchmarks/latency.py --reference DIR --connect DIR    # the Java connector, too (see _reference.py)

Each subject is a process of its own, at work on the same broker at the same rate: ours is `penstock run`, Kafka Streams
runs with a commit interval of 1 s, and set for short delays: no cache, no linger, a commit interval of 100 ms. A delay
is from before the producer's write to the poll of a consumer; the first 20 seconds of results are not counted. That of
a window is of its newest event. `cdc.read` is measured from before the write to the table. Subjects take turns, each
round the other way round. `changes` has our mode of low latency and, as the peer of the Java connector, the one that
keeps its order and its second behind now. A run of `--seconds 320` has one end of a batch of real-time mode in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import _stream_data as data
from _measure import penstock_run, quantile, tell, turns
from _paced import paced
from _reference import Connect, Reference, running as connect_running
from _stream_delay import delays
from _stream_jobs import Topics
from _stream_peers import ENDLESS, compile_java, endless, java_command
from cdc_vs_reference import PARTITIONS, THEIRS, Bench, create_topic
from penstock.errors import PenstockError
from penstock.local.services import Services, down, up

FILE = Path(__file__).with_name("_latency_pipelines.py")
CHANGES = "changes"
OURS = "penstock"
OUR_CHANGES = {OURS: "changes", f"{OURS}/safe": "changes_safe"}
"""Subjects of `changes` and their pipelines."""
THREADS = 4
"""Of Kafka Streams: one a partition, as our real-time mode has."""


class Subject(NamedTuple):
    """Who does what: `pipeline` is one of `_latency_pipelines`, or a job of Kafka Streams."""

    case: str
    name: str
    pipeline: str


SUBJECTS = (
    Subject("real-time", f"{OURS}/stateless", "stateless_real_time"),
    Subject("real-time", f"{OURS}/windowed", "windowed_real_time"),
    Subject("micro-batch", f"{OURS}/stateless", "stateless_batches"),
    Subject("micro-batch", f"{OURS}/windowed", "windowed_batches"),
    Subject("python-stage", OURS, "python_stage"),
    Subject("state", OURS, "state"),
    Subject("real-time", "kafka-streams/stateless", "stateless"),
    Subject("real-time", "kafka-streams/windowed", "latest"),
    Subject("real-time", "kafka-streams-100ms/stateless", "stateless 100"),
    Subject("real-time", "kafka-streams-100ms/windowed", "latest 100"),
)


def streamed(subject: Subject, servers: str, path: list[str], options: argparse.Namespace, folder: Path) -> list[float]:
    """The delays in milliseconds, sorted."""
    run = uuid.uuid4().hex[:8]
    topics = Topics(servers, *(f"bench-{what}-{run}" for what in ("events", "people", "results")))
    place = folder / run
    place.mkdir()
    settings = {"SERVERS": servers, "EVENTS": topics.events, "RESULTS": topics.results}
    with data.topics(servers, [topics.events, topics.people, topics.results]):
        work: AbstractContextManager[object]
        if subject.name.startswith(OURS):
            work = penstock_run(f"{FILE}:{subject.pipeline}", place, **settings)
        else:
            job, *interval = subject.pipeline.split()
            work = endless([*java_command(path, job, topics, ENDLESS, THREADS, place), *interval])
        with work:
            return delays(topics, options.rate, options.seconds)


def changed(pipeline: str, found: Services, options: argparse.Namespace, folder: Path) -> list[float]:
    """The delays of `cdc.read` in milliseconds, sorted."""
    name = f"l{uuid.uuid4().hex[:8]}"
    place = folder / name
    place.mkdir()
    with paced(found.cql, name, options.rate) as table:
        topic = f"{name}.{table.name}"
        create_topic(found.kafka, topic)
        settings = {"SERVERS": found.kafka, "CQL": found.cql, "TABLE": table.name, "PREFIX": name}
        with penstock_run(f"{FILE}:{pipeline}", place, **settings):
            return whole(*table.latencies(found.kafka, topic, PARTITIONS, options.seconds))


def whole(found: list[float], missing: int) -> list[float]:
    if missing:
        raise PenstockError(f"{missing} events never came", next="read the log of the subject")
    return found


def row(case: str, subject: str, rate: int, found: list[float]) -> dict[str, Any]:
    quantiles = {f"p{name}_s": quantile(found, float(f"0.{name}")) / 1000 for name in ("50", "99", "999")}
    short = {name: round(value, 4) for name, value in quantiles.items()}
    more = {"longest_s": round(found[-1] / 1000, 4), "rate_per_s": rate, "counted": len(found)}
    return {"case": case, "subject": subject, **short, **more}


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The median P99 of each peer over ours, of the same job in real-time mode."""
    p99: dict[str, list[float]] = {}
    for one in rows:
        if one["case"] == "real-time":
            p99.setdefault(one["subject"], []).append(one["p99_s"])
    medians = {name: statistics.median(values) for name, values in p99.items()}
    ours = {name: medians.get(f"{OURS}/{name.partition('/')[2]}") for name in medians}
    return [
        {"case": "ratio of P99", "subject": name, "ratio": round(value / own, 2)}
        for name, value in medians.items()
        if (own := ours[name]) and not name.startswith(OURS)
    ]


def measures(
    found: Services, connect: Connect | None, options: argparse.Namespace, folder: Path
) -> dict[tuple[str, str], Callable[[], list[float]]]:
    """What to run, by case and subject."""
    classes = folder / "classes"
    classes.mkdir()
    path = compile_java(classes)
    made: dict[tuple[str, str], Callable[[], list[float]]] = {
        (one.case, one.name): partial(streamed, one, found.kafka, path, options, folder)
        for one in SUBJECTS
        if one.case in options.cases and one.name.startswith(options.only)
    }
    if CHANGES in options.cases:
        for name, pipeline in OUR_CHANGES.items():
            made[CHANGES, name] = partial(changed, pipeline, found, options, folder)
        if connect:
            paces = {"rate": options.rate, "seconds": options.seconds, "confidence": 1}
            # A second task in one worker waits two minutes for the name of its metrics, which the first one has.
            bench = Bench(found, None, connect, argparse.Namespace(images=False, format="advanced", tasks=1, **paces))
            made[CHANGES, THEIRS] = lambda: whole(*bench.delays(THEIRS))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    cases = [*dict.fromkeys(one.case for one in SUBJECTS), CHANGES]
    parser.add_argument("--cases", nargs="+", choices=cases, default=cases, help="only these")
    parser.add_argument("--only", default="", metavar="PREFIX", help="only subjects whose names begin with it")
    parser.add_argument("--rate", type=int, default=1000, help="events a second (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="of counted delays (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each subject (default: %(default)s)")
    parser.add_argument("--reference", type=Path, help="folder with the Java connector's jars")
    parser.add_argument("--connect", type=Path, help="folder with Kafka Connect's jars")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    if (options.reference is None) != (options.connect is None):
        parser.error("--reference and --connect go together")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        stack.callback(down, folder / "services")
        found = up(folder / "services", only=["kafka", "cassandra"] if CHANGES in options.cases else ["kafka"])
        connect = None
        if options.reference:
            reference = Reference(options.reference, options.connect)
            connect = stack.enter_context(connect_running(reference, folder / "connect", found.kafka))
        made = measures(found, connect, options, folder)
        for _, what in turns(made, options.rounds):
            rows.append(row(*what, options.rate, made[what]()))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    tell(sorted(rows, key=lambda one: (one["case"], one["subject"])), options.json)
    for one in ratios(rows):
        print(json.dumps(one))


if __name__ == "__main__":
    main()
