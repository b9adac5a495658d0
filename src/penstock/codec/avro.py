"""Records in Avro, with their schemas in a registry: what Confluent's AvroConverter writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql.avro.functions import to_avro

from penstock.codec.connect_schema import Schema, avro_name, spark_type
from penstock.codec.cql_values import require_told_apart
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
"""What Avro has no type for; the property `connect.type` tells it."""


@dataclass(frozen=True)
class Avro:
    """Avro behind the id of its schema."""

    subjects: Subjects

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        require_told_apart(part.schema)
        schema = adjusted(part.schema)
        # A cast gives fields other names; Spark then copies each row, so it is left out where the names are good.
        payload = part.payload if schema == part.schema else part.payload.cast(spark_type(schema))
        text = json.dumps(avro_schema(schema), separators=(",", ":"))
        return self.subjects.framed(to_avro(payload, text), text, "AVRO", topic=topic, side=side, schema=schema)


# Kafka Connect schemas as Avro schemas, the way Confluent's AvroConverter makes them; pure data, no Spark.
#
# Consumers register and compare schemas, so names, unions, defaults and the `connect.*` properties are those of the
# converter (its AvroData with default settings), and the order of members is that of Avro's own Java library.


def avro_schema(schema: Schema) -> Any:
    """The Avro schema of a schema that is `adjusted`, ready for `json.dumps`."""
    return _Names().of(schema, None)


def field_name(name: str) -> str:
    """A column's name as Avro allows it, and as Debezium adjusts it for Avro."""
    return avro_name(name).replace(".", "_")


def adjusted(schema: Schema) -> Schema:
    """The schema with names that Avro allows: a user type's may hold anything."""
    made = schema | {inner: adjusted(schema[inner]) for inner in ("items", "keys", "values") if inner in schema}
    if schema["type"] == "struct":
        if schema.get("name"):
            made["name"] = avro_name(schema["name"])
        made["fields"] = [adjusted(field) | {"field": field_name(field["field"])} for field in schema["fields"]]
    return made


class _Names:
    """What one schema has defined so far: Avro spells a record out once and then names it."""

    def __init__(self) -> None:
        self.defined: set[str] = set()
        self.unnamed = 0

    def of(self, schema: Schema, space: str | None) -> Any:
        """The schema inside a record of the namespace `space`."""
        plain = self._required(schema, space)
        if not schema["optional"]:
            return plain
        # A union begins with the type of its default.
        return [plain, "null"] if "default" in schema else ["null", plain]

    def _required(self, schema: Schema, space: str | None) -> Any:
        if schema["type"] == "struct":
            return self._record(schema, space)
        if schema["type"] == "array":
            made: dict[str, Any] = {"type": "array", "items": self.of(schema["items"], space)}
        elif schema["type"] == "map":
            made = {"type": "map", "values": self.of(schema["values"], space)}
        else:
            made = {"type": _PRIMITIVES[schema["type"]]}
        made |= _properties(schema)
        return made if len(made) > 1 else made["type"]

    def _record(self, schema: Schema, space: str | None) -> Any:
        namespace, name = self._name(schema, space)
        full = f"{namespace}.{name}" if namespace else name
        if full in self.defined:
            return name if namespace == space else full
        self.defined.add(full)
        made: dict[str, Any] = {"type": "record", "name": name}
        if namespace and namespace != space:
            made["namespace"] = namespace
        made["fields"] = [self._field(field, namespace) for field in schema["fields"]]
        return made | _properties(schema)

    def _field(self, schema: Schema, space: str | None) -> dict[str, Any]:
        made = {"name": schema["field"], "type": self.of(schema, space)}
        if "default" in schema:
            made["default"] = schema["default"]
        elif schema["optional"]:
            made["default"] = None
        return made

    def _name(self, schema: Schema, space: str | None) -> tuple[str | None, str]:
        if name := schema.get("name"):
            namespace, _, last = str(name).rpartition(".")
            # Inside a namespace Avro has no way to name a record that is in none; so it joins its surroundings.
            return namespace or space, last
        self.unnamed += 1
        return NAMESPACE, UNNAMED if self.unnamed == 1 else f"{UNNAMED}{self.unnamed}"


def _properties(schema: Schema) -> dict[str, Any]:
    """What Avro itself does not say."""
    made: dict[str, Any] = {}
    for property in ("version", "parameters", "default", "name"):
        if schema.get(property) is not None:
            made[f"connect.{property}"] = schema[property]
    if schema["type"] in _NARROW:
        made["connect.type"] = schema["type"]
    if (logical := LOGICAL.get(schema.get("name") or "")) is not None:
        made["logicalType"] = logical
    return made
