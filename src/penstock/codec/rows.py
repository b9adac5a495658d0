"""A table's row in a record, its columns as they are: the key, and the images before and after a change."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.codec.change import Layout
from penstock.codec.fields import field_of
from penstock.codec.values import encode, is_plain

IMAGES = ("none", "full", "only-updated")


def key(table: Layout) -> Column:
    """The key columns in record order."""
    return F.struct(*(field("key", name, table) for name in table.key))


def field(struct: str, name: str, table: Layout) -> Column:
    """One column out of a struct of the change frame."""
    return encode(field_of(F.col(struct), name, table.fields(struct)), table.types[name]).alias(name)


def image(side: str, table: Layout, mode: str, *, with_key: bool) -> Column:
    """The image `side` ("before" or "after") in a mode of `IMAGES` but "none"; null where the frame has none.

    "only-updated" leaves an update the columns that it touched and makes the others null; the key stays, and so do
    the whole rows of inserts and deletes.
    """
    names = [name for name in table.columns if with_key or name not in table.key]
    if mode == "full" and len(names) == len(table.columns) and all(is_plain(table.types[name]) for name in names):
        return F.col(side)
    make = field if mode == "full" else _touched_field
    return F.when(F.col(side).isNotNull(), F.struct(*(make(side, name, table) for name in names)))


def _touched_field(side: str, name: str, table: Layout) -> Column:
    value = field(side, name, table)
    touched = (F.col("op") != "u") | F.array_contains("written", name)
    return value if name in table.key else F.when(touched, value).alias(name)
