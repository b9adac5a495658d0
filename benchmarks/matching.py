"""Capacity and recovery of ID matching: events of a topic through `cql.match` in Spark to another topic.

    python benchmarks/matching.py --json matching.json
    python benchmarks/matching.py --only capacity

On a Kafka and a CQL node of its own, local[2]. `_match_events.py` tells the mix: of 100 events 10 bring new persons.
  capacity   events/s of a backlog, over the average rate that the stream is planned for (--rate); wanted: 3 or more
  recovery   at that rate, with kill -9 of the process with Spark, and then of the CQL node, each started again at
             once: seconds until the lag is no more than it was before
  results    of the events of recovery: `lost` have no result, `twice` more than one, `wrong` the name of an identity
             of somebody else; and of some identities that are matched again in the end, `stale` are those whose
             person has not the name that follows from all events
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import _match_job as job
from _match_events import KINDS, NONE, Truth, feed, identities, numbers_of
from _match_lag import Results
from _match_recovery import recoveries
from _measure import tell, tree_cpu
from _stream_data import topics
from penstock import cql
from penstock.cql.matching.id_match import KEY, Match
from penstock.local.services import Services, down, up
from penstock.native import Array
from penstock.spark_runtime.session import spark

EVENTS, RESULTS = "events", "results"
CHUNK = 10_000
SAMPLE = 5_000
COUNTED = ("hits", "identities", "created", "merged", "requests")


@dataclass(frozen=True)
class Bench:
    services: Services
    persons: int
    rate: int
    folder: Path

    @property
    def store(self) -> cql.IdStore:
        return cql.ids(job.KEYSPACE, hosts=self.services.cql)

    def persons_of(self, cookies: Array, emails: Array, *, create: bool) -> list[str]:
        """The persons of events, in one process that remembers nothing."""
        made, found = Match(self.store, KINDS, "person", create, 86_400, timedelta(0), CHUNK), list[str]()
        for at in range(0, len(cookies), CHUNK):
            numbers = (cookies[at : at + CHUNK], emails[at : at + CHUNK])
            columns = [identities(ids, kind) for kind, ids in zip(KINDS, numbers, strict=True)]
            key = pa.StructArray.from_arrays(columns, list(KINDS))
            (batch,) = made(iter([pa.RecordBatch.from_pydict({KEY: key})]))
            found += batch.column("person").to_pylist()
        return found

    def known(self) -> dict[str, Any]:
        """The persons that the events know, stored: each with two identities."""
        cql.create(self.store, replication={"class": "SimpleStrategy", "replication_factor": 1})
        began, numbers = time.monotonic(), np.arange(self.persons)
        self.persons_of(numbers, numbers, create=True)
        return {"case": "known", "rate_per_s": round(self.persons / (time.monotonic() - began))}

    def capacity(self, events: int) -> dict[str, Any]:
        """The rate of a backlog, without its first batch, in which Spark and Python begin."""
        servers, cql = self.services.kafka, self.services.cql
        with topics(servers, [EVENTS, RESULTS]):
            feed(servers, EVENTS, self.persons, range(events), 0)
            session = spark("matching")
            began = tree_cpu(os.getpid())
            query = job.start(session, servers, cql, EVENTS, RESULTS, self.folder / "capacity", "once")
            query.awaitTermination()
            cpu = tree_cpu(os.getpid()) - began
            batches = [one for one in query.recentProgress if one["numInputRows"]]
            session.stop()
        later = batches[1:]
        rows = sum(one["numInputRows"] for one in later)
        rate = 1000 * rows / sum(one["durationMs"]["triggerExecution"] for one in later)
        numbers = {name: sum(one["observedMetrics"]["match"][name] for one in later) for name in COUNTED}
        measured = {"rate_per_s": round(rate), "cpu_s_per_million": round(cpu / events * 1e6), "events": rows}
        return {"case": "capacity", **measured, "ratio": round(rate / self.rate, 2), **numbers}

    def recovery(self, first: int) -> Iterator[dict[str, Any]]:
        """The rows of what was killed, and of what became of the events from number `first` on."""
        servers = self.services.kafka
        with topics(servers, [EVENTS, RESULTS]):
            results = Results(servers, EVENTS, RESULTS)
            yield from recoveries(self.services, results, EVENTS, RESULTS, self.persons, first, self.rate, self.folder)
            yield self.verdict(results, range(first, first + results.written()))
            results.close()

    def verdict(self, results: Results, events: range) -> dict[str, Any]:
        truth = Truth(self.persons, events.stop)
        cookies, _ = numbers_of(np.arange(events.start, events.stop), self.persons)
        roots = [truth.root((KINDS[0], cookie)) for cookie in cookies.tolist()]
        got = [results.persons.get(number) for number in events]
        wrong = sum(truth.sets.get(name) != root for name, root in zip(got, roots, strict=True) if name)
        again = self.persons_of(cookies[:SAMPLE], np.full(SAMPLE, NONE)[: len(cookies)], create=False)
        stale = sum(name != truth.names[root] for name, root in zip(again, roots, strict=False))
        counts = {"events": len(events), "lost": got.count(None), "twice": results.twice, "wrong": wrong}
        return {"case": "results", **counts, "matched_again": len(again), "stale": stale}


def measure(bench: Bench, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows of each case as they are found."""
    yield bench.known()
    if options.only != "recovery":
        yield bench.capacity(options.events)
    if options.only != "capacity":
        yield from bench.recovery(0 if options.only else options.events)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=100_000, help="of the backlog (default: %(default)s)")
    parser.add_argument("--persons", type=int, default=5_000, help="known before (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=1_000, help="average events a second (default: %(default)s)")
    parser.add_argument("--only", choices=["capacity", "recovery"], help="one of the two cases")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            services = up(folder / "services", only=["kafka", "cassandra"])
            found = []
            for row in measure(Bench(services, options.persons, options.rate, folder), options):
                tell([row], None)
                found.append(row)
        finally:
            down(folder / "services")
    if options.json:
        tell(found, options.json)


if __name__ == "__main__":
    main()
