"""TimestampConverter: times as strings, as numbers and as Connect's Date, Time and Timestamp."""

from __future__ import annotations

from pyspark.sql import Column, functions as F

from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import RecordPart
from penstock.connect.transforms import dates
from penstock.connect.transforms.state import DEFAULTS, KAFKA, Values, needed, on_key_and_value, one_of, option
from penstock.connect.transforms.struct_edits import fields, rebuilt
from penstock.connect.transforms.struct_fields import on_each
from penstock.errors import PenstockError

# Units per millisecond.
_IN_A_MILLISECOND = {"microseconds": 1000, "nanoseconds": 1_000_000}
PRECISIONS = ("nanoseconds", "microseconds", "milliseconds", "seconds")
TARGETS = ("string", "unix", "Date", "Time", "Timestamp")


def _converted(part: RecordPart, values: Values) -> RecordPart:
    if not values["field"]:
        return _convert(part, values)
    members = {
        name: _convert(field, values) if name == values["field"] else field
        for name, field in fields(part, "the transform TimestampConverter").items()
    }
    return rebuilt(part, members.items(), optional=part.schema["optional"])


def _convert(part: RecordPart, values: Values) -> RecordPart:
    millis = _millis(part, values)
    target, optional = values["target.type"], part.schema["optional"]
    if target == "string":
        return RecordPart(dates.formatted(millis, values["format"]), {"type": "string", "optional": optional})
    if target == "unix":
        return RecordPart(_unix(millis, values["unix.precision"]), {"type": "int64", "optional": optional})
    if target == "Timestamp":
        return RecordPart(millis, _logical("int64", dates.TIMESTAMP, optional))
    if target == "Date":
        midnight = millis - F.pmod(millis, F.lit(dates.DAY))
        return RecordPart(_divided(midnight, dates.DAY).cast("int"), _logical("int32", dates.DATE, optional))
    return RecordPart(F.pmod(millis, F.lit(dates.DAY)).cast("int"), _logical("int32", dates.TIME, optional))


def _logical(kind: str, name: str, optional: bool) -> Schema:
    return {"type": kind, "optional": optional, "name": name, "version": 1}


def _millis(part: RecordPart, values: Values) -> Column:
    kind = part.schema["type"]
    if dates.is_time(part.schema):
        return dates.millis_of(part)
    if kind == "int64":
        precision = values["unix.precision"]
        if precision == "seconds":
            return part.payload * 1000
        return _divided(part.payload, _IN_A_MILLISECOND.get(precision, 1))
    if kind == "string" and values["format"]:
        return dates.parsed(part.payload, values["format"])
    raise PenstockError(
        f"a value of type {kind} is not a time" if kind != "string" else "a string needs a format to be read as a time",
        where="the transform TimestampConverter",
        next="convert a Date, Time or Timestamp, an int64, or a string with `format`",
    )


def _unix(millis: Column, precision: str) -> Column:
    if precision == "seconds":
        return _divided(millis, 1000)
    return millis * _IN_A_MILLISECOND.get(precision, 1)


def _divided(number: Column, by: int) -> Column:
    """Integer division towards 0, as in Java's TimeUnit; not with doubles, which have too few digits."""
    return number if by == 1 else F.call_function("div", number, F.lit(by))


def _no_format(values: Values) -> str | None:
    if values["target.type"] == "string" and not values["format"]:
        return "TimestampConverter requires format option to be specified when using string timestamps"
    return None


CLASSES = on_key_and_value(
    f"{KAFKA}TimestampConverter",
    (
        option("field", "STRING", "", "The field with the time; empty if the key or value is a time.", None, "HIGH"),
        needed("target.type", "STRING", f"The new type: {', '.join(TARGETS)}.", one_of(*TARGETS)),
        option(
            "format",
            "STRING",
            "",
            "The format of strings, a pattern of Java's SimpleDateFormat, in UTC.",
            dates.problem,
        ),
        option(
            "unix.precision",
            "STRING",
            "milliseconds",
            f"The unit of numbers: {', '.join(PRECISIONS)}; fractions of a millisecond are lost.",
            one_of(*PRECISIONS),
            "LOW",
        ),
        DEFAULTS,
    ),
    on_each(_converted),
    _no_format,
)
