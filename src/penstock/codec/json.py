"""Records as Kafka Connect's JsonConverter writes them, with or without the schema in each of them."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.codec.records import Part, Side


@dataclass(frozen=True)
class Json:
    """JSON; `schemas` makes each key and value `{"schema": ..., "payload": ...}`."""

    schemas: bool = False

    def encode(self, part: Part, *, topic: str, side: Side) -> Column:
        text = _text(part)
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
