"""The primary key as headers of a record."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.codec.change import Layout
from penstock.codec.fields import field_of
from penstock.codec.values import encode
from penstock.schema import CqlType


def key_headers(table: Layout) -> Column:
    """`pk.<column>` and `ck.<column>`, in the log's column order; a null key column has no header."""
    fields = table.fields("key")
    names = [name for name in table.columns if name in fields]
    headers = [
        F.struct(
            F.lit(f"{'pk' if name in table.partition_key else 'ck'}.{name}").alias("key"),
            F.encode(_java_text(field_of(F.col("key"), name, fields), table.types[name]), "UTF-8").alias("value"),
        )
        for name in names
    ]
    return F.filter(F.array(*headers), lambda header: header.getField("value").isNotNull())


def _java_text(value: Column, kind: CqlType) -> Column:
    """What Java's `toString` gives for the connector's value; bytes as base64 and nested values as JSON instead."""
    if kind.name in ("date", "timestamp"):
        return F.date_format(value.cast("timestamp"), "EEE MMM dd HH:mm:ss zzz y")
    if kind.name == "blob":
        return F.base64(value)
    if kind.args:
        return F.to_json(encode(value, kind), {"ignoreNullFields": "false"})
    return value.cast("string")
