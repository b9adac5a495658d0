"""`kafka.read_table`: a compacted topic as a table."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession, functions as F

from penstock.kafka.kafka_read import NO_VALUE, read
from penstock.table.table import Table

_PREFIX = "_kafka_"


def read_table(spark: SparkSession, topic: str, *, key: str, **settings: Any) -> Table:
    """A compacted topic as a table by its record key; a record without a value deletes its row.

    The record key, read as a string, becomes the column `key`, in the type that the schema has for that column (default
    string). Columns: the schema's, `version long` (the offset), `deleted boolean`. `settings` are those of `read`,
    without `at` and `late`. Records that cannot be read are left out; the metrics under `name` count them. Records
    without a key, or with a key that is not a value of its type, are left out too, but not counted. Raises
    `PenstockError` as `read` does.
    """
    rows = read(spark, topic, prefix=_PREFIX, **settings)
    deleted = F.coalesce(F.col("problem.reason") == NO_VALUE, F.lit(False))
    text = F.col(f"{_PREFIX}key").cast("string")
    kind = rows.schema[key].dataType if key in rows.columns else "string"
    columns = [F.col(name) for name in rows.columns if name not in (key, "problem") and not name.startswith(_PREFIX)]
    about = [F.col(f"{_PREFIX}offset").alias("version"), deleted.alias("deleted")]
    kept = rows.where(F.col("problem").isNull() | deleted)
    keyed = kept.select(text.try_cast(kind).alias(key), *columns, *about).where(F.col(key).isNotNull())
    return Table(keyed, (key,), "version", "deleted")
