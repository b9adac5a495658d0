"""Encodes records in Avro with schemas in a registry, like Confluent's AvroConverter."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql.avro.functions import to_avro

from penstock.codec.connect_schema import Schema, avro_name, require_told_apart, spark_type
from penstock.codec.registry import Subjects
from penstock.codec.typed_records import RecordPart, Side

NAMESPACE = "io.confluent.connect.avro"
UNNAMED = "ConnectDefault"
LOGICAL = {
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}

_PRIMITIVES = {
    "boolean": "boolean",
    "bytes": "bytes",
    "double": "double",
    "float": "float",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "string": "string",
}
_NARROW = ("int8", "int16")
"""Types that Avro does not have; the property `connect.type` names them."""


@dataclass(frozen=True)
class Avro:
    """Avro after the id of its schema."""

    subjects: Subjects

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        require_told_apart(part.schema)
        schema = adjusted(part.schema)
        # The cast renames fields, but Spark then copies each row: leave it out if all names are valid.
        payload = part.payload if schema == part.schema else part.payload.cast(spark_type(schema))
        text = json.dumps(avro_schema(schema), separators=(",", ":"))
        return self.subjects.framed(to_avro(payload, text), text, "AVRO", topic=topic, side=side, schema=schema)


# Kafka Connect schemas as Avro schemas, as Confluent's AvroConverter builds them; plain data, no Spark.
#
# Consumers register and compare schemas, so names, unions, defaults and the `connect.*` properties are the same as the
# converter's (its AvroData with default settings), and members are in the order of Avro's Java library.


def avro_schema(schema: Schema) -> Any:
    """The Avro schema of an `adjusted` schema, ready for `json.dumps`."""
    return _Names().of(schema, None)


def field_name(name: str) -> str:
    """A column's name as Debezium adjusts it for Avro."""
    return avro_name(name).replace(".", "_")


def adjusted(schema: Schema) -> Schema:
    """The schema with names that Avro allows; names in a user type may contain any character."""
    renamed = schema | {inner: adjusted(schema[inner]) for inner in ("items", "keys", "values") if inner in schema}
    if schema["type"] == "struct":
        if schema.get("name"):
            renamed["name"] = avro_name(schema["name"])
        renamed["fields"] = [adjusted(field) | {"field": field_name(field["field"])} for field in schema["fields"]]
    return renamed


class _Names:
    """Builds one Avro schema; Avro defines a record once and then refers to it by name."""

    def __init__(self) -> None:
        self.defined: set[str] = set()
        self.unnamed = 0

    def of(self, schema: Schema, space: str | None) -> Any:
        """The Avro schema inside a record with the namespace `space`."""
        plain = self._required(schema, space)
        if not schema["optional"]:
            return plain
        # A union must begin with the type of its default.
        return [plain, "null"] if "default" in schema else ["null", plain]

    def _required(self, schema: Schema, space: str | None) -> Any:
        if schema["type"] == "struct":
            return self._record(schema, space)
        if schema["type"] == "array":
            avro_type: dict[str, Any] = {"type": "array", "items": self.of(schema["items"], space)}
        elif schema["type"] == "map":
            avro_type = {"type": "map", "values": self.of(schema["values"], space)}
        else:
            avro_type = {"type": _PRIMITIVES[schema["type"]]}
        avro_type |= _properties(schema)
        return avro_type if len(avro_type) > 1 else avro_type["type"]

    def _record(self, schema: Schema, space: str | None) -> Any:
        namespace, name = self._name(schema, space)
        full = f"{namespace}.{name}" if namespace else name
        if full in self.defined:
            return name if namespace == space else full
        self.defined.add(full)
        record: dict[str, Any] = {"type": "record", "name": name}
        if namespace and namespace != space:
            record["namespace"] = namespace
        record["fields"] = [self._field(field, namespace) for field in schema["fields"]]
        return record | _properties(schema)

    def _field(self, schema: Schema, space: str | None) -> dict[str, Any]:
        field = {"name": schema["field"], "type": self.of(schema, space)}
        if "default" in schema:
            field["default"] = schema["default"]
        elif schema["optional"]:
            field["default"] = None
        return field

    def _name(self, schema: Schema, space: str | None) -> tuple[str | None, str]:
        if name := schema.get("name"):
            namespace, _, last = str(name).rpartition(".")
            # Inside a namespace Avro cannot name a record without one, so the record gets the enclosing namespace.
            return namespace or space, last
        self.unnamed += 1
        return NAMESPACE, UNNAMED if self.unnamed == 1 else f"{UNNAMED}{self.unnamed}"


def _properties(schema: Schema) -> dict[str, Any]:
    """The properties for what plain Avro cannot express."""
    properties: dict[str, Any] = {}
    for property in ("version", "parameters", "default", "name"):
        if schema.get(property) is not None:
            properties[f"connect.{property}"] = schema[property]
    if schema["type"] in _NARROW:
        properties["connect.type"] = schema["type"]
    if (logical := LOGICAL.get(schema.get("name") or "")) is not None:
        properties["logicalType"] = logical
    return properties
