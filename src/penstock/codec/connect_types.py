"""The Spark type of a payload that has a given Kafka Connect schema."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as st

from penstock.codec.connect_schema import Schema

PRIMITIVES: dict[str, st.DataType] = {
    "boolean": st.BooleanType(),
    "bytes": st.BinaryType(),
    "double": st.DoubleType(),
    "float": st.FloatType(),
    "int8": st.ByteType(),
    "int16": st.ShortType(),
    "int32": st.IntegerType(),
    "int64": st.LongType(),
    "string": st.StringType(),
}


def spark_type(schema: Schema) -> st.DataType:
    """The type; dates and times are the numbers that Connect's logical types stand on."""
    if schema["type"] == "array":
        return st.ArrayType(spark_type(schema["items"]))
    if schema["type"] == "map":
        return st.MapType(spark_type(schema["keys"]), spark_type(schema["values"]))
    if schema["type"] != "struct":
        return PRIMITIVES[schema["type"]]
    return st.StructType([st.StructField(field["field"], spark_type(field)) for field in schema["fields"]])


def nothing(schema: Schema) -> Column:
    """A null of that type."""
    return F.lit(None).cast(spark_type(schema))
