"""Segments of people by their clicks: who enters and leaves goes to a topic, members and counts to the database.

    penstock up                                   # prints the two addresses
    penstock segment tables --keyspace seg        # after CREATE KEYSPACE seg ...
    CQL=... KAFKA=... penstock run examples/05_segments.py:segments

Clicks are JSON in the topic `shop-clicks`: {"person": "ann", "event": "visit", "ts": "2026-03-01T10:00:00Z"}
"""

import os

from pyspark.sql import SparkSession, functions as F

import penstock as ps
from penstock import kafka, segment

CQL = os.environ.get("CQL", "127.0.0.1:9042")
KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")

RULES = [
    segment.rule("returning", when="event = 'visit'", at_least=3, within="7 days", ttl="14 days", to="seg-back"),
    segment.rule("buyers", when="event = 'buy'", ttl="30 days", to="seg-buyers", leave="event = 'optout'"),
]


@ps.pipeline(every="1 second")
def segments(spark: SparkSession) -> ps.Query:
    records = spark.readStream.format("kafka").option("kafka.bootstrap.servers", KAFKA)
    records = records.option("subscribe", "shop-clicks").option("startingOffsets", "earliest")
    clicks = records.load().select(
        F.from_json(F.col("value").cast("string"), "person string, event string, ts timestamp").alias("c")
    )
    changes = segment.match(clicks.select("c.*"), RULES, key="person", at="ts", name="segments")
    told = changes.withColumns(
        {"topic": F.col("to"), "key": F.col("person"), "value": F.struct("person", "segment", "event", "until")}
    )
    return ps.write(told, segment.sink("seg", hosts=CQL), kafka.sink(servers=KAFKA))
