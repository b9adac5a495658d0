"""Cast, TimestampConverter, and values as strings.

Numbers follow Java's rules, times Java's `SimpleDateFormat` in UTC, and strings Connect's SimpleHeaderConverter.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from penstock.codec import exact_json
from penstock.codec.connect_schema import PRIMITIVES, Schema
from penstock.codec.typed_records import Side
from penstock.connect.java import numbers as java_numbers, simple_date_format
from penstock.connect.java.simple_date_format import DateFormat
from penstock.connect.records.json_data import default_of
from penstock.connect.records.record import (
    DATA,
    INTEGERS,
    ConnectRecord,
    Date,
    NoValue,
    Part,
    TimeOfDay,
    Timestamp,
    type_name,
)
from penstock.connect.transforms.plugin import on_key_and_value, one_of
from penstock.connect.transforms.steps import (
    Change,
    Misfit,
    PartStep,
    Values,
    basics,
    fields_of,
    is_optional,
    object_of,
    struct_schema,
)

# Connect's names of types, and their names in JSON schemas.
TYPES = {
    **{name: name for name in ("int8", "int16", "int32", "int64", "boolean", "string")},
    "float32": "float",
    "float64": "double",
}
DAY = 24 * 60 * 60 * 1000
"""In milliseconds."""
DATE, TIME, TIMESTAMP = (f"org.apache.kafka.connect.data.{name}" for name in ("Date", "Time", "Timestamp"))
LOGICAL = (DATE, TIME, TIMESTAMP)
TARGETS = ("string", "unix", "Date", "Time", "Timestamp")
PRECISIONS = ("nanoseconds", "microseconds", "milliseconds", "seconds")
# Units per millisecond.
IN_A_MILLISECOND = {"microseconds": 1000, "nanoseconds": 1_000_000}
DECIMAL = f"{DATA}Decimal"
NANOS_IN_A_MILLISECOND = 1_000_000
_CLOCK, _DATE, _MOMENT = map(DateFormat, ("HH:mm:ss.SSS'Z'", "yyyy-MM-dd", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"))

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


def cast(side: Side, values: Values) -> PartStep:
    wanted, defaults = cast_types(values["spec"]), values["replace.null.with.default"]

    def plain(value: Any, record: ConnectRecord) -> Any:
        if "" in wanted:
            return _cast(value, wanted[""])
        row = object_of(value)
        return {**row, **{name: _cast(row.get(name), kind) for name, kind in wanted.items()}}

    def plan(schema: Schema) -> tuple[Schema, Change]:
        return _whole(schema, wanted[""]) if "" in wanted else _of_fields(schema, wanted, defaults)

    def check(schema: Schema) -> None:
        if "" in wanted:
            _require_primitive(schema, wanted[""], "the whole record")
        else:
            schemas = fields_of(schema).schemas
            for name in wanted.keys() & schemas.keys():
                _require_primitive(schemas[name], wanted[name], f"field {name}")

    return PartStep(side, plain, plan, check=check)


def _require_primitive(schema: Schema, kind: str, place: str) -> None:
    """Raise NoValue if no value of a schema but null can be cast."""
    source = schema["type"]
    if source not in PRIMITIVES or (source == "bytes" and kind != "string"):
        raise Misfit(
            f"a value of type {source} cannot be cast to {kind}",
            place=place,
            next="cast primitive values; bytes only to string",
        )


def _whole(schema: Schema, kind: str) -> tuple[Schema, Change]:
    # The name of a logical type would be wrong for any other type.
    properties = {} if schema.get("name") in (*LOGICAL, DECIMAL) else basics(schema)
    return {**_cast_schema(schema, kind), **properties}, lambda value, record: _cast(value, kind, schema)


def _of_fields(schema: Schema, wanted: Mapping[str, str], defaults: bool) -> tuple[Schema, Change]:
    fields = fields_of(schema)
    if schema.get("default") is not None:
        raise NoValue("a struct with a default cannot be cast")
    chosen = {name: (kind, fields.schemas[name]) for name, kind in wanted.items() if name in fields.schemas}

    def change(row: Any, record: ConnectRecord) -> dict[str, Any]:
        cast_row = dict(fields.row(row, defaults))
        for name, (kind, own) in chosen.items():
            cast_row[name] = _cast(cast_row.get(name), kind, own)
        return cast_row

    members = [
        (name, _cast_schema(own, wanted[name]) if name in chosen else own) for name, own in fields.schemas.items()
    ]
    return {**struct_schema(members, schema), "optional": is_optional(schema)}, change


def _cast_schema(schema: Schema, kind: str) -> Schema:
    # A field whose values are of several types has no type, nor a flag.
    target: Schema = {"type": kind, "optional": is_optional(schema) or not schema["type"]}
    if schema.get("default") is not None:
        default = _cast(default_of(schema), kind, schema)
        special = isinstance(default, float) and not math.isfinite(default)
        target["default"] = java_numbers.text(default) if special else default
    return target


def _cast(value: Any, kind: str, schema: Schema | None = None) -> Any:
    """The value as another primitive type; `schema` is that of the value, if it has one."""
    if value is None:
        return None
    if not isinstance(value, bool | int | float | Decimal | str | bytes):
        raise NoValue(f"only primitive values can be cast, not {'objects' if isinstance(value, dict) else 'arrays'}")
    if schema is None and isinstance(value, Decimal):
        value = exact_json.as_double(value)  # a number without a schema is a double in Kafka
    if kind == "string":
        return _text(value, schema)
    if isinstance(value, bytes):
        raise NoValue(f"bytes cannot be cast to {kind}")
    if kind == "boolean":
        return value.lower() == "true" if isinstance(value, str) else java_numbers.integer(value, "int64") != 0
    if kind in INTEGERS:
        return java_numbers.parsed_integer(value, kind) if isinstance(value, str) else java_numbers.integer(value, kind)
    number = java_numbers.parsed_double(value) if isinstance(value, str) else value
    return java_numbers.single(number) if kind == "float" else java_numbers.double(number)


def _text(value: Any, schema: Schema | None) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Date | TimeOfDay | Timestamp):
        return _iso(_millis(value))
    if isinstance(value, float):
        return java_numbers.text(value, is_single=schema is not None and schema["type"] == "float")
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _iso(millis: int) -> str:
    """A time as Connect writes it: the form depends on the value, not on the type."""
    if millis < DAY:
        return _CLOCK.format(millis)
    return (_MOMENT if millis % DAY else _DATE).format(millis)


def _millis(value: Date | TimeOfDay | Timestamp) -> int:
    """Milliseconds of a time in any unit, cut as Kafka's classes of times have them."""
    return value * DAY if isinstance(value, Date) else value.count_of(NANOS_IN_A_MILLISECOND)


