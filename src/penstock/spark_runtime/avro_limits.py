"""Limits for what Avro's decoder allocates for a length that a record only claims.

By default the decoder allocates up to 2 GiB for a string of one byte, which ends the query for lack of heap. The limits
are system properties (Avro's `SystemLimitException`), read when a JVM decodes for the first time.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from penstock.spark_runtime.logical_plan import require_classic

LIMITS = {
    "org.apache.avro.limits.bytes.maxLength": 16 << 20,
    "org.apache.avro.limits.string.maxLength": 16 << 20,
    "org.apache.avro.limits.collectionItems.maxLength": 1 << 20,
}
JAVA_OPTIONS = " ".join(f"-D{name}={most}" for name, most in LIMITS.items())


def limit(spark: SparkSession) -> None:
    """Set the limits that are not set yet, in the driver's JVM, where the tasks of a local session run."""
    require_classic(spark, "Avro")
    assert spark._jvm
    system = spark._jvm.System
    for name, most in LIMITS.items():
        if system.getProperty(name) is None:
            system.setProperty(name, str(most))
