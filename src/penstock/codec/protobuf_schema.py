"""Kafka Connect schemas as Protobuf files, the way Confluent's ProtobufConverter makes them; pure data, no Spark.

Fields are numbered in their order. Optional ones are `optional`, as with the converter's setting
`optional.for.nullables`: the bytes are the same as without it, but null and zero differ. The converter's `meta`
options (an int32 that is an int16 in Connect) are left out, because few programs have the file that they need.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.codec.avro_schema import field_name
from penstock.codec.connect_schema import Schema
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


def protobuf_schema(schema: Schema) -> str:
    """The text of a .proto file whose first message is the struct `schema`."""
    if schema["type"] != "struct":
        raise PenstockError(
            f"a Protobuf record is a message, not a plain {schema['type']}",
            next='write it in another format, such as key=kafka.codec("json"), or leave the struct around it',
        )
    package, _, name = str(schema.get("name") or UNNAMED).rpartition(".")
    package = ".".join(map(field_name, package.split("."))) if package else ""
    made = _File(package)
    message = made.message(schema, name, name, "")
    head = ['syntax = "proto3";', *([f"package {package};"] if package else [])]
    imports = [f'import "{path}";' for path in sorted(made.imports)]
    return "\n".join([*head, "", *([*imports, ""] if imports else []), *message]) + "\n"


@dataclass
class _File:
    """A file while it is written: what it imports, and where each named struct has its message."""

    package: str
    imports: set[str] = field(default_factory=set)
    messages: dict[str, str] = field(default_factory=dict)

    def message(self, schema: Schema, name: str, path: str, indent: str) -> list[str]:
        """The lines of a message; `path` is its name with those of the messages around it."""
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
            name += "Message"  # a message and a field beside it may not have one name
        self.messages[full] = f"{path}.{name}"
        nested += self.message(schema, name, self.messages[full], indent)
        return name
