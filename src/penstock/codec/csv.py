"""Encodes flat records as lines of CSV (RFC 4180) without a header; fields are in the order of the schema."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, functions as F

from penstock.codec.connect_schema import Schema
from penstock.codec.typed_records import RecordPart, Side
from penstock.errors import PenstockError

NESTED = ("struct", "array", "map")
# By default Spark escapes quotes with a backslash and strips spaces.
OPTIONS = {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}


@dataclass(frozen=True)
class Csv:
    """CSV: null is an empty field, the empty string is `""`, bytes are base64; other values are as in JSON."""

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
