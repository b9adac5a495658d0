"""Changes as Debezium events: the records that ScyllaDB's CDC source connector writes.

One change becomes one record, and a deleted row a second one, its tombstone. All of it is native Spark: the
encoding runs in the JVM next to the sink. Deletes of a clustering range or of a whole partition, which that
connector drops, become `d` events with a `range` member and no tombstone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql import Column, DataFrame, functions as F

from penstock.codec import cql_values, envelope, envelope as legacy
from penstock.codec.change_frame import Layout, layout
from penstock.codec.connect_schema import topic_name
from penstock.codec.envelope import Format, deletes_one_row, key_headers
from penstock.codec.json import Json
from penstock.codec.problem import good_changes
from penstock.codec.typed_records import Codec, Records, Transform
from penstock.errors import PenstockError

PLACES = ("kafka-key", "kafka-headers", "payload-key", "payload-before", "payload-after", "payload-diff")
PLACEMENT = ("kafka-key", "payload-after", "payload-before")
PAYLOAD_KEY = "key"
OPERATIONS = ("c", "u", "d", "r")


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
    skipped: Collection[str] = (),
    transforms: Sequence[Transform] = (),
    key: Codec | None = None,
    value: Codec | None = None,
) -> DataFrame:
    """Encode a change frame as records: `topic string, key, value`, and `headers` if placed there.

    `prefix` is Debezium's logical name; without `topic` (a name, or a column of the change frame) records go to
    `<prefix>.<keyspace>.<table>`. `format` is "advanced", "legacy" for the shape that the connector had before
    2.0, or "extended" for a member `change` with what the others leave out. `images` says how much of the frame's
    images goes out, for both or as a pair (before, after): "none", "full", or "only-updated", which leaves an update
    the columns it touched. `placement` lists where the primary key goes: `kafka-key`, `kafka-headers`, `payload-key`
    (a member named `payload_key_name`), `payload-before`, `payload-after`. The legacy format has no choice of images
    and places. `skipped` names operations that give no records. `transforms` change the records, in this order,
    before `key` and `value` encode them: JSON unless given, and with `schemas` the Connect schema in each of them.
    Rows keep their order; a tombstone follows its delete. A change with a `problem` (`bad_values="problem"` of
    `cdc.read`) gives no record: it has nulls in place of values. Wrong settings, and a frame without the columns that
    are needed, raise `PenstockError`.
    """
    style = Format(
        prefix,
        _one_of("format", format, envelope.FORMATS),
        _images(images),
        _places(placement),
        payload_key_name,
    )
    if style.legacy:
        _refuse_choices(style)
    made = _records(changes, style, topic, tombstones=tombstones, skipped=_skipped(skipped))
    for transform in transforms:
        made = transform(made)
    return made.encoded(key or Json(schemas), value or Json(schemas))


def _records(
    changes: DataFrame, style: Format, topic: str | Column | None, *, tombstones: bool, skipped: Collection[str]
) -> Records:
    """The records before transforms and codecs."""
    table = layout(changes.schema, style.needed)
    if style.legacy:
        table = legacy.legacy_layout(table)
    changes = good_changes(changes)
    if skipped:
        changes = changes.where(~F.col("op").isin(*skipped))
    return Records(
        _followed(changes, table) if tombstones else changes.withColumn(envelope.TOMBSTONE, F.lit(False)),
        topic_name(f"{style.prefix}.{table.full_name}") if topic is None else topic,
        envelope.key(table, style),
        envelope.values(table, style),
        key_headers(table) if "kafka-headers" in style.places else None,
    )


def _followed(changes: DataFrame, table: Layout) -> DataFrame:
    """The changes, each delete of a row followed by a copy that stands for its tombstone."""
    copies = F.when(deletes_one_row(table), F.array(F.lit(False), F.lit(True))).otherwise(F.array(F.lit(False)))
    return changes.select("*", F.explode(copies).alias(envelope.TOMBSTONE))


def _skipped(operations: Collection[str]) -> Collection[str]:
    for operation in operations:
        _one_of("operation in skipped", operation, OPERATIONS)
    return operations


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
    return _one_of("images", pair[0], cql_values.IMAGES), _one_of("images", pair[1], cql_values.IMAGES)


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
