"""Flat records as lines of CSV (RFC 4180), without a head: the order of fields is that of the schema."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, functions as F

from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import RecordPart, Side
from penstock.errors import PenstockError

NESTED = ("struct", "array", "map")
# Spark's defaults escape quotes with a backslash and strip spaces.
OPTIONS = {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}


@dataclass(frozen=True)
class Csv:
    """CSV: null is nothing, empty text `""`, bytes are base64; other values as in JSON."""

    separator: str = ","

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        struct = part.schema["type"] == "struct"
        fields = part.schema["fields"] if struct else [part.schema | {"field": side}]
        if nested := [field["field"] for field in fields if field["type"] in NESTED]:
            raise PenstockError(
                f"CSV holds flat records, and the {side} has nested fields: {', '.join(nested)}",
                where=f"topic {topic}" if topic else "CSV",
                next='select plain columns into it, or write another format, such as "json"',
            )
        values = [part.payload.getField(field["field"]) if struct else part.payload for field in fields]
        flat = F.struct(*map(_plain, values, fields))
        return F.when(part.payload.isNotNull(), F.to_csv(flat, {**OPTIONS, "sep": self.separator}))


def _plain(value: Column, field: Schema) -> Column:
    return (F.base64(value) if field["type"] == "bytes" else value).alias(field["field"])


# Keys and values of one simple value as plain text, as Kafka Connect's StringConverter writes them.


@dataclass(frozen=True)
class Text:
    """Text in UTF-8; structs and arrays have none."""

    def encode(self, part: RecordPart, *, topic: str, side: Side) -> Column:
        if part.schema["type"] in ("struct", "array", "map"):
            raise PenstockError(
                f"the {side} is no single value, and so no text",
                where=f"topic {topic}",
                next=f"write the {side} as JSON, or take one field of it with the transform ExtractField",
            )
        return part.payload.cast("string")
