"""Event streaming for ScyllaDB, Apache Cassandra, Kafka and Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.run.pipeline import pipeline as pipeline
    from penstock.sink.write import write as write

__version__ = "0.1.0.dev0"

# Found on first use: `import penstock` alone must not load Spark.
_FUNCTIONS = {"pipeline": "penstock.run.pipeline", "write": "penstock.sink.write"}
_MODULES = ("cdc", "cql", "files", "join", "kafka", "postgres", "segment", "table", "window")


def __getattr__(name: str) -> object:
    if name in _FUNCTIONS:
        return getattr(import_module(_FUNCTIONS[name]), name)
    if name in _MODULES:
        return import_module(f"penstock.{name}")
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
