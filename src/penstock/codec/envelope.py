"""The envelope of an event, its key, and their Connect schemas, as expressions over a change frame."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F

import penstock
from penstock.codec import extended, legacy, rows
from penstock.codec.change import Layout
from penstock.codec.connect_schema import Schema, envelope_schema, key_schema
from penstock.codec.connect_types import nothing
from penstock.codec.deletes import deleted_range, deletes_range
from penstock.codec.records import Part

FORMATS = ("advanced", "legacy", "extended")
TOMBSTONE = "penstock_tombstone"
"""The column that tells a delete's tombstone from the delete."""


@dataclass(frozen=True)
class Format:
    """How events of one table look: the names in them, the images, and where the primary key stands."""

    prefix: str
    shape: str
    images: tuple[str, str]
    places: frozenset[str]
    payload_key_name: str

    @property
    def legacy(self) -> bool:
        return self.shape == "legacy"

    @property
    def extended(self) -> bool:
        return self.shape == "extended"

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns of the change frame besides those that every event needs."""
        if self.legacy:
            return legacy.NEEDED
        if self.extended:
            return extended.NEEDED
        return ("written",) if "only-updated" in self.images else ()


def key(table: Layout, style: Format) -> Part | None:
    """The record's key, if the placement asks for one."""
    if "kafka-key" not in style.places:
        return None
    return Part(rows.key(table), key_schema(table, style.prefix))


def values(table: Layout, style: Format) -> tuple[Part, ...]:
    """The event; and what stands instead for a deleted range, in tables that can have one."""
    change = ~F.col(TOMBSTONE)
    if not table.clustering_key:
        return (_event(table, style, change, ranged=False),)
    return (
        _event(table, style, change & ~deletes_range(), ranged=False),
        _event(table, style, change & deletes_range(), ranged=True),
    )


def _event(table: Layout, style: Format, condition: Column, *, ranged: bool) -> Part:
    """The event where the condition holds."""
    schema = _schema(table, style, ranged=ranged)
    members = {field["field"]: field for field in schema["fields"]}
    made = {"source": _source(table, style.prefix), "op": F.col("op"), **_times(style)}
    if not ranged:
        made |= _images(table, style)
    if "payload-key" in style.places:
        made[style.payload_key_name] = rows.key(table)
    if style.extended:
        made["change"] = extended.change(table)
    if ranged:
        made["range"] = deleted_range(table)
    payload = F.struct(*(made.get(name, nothing(kind)).alias(name) for name, kind in members.items()))
    return Part(F.when(condition, payload), schema)


def _images(table: Layout, style: Format) -> dict[str, Column]:
    """Before and after, those that the format shows."""
    if style.legacy:
        before, after = legacy.images(table)
        return {"before": before, "after": after}
    made = {
        side: rows.image(side, table, "full" if mode == "none" else mode, with_key=f"payload-{side}" in style.places)
        for side, mode in zip(("before", "after"), style.images, strict=True)
        if mode != "none" or side == "after"
    }
    if style.images[1] == "none":
        # A row of a snapshot would say nothing without it.
        made["after"] = F.when(F.col("op") == "r", made["after"])
    return made


def _times(style: Format) -> dict[str, Column]:
    # Not current_timestamp(): it is a new constant in each batch, for which Spark compiles all of this anew.
    made = {"ts_ms": F.unix_millis("read_ts")}
    if style.legacy:
        micros = legacy.encoded_at()
        made |= {"ts_us": micros, "ts_ns": micros * 1000}
    return made


def _source(table: Layout, prefix: str) -> Column:
    millis = F.unix_millis("ts")
    return F.struct(
        F.lit(penstock.__version__).alias("version"),
        F.lit("scylla").alias("connector"),
        F.lit(prefix).alias("name"),
        millis.alias("ts_ms"),
        F.when(F.col("op") == "r", "true").otherwise("false").alias("snapshot"),
        F.lit(table.keyspace).alias("db"),
        F.lit(None).cast("string").alias("sequence"),
        F.unix_micros("ts").alias("ts_us"),
        # Whole milliseconds, as the connector has them. A client may write with any timestamp; nanoseconds of the year
        # 2262 and later do not fit a long.
        F.try_multiply(millis, F.lit(1_000_000)).alias("ts_ns"),
        F.lit(table.keyspace).alias("keyspace_name"),
        F.lit(table.table).alias("table_name"),
    )


def _schema(table: Layout, style: Format, *, ranged: bool) -> Schema:
    return envelope_schema(
        table,
        style.prefix,
        images=("payload-before" in style.places, "payload-after" in style.places),
        payload_key=style.payload_key_name if "payload-key" in style.places else None,
        ranged=ranged,
        cells=style.legacy,
        extended=style.extended,
    )
