"""What meters cost: of a batch, of a scrape and of a status of `penstock run`, and of a scrape of `penstock ingest`.

    python benchmarks/meters.py [--queries N ...]

A progress of Spark 4.3 (`tests/data/progress`) is read and counted again and again: from the text that the JVM gives to
the meters, as the supervisor does. Then pages are asked for by HTTP, of so many queries with histories of 15 minutes.
For ingest, one of four workers with 100 topics makes its report, reads those of all and writes the text: in one
process, without HTTP. Prints a JSON line for each: the least, the median and the 99th percentile of the times, in
milliseconds; for a batch also the share of the batch's own duration.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from penstock.ingest.ingest_metrics import BOUNDS, IngestCounts, WorkerReport, WorkerReports, exposition, report
from penstock.ingest.kafka_store import Facts
from penstock.watch.graph import Graph
from penstock.watch.meters import Meters
from penstock.watch.metrics_server import ListenAddress, pages, served
from penstock.watch.program import Program
from penstock.watch.query_meter import SinkMeter, SourceMeter
from penstock.watch.query_metrics import QueryMetrics
from penstock.watch.status import ready, status
from penstock.wire.producer.stats import BrokerStats, Stats, TopicCounts

DATA = Path(__file__).parents[1] / "tests/data/progress"
BATCHES, PAGES = 2000, 200
HISTORY = 900
TOPICS, WORKERS, BROKERS = 100, 4, 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, nargs="+", default=[1, 10, 50])
    for name in ("topic", "window", "changes", "lookup"):
        print(json.dumps(of_batches(name)), flush=True)
    for count in parser.parse_args().queries:
        for line in of_pages(count):
            print(json.dumps(line), flush=True)
    print(json.dumps(of_ingest()), flush=True)


def of_batches(name: str) -> dict[str, Any]:
    """The cost of a batch with rows, as a share of its own duration when it was recorded."""
    told = next(one for one in recorded(name)[1:] if one["numInputRows"])
    text = json.dumps(told)
    meters = filled(1, [])
    (pipeline,) = meters.pipelines.values()

    def batch() -> None:
        pipeline.progress("orders", json.loads(text))
        pipeline.looked("orders", {"message": "", "isTriggerActive": False, "isDataAvailable": True})

    times = measured(batch, BATCHES)
    share = times["median_ms"] / told["batchDuration"]
    return {"what": "batch", "query": name, "batch_ms": told["batchDuration"], "percent": round(100 * share, 3)} | times


def of_pages(count: int) -> list[dict[str, Any]]:
    """The time from a request to the whole answer."""
    meters = filled(count, [one for one in recorded("window") if one["numInputRows"]])
    program = Program("run", "shop")
    found = pages([QueryMetrics(meters)], lambda: status(program, meters), lambda: ready(meters))
    lines = []
    with served(ListenAddress("127.0.0.1", 0), found) as url:
        for path in found:
            sizes: list[int] = []

            def ask(path: str = path, sizes: list[int] = sizes) -> None:
                connection = HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]))
                connection.request("GET", path)
                sizes.append(len(connection.getresponse().read()))
                connection.close()

            times = measured(ask, PAGES if path != "/status" else PAGES // 10)
            lines.append({"what": path, "queries": count, "bytes": sizes[-1]} | times)
    return lines


def of_ingest() -> dict[str, Any]:
    """The time for the text of a scrape at one of the workers, whose reports are in shared memory."""
    shared, topics = WorkerReports(WORKERS, TOPICS), [f"topic-{number}" for number in range(TOPICS)]
    counts, latencies = IngestCounts(), TopicCounts()
    for place, topic in enumerate(topics):
        for answer in (200, 400):
            counts.answered(topic, answer, BOUNDS[place % len(BOUNDS)])
        counts.events[topic] = counts.bytes[topic] = counts.bad[topic] = 1000 * place
        latencies.acknowledged(10, 1000, BOUNDS[place % len(BOUNDS)])
    latency = latencies.latency.latency()
    of_topics = {topic: latencies.snapshot(1, 1) for topic in topics}
    of_brokers = {node: BrokerStats(1000, 1, 0.01, 0.1, latency) for node in range(BROKERS)}
    # All that a report asks of the server's parts.
    parts: Any = SimpleNamespace(bytes=1000, open=10, refused=0, facts=lambda: Facts(True, "ok", ""))
    producer: Any = SimpleNamespace(stats=lambda: Stats(1 << 20, 1 << 25, of_topics, of_brokers))
    workers = [
        WorkerReport(shared, number, lambda: report(counts, parts, parts, producer, parts)) for number in range(WORKERS)
    ]
    for worker in workers:
        worker.write()
    sizes: list[int] = []
    times = measured(lambda: sizes.append(len(exposition(workers[0].reports()))), PAGES)
    return {"what": "ingest", "topics": TOPICS, "workers": WORKERS, "bytes": sizes[-1]} | times


def filled(count: int, progresses: list[dict[str, Any]]) -> Meters:
    """Meters of queries that have whole histories of these progresses."""
    meters = Meters()
    for number in range(count):
        pipeline = meters.pipeline("shop" if count == 1 else f"shop{number}", timedelta(seconds=1))
        name = "orders"
        query = pipeline._query(name)
        sources, sinks = [SourceMeter("topic orders", "topic:orders")], [SinkMeter("topic out", "topic:out")]
        query.begins(Graph(), sources, sinks, {}, time.time())
        for place in range(HISTORY if progresses else 0):
            pipeline.progress(name, progresses[place % len(progresses)] | {"id": f"{number}"})
    return meters


def recorded(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DATA / f"{name}.json").read_text())["progress"]
    return found


def measured(work: Callable[[], None], times: int) -> dict[str, float]:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        taken.append(1000 * (time.perf_counter() - began))
    taken.sort()
    p99 = taken[min(times - 1, times * 99 // 100)]
    return {"min_ms": round(taken[0], 3), "median_ms": round(taken[times // 2], 3), "p99_ms": round(p99, 3)}


if __name__ == "__main__":
    main()
