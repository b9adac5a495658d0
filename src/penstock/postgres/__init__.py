"""PostgreSQL for pipelines: `postgres.sink(...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.postgres.postgres_sink import PostgresSink as PostgresSink, sink as sink
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.postgres.postgres_sink": ("PostgresSink", "sink"),
        },
    )
