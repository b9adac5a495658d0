"""Encodes changes as Debezium events, like ScyllaDB's CDC source connector.

One change becomes one record; the delete of a row also gives a tombstone. The encoding consists of Spark expressions,
so it runs in the JVM next to the sink. Deletes of a clustering range or of a whole partition, which that connector
drops, become `d` events with a `range` member and no tombstone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias, get_args

from pyspark.sql import Column, DataFrame, functions as F

from penstock.border.public import public
from penstock.codec import change_frame, envelope
from penstock.codec.change_frame import Layout, layout
from penstock.codec.envelope import Format, deletes_one_row, key_headers
from penstock.codec.problem import good_changes
from penstock.codec.text_formats import Json
from penstock.codec.typed_records import Codec, Transform, TypedRecords
from penstock.errors import PenstockError
from penstock.wire.topic_names import topic_name

Place: TypeAlias = Literal[
    "kafka-key", "kafka-headers", "payload-key", "payload-before", "payload-after", "payload-diff"
]
PLACES = get_args(Place)
PLACEMENT: tuple[Place, ...] = ("kafka-key", "payload-after", "payload-before")
PAYLOAD_KEY = "key"
Operation: TypeAlias = Literal["c", "u", "d", "r"]
OPERATIONS = get_args(Operation)


@public("cdc.events")
def events(
    changes: DataFrame,
    *,
    prefix: str,
    topic: str | Column | None = None,
    format: envelope.EventFormat = "advanced",
    images: change_frame.Images | tuple[change_frame.Images, change_frame.Images] = "full",
    schemas: bool = False,
    tombstones: bool = True,
    placement: Sequence[Place] = PLACEMENT,
    payload_key_name: str = PAYLOAD_KEY,
    skipped: Collection[Operation] = (),
    transforms: Sequence[Transform] = (),
    key: Codec | None = None,
    value: Codec | None = None,
) -> DataFrame:
    """Encode a change frame as Debezium events.

    The result has the columns `topic string`, `key` and `value` (string or binary, depending on the codec), with the
    placement `kafka-headers` also `headers array<struct<key: string, value: binary>>`, and `timestamp`, the time of the
    change, from which `kafka.sink` measures the delay and which it does not write. Rows keep their order, and a
    tombstone follows its delete. A change with a `problem` (`bad_values="problem"` of `cdc.read`) gives no record,
    because it has nulls in place of values.

    `prefix` is Debezium's logical name. Records go to `topic` (a name, or a column of the change frame), by default
    `<prefix>.<keyspace>.<table>`. `format` is "advanced", "legacy" (the connector's format before 2.0), or "extended"
    (with a member `change` for what the others leave out). `images` is "none", "full" or "only-updated" (an update
    carries only the columns that it touched), for both images or as a pair (before, after). `placement` lists where the
    primary key goes: `kafka-key`, `kafka-headers`, `payload-key` (a member named `payload_key_name`), `payload-before`,
    `payload-after`; `payload-diff` is accepted and has no effect. The legacy format allows neither `images` nor
    `placement`. `skipped` names operations (c, u, d, r) that give no records. `transforms` change the records, in this
    order, before `key` and `value` encode them; the default codec is JSON, with the Connect schema in each record if
    `schemas` is true.

    Raises PenstockError if a setting is not valid or the frame lacks columns.
    """
    style = Format(
        prefix,
        _one_of("format", format, envelope.FORMATS),
        _images(images),
        _places(placement),
        payload_key_name,
        timed=format == "extended" and "expires" in changes.columns,
    )
    if style.legacy:
        _refuse_choices(style)
    records = _records(changes, style, topic, tombstones=tombstones, skipped=_skipped(skipped))
    for transform in transforms:
        records = transform(records)
    return records.encoded(key or Json(schemas), value or Json(schemas))


def _records(
    changes: DataFrame, style: Format, topic: str | Column | None, *, tombstones: bool, skipped: Collection[str]
) -> TypedRecords:
    """The records, before transforms and codecs."""
    table = layout(changes.schema, style.needed)
    if style.legacy:
        table = envelope.legacy_layout(table)
    changes = good_changes(changes)
    if skipped:
        changes = changes.where(~F.col("op").isin(*skipped))
    return TypedRecords(
        _followed(changes, table) if tombstones else changes.withColumn(envelope.TOMBSTONE, F.lit(False)),
        topic_name(f"{style.prefix}.{table.full_name}") if topic is None else topic,
        envelope.key(table, style),
        envelope.values(table, style),
        key_headers(table) if "kafka-headers" in style.places else None,
    )


def _followed(changes: DataFrame, table: Layout) -> DataFrame:
    """The changes, where each delete of a row is followed by a copy for its tombstone."""
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
    return _one_of("images", pair[0], change_frame.IMAGES), _one_of("images", pair[1], change_frame.IMAGES)


def _refuse_choices(style: Format) -> None:
    """Raise PenstockError for settings that the legacy format ignores; the connector refuses them too."""
    chosen = {
        "images": style.images != ("full", "full"),
        "placement": style.places != frozenset(PLACEMENT),
        "payload_key_name": style.payload_key_name != PAYLOAD_KEY,
    }
    if any(chosen.values()):
        raise PenstockError(
            f"the legacy format does not support {', '.join(name for name in chosen if chosen[name])}",
            where="cdc.events",
            next='leave it out, or use format="advanced"; before holds the preimage if cdc.read asks for images',
        )


def _places(placement: Collection[str]) -> frozenset[str]:
    unknown = sorted(set(placement) - set(PLACES))
    if unknown:
        raise PenstockError(
            f"unknown placement of the primary key: {', '.join(unknown)}",
            where="cdc.events",
            next=f"use {', '.join(PLACES)}",
        )
    return frozenset(placement)
