"""Times, headers and values of headers as columns, as `conversions` makes them of records."""

from __future__ import annotations

from pyspark.sql import Column, functions as F

from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import RecordPart
from penstock.connect.transforms.conversions import DATE, DAY, LOGICAL


def text(part: RecordPart) -> Column:
    """The value as in a header: structs and arrays as JSON, bytes as base64."""
    if part.schema["type"] in ("struct", "array", "map"):
        return F.to_json(part.payload, {"ignoreNullFields": "false"})
    if is_time(part.schema):
        return _iso(part)
    return F.base64(part.payload) if part.schema["type"] == "bytes" else part.payload.cast("string")


def header(name: str, value: Column) -> Column:
    return F.struct(F.lit(name).alias("key"), F.encode(value, "UTF-8").alias("value"))


def is_time(schema: Schema) -> bool:
    """Whether values are of a logical type of times."""
    return schema.get("name") in LOGICAL


def formatted(millis: Column, pattern: str) -> Column:
    """The time as a string; `millis` are since 1970."""
    return F.date_format(F.timestamp_millis(millis), pattern)


def _iso(part: RecordPart) -> Column:
    """A date, a time or a timestamp as Connect writes it: the form depends on the value, not on the type."""
    millis = _millis_of(part)
    day = F.when(F.pmod(millis, F.lit(DAY)) == 0, formatted(millis, "yyyy-MM-dd"))
    text = day.otherwise(formatted(millis, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"))
    return F.when(millis < DAY, formatted(millis, "HH:mm:ss.SSS'Z'")).otherwise(text)


def _millis_of(part: RecordPart) -> Column:
    """The milliseconds of a value of a logical type."""
    number = part.payload.cast("bigint")
    return number * DAY if part.schema["name"] == DATE else number