def header_text(part: Part) -> bytes | None:
    """A header's value as SimpleHeaderConverter writes it: objects and arrays as JSON, bytes as base64."""
    schema, value = part
    if value is None:
        return None
    if isinstance(value, dict | list):
        return exact_json.dumps(value, compact=True, other=_json_of).encode()
    return _text(value, schema).encode()


def _json_of(value: Any) -> str:
    """The JSON of what JSON does not have."""
    return str(int(value)) if isinstance(value, int) else exact_json.dumps(_text(value, None))


# TimestampConverter.


def timestamp_converter(side: Side, values: Values) -> PartStep:
    field, convert, target = values["field"], _converter(values), _TARGETS[values["target.type"]]
    defaults = values["replace.null.with.default"]

    def plain(value: Any, record: ConnectRecord) -> Any:
        if value is None or not field:
            return convert(value)
        row = object_of(value)
        return {**row, field: convert(row.get(field))}

    def check(schema: Schema) -> None:
        own = fields_of(schema).schemas.get(field) if field else schema
        if own is not None:
            _require_time(own)
            if own["type"] == "string" and not values["format"].strip():
                raise Misfit(
                    "a string needs a format to be read as a time", place=f"field {field}" if field else "", next=TIMES
                )

    def plan(schema: Schema) -> tuple[Schema, Change]:
        if not field:
            _require_time(schema)
            return {**target, "optional": is_optional(schema)}, lambda value, record: convert(value)
        fields = fields_of(schema)
        own, members = fields.schemas.get(field), dict(fields.schemas)
        if own is not None:
            members[field] = {**target, "optional": is_optional(own)}

        def change(row: Any, record: ConnectRecord) -> Any:
            if row is None:
                return None
            converted = dict(fields.row(row, defaults))
            if own is not None:
                _require_time(own)
                converted[field] = convert(converted.get(field))
            return converted

        return {**struct_schema(members.items(), schema), "optional": is_optional(schema)}, change

    return PartStep(side, plain, plan, nulls=True, check=check)


