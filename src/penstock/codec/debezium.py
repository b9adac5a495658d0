"""Changes as Debezium events: the records that ScyllaDB's CDC source connector writes.

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
from penstock.codec import legacy, rows
from penstock.codec.change import Layout, layout
from penstock.codec.connect_schema import Schema, envelope_schema, key_schema, topic_name
from penstock.codec.deletes import deleted_range, deletes_one_row, deletes_range
from penstock.codec.headers import key_headers
from penstock.errors import PenstockError

PLACES = ("kafka-key", "kafka-headers", "payload-key", "payload-before", "payload-after", "payload-diff")
PLACEMENT = ("kafka-key", "payload-after", "payload-before")
PAYLOAD_KEY = "key"
FORMATS = ("advanced", "legacy")


@dataclass(frozen=True)
class Format:
    """How events of one table look: the names in them, the images, and where the primary key stands."""

    prefix: str
    schemas: bool
    legacy: bool
    images: tuple[str, str]
    places: frozenset[str]
    payload_key_name: str

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns of the change frame besides those that every event needs."""
        if self.legacy:
            return legacy.NEEDED
        return ("written",) if "only-updated" in self.images else ()


def events(
    changes: DataFrame,
    *,
    prefix: str,
    topic: str | Column | None = None,
    format: str = "advanced",
    images: str | tuple[str, str] = "full",
    schemas: bool = False,
    tombstones: bool = True,
    placement: Sequence[str] = PLACEMENT,
    payload_key_name: str = PAYLOAD_KEY,
) -> DataFrame:
    """Encode a change frame as records: `topic string, key string, value string`, and `headers` if placed there.

    `prefix` is Debezium's logical name; without `topic` (a name, or a column of the change frame) records go to
    `<prefix>.<keyspace>.<table>`. `format` is "advanced", or "legacy" for the shape that the connector had before
    2.0. `images` says how much of the frame's images goes out, for both or as a pair (before, after): "none", "full",
    or "only-updated", which leaves an update the columns it touched. `schemas` puts the Connect schema into each key
    and value. `placement` lists where the primary key goes: `kafka-key`, `kafka-headers`, `payload-key` (a member
    named `payload_key_name`), `payload-before`, `payload-after`. The legacy format has no choice of images and places.
    Rows keep their order; a tombstone follows its delete. Wrong settings, and a frame without the columns that are
    needed, raise `PenstockError`.
    """
    style = Format(
        prefix,
        schemas,
        _one_of("format", format, FORMATS) == "legacy",
        _images(images),
        _places(placement),
        payload_key_name,
    )
    if style.legacy:
        _refuse_choices(style)
    table = layout(changes.schema, style.needed)
    if style.legacy:
        table = legacy.narrowed(table)
    columns = [
        F.lit(topic_name(f"{prefix}.{table.full_name}") if topic is None else topic).alias("topic"),
        _key(table, style).alias("key"),
        _value(table, style).alias("value"),
    ]
    if "kafka-headers" in style.places:
        columns.append(key_headers(table).alias("headers"))
    return _followed(changes, columns, table) if tombstones else changes.select(*columns)


def _followed(changes: DataFrame, columns: Sequence[Column], table: Layout) -> DataFrame:
    """The records, each delete of a row followed by its tombstone."""
    followed = changes.select(*columns, deletes_one_row(table).alias("followed"))
    value = F.col("value")
    values = F.when(F.col("followed"), F.array(value, F.lit(None).cast("string"))).otherwise(F.array(value))
    headers = ["headers"] if "headers" in followed.columns else []
    return followed.select("topic", "key", F.explode(values).alias("value"), *headers)


def _one_of(what: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise PenstockError(
            f"unknown {what} {value!r}", where="cdc.events", next=f"use {' or '.join(map(repr, allowed))}"
        )
    return value


def _images(images: str | tuple[str, str]) -> tuple[str, str]:
    pair = (images, images) if isinstance(images, str) else images
    if len(pair) != 2:
        raise PenstockError(
            f"images is no pair: {images!r}", where="cdc.events", next='give one for both, or ("full", "only-updated")'
        )
    return _one_of("images", pair[0], rows.IMAGES), _one_of("images", pair[1], rows.IMAGES)


def _refuse_choices(style: Format) -> None:
    """The connector, too, refuses to start with settings that this format would not heed."""
    chosen = {
        "images": style.images != ("full", "full"),
        "placement": style.places != frozenset(PLACEMENT),
        "payload_key_name": style.payload_key_name != PAYLOAD_KEY,
    }
    if any(chosen.values()):
        raise PenstockError(
            f"the legacy format has no choice of {', '.join(name for name in chosen if chosen[name])}",
            where="cdc.events",
            next='leave it out, or use format="advanced"; before holds the preimage if cdc.read asks for images',
        )


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
    return _json(rows.key(table), key_schema(table, style.prefix), style)


def _value(table: Layout, style: Format) -> Column:
    event = _json(F.struct(*_members(table, style, _row_images(table, style))), _schema(table, style), style)
    if not table.clustering_key:
        return event
    no_image = F.lit(None).cast("string")
    members = [*_members(table, style, (no_image, no_image)), deleted_range(table).alias("range")]
    ranged = _json(F.struct(*members), _schema(table, style, ranged=True), style)
    return F.when(deletes_range(), ranged).otherwise(event)


def _row_images(table: Layout, style: Format) -> tuple[Column, Column]:
    if style.legacy:
        return legacy.images(table)
    before, after = style.images
    return (
        rows.image("before", table, before, with_key="payload-before" in style.places),
        rows.image("after", table, after, with_key="payload-after" in style.places),
    )


def _members(table: Layout, style: Format, images: tuple[Column, Column]) -> list[Column]:
    """The envelope's members in the connector's order."""
    nothing = F.lit(None).cast("string")
    micros = legacy.encoded_at() if style.legacy else F.lit(None).cast("long")
    payload_key = [rows.key(table).alias(style.payload_key_name)] if "payload-key" in style.places else []
    return [
        _source(table, style.prefix).alias("source"),
        images[0].alias("before"),
        images[1].alias("after"),
        *payload_key,
        F.col("op"),
        # Not current_timestamp(): it is a new constant in each batch, for which Spark compiles all of this anew.
        F.unix_millis("read_ts").alias("ts_ms"),
        nothing.alias("transaction"),
        micros.alias("ts_us"),
        (micros * 1000).alias("ts_ns"),
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


def _schema(table: Layout, style: Format, *, ranged: bool = False) -> Schema:
    return envelope_schema(
        table,
        style.prefix,
        images=("payload-before" in style.places, "payload-after" in style.places),
        payload_key=style.payload_key_name if "payload-key" in style.places else None,
        ranged=ranged,
        cells=style.legacy,
    )


def _json(payload: Column, schema: Schema, style: Format) -> Column:
    text = F.to_json(payload, {"ignoreNullFields": "false"})
    if not style.schemas:
        return text
    head = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    return F.concat(F.lit(f'{{"schema":{head},"payload":'), text, F.lit("}"))
