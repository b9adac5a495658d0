"""Records in Avro, with their schemas in a registry: what Confluent's AvroConverter writes."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql.avro.functions import to_avro

from penstock.codec.avro_schema import adjusted, avro_schema
from penstock.codec.connect_types import spark_type
from penstock.codec.fields import require_told_apart
from penstock.codec.records import Part, Side
from penstock.codec.subjects import Subjects


@dataclass(frozen=True)
class Avro:
    """Avro behind the id of its schema."""

    subjects: Subjects

    def encode(self, part: Part, *, topic: str, side: Side) -> Column:
        require_told_apart(part.schema)
        schema = adjusted(part.schema)
        # A cast gives fields other names; Spark then copies each row, so it is left out where the names are good.
        payload = part.payload if schema == part.schema else part.payload.cast(spark_type(schema))
        text = json.dumps(avro_schema(schema), separators=(",", ":"))
        return self.subjects.framed(to_avro(payload, text), text, "AVRO", topic=topic, side=side, schema=schema)
