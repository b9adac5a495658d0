"""The column `problem` of a record that could not be read: the reason, its position in Kafka, and its unchanged bytes.

It is null for good records. A record in a dead letter queue has the same headers as Kafka Connect's dead letters
(KIP-298), so that the same tools read them. A change of a table with unreadable cells has a `problem` of another type:
its position in the change log, and the bytes of the cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column, DataFrame, functions as F, types as st

from penstock.metrics.delays import REASONS

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
"""A cell that could not be read: the column of the change (such as `after`), the column of the table, and the bytes."""
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
_SHOWN = 80  # characters of a bad value in a reason


def problem(reason: Column, column: Callable[[str], str]) -> Column:
    """The `problem` of a row with the columns of Spark's Kafka source; null where `reason` is null.

    `column` maps a name of the Kafka source to the row's column.
    """
    parts = [reason.alias("reason"), *(F.col(column(name)).alias(name) for name in TYPE.names[1:])]
    return F.when(reason.isNotNull(), F.struct(*parts).cast(TYPE))


def headers() -> Column:
    """The record's own headers, followed by headers with its reason and its position."""
    value_by_name = {
        "topic": F.col("problem.topic"),
        "partition": F.col("problem.partition").cast("string"),
        "offset": F.col("problem.offset").cast("string"),
        "exception.message": F.col("problem.reason"),
    }
    return F.concat(F.coalesce(F.col("problem.headers"), F.array().cast(HEADERS)), _headers(value_by_name))


def cell_headers(cell: str) -> Column:
    """The headers of a dead letter that is one cell of a change; the column `cell` is the `CELL`."""
    value_by_name = {
        "table": F.col("problem.table"),
        "stream": F.hex("problem.stream_id"),
        "time": F.col("problem.time"),
        "part": F.col(f"{cell}.part"),
        "column": F.col(f"{cell}.column"),
        "type": F.col(f"{cell}.type"),
        "exception.message": F.col(f"{cell}.reason"),
    }
    return _headers({name: F.coalesce(value, F.lit("")) for name, value in value_by_name.items()})


def _headers(value_by_name: Mapping[str, Column]) -> Column:
    return F.array(
        *(
            F.struct(F.lit(PREFIX + name).alias("key"), value.cast("binary").alias("value"))
            for name, value in value_by_name.items()
        )
    )


def good_changes(changes: DataFrame) -> DataFrame:
    """The changes without a `problem`."""
    if PROBLEM in changes.columns and changes.schema[PROBLEM].dataType == CHANGE_TYPE:
        return changes.where(F.col(PROBLEM).isNull())
    return changes


def shown(text: Column) -> Column:
    """The beginning of a value in quotes, for a message."""
    return F.concat(F.lit("'"), F.substring(text, 1, _SHOWN), F.lit("'"))


# The reasons as few classes, so that metrics can count them: a reason itself has parts of the value.

UNREADABLE = "unreadable"
BEGINNINGS = {
    "no_value": ("no value",),
    "not_utf8": ("not valid UTF-8",),
    "not_json": ("not a JSON object", "an array, not an object"),
    "not_framed": ("not in Confluent's wire format",),
    "unknown_schema": ("the registry had no schema",),
    "not_of_schema": ("not valid Avro", "not valid Protobuf", "no valid message indexes", "the schema "),
    "missing_field": ("missing or null: ",),
    "wrong_time": ("no time in ", "the time ", "a time out of range"),
    "too_large": ("RECORDS_TOO_LARGE",),
    UNREADABLE: ("RECORDS_UNREADABLE", "cannot be read: "),
    "wrong_type": ("values of other types: ", "a number with an exponent"),
}
"""How the reasons of each class begin."""
PATTERNS = {
    "not_csv": r"^not \d+ values: ",
    "wrong_type": r"^\S.{0,200} is not a valid ",
}


def reason_number(reason: Column) -> Column:
    """The number in `delays.REASONS` of the class of a reason; null where `reason` is null."""
    number = F.when(reason.isNull(), F.lit(None).cast("int"))
    for name, beginnings in BEGINNINGS.items():
        for text in beginnings:
            number = number.when(reason.startswith(text), REASONS.index(name))
    for name, pattern in PATTERNS.items():
        number = number.when(reason.rlike(pattern), REASONS.index(name))
    return number.otherwise(REASONS.index("other"))


def problem_counts() -> list[Column]:
    """The metrics of a frame with the column `problem`: its rows, those with a problem, and these by reason.

    `delays.bad_records` reads the last one. It is a histogram with a bin for each reason, which is exact and costs good
    rows next to nothing; a sum for each reason costs more than the sink's own counts.
    """
    reasons = F.histogram_numeric(reason_number(F.col("problem.reason")), F.lit(len(REASONS) + 3))
    return [F.count(F.lit(1)).alias("records"), F.count(PROBLEM).alias("problems"), reasons.alias("reasons")]
