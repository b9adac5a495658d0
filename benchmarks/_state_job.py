"""A job of benchmarks/state.py on a Spark cluster: job master memory events checkpoint keys rows batches.

The events are Parquet files in a folder, which this makes if it is not there. A line after each batch has its
rows and its milliseconds.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession, functions as F

from penstock import segment, table
from penstock.spark_runtime.session import spark
from penstock.spark_runtime.settings import STATE_MEMORY
from penstock.table import Table
from segments import COUNTRIES, choice, rules

RULES = 100
FILLS = 10
"""Batches in which every key comes once."""
LOOK = 0.1
"""Seconds between two looks at the query."""
PERIOD = 3_600_000
"""Milliseconds in which the events of a batch were; the batches follow each other."""


def pages() -> list[str]:
    """The pages of which visits count for a rule: each person has a record."""
    return sorted(
        {page for rule in rules(RULES) for page in re.findall("event = 'visit' AND page = '(p[0-9]+)'", str(rule))}
    )


def fill(session: SparkSession, folder: Path, keys: int, rows: int, batches: int) -> None:
    """A file for each batch: every key once in the first ones, random keys in the others."""
    each = keys // FILLS
    for number in range(FILLS + batches):
        if number < FILLS:
            frame, person = session.range(number * each, (number + 1) * each, 1, 1), F.col("id")
        else:
            frame, person = session.range(0, rows, 1, 1), (F.rand(number) * keys).cast("long")
        at = F.unix_millis(F.current_timestamp()) - PERIOD + (F.rand(number + 5000) * 1000).cast("long")
        events = frame.select(
            F.concat(F.lit("person-"), person).alias("person"),
            F.lit("visit").alias("event"),
            choice(pages(), number + 2000).alias("page"),
            choice(COUNTRIES, number + 3000).alias("country"),
            (F.rand(number + 4000) * 100).cast("double").alias("amount"),
            F.timestamp_millis(at + number * 1000).alias("at"),
        )
        events.write.mode("append").parquet(str(folder))


def made(job: str, source: DataFrame) -> DataFrame:
    if job == "rules":
        return segment.match(source, rules(RULES), key="person", name="bench", at="at")
    newest = Table(source.withColumn("version", F.unix_micros("at")), ("person",), "version")
    totals = table.aggregate(newest, by="country", name="bench", total="sum(amount)")
    return table.to_stream(totals)


def main(words: list[str]) -> None:
    job, master, memory, name, checkpoint, keys, rows, batches = words
    session = spark(
        job,
        cores=1,
        memory="1g",
        **{"spark.master": master, "spark.executor.memory": "1g", "spark.executor.cores": "1", STATE_MEMORY: memory},
    )
    events = Path(name)
    if not events.exists():
        fill(session, events, int(keys), int(rows), int(batches))
    schema = session.read.parquet(str(events)).schema
    source = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(events))
    writer = made(job, source).writeStream.format("noop").option("checkpointLocation", checkpoint)
    running = writer.trigger(processingTime="0 seconds").start()
    seen, left = -1, FILLS + int(batches)
    while left:
        if problem := running.exception():
            raise problem
        for one in running.recentProgress:
            if one["batchId"] > seen and one["numInputRows"]:
                seen, left = one["batchId"], left - 1
                print(one["numInputRows"], one["durationMs"]["triggerExecution"], flush=True)
        time.sleep(LOOK)
    running.stop()
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
