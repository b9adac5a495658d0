"""Keys and values of one simple value as plain text, as Kafka Connect's StringConverter writes them."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column

from penstock.codec.records import Part, Side
from penstock.errors import PenstockError


@dataclass(frozen=True)
class Text:
    """Text in UTF-8; structs and arrays have none."""

    def encode(self, part: Part, *, topic: str, side: Side) -> Column:
        if part.schema["type"] in ("struct", "array", "map"):
            raise PenstockError(
                f"the {side} is no single value, and so no text",
                where=f"topic {topic}",
                next=f"write the {side} as JSON, or take one field of it with the transform ExtractField",
            )
        return part.payload.cast("string")
