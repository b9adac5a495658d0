"""Distinct members over 24 hours that begin at any minute: the time of `segment.counts(...).count`, in milliseconds.

    python benchmarks/segment_counts.py --persons 1000000 --json segment_counts.json

Two days of minutes of three segments lie in a node of its own, each minute with `--members` of the persons. Asked are
one segment, and a union less an intersection of the three. The peer asks for the 1 440 minutes and unites their
sketches; both have to give the same answer.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from cassandra.cluster import Cluster
from datasketches import compact_theta_sketch, update_theta_sketch

from _measure import tell
from penstock import segment
from penstock.database.cql_connection import connection
from penstock.local import services
from penstock.segment.member_tables.member_counts import LENGTHS, SPANS, Counts, begin, parse, united
from penstock.segment.member_tables.member_schema import create_tables

KEYSPACE = "bench"
FIRST = datetime(2026, 3, 1, tzinfo=UTC)
DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
SEGMENTS = ("a", "b", "c")
ASKED = ("a", "(a | b) - (b & c)")
TOGETHER = 500
"""Sketches that are written together."""


def fill(found: Counts, members: int, persons: int) -> None:
    """Two days of minutes, each with so many members, and the longer times above them."""
    for name in SEGMENTS:
        draw = random.Random(name)
        sketches: dict[tuple[str, str, datetime], Any] = {}
        for number in range(2 * DAY // MINUTE):
            at = FIRST + number * MINUTE
            made = update_theta_sketch()
            for _ in range(members):
                made.update(draw.randrange(persons))
            for level in LENGTHS:
                key = name, level, begin(at, level)
                sketches[key] = united([sketches[key], made.compact()]) if key in sketches else made.compact()
        keys = list(sketches)
        for first in range(0, len(keys), TOGETHER):
            found.unite({key: sketches[key] for key in keys[first : first + TOGETHER]})


@cache
def minutes(session: Any) -> Any:
    """The prepared question."""
    return session.prepare(
        f"SELECT members FROM {KEYSPACE}.counts"
        " WHERE segment = ? AND level = 'minute' AND span = ? AND at >= ? AND at < ?"
    )


def by_minute(found: Counts, asked: str, since: datetime) -> float:
    """The answer from minutes alone, asked for with the same driver."""
    names, value = parse(asked)
    session = connection(found.access).rows
    read = minutes(session)
    middle = begin(since + DAY, "day")
    spans = [(at.strftime(SPANS["minute"]), at, stop) for at, stop in ((since, middle), (middle, since + DAY))]
    rows = {name: [session.execute_async(read, (name, *span)) for span in spans] for name in names}
    sketches = {
        name: united([compact_theta_sketch.deserialize(row[0]) for each in some for row in each.result()])
        for name, some in rows.items()
    }
    return float(value(sketches).get_estimate())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--persons", type=int, default=1_000_000, help="default: %(default)s")
    parser.add_argument("--members", type=int, default=1_000, help="members of a minute (default: %(default)s)")
    parser.add_argument("--questions", type=int, default=200, help="of each sort (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        try:
            hosts = services.up(root, only=["cassandra"]).cql
            host, port = hosts.split(":")
            with Cluster([host], port=int(port), connect_timeout=60) as cluster:
                session = cluster.connect()
                replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
                session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {replication}")
                create_tables(session, KEYSPACE)
            found = segment.counts(KEYSPACE, hosts=hosts)
            fill(found, options.members, options.persons)
            for asked in ASKED:
                rows += answers(found, asked, options.questions)
        finally:
            services.down(root)
    tell(rows, options.json)


def answers(found: Counts, asked: str, questions: int) -> list[dict[str, Any]]:
    """How long each subject takes; they have to find about the same."""
    draw = random.Random(7)
    subjects: dict[str, Callable[[datetime], float]] = {
        "penstock": lambda since: found.count(asked, since, since + DAY).members,
        "by minute": lambda since: by_minute(found, asked, since),
    }
    taken: dict[str, list[float]] = {name: [] for name in subjects}
    for question in range(questions):
        since, told = FIRST + draw.randrange(DAY // MINUTE) * MINUTE, []
        for name in reversed(subjects) if question % 2 else subjects:
            began = time.perf_counter()
            told.append(subjects[name](since))
            taken[name].append((time.perf_counter() - began) * 1000)
        assert abs(told[0] - told[1]) <= 0.1 * max(told), told
    peer = statistics.median(taken["by minute"])
    return [
        {
            "case": f"24 hours/{asked}",
            "subject": name,
            "p50_ms": round(statistics.median(each), 1),
            "p99_ms": round(statistics.quantiles(each, n=100)[98], 1),
            "ratio": round(peer / statistics.median(each), 1),
        }
        for name, each in taken.items()
    ]


if __name__ == "__main__":
    main()
