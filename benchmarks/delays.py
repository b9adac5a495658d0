"""What it costs a sink to count rows and delays: batches of `kafka.read` to `kafka.sink`, with the counts and without.

    python benchmarks/delays.py --json delays.json

Each run is a streaming query on local[2] over the same records of about 100 bytes, at least once, in batches of
`--rows`. `with-counts` is the sink as it is; `without` is its stage as it would be without them: no column of event
times, no histogram, no observed sums. The runs take turns. `counting` is the time of a histogram alone, in the ratio to
the time of a batch that `without` takes.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from _compare_events import create_topics
from _measure import alternate, rows_of, tell
from penstock import kafka
from penstock.kafka.kafka_sink import KafkaSink
from penstock.kafka.kafka_writer import _parts, _producer
from penstock.local.services import down, up
from penstock.metrics import delays
from penstock.spark_runtime.session import spark
from penstock.wire import BlockingProducer

OURS, PEER = "with-counts", "without"
PART = 100_000


def bare(sink: KafkaSink, frame: DataFrame) -> DataStreamWriter:
    """The stage of the sink without counts."""
    topic = sink.topic
    assert isinstance(topic, str)
    given = tuple(sorted((sink.own_options | {"topic": topic}).items()))

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _producer(given).send_tables(_parts(batches, topic))
        return iter(())

    return sink.records(frame).drop("topic").mapInArrow(write, "rows bigint").writeStream.format("noop")


def run(
    writer: Callable[[DataFrame], DataStreamWriter], frame: DataFrame, rows: int, folder: Path, seconds: list[float]
) -> int:
    """Run the query; `seconds` gets the time of each batch but the first, which starts the workers."""
    checkpoint = folder / uuid.uuid4().hex
    query = writer(frame).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [one["durationMs"]["triggerExecution"] / 1000 for one in query.recentProgress if one["numInputRows"]]
    seconds += batches[1:]
    return rows


def fill(servers: str, topic: str, rows: int) -> None:
    now = time.time_ns() // 1_000_000
    with BlockingProducer(servers) as producer:
        for first in range(0, rows, PART):
            page = f"/shop/{'x' * 60}"
            values = [f'{{"id": {number}, "page": "{page}/{number % 1000}"}}' for number in range(first, first + PART)]
            stamps = [now - number % 600_000 for number in range(PART)]
            producer.send_table(topic, pa.table({"value": values, "timestamp": stamps}))


def counting(rows: int) -> float:
    """Seconds to count a batch of `rows` delays in the Arrow batches of Spark's size, the median of many."""
    times = time.time_ns() // 1000 - np.random.default_rng(1).integers(0, 600_000_000, 10_000)
    took = []
    for _ in range(200):
        counts, began = delays.DelayCounts(), time.perf_counter()
        for _ in range(rows // len(times)):
            counts.acknowledged(len(times), times)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def measure(
    session: SparkSession, servers: str, batch: int, batches: int, rounds: int, folder: Path
) -> list[dict[str, Any]]:
    rows = batch * batches
    create_topics(servers, ["events", "out"])
    fill(servers, "events", rows)
    source = kafka.read(
        session, "events", servers=servers, name="events", schema="id int, page string", start="earliest", batch=batch
    )
    frame, sink = source.select("id", "page", "timestamp"), kafka.sink("out", servers=servers)
    seconds: dict[str, list[float]] = {OURS: [], PEER: []}
    writers: dict[str, Callable[[DataFrame], DataStreamWriter]] = {OURS: sink.stream, PEER: partial(bare, sink)}
    subjects = {name: partial(run, writers[name], frame, rows, folder, seconds[name]) for name in writers}
    alternate(subjects, 1)  # warms up the JVM and the compiled loops
    for taken in seconds.values():
        taken.clear()
    runs = rows_of("stream", alternate(subjects, rounds), PEER)
    of_batch = {name: statistics.median(taken) for name, taken in seconds.items()}
    alone = counting(batch)
    return [
        *map(asdict, runs),
        *(
            {"case": "batch", "subject": name, "seconds": took, "ratio": took / of_batch[PEER]}
            for name, took in of_batch.items()
        ),
        {"case": "counting", "subject": OURS, "seconds": alone, "ratio": alone / of_batch[PEER]},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000, help="rows of a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=12, help="batches of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="counted rounds (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            services = up(root / "services", only=["kafka"])
            rows = measure(spark(), services.kafka, options.rows, options.batches, options.rounds, root)
        finally:
            down(root / "services")
    tell(rows, options.json)


if __name__ == "__main__":
    main()
