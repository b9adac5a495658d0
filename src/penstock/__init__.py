"""Event streaming for ScyllaDB, Apache Cassandra, Kafka and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock import lazy

if TYPE_CHECKING:
    from penstock import (
        cdc as cdc,
        cql as cql,
        delta as delta,
        errors as errors,
        files as files,
        join as join,
        kafka as kafka,
        postgres as postgres,
        replicate as replicate,
        segment as segment,
        table as table,
        window as window,
        wire as wire,
    )
    from penstock.durations import Duration as Duration
    from penstock.errors import PenstockError as PenstockError
    from penstock.query.query import Batch as Batch, Query as Query, write as write
    from penstock.query.sink_part import only as only
    from penstock.run.pipeline import pipeline as pipeline
    from penstock.run.row_preview import preview as preview
    from penstock.spark_runtime.session import spark as spark
else:
    __all__, __getattr__, __dir__ = lazy.names(
        __name__,
        {
            "penstock.durations": ("Duration",),
            "penstock.errors": ("PenstockError",),
            "penstock.query.sink_part": ("only",),
            "penstock.query.query": ("Batch", "Query", "write"),
            "penstock.run.pipeline": ("pipeline",),
            "penstock.run.row_preview": ("preview",),
            "penstock.spark_runtime.session": ("spark",),
        },
        modules=(
            *("cdc", "cql", "delta", "errors", "files", "join", "kafka", "postgres", "replicate", "segment", "table"),
            *("window", "wire"),
        ),
    )

__version__ = "0.1.0.dev0"
