"""The JVM behind PySpark, which it does not offer: a session's, or that of the session in this process."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession


def jvm_of(spark: SparkSession) -> Any:
    """The packages and classes of the session's JVM, as Py4J shows them."""
    return spark.sparkContext._jvm


def gateway_of(spark: SparkSession) -> Any:
    """Py4J's gateway to the session's JVM, which also makes arrays."""
    return spark.sparkContext._gateway


def jvm_of_process() -> Any:
    """The JVM of this process, or None if it has not started Spark."""
    context = SparkContext._active_spark_context
    return None if context is None else context._jvm
