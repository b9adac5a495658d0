"""The column `problem` of a record that could not be read: why, where it stands in Kafka, and its bytes as they came.

It is null for good records. A record that a queue of dead letters gets has the headers that Kafka Connect gives its
own dead letters (KIP-298), so that the same tools read them. A change of a table whose cells could not be read has a
`problem` of another type: where it stands in the change log, and the bytes of those cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, functions as F, types as st

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

CELL = (
    st.StructType()
    .add("part", st.StringType())
    .add("column", st.StringType())
    .add("type", st.StringType())
    .add("reason", st.StringType())
    .add("value", st.BinaryType())
)
"""A cell that could not be read: the change's column it belongs to (such as `after`), the table's, and its bytes."""
CHANGE_TYPE = (
    st.StructType()
    .add("reason", st.StringType())
    .add("table", st.StringType())
    .add("key", st.StringType())
    .add("stream_id", st.BinaryType())
    .add("time", st.StringType())
    .add("batch_seq_no", st.IntegerType())
    .add("cells", st.ArrayType(CELL))
)
"""The type of a change's `problem`; `key` is the primary key as a JSON object."""

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
    return F.concat(F.coalesce(F.col("problem.headers"), F.array().cast(HEADERS)), _headers(told))


def cell_headers(cell: str) -> Column:
    """Those of a dead letter that is one cell of a change, whose `CELL` is in the column `cell`."""
    told = {
        "table": F.col("problem.table"),
        "stream": F.hex("problem.stream_id"),
        "time": F.col("problem.time"),
        "part": F.col(f"{cell}.part"),
        "column": F.col(f"{cell}.column"),
        "type": F.col(f"{cell}.type"),
        "exception.message": F.col(f"{cell}.reason"),
    }
    return _headers({name: F.coalesce(value, F.lit("")) for name, value in told.items()})


def _headers(told: Mapping[str, Column]) -> Column:
    return F.array(
        *(
            F.struct(F.lit(PREFIX + name).alias("key"), value.cast("binary").alias("value"))
            for name, value in told.items()
        )
    )


def good_changes(changes: DataFrame) -> DataFrame:
    """The changes that were read whole, of a frame that may have others."""
    if PROBLEM in changes.columns and changes.schema[PROBLEM].dataType == CHANGE_TYPE:
        return changes.where(F.col(PROBLEM).isNull())
    return changes


def shown(text: Column) -> Column:
    """The beginning of a value, for a message."""
    return F.concat(F.lit("'"), F.substring(text, 1, _SHOWN), F.lit("'"))
