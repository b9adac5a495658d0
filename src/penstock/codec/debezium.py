"""Changes as Debezium events: the records that ScyllaDB's CDC source connector writes in its advanced format.

One change becomes one record, and a deleted row a second one, its tombstone. All of it is native Spark: the
encoding runs in the JVM next to the sink. Deletes of a clustering range or of a whole partition, which that
connector drops, become `d` events with a `range` member and no tombstone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

import penstock
from penstock.codec.change import Layout, layout
from penstock.codec.connect_schema import Schema, envelope_schema, key_schema, topic_name
from penstock.codec.values import encode, is_plain
from penstock.errors import PenstockError
from penstock.schema import CqlType

PLACES = ("kafka-key", "kafka-headers", "payload-key", "payload-before", "payload-after", "payload-diff")
ROW_DELETES = (3, -3)
PARTITION_DELETES = (4, -4)


@dataclass(frozen=True)
class Format:
    """How events of one table look: the names in them and where the primary key stands."""

    prefix: str
    schemas: bool
    places: frozenset[str]
    payload_key_name: str


def events(
    changes: DataFrame,
    *,
    prefix: str,
    topic: str | Column | None = None,
    schemas: bool = False,
    tombstones: bool = True,
    placement: Sequence[str] = ("kafka-key", "payload-after", "payload-before"),
    payload_key_name: str = "key",
) -> DataFrame:
    """Encode a change frame as records: `topic string, key string, value string`, and `headers` if placed there.

    `prefix` is Debezium's logical name; without `topic` (a name, or a column of the change frame) records go to
    `<prefix>.<keyspace>.<table>`. `schemas` puts the Connect schema into each key and value. `placement` lists where
    the primary key goes: `kafka-key`, `kafka-headers`, `payload-key` (a member named `payload_key_name`),
    `payload-before`, `payload-after`.
    Rows keep their order; a tombstone follows its delete.
    """
    table = layout(changes.schema)
    style = Format(prefix, schemas, _places(placement), payload_key_name)
    columns = [
        F.lit(topic_name(f"{prefix}.{table.full_name}") if topic is None else topic).alias("topic"),
        _key(table, style).alias("key"),
        _value(table, style).alias("value"),
    ]
    if "kafka-headers" in style.places:
        columns.append(_headers(table).alias("headers"))
    if not tombstones:
        return changes.select(*columns)
    followed = changes.select(*columns, _deletes_one_row(table).alias("followed"))
    value = F.col("value")
    values = F.when(F.col("followed"), F.array(value, F.lit(None).cast("string"))).otherwise(F.array(value))
    headers = ["headers"] if "headers" in followed.columns else []
    return followed.select("topic", "key", F.explode(values).alias("value"), *headers)


def _places(placement: Collection[str]) -> frozenset[str]:
    unknown = sorted(set(placement) - set(PLACES))
    if unknown:
        raise PenstockError(
            f"unknown place for the primary key: {', '.join(unknown)}",
            where="placement of events",
            next=f"use {', '.join(PLACES)}",
        )
    return frozenset(placement)


def _key(table: Layout, style: Format) -> Column:
    if "kafka-key" not in style.places:
        return F.lit(None).cast("string")
    return _json(_key_struct(table), key_schema(table, style.prefix), style)


def _value(table: Layout, style: Format) -> Column:
    images = (
        _image("before", table, "payload-before" in style.places),
        _image("after", table, "payload-after" in style.places),
    )
    event = _json(F.struct(*_members(table, style, images)), _schema(table, style, ranged=False), style)
    if not table.clustering_key:
        return event
    no_image = F.lit(None).cast("string")
    members = [*_members(table, style, (no_image, no_image)), _range(table).alias("range")]
    ranged = _json(F.struct(*members), _schema(table, style, ranged=True), style)
    return F.when(_deletes_range(), ranged).otherwise(event)


def _members(table: Layout, style: Format, images: tuple[Column, Column]) -> list[Column]:
    """The envelope's members in the connector's order."""
    nothing = F.lit(None).cast("string")
    payload_key = [_key_struct(table).alias(style.payload_key_name)] if "payload-key" in style.places else []
    return [
        _source(table, style.prefix).alias("source"),
        images[0].alias("before"),
        images[1].alias("after"),
        *payload_key,
        F.col("op"),
        # Not current_timestamp(): it is a new constant in each batch, for which Spark compiles all of this anew.
        F.unix_millis("read_ts").alias("ts_ms"),
        nothing.alias("transaction"),
        nothing.alias("ts_us"),
        nothing.alias("ts_ns"),
    ]


def _source(table: Layout, prefix: str) -> Column:
    micros = F.unix_micros("ts")
    return F.struct(
        F.lit(penstock.__version__).alias("version"),
        F.lit("scylla").alias("connector"),
        F.lit(prefix).alias("name"),
        F.unix_millis("ts").alias("ts_ms"),
        F.lit("false").alias("snapshot"),
        F.lit(table.keyspace).alias("db"),
        F.lit(None).cast("string").alias("sequence"),
        micros.alias("ts_us"),
        # A client may write with any timestamp; nanoseconds of the year 2262 and later do not fit a long.
        F.try_multiply(micros, F.lit(1000)).alias("ts_ns"),
        F.lit(table.keyspace).alias("keyspace_name"),
        F.lit(table.table).alias("table_name"),
    )


def _key_struct(table: Layout) -> Column:
    return F.struct(*(_field("key", name, table) for name in table.key))


def _image(column: str, table: Layout, with_key: bool) -> Column:
    names = [name for name in table.columns if with_key or name not in table.key]
    if len(names) == len(table.columns) and all(is_plain(table.types[name]) for name in names):
        return F.col(column)
    return F.when(F.col(column).isNotNull(), F.struct(*(_field(column, name, table) for name in names)))


def _field(struct: str, name: str, table: Layout) -> Column:
    return encode(F.col(struct).getField(name), table.types[name]).alias(name)


def _deletes_one_row(table: Layout) -> Column:
    codes = ROW_DELETES if table.clustering_key else (*ROW_DELETES, *PARTITION_DELETES)
    return F.col("operation").isin(*codes)


def _deletes_range() -> Column:
    return (F.col("op") == "d") & ~F.col("operation").isin(*ROW_DELETES)


def _range(table: Layout) -> Column:
    """The deleted range; a partition delete is the range without bounds."""
    bounds = F.col("range")
    return F.struct(
        _bound(bounds.getField("start"), table).alias("start"),
        F.coalesce(bounds.getField("start_inclusive"), F.lit(True)).alias("start_inclusive"),
        _bound(bounds.getField("end"), table).alias("end"),
        F.coalesce(bounds.getField("end_inclusive"), F.lit(True)).alias("end_inclusive"),
    )


def _bound(bound: Column, table: Layout) -> Column:
    first = bound.getField(table.clustering_key[0])
    fields = [encode(bound.getField(name), table.types[name]).alias(name) for name in table.clustering_key]
    return F.when(first.isNotNull(), F.struct(*fields))


def _headers(table: Layout) -> Column:
    """`pk.<column>` and `ck.<column>`, in the log's column order; a null key column has no header."""
    names = [name for name in table.columns if name in table.key]
    headers = [
        F.struct(
            F.lit(f"{'pk' if name in table.partition_key else 'ck'}.{name}").alias("key"),
            F.encode(_java_text(F.col("key").getField(name), table.types[name]), "UTF-8").alias("value"),
        )
        for name in names
    ]
    return F.filter(F.array(*headers), lambda header: header.getField("value").isNotNull())


def _java_text(value: Column, kind: CqlType) -> Column:
    """What Java's `toString` gives for the connector's value; bytes as base64 and nested values as JSON instead."""
    if kind.name in ("date", "timestamp"):
        return F.date_format(value.cast("timestamp"), "EEE MMM dd HH:mm:ss zzz yyyy")
    if kind.name == "blob":
        return F.base64(value)
    if kind.args:
        return F.to_json(encode(value, kind), {"ignoreNullFields": "false"})
    return value.cast("string")


def _schema(table: Layout, style: Format, *, ranged: bool) -> Schema:
    return envelope_schema(
        table,
        style.prefix,
        images=("payload-before" in style.places, "payload-after" in style.places),
        payload_key=style.payload_key_name if "payload-key" in style.places else None,
        ranged=ranged,
    )


def _json(payload: Column, schema: Schema, style: Format) -> Column:
    text = F.to_json(payload, {"ignoreNullFields": "false"})
    if not style.schemas:
        return text
    head = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    return F.concat(F.lit(f'{{"schema":{head},"payload":'), text, F.lit("}"))
