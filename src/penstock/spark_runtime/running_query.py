"""Spark's own objects of a query that was started, which know more than PySpark's `StreamingQuery`."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark_runtime.jvm import jvm_of


def last_progress(query: StreamingQuery) -> Any:
    """The newest progress, not read yet: `json()` is all of it; None before the first."""
    return query._jsq.lastProgress()


def recent_progress(query: StreamingQuery) -> list[dict[str, Any]]:
    """The progress of the last batches, oldest first."""
    return [json.loads(progress.json()) for progress in query._jsq.recentProgress()]


def status(query: StreamingQuery) -> dict[str, Any]:
    """What the query does now: its id, and Spark's message, isDataAvailable and isTriggerActive."""
    read: dict[str, Any] = json.loads(query._jsq.status().json())
    return read | {"id": str(query.id)}


def exception(query: StreamingQuery) -> Any:
    """The Java exception that ended the query, or None."""
    ended = query._jsq.exception()
    return ended.get() if ended.isDefined() else None


def plan(query: StreamingQuery) -> Any:
    """The logical plan that the query runs."""
    return query._jsq.streamingQuery().logicalPlan()


def end_after_batch(spark: SparkSession, query: StreamingQuery) -> None:
    """Make the query's thread end after the batch in flight; returns at once.

    It sets the query's state, as Spark's own `stop()` does before it cancels the batch.
    """
    states = jvm_of(spark).org.apache.spark.sql.execution.streaming.runtime
    query._jsq.streamingQuery().state().set(getattr(getattr(states, "TERMINATED$"), "MODULE$"))
