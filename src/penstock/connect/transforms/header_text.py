"""Values as strings in headers, as written by Connect's SimpleHeaderConverter."""

from __future__ import annotations

from pyspark.sql import Column, functions as F

from penstock.codec.typed_records import RecordPart
from penstock.connect.transforms import dates


def text(part: RecordPart) -> Column:
    """The value as a string: structs and arrays as JSON, bytes as base64."""
    if part.schema["type"] in ("struct", "array", "map"):
        return F.to_json(part.payload, {"ignoreNullFields": "false"})
    if dates.is_time(part.schema):
        return dates.iso(part)
    return F.base64(part.payload) if part.schema["type"] == "bytes" else part.payload.cast("string")


def header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), F.encode(value, "UTF-8").alias("value"))
