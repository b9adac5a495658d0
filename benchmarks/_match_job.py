"""The job of the benchmark of matching: events of a topic get their persons; as a process that can be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery

from _match_events import KINDS, SCHEMA
from penstock import cql, kafka, write
from penstock.spark_runtime.session import spark

KEYSPACE = "bench_ids"
BATCH = 20_000
"""Events of a batch at most: less than what a pause leaves, so that batches stay short."""


def start(
    session: SparkSession, servers: str, hosts: str, topic: str, results: str, checkpoint: Path, trigger: str
) -> StreamingQuery:
    """Events with the person, and the number of identities that are known of it."""
    events = kafka.read(session, topic, servers=servers, schema=SCHEMA, name="events", batch=BATCH)
    matched = cql.match(
        events.where("problem IS NULL"),
        store=cql.ids(KEYSPACE, hosts=hosts),
        ids=KINDS,
        into="person",
        unknown="create",
        ttl="1 day",
    )
    known = F.aggregate(F.map_values("person_ids"), F.lit(0), lambda sum, ids: sum + F.size(ids)).alias("known")
    rows = matched.select(F.col("person").alias("key"), F.struct("n", "person", known).alias("value"))
    return write(rows, kafka.sink(results, servers=servers)).start(checkpoint=checkpoint, trigger=trigger)


if __name__ == "__main__":
    servers, hosts, topic, results, checkpoint = sys.argv[1:]
    start(spark("matching"), servers, hosts, topic, results, Path(checkpoint), "1 second").awaitTermination()
