"""Rows of Spark to Kafka: `format("penstock-kafka")` beside Spark's own Kafka sink.

    python benchmarks/kafka_sink.py --json kafka_sink.json

Each run is a streaming query over the same numbers, rows of 100 bytes, in one micro-batch on local[2]; both sinks with
acks=all, lz4 and the same sizes. `stream/<delivery>` says how often a row may arrive; Spark's own sink knows
at-least-once only.
"""

from __future__ import annotations

import argparse
import tempfile
import uuid
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import array, col, element_at, lit

from _kafka_clients import VARIETY, Case
from _measure import AS_PEERS, Row, alternate, report, rows_of
from penstock.local.services import down, up
from penstock.spark_runtime.session import spark

PEER = "spark-kafka"
SAME = {**AS_PEERS, "linger.ms": "5", "batch.size": "1000000"}
"""What both clients are told; the last two are the defaults of ours."""
ONLY_JAVAS = {"acks": "all", "max.request.size": "2000000", "buffer.memory": str(64 << 20)}
"""As ours always has them."""
SPARKS = {f"kafka.{name}": text for name, text in {**SAME, **ONLY_JAVAS}.items()}


def frame(session: SparkSession, rows: int) -> DataFrame:
    """A stream whose first batch has all the rows."""
    source = session.readStream.format("rate-micro-batch").option("numPartitions", 2).option("rowsPerBatch", rows)
    # Looked up and not made: else Spark's work for the values is most of what is measured.
    values = array(*[lit(value) for value in Case("", 1, 100, "all", "lz4", rows).values])
    return source.load().select(element_at(values, (col("value") % VARIETY + 1).cast("int")).alias("value"))


def write(numbers: DataFrame, rows: int, name: str, options: dict[str, str], folder: Path) -> int:
    checkpoint = folder / uuid.uuid4().hex
    writer = numbers.writeStream.format(name).options(topic="sink", checkpointLocation=str(checkpoint), **options)
    query = writer.trigger(once=True).start()
    query.awaitTermination()
    return rows


def measure(session: SparkSession, servers: str, rows: int, rounds: int, folder: Path) -> list[Row]:
    numbers = frame(session, rows)
    theirs = partial(write, numbers, rows, "kafka", {"kafka.bootstrap.servers": servers, **SPARKS}, folder)
    found: list[Row] = []
    for delivery in ("at-least-once", "exactly-once"):
        ours = partial(
            write, numbers, rows, "penstock-kafka", {"servers": servers, "delivery": delivery, **SAME}, folder
        )
        subjects = {"penstock": ours, PEER: theirs}
        alternate(subjects, 1)  # warms up the JVM and the compiled loops
        found += rows_of(f"stream/{delivery}", alternate(subjects, rounds), PEER)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of a run (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            services = up(root / "services", only=["kafka"])
            rows = measure(spark(), services.kafka, options.rows, options.rounds, root)
        finally:
            down(root / "services")
    report(rows, options.json)


if __name__ == "__main__":
    main()
