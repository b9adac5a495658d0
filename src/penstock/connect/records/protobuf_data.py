"""Reads Protobuf in Confluent's wire format as Kafka Connect's ProtobufConverter does: registered schemas, and values.

Besides what the converter does, wrappers (google.protobuf.StringValue and the like) are always read as what they wrap,
so that a column can hold it, a uint64 above 2^63 is not read as a negative number, and times have their nanoseconds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from penstock.codec.connect_schema import Schema
from penstock.codec.decode_protobuf import class_at, compiled, indexes, is_map, messages_of
from penstock.codec.registry import Registry, RegistryUnavailable
from penstock.connect.records.avro_data import HEAD, schema_id
from penstock.connect.records.json_data import MOST_DEPTH, decimal_of
from penstock.connect.records.record import DATA, NOTHING, Date, NoValue, Part
from penstock.connect.records.semantic_types import PROTOBUF_TIMESTAMP, TIME, NanoTime, ProtobufTimestamp
from penstock.errors import PenstockError

MOST_FIELDS = 200_000
"""Fields of a record's messages: an empty message takes two bytes, and has all fields of its type."""
EPOCH = dt.date(1970, 1, 1)
NANOS = 1_000_000_000
FIRST_SECOND, LAST_SECOND = -62_135_596_800, 253_402_300_799
"""Of google.protobuf.Timestamp: the years 1 to 9999."""
_TYPES = {
    FieldDescriptor.CPPTYPE_BOOL: "boolean",
    FieldDescriptor.CPPTYPE_DOUBLE: "double",
    FieldDescriptor.CPPTYPE_FLOAT: "float",
    FieldDescriptor.CPPTYPE_INT32: "int32",
    FieldDescriptor.CPPTYPE_INT64: "int64",
    FieldDescriptor.CPPTYPE_UINT32: "int64",
    FieldDescriptor.CPPTYPE_UINT64: "int64",
    FieldDescriptor.CPPTYPE_STRING: "string",
}
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}


@dataclass(frozen=True)
class ProtobufBytes:
    """ProtobufConverter.

    The members of a `oneof` are in a struct of its name, with its number (`indexed`), or with `flat` beside the other
    fields. With `numbers` enums are numbers.
    """

    registry: Registry
    flat: bool = False
    indexed: bool = True
    numbers: bool = False

    def __call__(self, data: bytes | None) -> Part:
        if data is None:
            return NOTHING
        number = schema_id(data)
        path_and_end = indexes(data, HEAD)
        if path_and_end is None:
            raise NoValue(f"it has no valid message indexes after the id {number} of its schema")
        kind, schema, read = _message(self, number, tuple(path_and_end[0]))
        try:
            return Part(schema, read(kind.FromString(data[path_and_end[1] :]), _Budget()))
        except (DecodeError, RecursionError):
            raise NoValue(f"it is not a value of its schema {number}") from None


@dataclass
class _Budget:
    """The fields that a record may still have."""

    left: int = MOST_FIELDS

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise NoValue(f"it has more than {MOST_FIELDS} fields")


Read = Callable[[Any, _Budget], Any]


@lru_cache(maxsize=1000)
def _message(how: ProtobufBytes, number: int, path: tuple[int, ...]) -> tuple[Any, Schema | None, Read]:
    """The class of a message, its schema, and what reads its values."""
    kind = class_at(_file(how.registry, number), list(path))
    if kind is None:
        raise NoValue(f"its schema {number} has no message {'.'.join(map(str, path))}")
    schemas = _Schemas(how)
    schema = schemas.of_message(kind.DESCRIPTOR, 0)
    return kind, schema and {**schema, "optional": False}, _Readers(how).of_message(kind.DESCRIPTOR)


@lru_cache(maxsize=1000)
def _file(registry: Registry, number: int) -> Sequence[Descriptor]:
    try:
        text, kind, imports = registry.schema_with_references(number)
        if kind != "PROTOBUF":
            raise NoValue(f"its schema {number} is of {kind}")
        return list(messages_of(compiled(text, f"schema {number} at {registry.url}", imports)))
    except RegistryUnavailable:
        raise
    except PenstockError as error:
        raise NoValue(f"its schema {number} cannot be read: {error.what}") from None
    except (TypeError, DecodeError) as error:  # of a file that is registered as its descriptor
        raise NoValue(f"its schema {number} cannot be read: {error}") from None


