"""Records in JSON, with their JSON Schemas in a registry: what Confluent's JsonSchemaConverter writes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.codec.connect_schema import Schema
from penstock.codec.json import Json
from penstock.codec.records import Part, Side
from penstock.codec.subjects import Subjects

_PRIMITIVES: dict[str, dict[str, str]] = {
    "boolean": {"type": "boolean"},
    "bytes": {"type": "string", "connect.type": "bytes"},
    "double": {"type": "number", "connect.type": "float64"},
    "float": {"type": "number", "connect.type": "float32"},
    "string": {"type": "string"},
    **{name: {"type": "integer", "connect.type": name} for name in ("int8", "int16", "int32", "int64")},
}


@dataclass(frozen=True)
class JsonSchema:
    """JSON behind the id of its schema."""

    subjects: Subjects

    def encode(self, part: Part, *, topic: str, side: Side) -> Column:
        text = json.dumps(json_schema(part.schema), separators=(",", ":"), ensure_ascii=False)
        encoded = F.encode(Json().encode(part, topic=topic, side=side), "UTF-8")
        return self.subjects.framed(encoded, text, "JSON", topic=topic, side=side, schema=part.schema)


def json_schema(schema: Schema) -> dict[str, Any]:
    """The JSON Schema of a Connect schema; what is optional is null or a value."""
    made = _required(schema)
    return {"oneOf": [{"type": "null"}, made]} if schema["optional"] else made


def _required(schema: Schema) -> dict[str, Any]:
    if schema["type"] == "struct":
        fields = enumerate(schema["fields"])
        properties = {field["field"]: json_schema(field) | {"connect.index": index} for index, field in fields}
        made: dict[str, Any] = {"type": "object", "properties": properties}
    elif schema["type"] == "array":
        made = {"type": "array", "items": json_schema(schema["items"])}
    elif schema["type"] == "map":
        made = {"type": "object", "additionalProperties": json_schema(schema["values"]), "connect.type": "map"}
    else:
        made = dict(_PRIMITIVES[schema["type"]])
    names = {"name": "title", "version": "connect.version", "parameters": "connect.parameters", "default": "default"}
    return made | {theirs: schema[ours] for ours, theirs in names.items() if schema.get(ours) is not None}
