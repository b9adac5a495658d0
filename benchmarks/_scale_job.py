"""A job of benchmarks/scale.py on a Spark cluster: job master cores servers in out hosts events folder.

A line after each batch has the rows done so far.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from _measure import AS_PEERS
from _stream_jobs import JOBS, Topics
from cdc_source import TABLE
from penstock import cdc, kafka, write
from penstock.spark_runtime.session import spark

LOOK = 0.1
"""Seconds between two looks at the query."""
BATCHES = 10
"""Batches of a run, at least."""


def changes(session: SparkSession, hosts: str) -> DataFrame:
    read = cdc.read(session, TABLE, hosts=hosts, name="visits", start="earliest", consistency="ONE", images="none")
    return cdc.events(read, prefix="bench")


def main(words: list[str]) -> None:
    job, master, cores, servers, events, results, hosts, total, folder = words
    session = spark(
        job,
        cores=int(cores),
        memory="1g",
        **{"spark.master": master, "spark.executor.memory": "1g", "spark.executor.cores": "1"},
    )
    if job == "changes":
        frame = changes(session, hosts)
        sink = kafka.sink(servers=servers, options=AS_PEERS)
    else:
        frame = JOBS[job](session, Topics(servers, events, "", results), int(total) // BATCHES)
        sink = kafka.sink(results, servers=servers, options=AS_PEERS)
    query = write(frame, sink).start(checkpoint=Path(folder) / "checkpoint", trigger="once")
    seen = -1
    while query.isActive:
        last = query.lastProgress
        if last and last["batchId"] > seen and last["numInputRows"]:
            seen = last["batchId"]
            print(sum(one["numInputRows"] for one in query.recentProgress), flush=True)
        time.sleep(LOOK)
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
