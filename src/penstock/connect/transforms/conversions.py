"""Cast, TimestampConverter, and values as strings.

Numbers follow Java's rules, times Java's `SimpleDateFormat` in UTC, and strings Connect's SimpleHeaderConverter.
"""

from __future__ import annotations

from pyspark.sql import Column, functions as F

from penstock.codec.connect_schema import PRIMITIVES, Schema
from penstock.codec.typed_records import RecordPart
from penstock.connect.java import simple_date_format
from penstock.connect.java.date_patterns import elements
from penstock.connect.transforms.state import (
    Values,
    each_field,
    on_each,
    on_key_and_value,
    one_of,
)
from penstock.errors import PenstockError

# Connect's names of types, and their names in JSON schemas.
TYPES = {
    **{name: name for name in ("int8", "int16", "int32", "int64", "boolean", "string")},
    "float32": "float",
    "float64": "double",
}
INTEGERS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
"""Integer types, with their bits."""

DAY = 24 * 60 * 60 * 1000
"""In milliseconds."""
DATE, TIME, TIMESTAMP = (f"org.apache.kafka.connect.data.{name}" for name in ("Date", "Time", "Timestamp"))
LOGICAL = (DATE, TIME, TIMESTAMP)
TARGETS = ("string", "unix", "Date", "Time", "Timestamp")
PRECISIONS = ("nanoseconds", "microseconds", "milliseconds", "seconds")
# Units per millisecond.
IN_A_MILLISECOND = {"microseconds": 1000, "nanoseconds": 1_000_000}


# Values as strings.


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


# Cast: converts fields, or whole keys and values, to another primitive type.


def cast_types(items: list[str]) -> dict[str, str]:
    """The new types by field; the name of the whole value is empty."""
    pairs = [item.rpartition(":") for item in items]
    return {name.strip(): TYPES[kind.strip().lower()] for name, _, kind in pairs}


def _wrong_spec(items: list[str]) -> str | None:
    if not items:
        return "Must specify at least one field to cast."
    for item in items:
        if item.count(":") > 1:
            return f"Invalid cast mapping: {item}"
        kind = item.rpartition(":")[2].strip()
        if kind.lower() not in TYPES:
            return f"Invalid type found in casting spec: {kind}; supported types are {', '.join(TYPES)}"
    if len(items) > 1 and any(":" not in item for item in items):
        return "Cast transformations that cast the entire value may only have a single cast in their spec"
    return None


def _cast_part(part: RecordPart, values: Values) -> RecordPart:
    wanted = cast_types(values["spec"])
    if "" in wanted:
        return _cast(part, wanted[""], "the whole record")
    return each_field(
        part, "the transform Cast", lambda name, field: _cast(field, wanted[name], name) if name in wanted else field
    )


def _cast(part: RecordPart, kind: str, name: str) -> RecordPart:
    source = part.schema["type"]
    if source not in PRIMITIVES or (source == "bytes" and kind != "string"):
        raise PenstockError(
            f"a value of type {source} cannot be cast to {kind}",
            where=f"the transform Cast, {name}",
            next="cast primitive values; bytes only to string",
        )
    if "default" in part.schema:
        raise PenstockError(
            "a field with a default value cannot be cast",
            where=f"the transform Cast, {name}",
            next="remove it from spec",
        )
    return RecordPart(_value(part, kind), {"type": kind, "optional": part.schema["optional"]})


def _value(part: RecordPart, kind: str) -> Column:
    payload, source = part.payload, part.schema["type"]
    if kind == "string":
        return text(part)
    if kind == "boolean":
        if source == "string":
            return F.lower(payload) == "true"
        return payload if source == "boolean" else _integer(payload, source, "int64") != 0
    if source == "string":
        # Spark takes more than Java: spaces around integers, and names of infinity and NaN in any case.
        refused = r"\s" if kind in INTEGERS else r"^\s*[+-]?(?!NaN|Infinity)(?i:nan|inf)"
        parsed = F.when(~payload.rlike(refused), payload.try_cast(PRIMITIVES[kind]))
        wrong = F.concat(F.lit("Value ("), payload, F.lit(f") was out of range for requested data type {kind}"))
        return F.when(payload.isNotNull(), F.coalesce(parsed, F.raise_error(wrong).cast(PRIMITIVES[kind])))
    return _integer(payload, source, kind) if kind in INTEGERS else payload.cast(PRIMITIVES[kind])


