"""Records as Kafka Connect's JsonConverter writes them, with or without the schema in each of them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.codec.records import Part, Side

BEYOND = r"\x{10000}-\x{10FFFF}"
"""Characters that UTF-16 has in two halves, in a set of a regular expression."""


@dataclass(frozen=True)
class Json:
    """JSON; `schemas` makes each key and value `{"schema": ..., "payload": ...}`."""

    schemas: bool = False

    def encode(self, part: Part, *, topic: str, side: Side) -> Column:
        text = _text(part)
        if side == "key" and '"string"' in json.dumps(part.schema):
            text = _as_jackson(text)
        if not self.schemas:
            return text
        head = json.dumps(part.schema, separators=(",", ":"), ensure_ascii=False)
        return F.concat(F.lit(f'{{"schema":{head},"payload":'), text, F.lit("}"))


def _text(part: Part) -> Column:
    if part.schema["type"] in ("struct", "array", "map"):
        return F.to_json(part.payload, {"ignoreNullFields": "false"})
    # Spark writes no single value: it stands in an array for a moment.
    text = F.to_json(F.array(part.payload), {"ignoreNullFields": "false"})
    return F.when(part.payload.isNotNull(), F.substr(text, F.lit(2), F.length(text) - 2))


def _as_jackson(text: Column) -> Column:
    """The same JSON with characters beyond U+FFFF as two escapes each, which is how Java's Jackson writes them.

    In keys alone, whose bytes decide on partition and compaction: it costs a value as much as its JSON.
    """
    escaped = F.transform(F.regexp_extract_all(text, F.lit(f"[{BEYOND}]|[^{BEYOND}]+"), F.lit(0)), _escaped)
    return F.when(F.octet_length(text) == F.length(text), text).otherwise(F.array_join(escaped, ""))


def _escaped(run: Column) -> Column:
    halves = F.hex(F.encode(run, "UTF-16BE"))
    first, second = (F.substr(halves, F.lit(at), F.lit(4)) for at in (1, 5))
    escapes = F.concat(F.lit("\\u"), first, F.lit("\\u"), second)
    return F.when(run.rlike(f"^[{BEYOND}]"), escapes).otherwise(run)
