"""What Avro's decoder may allocate for lengths that a record claims before its bytes are there.

By default it believes up to 2 GiB for a text of one byte, and the heap that this takes ends the query. The limits are
system properties (Avro's `SystemLimitException`), read at the first decoding in a JVM.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

LIMITS = {
    "org.apache.avro.limits.bytes.maxLength": 16 << 20,
    "org.apache.avro.limits.string.maxLength": 16 << 20,
    "org.apache.avro.limits.collectionItems.maxLength": 1 << 20,
}
JAVA_OPTIONS = " ".join(f"-D{name}={most}" for name, most in LIMITS.items())


def limit(spark: SparkSession) -> None:
    """Set the limits where they are not set, in the driver's JVM, in which the tasks of a local session run."""
    assert spark._jvm
    system = spark._jvm.System
    for name, most in LIMITS.items():
        if system.getProperty(name) is None:
            system.setProperty(name, str(most))
