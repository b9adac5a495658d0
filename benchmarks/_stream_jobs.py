"""The four jobs of the stream benchmarks in Penstock: frames from the topic of events to records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

from _stream_data import SCHEMA
from penstock import join, kafka, table, window

LATE = "10 seconds"


@dataclass(frozen=True)
class Topics:
    """Where the events are, the table of users, and the results."""

    servers: str
    events: str
    people: str
    results: str


Job = Callable[[SparkSession, Topics, int], DataFrame]


def read(spark: SparkSession, topics: Topics, batch: int) -> DataFrame:
    return kafka.read(
        spark,
        topics.events,
        servers=topics.servers,
        schema=SCHEMA,
        at="timestamp_millis(ts)",
        late=LATE,
        name="events",
        batch=batch,
    ).where("problem IS NULL")


def stateless(spark: SparkSession, topics: Topics, batch: int) -> DataFrame:
    return slim(read(spark, topics, batch).where("price >= 10"))


def enrich(spark: SparkSession, topics: Topics, batch: int) -> DataFrame:
    people = table.global_table(topics.people, servers=topics.servers, schema="name string, city string")
    clicks = read(spark, topics, batch).select("key", "id", "user", "price", "ts")
    return slim(join.enrich(clicks, people, on="user", name="people"), "name", "city")


def tumbling(spark: SparkSession, topics: Topics, batch: int) -> DataFrame:
    clicks = read(spark, topics, batch)
    return counts(window.tumbling(clicks, "1 minute", at="at", key="user", name="n", emit="changes", n="count(*)"))


def session(spark: SparkSession, topics: Topics, batch: int) -> DataFrame:
    clicks = read(spark, topics, batch)
    return counts(window.session(clicks, "30 seconds", at="at", key="user", name="n", emit="changes", n="count(*)"))


def slim(frame: DataFrame, *more: str) -> DataFrame:
    return frame.select("key", F.struct("id", "user", cents(), "ts", *more).alias("value"))


def cents() -> Column:
    # Math.round of Java, which Kafka Streams' job calls; Spark's round goes by way of decimal texts.
    return F.floor(F.col("price") * 100 + 0.5).alias("cents")


def counts(frame: DataFrame) -> DataFrame:
    value = F.struct("user", F.unix_millis("window_start").alias("start"), "n")
    return frame.select(F.col("user").alias("key"), value.alias("value"))


JOBS: dict[str, Job] = {"stateless": stateless, "enrich": enrich, "tumbling": tumbling, "session": session}
