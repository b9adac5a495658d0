"""One partition of a state, read alone: that of a key's hash.

Spark's reader of state has a task for each partition, in their order (StateScan.planInputPartitions of Spark 4). It
takes no filter, and its option for one partition wants the batch of a snapshot, which there may not be yet. So a job is
run that has the one task only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F


def partition(spark: SparkSession, key: Sequence[Column], partitions: int) -> int:
    """Where Spark keeps the rows with this key (HashPartitioning: Murmur3 with seed 42, modulo the partitions)."""
    one = spark.sql("SELECT 1").select(F.pmod(F.hash(*key), F.lit(partitions)))
    return int(one.collect()[0][0])


def first_rows(frame: DataFrame, partition: int, most: int) -> list[Row]:
    """Of a frame over a state without a shuffle."""

    def first(rows: Iterable[Row]) -> Iterable[Row]:
        return islice(rows, most)

    found: list[Row] = frame.sparkSession.sparkContext.runJob(frame.rdd, first, [partition])
    return found
