"""Times as strings and as Connect's logical types: milliseconds since 1970, in UTC, as Java's `SimpleDateFormat`."""

from __future__ import annotations

import re

from pyspark.sql import Column, functions as F

from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import RecordPart
from penstock.errors import PenstockError

DAY = 24 * 60 * 60 * 1000
DATE, TIME, TIMESTAMP = (f"org.apache.kafka.connect.data.{name}" for name in ("Date", "Time", "Timestamp"))
LOGICAL = (DATE, TIME, TIMESTAMP)
# Letters with the same meaning in SimpleDateFormat and in Spark's patterns, and their largest number in a row.
_LETTERS = {"G": 4, "y": 6, "M": 4, "L": 4, "d": 2, "D": 3, "E": 4, "a": 1, "z": 4, "Z": 3, "X": 3}
_LETTERS |= dict.fromkeys("HhkKms", 2)


def problem(pattern: str) -> str | None:
    """The error of a pattern for times, or None."""
    bare = re.sub("'[^']*'", " ", pattern)
    if "'" in bare:
        return "Unterminated quote"
    for run in re.finditer(r"([A-Za-z\[\]{}#])\1*", bare):
        if run[0] != "SSS" and len(run[0]) > _LETTERS.get(run[1], 0):
            return f"{run[0]} is not supported; use {' '.join(_LETTERS)}, SSS for milliseconds, 'quotes' for literals"
    return None


def formatted(millis: Column, pattern: str) -> Column:
    """The time as a string."""
    return F.date_format(F.timestamp_millis(millis), pattern)


def parsed(text: Column, pattern: str) -> Column:
    """The milliseconds; a string that does not match the pattern fails the query."""
    if "E" in re.sub("'[^']*'", "", pattern):
        raise PenstockError(
            f"times with the name of a day cannot be read: {pattern}",
            where="the transform TimestampConverter",
            next="use a format without E, or keep the string",
        )
    time = F.unix_millis(F.try_to_timestamp(text, F.lit(pattern)))
    wrong = F.concat(F.lit("Could not parse timestamp: value ("), text, F.lit(f") does not match pattern ({pattern})"))
    return F.when(text.isNotNull(), F.coalesce(time, F.raise_error(wrong).cast("bigint")))


def is_time(schema: Schema) -> bool:
    return schema.get("name") in LOGICAL


def millis_of(part: RecordPart) -> Column:
    """The milliseconds of a value of a logical type."""
    number = part.payload.cast("bigint")
    return number * DAY if part.schema["name"] == DATE else number


def iso(part: RecordPart) -> Column:
    """A date, a time or a timestamp as Connect writes it: the form depends on the value, not on the type."""
    millis = millis_of(part)
    day = F.when(F.pmod(millis, F.lit(DAY)) == 0, formatted(millis, "yyyy-MM-dd"))
    text = day.otherwise(formatted(millis, "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"))
    return F.when(millis < DAY, formatted(millis, "HH:mm:ss.SSS'Z'")).otherwise(text)
