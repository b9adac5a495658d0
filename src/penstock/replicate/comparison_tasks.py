"""Runs the parts of a comparison in Spark's tasks."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.spark_runtime.logical_plan import parallelism

RANGES_PER_TASK = 4


def in_tasks(spark: SparkSession, work: Callable[[list[Any]], Iterator[Any]], items: Sequence[Any]) -> Iterator[Any]:
    """Run `work` on the items, some in each task, and yield what it yields, which the driver holds as a whole.

    All cores take part: an iterator over partitions would run them one after another.
    """
    count = min(len(items), number_of_ranges(spark))
    dealt = [list(items[number::count]) for number in range(count)]

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for result in work(dealt[number]):
                    yield pa.record_batch({"result": pa.array([pickle.dumps(result)], pa.binary())})

    frame = spark.range(0, count, 1, count).mapInArrow(run, "result binary")
    for row in frame.collect():
        yield pickle.loads(row[0])


def number_of_ranges(spark: SparkSession) -> int:
    return RANGES_PER_TASK * parallelism(spark)
