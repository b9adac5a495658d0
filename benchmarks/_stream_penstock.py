"""The jobs of benchmarks/streams.py in Penstock: job servers in out table events threads folder, and perhaps "endless".

A line after each batch has the events done so far, and milliseconds of clock and of CPU, as the peers' lines have.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from _measure import AS_PEERS, tree_cpu
from _stream_jobs import JOBS, Topics
from penstock import kafka, write
from penstock.spark_runtime.session import spark

BATCH = 1_000_000
"""Events."""
LOOK = 0.1
"""Seconds between looks at the query, whose cost is counted as ours."""


def tell(events: int) -> None:
    print(events, int(time.time() * 1000), int(tree_cpu(os.getpid()) * 1000), flush=True)


def main(words: list[str]) -> None:
    job, servers, events, results, people, total, threads, folder, *more = words
    topics = Topics(servers, events, people, results)
    session = spark(cores=int(threads), memory="2g")
    frame = JOBS[job](session, topics, min(BATCH, max(int(total) // 10, 1)))
    place = Path(folder) / "checkpoint"
    if more:
        sink = kafka.sink(results, servers=servers, options=AS_PEERS | {"linger.ms": "0"})
        write(frame, sink).start(checkpoint=place, trigger="0 seconds").awaitTermination()
        return
    query = write(frame, kafka.sink(results, servers=servers, options=AS_PEERS)).start(checkpoint=place, trigger="once")
    seen = -1
    while query.isActive:
        last = query.lastProgress
        if last and last["batchId"] > seen and last["numInputRows"]:
            seen = last["batchId"]
            tell(sum(one["numInputRows"] for one in query.recentProgress))
        time.sleep(LOOK)
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1:])
