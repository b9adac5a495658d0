"""Cast and TimestampConverter of records."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from penstock.codec import exact_json
from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import Side
from penstock.connect.java import numbers as java_numbers
from penstock.connect.java.simple_date_format import DateFormat
from penstock.connect.record_transforms.record_steps import (
    Change,
    Step,
    Values,
    basics,
    fields_of,
    is_optional,
    object_of,
    on_part,
    struct_schema,
)
from penstock.connect.records.json_data import default_of
from penstock.connect.records.record import (
    DATA,
    INTEGERS,
    ConnectRecord,
    Date,
    NoValue,
    TimeOfDay,
    Timestamp,
    type_name,
)
from penstock.connect.transforms.conversions import (
    DATE,
    DAY,
    IN_A_MILLISECOND,
    LOGICAL,
    TIME,
    TIMESTAMP,
    cast_types,
)

DECIMAL = f"{DATA}Decimal"
NANOS_IN_A_MILLISECOND = 1_000_000
_CLOCK, _DATE, _MOMENT = map(DateFormat, ("HH:mm:ss.SSS'Z'", "yyyy-MM-dd", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"))

# Cast.


def cast(side: Side, values: Values) -> Step:
    wanted, defaults = cast_types(values["spec"]), values["replace.null.with.default"]

    def plain(value: Any, record: ConnectRecord) -> Any:
        if "" in wanted:
            return _cast(value, wanted[""])
        row = object_of(value)
        return {**row, **{name: _cast(row.get(name), kind) for name, kind in wanted.items()}}

    def plan(schema: Schema) -> tuple[Schema, Change]:
        return _whole(schema, wanted[""]) if "" in wanted else _of_fields(schema, wanted, defaults)

    return on_part(side, plain, plan)


def _whole(schema: Schema, kind: str) -> tuple[Schema, Change]:
    # The name of a logical type would be wrong for any other type.
    kept = {} if schema.get("name") in (*LOGICAL, DECIMAL) else basics(schema)
    return {**_cast_schema(schema, kind), **kept}, lambda value, record: _cast(value, kind, schema)


def _of_fields(schema: Schema, wanted: Mapping[str, str], defaults: bool) -> tuple[Schema, Change]:
    fields = fields_of(schema)
    if schema.get("default") is not None:
        raise NoValue("a struct with a default cannot be cast")
    chosen = {name: (kind, fields.schemas[name]) for name, kind in wanted.items() if name in fields.schemas}

    def change(row: Any, record: ConnectRecord) -> dict[str, Any]:
        made = dict(fields.row(row, defaults))
        for name, (kind, own) in chosen.items():
            made[name] = _cast(made.get(name), kind, own)
        return made

    members = [
        (name, _cast_schema(own, wanted[name]) if name in chosen else own) for name, own in fields.schemas.items()
    ]
    return {**struct_schema(members, schema), "optional": is_optional(schema)}, change


def _cast_schema(schema: Schema, kind: str) -> Schema:
    # A field whose values are of several types has no type, nor a flag.
    made: Schema = {"type": kind, "optional": is_optional(schema) or not schema["type"]}
    if schema.get("default") is not None:
        given = _cast(default_of(schema), kind, schema)
        special = isinstance(given, float) and not math.isfinite(given)
        made["default"] = java_numbers.text(given) if special else given
    return made


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


# TimestampConverter.


def timestamp_converter(side: Side, values: Values) -> Step:
    field, convert, target = values["field"], _converter(values), _TARGETS[values["target.type"]]
    defaults = values["replace.null.with.default"]

    def plain(value: Any, record: ConnectRecord) -> Any:
        if value is None or not field:
            return convert(value)
        row = object_of(value)
        return {**row, field: convert(row.get(field))}

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
            made = dict(fields.row(row, defaults))
            if own is not None:
                _require_time(own)
                made[field] = convert(made.get(field))
            return made

        return {**struct_schema(members.items(), schema), "optional": is_optional(schema)}, change

    return on_part(side, plain, plan, nulls=True)


_TARGETS: dict[str, Schema] = {
    "string": {"type": "string"},
    "unix": {"type": "int64"},
    "Date": {"type": "int32", "name": DATE, "version": 1},
    "Time": {"type": "int32", "name": TIME, "version": 1},
    "Timestamp": {"type": "int64", "name": TIMESTAMP, "version": 1},
}


def _require_time(schema: Schema) -> None:
    if schema.get("name") not in LOGICAL and schema["type"] not in ("string", "int64", ""):
        raise NoValue(f"a value of type {schema['type']} is no time")


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
        raise NoValue(f"a value of type {type_name(value)} is no time")

    made: dict[str, Callable[[int], Any]] = {
        "string": lambda at: form.format(at) if form else "",
        "unix": lambda at: _in_unit(at, precision),
        "Date": lambda at: Date(at // DAY),
        "Time": lambda at: TimeOfDay(at % DAY),
        "Timestamp": Timestamp,
    }
    to = made[values["target.type"]]
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
