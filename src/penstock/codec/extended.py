"""What the format `extended` adds to an event: a member `change` that tells all the log knows about the statement."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.codec.change import Layout
from penstock.codec.connect_schema import element_types, value_types
from penstock.codec.fields import field_of
from penstock.codec.values import encode

NEEDED = (
    "written",
    "deleted",
    "delta",
    "deleted_elements",
    "ttl",
    "stream_id",
    "time",
    "batch_seq_no",
    "end_of_batch",
)
"""Columns of the change frame besides those that every event needs."""


def change(table: Layout) -> Column:
    """The member; null for rows of a snapshot, which no statement wrote."""
    members = {
        "touched": F.col("written"),
        "set_to_null": F.col("deleted"),
        "values": _struct({name: _written(name, table) for name in value_types(table)}),
        "removed_elements": _struct({name: _removed(name, table) for name in element_types(table)}),
        "ttl": F.col("ttl"),
        "stream_id": F.lower(F.hex("stream_id")),
        "time": F.col("time"),
        "batch_seq_no": F.col("batch_seq_no"),
        "end_of_batch": F.col("end_of_batch"),
    }
    there = [column.alias(name) for name, column in members.items() if column is not None]
    return F.when(F.col("op") != "r", F.struct(*there))


def _struct(fields: dict[str, Column]) -> Column | None:
    """The struct where the statement wrote a row; None if no column of the table belongs in it."""
    if not fields:
        return None
    return F.when(F.col("op") != "d", F.struct(*(column.alias(name) for name, column in fields.items())))


def _written(name: str, table: Layout) -> Column:
    kinds = table.fields("delta")
    return encode(field_of(F.col("delta"), name, kinds), kinds[name])


def _removed(name: str, table: Layout) -> Column:
    kinds = table.fields("deleted_elements")
    elements = field_of(F.col("deleted_elements"), name, kinds)
    kind = table.types[name]
    if kind.name == "udt":
        fields = F.array(*map(F.lit, kind.fields))
        return F.transform(elements, lambda position: F.get(fields, position.cast("int")))
    return encode(elements, kinds[name])