def _unions(how: ProtobufBytes, kind: Descriptor) -> dict[str, list[FieldDescriptor]]:
    """The members of each struct that stands for a `oneof`, by its name."""
    if how.flat:
        return {}
    return {
        f"{union.name}_{union.index}" if how.indexed else union.name: list(union.fields)
        for union in kind.oneofs
        if not _is_optional(union.fields[0])
    }


def _is_optional(field: FieldDescriptor) -> bool:
    """Whether it is `optional` in proto3, which makes a `oneof` of it alone."""
    union = field.containing_oneof
    return union is not None and union.name == f"_{field.name}" and len(union.fields) == 1


def _others(how: ProtobufBytes, kind: Descriptor) -> list[FieldDescriptor]:
    """The fields that are in no such struct."""
    inside = {field.number for members in _unions(how, kind).values() for field in members}
    return [field for field in kind.fields if field.number not in inside]


# Schemas.


@dataclass
class _Schemas:
    """Connect's schemas of messages; None for one that contains itself, or is nested too deep."""

    how: ProtobufBytes
    known: dict[str, Schema | None] = field(default_factory=dict)

    def of_message(self, kind: Descriptor, depth: int) -> Schema | None:
        if kind.full_name in _SPECIAL:
            return {"optional": True, **_SPECIAL[kind.full_name].schema}
        if kind.full_name in _WRAPPERS:
            return self._single(kind.fields[0], depth)
        if kind.full_name not in self.known:
            self.known[kind.full_name] = None
            self.known[kind.full_name] = None if depth > MOST_DEPTH else self._struct(kind, depth + 1)
        return self.known[kind.full_name]

    def _struct(self, kind: Descriptor, depth: int) -> Schema:
        unions = [
            {
                "type": "struct",
                "optional": True,
                "field": name,
                "fields": [self._field(field, depth) for field in members],
            }
            for name, members in _unions(self.how, kind).items()
        ]
        fields = [self._field(field, depth) for field in _others(self.how, kind)]
        return {"type": "struct", "name": kind.name, "optional": True, "fields": [*unions, *fields]}

    def _field(self, field: FieldDescriptor, depth: int) -> Schema:
        # A field without a schema has a value, for which no column can be made.
        return {**(self._many(field, depth) or {"type": ""}), "field": field.name}

    def _many(self, field: FieldDescriptor, depth: int) -> Schema | None:
        if is_map(field):
            keys, values = (
                self._single(field.message_type.fields_by_name[name], depth + 1) for name in ("key", "value")
            )
            return keys and values and {"type": "map", "keys": keys, "values": values, "optional": True}
        single = self._single(field, depth + field.is_repeated)
        if not field.is_repeated:
            return single
        return single and {"type": "array", "items": single, "optional": True}

    def _single(self, field: FieldDescriptor, depth: int) -> Schema | None:
        if field.message_type is not None:
            return self.of_message(field.message_type, depth)
        if field.enum_type is not None:
            return {"type": "int32" if self.how.numbers else "string", "optional": True}
        if field.type == FieldDescriptor.TYPE_BYTES:
            return {"type": "bytes", "optional": True}
        kind = _TYPES[field.cpp_type]
        return {"type": (kind == "int32" and _connect_type(field)) or kind, "optional": True}


def _connect_type(field: FieldDescriptor) -> str:
    """The smaller type that the field's options give: `[(confluent.field_meta).params = {key: "connect.type" ...}]`."""
    options = field.GetOptions().SerializeToString()
    try:
        pool = field.file.pool if options else None
        if pool is None:
            return ""
        meta = pool.FindExtensionByName("confluent.field_meta")
        field_options = GetMessageClass(pool.FindMessageTypeByName("google.protobuf.FieldOptions")).FromString(options)
        type = field_options.Extensions[meta].params["connect.type"]
    except (KeyError, DecodeError):
        return ""
    return type if type in ("int8", "int16") else ""


# Values.


class _Field(NamedTuple):
    """How a message's field is read: its value, and what it is if the message has none."""

    name: str
    read: Read
    absent: Callable[[], Any]


class _Plan(NamedTuple):
    """The fields of a message by their numbers, and the numbers of each union's by its name."""

    unions: dict[str, dict[int, _Field]]
    fields: dict[int, _Field]
    width: int


