"""The column `problem` of a record that could not be read: why, where it stands in Kafka, and its bytes as they came.

It is null for good records. A record that a queue of dead letters gets has the headers that Kafka Connect gives its
own dead letters (KIP-298), so that the same tools read them.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as st

PROBLEM = "problem"
HEADERS = st.ArrayType(st.StructType().add("key", st.StringType()).add("value", st.BinaryType()))
TYPE = (
    st.StructType()
    .add("reason", st.StringType())
    .add("topic", st.StringType())
    .add("partition", st.IntegerType())
    .add("offset", st.LongType())
    .add("timestamp", st.TimestampType())
    .add("key", st.BinaryType())
    .add("value", st.BinaryType())
    .add("headers", HEADERS)
)
"""The type of `problem`; the fields are in this order."""

PREFIX = "__connect.errors."
_SHOWN = 80  # characters of a wrong value in a reason


def problem(reason: Column, column: Callable[[str], str]) -> Column:
    """`problem` of a row that has the columns of Spark's Kafka source, named by `column`; null where `reason` is."""
    parts = [reason.alias("reason"), *(F.col(column(name)).alias(name) for name in TYPE.names[1:])]
    return F.when(reason.isNotNull(), F.struct(*parts).cast(TYPE))


def headers() -> Column:
    """The record's own headers, and behind them those that tell what is wrong and where it was."""
    told = {
        "topic": F.col("problem.topic"),
        "partition": F.col("problem.partition").cast("string"),
        "offset": F.col("problem.offset").cast("string"),
        "exception.message": F.col("problem.reason"),
    }
    ours = F.array(
        *(
            F.struct(F.lit(PREFIX + name).alias("key"), value.cast("binary").alias("value"))
            for name, value in told.items()
        )
    )
    return F.concat(F.coalesce(F.col("problem.headers"), F.array().cast(HEADERS)), ours)


def shown(text: Column) -> Column:
    """The beginning of a value, for a message."""
    return F.concat(F.lit("'"), F.substring(text, 1, _SHOWN), F.lit("'"))
