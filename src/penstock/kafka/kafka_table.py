"""`kafka.read_table`: a compacted topic as a table."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession, functions as F

from penstock.kafka.kafka_read import NO_VALUE, read
from penstock.table.table import Table

_PREFIX = "_kafka_"


def read_table(spark: SparkSession, topic: str, *, key: str, **settings: Any) -> Table:
    """A compacted topic as a table by its record key, whose text becomes the column `key`, in the type that the schema
    has for it; a record without a value deletes its row.

    `settings` are those of `read`, but for `at` and `late`. Columns: the schema's, `version long` (the offset),
    `deleted boolean`. Records that cannot be read are left out; their number is in the metrics under `name`. So are
    those, not counted, that have no key, or one that is no value of that type.
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
