"""Formats of records that are text: JSON like Kafka Connect's JsonConverter, CSV, and single values as strings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, functions as F

from penstock.codec.connect_schema import Schema
from penstock.codec.registry import Subjects
from penstock.codec.typed_records import RecordPart, Side
from penstock.errors import PenstockError

_PRIMITIVES: dict[str, dict[str, str]] = {
    "boolean": {"type": "boolean"},
    "bytes": {"type": "string", "connect.type": "bytes"},
    "double": {"type": "number", "connect.type": "float64"},
    "float": {"type": "number", "connect.type": "float32"},
    "string": {"type": "string"},
    **{name: {"type": "integer", "connect.type": name} for name in ("int8", "int16", "int32", "int64")},
}
BEYOND = r"\x{10000}-\x{10FFFF}"
"""Characters that are two code units in UTF-16, for a set in a regular expression."""


@dataclass(frozen=True)
class Json:
    """JSON; `schemas` makes each key and value `{"schema": ..., "payload": ...}`."""

    schemas: bool = False

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        text = _text(part)
        if side == "key" and '"string"' in json.dumps(part.schema):
            text = _as_jackson(text)
        if not self.schemas:
            return text
        head = json.dumps(part.schema, separators=(",", ":"), ensure_ascii=False)
        return F.concat(F.lit(f'{{"schema":{head},"payload":'), text, F.lit("}"))


def _text(part: RecordPart) -> Column:
    if part.schema["type"] in ("struct", "array", "map"):
        return F.to_json(part.payload, {"ignoreNullFields": "false"})
    # Spark does not write a single value as JSON: write an array of one, and remove the brackets.
    text = F.to_json(F.array(part.payload), {"ignoreNullFields": "false"})
    return F.when(part.payload.isNotNull(), F.substr(text, F.lit(2), F.length(text) - 2))


def _as_jackson(text: Column) -> Column:
    """The same JSON with each character beyond U+FFFF as two escapes, as Java's Jackson writes it.

    Used for keys only, whose bytes decide partition and compaction: for a value it would cost as much as its JSON.
    """
    escaped = F.transform(F.regexp_extract_all(text, F.lit(f"[{BEYOND}]|[^{BEYOND}]+"), F.lit(0)), _escaped)
    return F.when(F.octet_length(text) == F.length(text), text).otherwise(F.array_join(escaped, ""))


def _escaped(run: Column) -> Column:
    halves = F.hex(F.encode(run, "UTF-16BE"))
    first, second = (F.substr(halves, F.lit(at), F.lit(4)) for at in (1, 5))
    escapes = F.concat(F.lit("\\u"), first, F.lit("\\u"), second)
    return F.when(run.rlike(f"^[{BEYOND}]"), escapes).otherwise(run)


# Records in JSON with JSON Schemas in a registry, like Confluent's JsonSchemaConverter.


@dataclass(frozen=True)
class JsonSchema:
    """JSON after the id of its schema."""

    subjects: Subjects

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        text = json.dumps(json_schema(part.schema), separators=(",", ":"), ensure_ascii=False)
        encoded = F.encode(Json().encode(part, topic=topic, side=side), "UTF-8")
        return self.subjects.framed(encoded, text, "JSON", topic=topic, side=side, schema=part.schema)


def json_schema(schema: Schema) -> dict[str, Any]:
    """The JSON Schema of a Connect schema; an optional value may be null."""
    json_type = _required(schema)
    return {"oneOf": [{"type": "null"}, json_type]} if schema["optional"] else json_type


def _required(schema: Schema) -> dict[str, Any]:
    if schema["type"] == "struct":
        fields = enumerate(schema["fields"])
        properties = {field["field"]: json_schema(field) | {"connect.index": index} for index, field in fields}
        json_type: dict[str, Any] = {"type": "object", "properties": properties}
    elif schema["type"] == "array":
        json_type = {"type": "array", "items": json_schema(schema["items"])}
    elif schema["type"] == "map":
        json_type = {"type": "object", "additionalProperties": json_schema(schema["values"]), "connect.type": "map"}
    else:
        json_type = dict(_PRIMITIVES[schema["type"]])
    names = {"name": "title", "version": "connect.version", "parameters": "connect.parameters", "default": "default"}
    return json_type | {theirs: schema[ours] for ours, theirs in names.items() if schema.get(ours) is not None}


# Flat records as lines of CSV (RFC 4180) without a header.

NESTED = ("struct", "array", "map")
# By default Spark escapes quotes with a backslash and strips spaces.
OPTIONS = {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}


@dataclass(frozen=True)
class Csv:
    """CSV, with fields in the order of the schema.

    Null is an empty field, the empty string is `""`, bytes are base64; other values are as in JSON.
    """

    separator: str = ","

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        struct = part.schema["type"] == "struct"
        fields = part.schema["fields"] if struct else [part.schema | {"field": side}]
        if nested := [field["field"] for field in fields if field["type"] in NESTED]:
            raise PenstockError(
                f"CSV holds flat records, and the {side} has nested fields: {', '.join(nested)}",
                where=f"topic {topic}" if topic else "CSV",
                next='select only plain columns, or write another format, such as "json"',
            )
        values = [part.payload.getField(field["field"]) if struct else part.payload for field in fields]
        flat = F.struct(*map(_plain, values, fields))
        return F.when(part.payload.isNotNull(), F.to_csv(flat, {**OPTIONS, "sep": self.separator}))


def _plain(value: Column, field: Schema) -> Column:
    return (F.base64(value) if field["type"] == "bytes" else value).alias(field["field"])


# Keys and values that are a single value as strings, like Kafka Connect's StringConverter.


@dataclass(frozen=True)
class Text:
    """Strings in UTF-8; structs, arrays and maps are an error."""

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        if part.schema["type"] in ("struct", "array", "map"):
            raise PenstockError(
                f"the {side} is not a single value, so it cannot be written as a string",
                where=f"topic {topic}",
                next=f"write the {side} as JSON, or take one field of it with the transform ExtractField",
            )
        return part.payload.cast("string")
