"""Records in Protobuf, with their schemas in a registry: what Confluent's ProtobufConverter writes.

Spark's own `to_protobuf` is not published for this Spark, so the wire format is composed of Spark's expressions: a
message is the concatenation of its fields (https://protobuf.dev/programming-guides/encoding). Avro's `long` is the
same base-128 varint, of a number in zigzag order, and its `float` and `double` are the same little-endian bytes; so
`to_avro` writes all three.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import to_avro

from penstock.codec.connect_schema import Schema
from penstock.codec.fields import require_told_apart
from penstock.codec.protobuf_schema import DATE, TIMESTAMP, protobuf_schema
from penstock.codec.records import Part, Side
from penstock.codec.subjects import Subjects

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
FIRST_MESSAGE = b"\0"
"""Confluent's frame tells which message of the file follows: this short form stands for the first."""

_FIXED = {"float": FIXED32, "double": FIXED64}


@dataclass(frozen=True)
class Protobuf:
    """Protobuf behind the id of its schema."""

    subjects: Subjects

    def encode(self, part: Part, *, topic: str, side: Side) -> Column:
        require_told_apart(part.schema)
        text = protobuf_schema(part.schema)
        encoded = F.concat(F.lit(FIRST_MESSAGE), _let(part.payload, lambda payload: _message(payload, part.schema)))
        return self.subjects.framed(encoded, text, "PROTOBUF", topic=topic, side=side, schema=part.schema)


def _let(value: Column, use: Callable[[Column], Column]) -> Column:
    """`use(value)` where `value` is computed once, however often it is used."""
    return F.get(F.transform(F.array(value), use), F.lit(0))


def _message(value: Column, schema: Schema) -> Column:
    """The bytes of a struct; null for null."""
    numbered = enumerate(schema["fields"], 1)
    fields = [_field(number, value.getField(field["field"]), field) for number, field in numbered]
    return F.when(value.isNotNull(), F.concat(F.lit(b""), *fields))


def _field(number: int, value: Column, schema: Schema) -> Column:
    """The field with its tag, once for each element of a list or map; no bytes for null."""
    if schema["type"] == "array":
        return _repeated(value, lambda element: _tagged(number, element, schema["items"]))
    if schema["type"] == "map":
        return _repeated(F.map_entries(value), lambda entry: _entry(number, entry, schema["values"]))
    return F.coalesce(_tagged(number, value, schema), F.lit(b""))


def _repeated(values: Column, encode: Callable[[Column], Column]) -> Column:
    # Spark joins an array of strings, but not one of bytes.
    return F.coalesce(
        F.unhex(F.array_join(F.transform(values, lambda element: F.hex(encode(element))), "")), F.lit(b"")
    )


def _entry(number: int, entry: Column, values: Schema) -> Column:
    key = _tagged(1, entry.getField("key"), {"type": "string"})
    value = F.coalesce(_tagged(2, entry.getField("value"), values), F.lit(b""))
    return F.concat(_tag(number, DELIMITED), _delimited(F.concat(key, value)))


def _tagged(number: int, value: Column, schema: Schema) -> Column:
    """One value behind its tag; null for null."""
    kind = schema["type"]
    if kind == "struct":
        return F.concat(_tag(number, DELIMITED), _delimited(_let(value, lambda struct: _message(struct, schema))))
    if schema.get("name") in (DATE, TIMESTAMP):
        parts = _date(value) if schema["name"] == DATE else _timestamp(value)
        return F.concat(_tag(number, DELIMITED), _delimited(parts))
    if kind == "string":
        return F.concat(_tag(number, DELIMITED), _varint(F.octet_length(value)), F.encode(value, "UTF-8"))
    if kind == "bytes":
        return F.concat(_tag(number, DELIMITED), _varint(F.octet_length(value)), value)
    if kind in _FIXED:
        return F.concat(_tag(number, _FIXED[kind]), to_avro(value, f'"{kind}"'))
    return F.concat(_tag(number, VARINT), _varint(value.cast("int") if kind == "boolean" else value))


def _date(days: Column) -> Column:
    """google.type.Date."""
    date = F.date_from_unix_date(days)
    parts = [F.year(date), F.month(date), F.day(date)]
    return F.concat(*(F.concat(_tag(number, VARINT), _varint(part)) for number, part in enumerate(parts, 1)))


def _timestamp(millis: Column) -> Column:
    """google.protobuf.Timestamp: whole seconds, rounded down, and the nanoseconds above them."""
    rest = F.pmod(millis, F.lit(1000))
    seconds = ((millis - rest) / 1000).cast("long")
    return F.concat(_tag(1, VARINT), _varint(seconds), _tag(2, VARINT), _varint(rest * 1_000_000))


def _delimited(encoded: Column) -> Column:
    return _let(encoded, lambda content: F.concat(_varint(F.length(content)), content))


def _varint(number: Column) -> Column:
    wide = number.cast("long")
    # The number that zigzag order turns into this one.
    return to_avro(F.shiftrightunsigned(wide, 1).bitwiseXOR(-wide.bitwiseAND(F.lit(1))), '"long"')


def _tag(number: int, wire_type: int) -> Column:
    left, encoded = number << 3 | wire_type, b""
    while left > 0x7F:
        encoded += bytes([left & 0x7F | 0x80])
        left >>= 7
    return F.lit(encoded + bytes([left]))
