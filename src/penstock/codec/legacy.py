"""What differs in the connector's older output format, `legacy`: rows of cells, without collections and structs.

A column outside the key stands in a cell: null means untouched, `{"value": null}` set to null, `{"value": v}` set.
`after` holds what the statement wrote, not the row; `before` the preimage, if the change frame has one.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as F

from penstock.codec import rows
from penstock.codec.change import Layout
from penstock.codec.fields import field_of

NEEDED = ("delta", "deleted")
"""Columns of the change frame besides those that every event needs."""


def narrowed(table: Layout) -> Layout:
    """The table as this format shows it: only scalar columns, and the whole key by name."""
    columns = tuple(name for name in table.columns if not table.types[name].args)
    return replace(table, columns=columns, key=tuple(sorted(set(table.key) & set(columns))))


def images(table: Layout) -> tuple[Column, Column]:
    """Before and after: a write shows its cells, a delete the row that it met or, unknown, its key alone."""
    delete = F.col("op") == "d"
    before = F.when(delete | F.col("before").isNotNull(), _row("before", table))
    return before, F.when(~delete, _row("delta", table))


def encoded_at() -> Column:
    """When the event was made, in microseconds; null for a write with a preimage.

    Debezium fills in this time where it makes the event itself, and the connector makes those with preimages.
    """
    return F.when((F.col("op") == "d") | F.col("before").isNull(), F.unix_micros("read_ts"))


def _row(struct: str, table: Layout) -> Column:
    return F.struct(
        *(rows.field("key", name, table) if name in table.key else _cell(struct, name, table) for name in table.columns)
    )


def _cell(struct: str, name: str, table: Layout) -> Column:
    # The connector asks the statement, also for the preimage's cells, whether a column was set to null.
    known = field_of(F.col(struct), name, table.fields(struct)).isNotNull() | F.array_contains("deleted", name)
    return F.when(known, F.struct(rows.field(struct, name, table).alias("value"))).alias(name)
