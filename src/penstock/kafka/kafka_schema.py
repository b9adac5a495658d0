"""The name and the columns of our own Kafka source."""

from __future__ import annotations

from pyspark.sql import types as st

from penstock.codec.problem import HEADERS

FORMAT = "penstock-kafka-topic"
READ = "read"
"""The column that says whether a value's members were read; Spark reads the other values."""
UNREADABLE = "unreadable"
"""The column that says why the record batch at this offset cannot be read; null in records."""
RECORD = (
    st.StructType()
    .add("key", st.BinaryType())
    .add("value", st.BinaryType())
    .add("partition", st.IntegerType(), False)
    .add("offset", st.LongType(), False)
    .add("timestamp", st.TimestampType(), False)
    .add("headers", HEADERS)
)


def member(number: int) -> str:
    """The column of a member of JSON values."""
    return f"member{number}"


def schema(members: st.StructType | None, *, tolerant: bool) -> st.StructType:
    """The columns of the source."""
    fields = [*RECORD]
    if tolerant:
        fields.append(st.StructField(UNREADABLE, st.StringType()))
    if members is not None:
        fields.append(st.StructField(READ, st.BooleanType(), False))
        fields += [st.StructField(member(n), field.dataType) for n, field in enumerate(members)]
    return st.StructType(fields)
