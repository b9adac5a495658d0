"""Event streaming for ScyllaDB, Apache Cassandra, Kafka and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock.query import Batch as Batch, Query as Query, write as write
    from penstock.run.pipeline import pipeline as pipeline
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.query": ("Batch", "Query", "write"),
            "penstock.run.pipeline": ("pipeline",),
        },
        modules=("cdc", "cql", "files", "join", "kafka", "postgres", "segment", "table", "window"),
    )

__version__ = "0.1.0.dev0"
