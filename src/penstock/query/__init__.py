"""A query: one frame and its sinks, what it writes a batch with, and how often a row arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.query.query import Batch as Batch, Query as Query, Sink as Sink, write as write
    from penstock.query.sink_part import only as only
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.query.query": ("Batch", "Query", "Sink", "write"),
            "penstock.query.sink_part": ("only",),
        },
    )
