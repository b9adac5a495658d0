"""Encodes records in Protobuf with schemas in a registry, like Confluent's ProtobufConverter.

Spark's own `to_protobuf` is not published for this Spark version, so the wire format is built from Spark expressions: a
message is the concatenation of its fields (https://protobuf.dev/programming-guides/encoding). Avro's `long` is the same
base-128 varint, of a zigzag number, and its `float` and `double` are the same little-endian bytes; so `to_avro` writes
all three.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import Column, functions as F
from pyspark.sql.avro.functions import to_avro

from penstock.codec.avro import field_name
from penstock.codec.connect_schema import Schema, require_told_apart
from penstock.codec.registry import Subjects
from penstock.codec.typed_records import RecordPart, Side
from penstock.errors import PenstockError

UNNAMED = "ConnectDefault1"
DATE, TIMESTAMP = "org.apache.kafka.connect.data.Date", "org.apache.kafka.connect.data.Timestamp"

_IMPORTS = {
    DATE: ("google.type.Date", "google/type/date.proto"),
    TIMESTAMP: ("google.protobuf.Timestamp", "google/protobuf/timestamp.proto"),
}
_SCALARS = {
    "boolean": "bool",
    "bytes": "bytes",
    "double": "double",
    "float": "float",
    "int8": "int32",
    "int16": "int32",
    "int32": "int32",
    "int64": "int64",
    "string": "string",
}
VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
FIRST_MESSAGE = b"\0"
"""Confluent's message indexes, which say which message of the file follows: the short form for the first message."""

_FIXED = {"float": FIXED32, "double": FIXED64}


@dataclass(frozen=True)
class Protobuf:
    """Protobuf after the id of its schema."""

    subjects: Subjects

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        require_told_apart(part.schema)
        text = protobuf_schema(part.schema)
        message = _let(part.payload, lambda payload: _in_methods(_message(payload, part.schema), payload))
        encoded = F.concat(F.lit(FIRST_MESSAGE), message)
        return self.subjects.framed(encoded, text, "PROTOBUF", topic=topic, side=side, schema=part.schema)


def _let(value: Column, use: Callable[[Column], Column]) -> Column:
    """`use(value)`, where `value` is computed only once."""
    return F.get(F.transform(F.array(value), use), F.lit(0))


def _in_methods(encoded: Column, payload: Column) -> Column:
    """`encoded`, which Spark then compiles to several methods.

    Spark makes one method of all expressions of a stage (CollapseCodegenStages), which Java limits to 64 KB; a table
    with some collections and user types needs more. It does not if one expression cannot be compiled, such as
    `zip_with`, which here stands where the payload is null.
    """
    none = F.array(payload.isNull())
    never = F.get(F.zip_with(none, none, lambda _, __: F.lit(None).cast("binary")), F.lit(0))
    return F.when(payload.isNotNull(), encoded).otherwise(never)


def _message(value: Column, schema: Schema) -> Column:
    """The bytes of a struct; null for null."""
    numbered = enumerate(schema["fields"], 1)
    fields = [_field(number, value.getField(field["field"]), field) for number, field in numbered]
    return F.when(value.isNotNull(), F.concat(F.lit(b""), *fields))


def _field(number: int, value: Column, schema: Schema) -> Column:
    """The field with its tag, repeated for each element of a list or map; empty for null."""
    if schema["type"] == "array":
        return _repeated(value, lambda element: _tagged(number, element, schema["items"]))
    if schema["type"] == "map":
        return _repeated(F.map_entries(value), lambda entry: _entry(number, entry, schema["values"]))
    return F.coalesce(_tagged(number, value, schema), F.lit(b""))


def _repeated(values: Column, encode: Callable[[Column], Column]) -> Column:
    # Spark joins an array of strings, but not one of bytes. Casts keep bytes that are no UTF-8.
    texts = F.transform(values, lambda element: encode(element).cast("string"))
    return F.coalesce(F.array_join(texts, "").cast("binary"), F.lit(b""))


def _entry(number: int, entry: Column, values: Schema) -> Column:
    key = _tagged(1, entry.getField("key"), {"type": "string"})
    value = F.coalesce(_tagged(2, entry.getField("value"), values), F.lit(b""))
    return F.concat(_tag(number, DELIMITED), _delimited(F.concat(key, value)))


def _tagged(number: int, value: Column, schema: Schema) -> Column:
    """One value after its tag; null for null."""
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
    """google.protobuf.Timestamp: seconds, rounded down, and the remaining nanoseconds."""
    rest = F.pmod(millis, F.lit(1000))
    seconds = ((millis - rest) / 1000).cast("long")
    return F.concat(_tag(1, VARINT), _varint(seconds), _tag(2, VARINT), _varint(rest * 1_000_000))


