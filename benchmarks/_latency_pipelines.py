"""The pipelines of benchmarks/latency.py, for `penstock run`; the environment says which topics and servers."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions as F

import penstock as ps
from _measure import AS_PEERS
from _stream_data import SCHEMA
from _stream_jobs import cents
from penstock import cdc, kafka, window
from penstock.query.query import Query


def clicks(spark: SparkSession) -> DataFrame:
    settings = {"servers": os.environ["SERVERS"], "schema": SCHEMA, "at": "timestamp_millis(ts)", "late": "10 seconds"}
    return kafka.read(spark, os.environ["EVENTS"], name="events", **settings).where("problem IS NULL")  # type: ignore[arg-type]


def written(frame: DataFrame) -> Query:
    sink = kafka.sink(os.environ["RESULTS"], servers=os.environ["SERVERS"], options=AS_PEERS | {"linger.ms": "0"})
    return ps.write(frame.select(F.col("user").alias("key"), F.struct("*").alias("value")), sink)


def slim(frame: DataFrame) -> DataFrame:
    return frame.where("price >= 10").select("id", "user", cents(), "ts")


def stateless(spark: SparkSession) -> Query:
    return written(slim(clicks(spark)))


def windowed(spark: SparkSession) -> Query:
    aggregates = {"n": "count(*)", "ts": "max(ts)"}
    counts = window.tumbling(clicks(spark), "1 minute", at="at", key="user", name="n", emit="changes", **aggregates)
    # Micro-batches also send the result of a window that ends, which is not the delay of an event.
    changed = counts.where("NOT final")
    return written(changed.select("user", F.unix_millis("window_start").alias("start"), "n", "ts"))


@ps.pipeline(every="0 seconds", name="python-stage")
def python_stage(spark: SparkSession) -> Query:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    frame = slim(clicks(spark))
    return written(frame.mapInArrow(same, frame.schema))


@ps.pipeline(every="0 seconds", name="state")
def state(spark: SparkSession) -> Query:
    aggregates = {"n": "count(*)", "ts": "max(ts)"}
    visits = window.session(clicks(spark), "30 seconds", at="at", key="user", name="n", emit="changes", **aggregates)
    return written(visits.where("n > 0").select("user", F.unix_millis("window_start").alias("start"), "n", "ts"))


@ps.pipeline(every="0 seconds", name="changes")
def changes(spark: SparkSession) -> Query:
    return events(cdc.read(spark, os.environ["TABLE"], hosts=os.environ["CQL"], name="changes", latency="low"))


@ps.pipeline(every="0 seconds", name="changes-safe")
def changes_safe(spark: SparkSession) -> Query:
    """As far behind now as the connector is, which promises the same order."""
    confidence = {"latency": "safe", "confidence": "1 second"}
    return events(cdc.read(spark, os.environ["TABLE"], hosts=os.environ["CQL"], name="changes", **confidence))  # type: ignore[arg-type]


def events(found: DataFrame) -> Query:
    sink = kafka.sink(servers=os.environ["SERVERS"], options=AS_PEERS)
    return ps.write(cdc.events(found, prefix=os.environ["PREFIX"]), sink)


stateless_real_time = ps.pipeline(every="real-time", name="stateless")(stateless)
windowed_real_time = ps.pipeline(every="real-time", name="windowed")(windowed)
stateless_batches = ps.pipeline(every="0 seconds", name="stateless")(stateless)
windowed_batches = ps.pipeline(every="0 seconds", name="windowed")(windowed)
