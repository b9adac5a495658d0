"""Debezium's semantic types: what a schema's name says of a value, such as that a number counts microseconds.

Converters read the raw values; `SemanticTypes` gives them the classes here, which the sinks convert. A
number that counts time is still a number for columns of numbers. The names are of "Data type mappings" in Debezium's
documentation of each connector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.codec.connect_schema import Schema
from penstock.connect.records.json_data import decimal_of
from penstock.connect.records.record import Date, NoValue, Part, Reader, TimeOfDay, TimeSpan, Timestamp

TIME, DATA = "io.debezium.time.", "io.debezium.data."
PROTOBUF_TIMESTAMP = "google.protobuf.Timestamp"
"""What `protobuf_data` reads from a message of this type."""
MOST_KNOWN = 1000
"""Schemas whose readers are cached."""


class AlsoNumber:
    """A time that is a number for columns of numbers, too: of the classes of integers here."""


class DebeziumDate(Date, AlsoNumber):
    pass


class MilliTime(TimeOfDay, AlsoNumber):
    pass


class MicroTime(TimeOfDay, AlsoNumber):
    nanos = 1_000


class NanoTime(TimeOfDay, AlsoNumber):
    nanos = 1


class MilliTimestamp(Timestamp, AlsoNumber):
    pass


class MicroTimestamp(Timestamp, AlsoNumber):
    nanos = 1_000


class NanoTimestamp(Timestamp, AlsoNumber):
    nanos = 1


class ProtobufTimestamp(Timestamp):
    """Nanoseconds of the years 1 to 9999, which are more than 64 bits hold."""

    nanos = 1


class Duration(TimeSpan, AlsoNumber):
    nanos = 1


class MicroDuration(Duration):
    nanos = 1_000


class Year(int, AlsoNumber):
    pass


class TimestampText(str):
    """A timestamp in ISO 8601, of any precision."""


class EnumSet(str):
    """Names, separated by commas."""


class Bits(bytes):
    """Bits, from the lowest byte to the highest."""


class Geometry(dict[str, Any]):
    """A shape as WKB, in the field "wkb"."""


def _decimal(value: dict[str, Any]) -> Any:
    """The number; a struct of other fields, or of more digits than are read, stays."""
    try:
        return decimal_of(value["value"], value["scale"])
    except (NoValue, KeyError, TypeError):
        return value


_NUMBERS: dict[str, tuple[str, Reader, str]] = {
    "Date": ("int32", DebeziumDate, "date"),
    "Time": ("int32", MilliTime, "time"),
    "MicroTime": ("int64", MicroTime, "time"),
    "NanoTime": ("int64", NanoTime, "time"),
    "Timestamp": ("int64", MilliTimestamp, "timestamp"),
    "MicroTimestamp": ("int64", MicroTimestamp, "timestamp"),
    "NanoTimestamp": ("int64", NanoTimestamp, "timestamp"),
    "MicroDuration": ("int64", MicroDuration, "duration"),
    "NanoDuration": ("int64", Duration, "duration"),
    "Year": ("int32", Year, "int"),
    "ZonedTimestamp": ("string", TimestampText, "timestamp"),
    "IsoTimestamp": ("string", TimestampText, "timestamp"),
}
_TEXTS = {"ZonedTime": "time", "IsoTime": "time", "IsoDate": "date", "Interval": "duration"}
SHAPES = {f"{DATA}geometry.{name}" for name in ("Geometry", "Geography", "Point")}
_READERS: dict[str, tuple[str, Reader]] = {
    **{f"{TIME}{name}": (kind, read) for name, (kind, read, _) in _NUMBERS.items()},
    PROTOBUF_TIMESTAMP: ("int64", ProtobufTimestamp),
    f"{DATA}EnumSet": ("string", EnumSet),
    f"{DATA}Bits": ("bytes", Bits),
    f"{DATA}VariableScaleDecimal": ("struct", _decimal),
    **dict.fromkeys(SHAPES, ("struct", Geometry)),
}
"""The type of the values of a name, and what reads them."""
COLUMNS = {
    **{f"{TIME}{name}": column for name, (_, _, column) in _NUMBERS.items()},
    **{f"{TIME}{name}": column for name, column in _TEXTS.items()},
    PROTOBUF_TIMESTAMP: "timestamp",
    f"{DATA}Uuid": "uuid",
    f"{DATA}EnumSet": "set<text>",
    f"{DATA}VariableScaleDecimal": "decimal",
}
"""The CQL type of a column that is made for values of a name, where it is not that of their type."""


@dataclass
class SemanticTypes:
    """Reads the parts of records."""

    _known: dict[int, tuple[Schema, Reader | None]] = field(default_factory=dict)

    def __call__(self, part: Part) -> Part:
        """The part with values of the classes here."""
        if part.schema is None or part.value is None:
            return part
        if id(part.schema) not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            # With the schema, which keeps its id.
            self._known[id(part.schema)] = part.schema, _reader(part.schema, {})
        read = self._known[id(part.schema)][1]
        return part if read is None else Part(part.schema, read(part.value))


def _reader(schema: Schema, known: dict[int, Reader | None]) -> Reader | None:
    """Reads values of a schema; None if they have no semantic type. `known` are those of schemas inside."""
    if id(schema) not in known:
        kind, read = _READERS.get(str(schema.get("name")), ("", None))
        if kind != schema["type"]:
            read = _INSIDE[schema["type"]](schema, known) if schema["type"] in _INSIDE else None
        known[id(schema)] = read and _unless_null(read)
    return known[id(schema)]


def _unless_null(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _of_array(schema: Schema, known: dict[int, Reader | None]) -> Reader | None:
    read = _reader(schema["items"], known)
    return read and (lambda values: [read(value) for value in values])


def _of_map(schema: Schema, known: dict[int, Reader | None]) -> Reader | None:
    of_key, of_value = (_reader(schema[name], known) or _same for name in ("keys", "values"))
    if of_key is _same and of_value is _same:
        return None
    return lambda entries: {of_key(key): of_value(value) for key, value in entries.items()}


def _same(value: Any) -> Any:
    return value


def _of_struct(schema: Schema, known: dict[int, Reader | None]) -> Reader | None:
    readers = {field["field"]: read for field in schema["fields"] if (read := _reader(field, known))}
    if not readers:
        return None
    return lambda value: {name: readers.get(name, _same)(field) for name, field in value.items()}


_INSIDE: dict[str, Callable[[Schema, dict[int, Reader | None]], Reader | None]] = {
    "array": _of_array,
    "map": _of_map,
    "struct": _of_struct,
}