TIMES = "convert a Date, Time or Timestamp, an int64, or a string with `format`"
_TARGETS: dict[str, Schema] = {
    "string": {"type": "string"},
    "unix": {"type": "int64"},
    "Date": {"type": "int32", "name": DATE, "version": 1},
    "Time": {"type": "int32", "name": TIME, "version": 1},
    "Timestamp": {"type": "int64", "name": TIMESTAMP, "version": 1},
}


def _require_time(schema: Schema) -> None:
    if schema.get("name") not in LOGICAL and schema["type"] not in ("string", "int64", ""):
        raise Misfit(f"a value of type {schema['type']} is not a time", next=TIMES)


def _converter(values: Values) -> Callable[[Any], Any]:
    form = DateFormat(values["format"]) if values["format"].strip() else None
    precision = values["unix.precision"]

    def millis(value: Any) -> int:
        if isinstance(value, Date | TimeOfDay | Timestamp):
            return _millis(value)
        if isinstance(value, int) and not isinstance(value, bool) and _limited(value) == value:
            return _of_unit(value, precision)
        if isinstance(value, str):
            if form is None:
                raise NoValue("a text is read as a time only with `format`")
            return form.parse(value)
        raise NoValue(f"a value of type {type_name(value)} is not a time")

    converters: dict[str, Callable[[int], Any]] = {
        "string": lambda at: form.format(at) if form else "",
        "unix": lambda at: _in_unit(at, precision),
        "Date": lambda at: Date(at // DAY),
        "Time": lambda at: TimeOfDay(at % DAY),
        "Timestamp": Timestamp,
    }
    to = converters[values["target.type"]]
    return lambda value: None if value is None else to(millis(value))


def _of_unit(number: int, precision: str) -> int:
    """Milliseconds, cut towards 0."""
    if precision == "seconds":
        return _limited(number * 1000)
    by = IN_A_MILLISECOND.get(precision, 1)
    return number // by if number >= 0 else -(-number // by)


def _in_unit(millis: int, precision: str) -> int:
    if precision == "seconds":
        return millis // 1000 if millis >= 0 else -(-millis // 1000)
    return _limited(millis * IN_A_MILLISECOND.get(precision, 1))


def _limited(number: int) -> int:
    return max(min(number, (1 << 63) - 1), -(1 << 63))


def _no_format(values: Values) -> str | None:
    if values["target.type"] == "string" and not values["format"]:
        return "TimestampConverter requires format option to be specified when using string timestamps"
    return None


CLASSES = (
    *on_key_and_value("Cast", cast, {"spec": _wrong_spec}),
    *on_key_and_value(
        "TimestampConverter",
        timestamp_converter,
        {"target.type": one_of(*TARGETS), "format": simple_date_format.problem, "unix.precision": one_of(*PRECISIONS)},
        _no_format,
    ),
)