def _delimited(encoded: Column) -> Column:
    return _let(encoded, lambda content: F.concat(_varint(F.length(content)), content))


def _varint(number: Column) -> Column:
    wide = number.cast("long")
    # The number whose zigzag encoding is this number.
    return to_avro(F.shiftrightunsigned(wide, 1).bitwiseXOR(-wide.bitwiseAND(F.lit(1))), '"long"')


def _tag(number: int, wire_type: int) -> Column:
    left, encoded = number << 3 | wire_type, b""
    while left > 0x7F:
        encoded += bytes([left & 0x7F | 0x80])
        left >>= 7
    return F.lit(encoded + bytes([left]))


# Kafka Connect schemas as Protobuf files, as Confluent's ProtobufConverter builds them; plain data, no Spark.
#
# Fields are numbered in order. Optional fields are `optional`, as with the converter's setting
# `optional.for.nullables`: the bytes are the same as without it, but null and zero differ. The converter's `meta`
# options (for example an int32 that is an int16 in Connect) are left out, because few programs have the file that they
# import.


def protobuf_schema(schema: Schema) -> str:
    """The text of a .proto file whose first message is the struct `schema`."""
    if schema["type"] != "struct":
        raise PenstockError(
            f"a Protobuf record is a message, not a plain {schema['type']}",
            next='write it in another format, such as key=kafka.codec("json"), or keep the struct around it',
        )
    package, _, name = str(schema.get("name") or UNNAMED).rpartition(".")
    package = ".".join(map(field_name, package.split("."))) if package else ""
    file = _File(package)
    message = file.message(schema, name, name, "")
    head = ['syntax = "proto3";', *([f"package {package};"] if package else [])]
    imports = [f'import "{path}";' for path in sorted(file.imports)]
    return "\n".join([*head, "", *([*imports, ""] if imports else []), *message]) + "\n"


@dataclass
class _File:
    """A file that is being built: its imports, and the message of each named struct."""

    package: str
    imports: set[str] = field(default_factory=set)
    messages: dict[str, str] = field(default_factory=dict)

    def message(self, schema: Schema, name: str, path: str, indent: str) -> list[str]:
        """The lines of a message; `path` is its name with the names of the enclosing messages."""
        nested: list[str] = []
        fields = []
        for number, member in enumerate(schema["fields"], 1):
            label, kind = self._field(member, path, indent + "  ", nested)
            fields.append(f"{indent}  {label}{kind} {field_name(member['field'])} = {number};")
        return [f"{indent}message {name} {{", *fields, *nested, f"{indent}}}"]

    def _field(self, schema: Schema, path: str, indent: str, nested: list[str]) -> tuple[str, str]:
        """Label and type of a field; a message that it needs is added to `nested`."""
        if schema["type"] == "array":
            return "repeated ", self._type(schema["items"], schema["field"], path, indent, nested)
        if schema["type"] == "map":
            return "", f"map<string, {self._type(schema['values'], schema['field'], path, indent, nested)}>"
        label = "optional " if schema["optional"] and self._is_scalar(schema) else ""
        return label, self._type(schema, schema["field"], path, indent, nested)

    def _is_scalar(self, schema: Schema) -> bool:
        return schema["type"] != "struct" and schema.get("name") not in _IMPORTS

    def _type(self, schema: Schema, column: str, path: str, indent: str, nested: list[str]) -> str:
        if schema.get("name") in _IMPORTS:
            name, file = _IMPORTS[schema["name"]]
            self.imports.add(file)
            return name
        if schema["type"] in ("array", "map"):
            raise PenstockError(
                f"Protobuf has no lists or maps directly inside lists or maps: {column!r}",
                where=path,
                next='write it with format="avro" or "json-schema", or wrap the inner one in a struct',
            )
        if schema["type"] != "struct":
            return _SCALARS[schema["type"]]
        return self._message_type(schema, column, path, indent, nested)

    def _message_type(self, schema: Schema, column: str, path: str, indent: str, nested: list[str]) -> str:
        full = str(schema.get("name") or f"{path}.{column}_message")
        if full in self.messages:
            return f"{self.package}.{self.messages[full]}" if self.package else self.messages[full]
        name = field_name(full.rpartition(".")[2])
        if name == field_name(column):
            name += "Message"  # a message and a field in the same scope cannot have the same name
        self.messages[full] = f"{path}.{name}"
        nested += self.message(schema, name, self.messages[full], indent)
        return name
