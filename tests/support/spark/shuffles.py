"""How many tasks a shuffle has, for the time of some tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

OPTION = "spark.sql.shuffle.partitions"


@contextmanager
def one_partition(spark: SparkSession) -> Iterator[None]:
    """One: where state is Python's, each task of each stage and batch starts a process."""
    before = str(spark.conf.get(OPTION))
    spark.conf.set(OPTION, "1")
    try:
        yield
    finally:
        spark.conf.set(OPTION, before)
