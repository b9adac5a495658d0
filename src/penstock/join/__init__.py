"""Joins: `enrich`, `tables`, `foreign_key`, `stream_table`, `streams`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.join.joins import (
        enrich as enrich,
        foreign_key as foreign_key,
        stream_table as stream_table,
        streams as streams,
        tables as tables,
    )
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.join.joins": ("enrich", "foreign_key", "stream_table", "streams", "tables"),
        },
    )