@dataclass
class _Readers:
    """Reads values of messages."""

    how: ProtobufBytes
    plans: dict[str, _Plan] = field(default_factory=dict)

    def of_message(self, kind: Descriptor) -> Read:
        if special := _SPECIAL.get(kind.full_name):
            return special.read
        if kind.full_name in _WRAPPERS:
            return lambda message, budget: message.value
        return self._struct

    def _struct(self, message: Any, budget: _Budget) -> dict[str, Any]:
        # Of the class: a field of the same name hides what the message has.
        of = type(message)
        kind = of.DESCRIPTOR
        plan = self.plans.get(kind.full_name)
        if plan is None:
            plan = self.plans[kind.full_name] = self._plan(kind)
        budget.take(plan.width)
        present = {field.number: value for field, value in of.ListFields(message)}
        struct: dict[str, Any] = {}
        for name, members in plan.unions.items():
            struct[name] = _values(members, present, budget) if present.keys() & members.keys() else None
        return struct | _values(plan.fields, present, budget)

    def _plan(self, kind: Descriptor) -> _Plan:
        unions = {
            name: {field.number: self._field(field) for field in members}
            for name, members in _unions(self.how, kind).items()
        }
        return _Plan(
            unions, {field.number: self._field(field) for field in _others(self.how, kind)}, len(kind.fields) + 1
        )

    def _field(self, field: FieldDescriptor) -> _Field:
        if is_map(field):
            value = self._single(field.message_type.fields_by_name["value"])
            return _Field(
                field.name, lambda map, budget: {key: value(element, budget) for key, element in map.items()}, dict
            )
        read = self._single(field)
        if field.is_repeated:
            return _Field(field.name, lambda values, budget: [read(element, budget) for element in values], list)
        absent = None if field.has_presence else read(field.default_value, _Budget())
        return _Field(field.name, read, lambda: absent)

    def _single(self, field: FieldDescriptor) -> Read:
        if field.message_type is not None:
            return self.of_message(field.message_type)
        if field.enum_type is not None and not self.how.numbers:
            names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
            return lambda number, budget: names.get(number, str(number))
        return lambda value, budget: value


def _values(fields: dict[int, _Field], present: dict[int, Any], budget: _Budget) -> dict[str, Any]:
    return {
        field.name: field.read(present[number], budget) if number in present else field.absent()
        for number, field in fields.items()
    }


# Messages that are single values.


def _timestamp(message: Any) -> ProtobufTimestamp:
    if not FIRST_SECOND <= message.seconds <= LAST_SECOND or not 0 <= message.nanos < NANOS:
        raise ValueError
    return ProtobufTimestamp(message.seconds * NANOS + message.nanos)


def _date(message: Any) -> Date:
    return Date((dt.date(message.year, message.month, message.day) - EPOCH).days)


def _time(message: Any) -> NanoTime:
    at = dt.time(message.hours, message.minutes, message.seconds)
    if not 0 <= message.nanos < NANOS:
        raise ValueError
    return NanoTime(((at.hour * 60 + at.minute) * 60 + at.second) * NANOS + message.nanos)


class _Special(NamedTuple):
    schema: Schema
    read: Read


def _special(kind: str, name: str, read: Callable[[Any], Any], named: str = "") -> _Special:
    """Reads a message as the type `name`; `named` is the name in its schema if that is not one of Connect's."""

    def checked(message: Any, budget: _Budget) -> Any:
        try:
            return read(message)
        except NoValue:
            raise
        except (ValueError, OverflowError, TypeError, AttributeError):
            shown = str(message).replace("\n", " ").strip()
            raise NoValue(f"it has the {name} {shown[:80] or 'without fields'}, which is none") from None

    return _Special({"type": kind, "name": named or f"{DATA}{name}"}, checked)


_SPECIAL = {
    "google.protobuf.Timestamp": _special("int64", "Timestamp", _timestamp, PROTOBUF_TIMESTAMP),
    "google.type.Date": _special("int32", "Date", _date),
    "google.type.TimeOfDay": _special("int64", "Time", _time, f"{TIME}NanoTime"),
    "confluent.type.Decimal": _special("bytes", "Decimal", lambda it: decimal_of(it.value, it.scale)),
}
