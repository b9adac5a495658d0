"""Deletes in a change frame: which are of one row, and what range the others took."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.codec.change import Layout
from penstock.codec.fields import field_of
from penstock.codec.values import encode

ROW_DELETES = (3, -3)
PARTITION_DELETES = (4, -4)


def deletes_one_row(table: Layout) -> Column:
    """Whether the change deletes the row of its key, so that a tombstone follows."""
    codes = ROW_DELETES if table.clustering_key else (*ROW_DELETES, *PARTITION_DELETES)
    return F.col("operation").isin(*codes)


def deletes_range() -> Column:
    """Whether the change deletes a range or a whole partition of a table with clustering columns."""
    return (F.col("op") == "d") & ~F.col("operation").isin(*ROW_DELETES)


def deleted_range(table: Layout) -> Column:
    """The deleted range; a partition delete is the range without bounds."""
    bounds = F.col("range")
    return F.struct(
        _bound(bounds.getField("start"), table).alias("start"),
        F.coalesce(bounds.getField("start_inclusive"), F.lit(True)).alias("start_inclusive"),
        _bound(bounds.getField("end"), table).alias("end"),
        F.coalesce(bounds.getField("end_inclusive"), F.lit(True)).alias("end_inclusive"),
    )


def _bound(bound: Column, table: Layout) -> Column:
    kinds = {name: table.types[name] for name in table.clustering_key}
    first = field_of(bound, table.clustering_key[0], kinds)
    fields = [encode(field_of(bound, name, kinds), kind).alias(name) for name, kind in kinds.items()]
    return F.when(first.isNotNull(), F.struct(*fields))