def _integer(payload: Column, source: str, kind: str) -> Column:
    """Java's narrowing: a fraction is cut off and limited to an int or a long, then only its lowest bits remain."""
    bits = INTEGERS[kind]
    if source in ("float", "double"):
        payload = _cut(payload.cast("double"), max(bits, 32))
    number = payload.cast("bigint")
    if bits < 64:
        number = F.shiftright(F.shiftleft(number, 64 - bits), 64 - bits)
    return number.cast(PRIMITIVES[kind])


def _cut(number: Column, bits: int) -> Column:
    high, low = 2 ** (bits - 1) - 1, -(2 ** (bits - 1))
    inside = F.when(number >= float(high), F.lit(high)).when(number <= float(low), F.lit(low))
    return F.when(F.isnan(number), F.lit(0)).otherwise(inside.otherwise(number.cast("bigint")))


# TimestampConverter: times as strings, as numbers and as Connect's Date, Time and Timestamp.


def _converted(part: RecordPart, values: Values) -> RecordPart:
    if not values["field"]:
        return _convert(part, values)
    return each_field(
        part,
        "the transform TimestampConverter",
        lambda name, field: _convert(field, values) if name == values["field"] else field,
    )


def _convert(part: RecordPart, values: Values) -> RecordPart:
    millis = _millis(part, values)
    target, optional = values["target.type"], part.schema["optional"]
    if target == "string":
        return RecordPart(formatted(millis, values["format"]), {"type": "string", "optional": optional})
    if target == "unix":
        return RecordPart(_unix(millis, values["unix.precision"]), {"type": "int64", "optional": optional})
    if target == "Timestamp":
        return RecordPart(millis, _logical("int64", TIMESTAMP, optional))
    if target == "Date":
        midnight = millis - F.pmod(millis, F.lit(DAY))
        return RecordPart(_divided(midnight, DAY).cast("int"), _logical("int32", DATE, optional))
    return RecordPart(F.pmod(millis, F.lit(DAY)).cast("int"), _logical("int32", TIME, optional))


def _logical(kind: str, name: str, optional: bool) -> Schema:
    return {"type": kind, "optional": optional, "name": name, "version": 1}


def _millis(part: RecordPart, values: Values) -> Column:
    kind = part.schema["type"]
    if is_time(part.schema):
        return _millis_of(part)
    if kind == "int64":
        precision = values["unix.precision"]
        if precision == "seconds":
            return part.payload * 1000
        return _divided(part.payload, IN_A_MILLISECOND.get(precision, 1))
    if kind == "string" and values["format"]:
        return _parsed(part.payload, values["format"])
    raise PenstockError(
        f"a value of type {kind} is not a time" if kind != "string" else "a string needs a format to be read as a time",
        where="the transform TimestampConverter",
        next="convert a Date, Time or Timestamp, an int64, or a string with `format`",
    )


def _parsed(text: Column, pattern: str) -> Column:
    """The milliseconds; a string that does not match the pattern fails the query."""
    if any(letter == "E" and count for letter, count, _ in elements(pattern)):
        raise PenstockError(
            f"times with the name of a day cannot be read: {pattern}",
            where="the transform TimestampConverter",
            next="use a format without E, or keep the string",
        )
    time = F.unix_millis(F.try_to_timestamp(text, F.lit(pattern)))
    wrong = F.concat(F.lit("Could not parse timestamp: value ("), text, F.lit(f") does not match pattern ({pattern})"))
    return F.when(text.isNotNull(), F.coalesce(time, F.raise_error(wrong).cast("bigint")))


def _unix(millis: Column, precision: str) -> Column:
    if precision == "seconds":
        return _divided(millis, 1000)
    return millis * IN_A_MILLISECOND.get(precision, 1)


def _divided(number: Column, by: int) -> Column:
    """Integer division towards 0, as in Java's TimeUnit; not with doubles, which have too few digits."""
    return number if by == 1 else F.call_function("div", number, F.lit(by))


def _no_format(values: Values) -> str | None:
    if values["target.type"] == "string" and not values["format"]:
        return "TimestampConverter requires format option to be specified when using string timestamps"
    return None


CLASSES = (
    *on_key_and_value("Cast", on_each(_cast_part), {"spec": _wrong_spec}),
    *on_key_and_value(
        "TimestampConverter",
        on_each(_converted),
        {"target.type": one_of(*TARGETS), "format": simple_date_format.problem, "unix.precision": one_of(*PRECISIONS)},
        _no_format,
    ),
)
