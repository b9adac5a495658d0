"""Decodes Avro records into columns: records after the id of a schema in a registry, or plain records of one schema.

A record is read with the schema that it was written with and converted to the newest schema of its subject. The ids are
fetched when the query is built; a record with a later schema is a problem until the query restarts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession, functions as F, types as st
from pyspark.sql.avro.functions import from_avro

from penstock.codec.decode_columns import NOT_FRAMED, behind_frame, chosen, is_framed, schemas_of
from penstock.codec.registry import Registry
from penstock.errors import PenstockError
from penstock.spark_runtime.avro_limits import limit

# In permissive mode a record that cannot be read is a struct of nulls, but a good record can be that too. Only a good
# record has the default of this field, which no writer knows.
READ = "_penstock_read"


@dataclass(frozen=True)
class AvroDecoder:
    """Decodes records of the schemas `writers`, by id; with the id None there is one schema, and records are plain."""

    schema: st.StructType
    writers: Mapping[int | None, str]
    reader: str

    @classmethod
    def of_subject(cls, registry: Registry, subject: str, wanted: st.StructType | None) -> AvroDecoder:
        versions = schemas_of(registry, subject, "AVRO", '"protobuf" or "json-schema"')
        return cls._of(dict(versions), versions[-1][1], wanted, f"subject {subject} at {registry.url}")

    @classmethod
    def plain(cls, text: str, wanted: st.StructType | None = None) -> AvroDecoder:
        return cls._of({None: text}, text, wanted, "Avro")

    @classmethod
    def _of(
        cls, writers: Mapping[int | None, str], newest: str, wanted: st.StructType | None, where: str
    ) -> AvroDecoder:
        try:
            read = json.loads(newest)
        except (ValueError, RecursionError) as error:
            said = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
            raise PenstockError(
                f"the Avro schema is not valid JSON: {said}", where=where, next="correct the schema"
            ) from None
        if not isinstance(read, dict) or read.get("type") != "record":
            raise PenstockError(
                "the Avro schema is not a record", where=newest[:200], next="read the topic as bytes, with Spark"
            )
        read["fields"] = [*read["fields"], {"name": READ, "type": "boolean", "default": True}]
        text = json.dumps(read)
        spark = SparkSession.active()
        limit(spark)
        has = st.StructType([field for field in _spark_type(spark, text, where) if field.name != READ])
        return cls(chosen(has, wanted, where), writers, text)

    def decode(self, value: Column) -> Column:
        options = {"mode": "PERMISSIVE", "avroSchema": self.reader}
        if None in self.writers:
            return from_avro(value, self.writers[None], options)
        number, body = _number(value), behind_frame(value)
        framed = is_framed(value)
        cases: Any = F
        for writer, text in self.writers.items():
            cases = cases.when(framed & (number == writer), from_avro(body, text, options))
        decoded: Column = cases
        return decoded

    def reason(self, decoded: Column, value: Column) -> Column:
        bad = decoded.isNull() | decoded.getField(READ).isNull()
        if None in self.writers:
            return F.when(bad, "not valid Avro for the schema")
        number = _number(value).cast("string")
        known = _number(value).isin(*self.writers)
        later = F.concat(F.lit("the registry had no schema with the id "), number, F.lit(" when this query started"))
        return (
            F.when(~is_framed(value), NOT_FRAMED)
            .when(~known, later)
            .when(bad, F.concat(F.lit("not valid Avro for the schema "), number))
        )


def _number(value: Column) -> Column:
    """The schema id of a framed record."""
    return F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("long")


def _spark_type(spark: SparkSession, text: str, where: str) -> st.StructType:
    """The Spark type of an Avro schema."""
    try:
        kind = spark.range(0).select(from_avro(F.lit(b""), text).alias("record")).schema["record"].dataType
    except (PySparkException, Py4JJavaError) as error:
        said = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error
        short = " ".join(str(said).split())[:200]
        raise PenstockError(
            f"Spark cannot read this Avro schema: {short}", where=where, next="read the topic as bytes"
        ) from None
    assert isinstance(kind, st.StructType)
    return kind
