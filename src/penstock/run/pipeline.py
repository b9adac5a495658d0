"""A pipeline: a function from a Spark session to queries, with the pace of its batches and a name for its state.

The function is called again at each restart, so that the queries meet the table as it is then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import SparkSession

from penstock.config import duration
from penstock.errors import PenstockError
from penstock.query import Query
from penstock.run.blame import blame

Build = Callable[[SparkSession], Query | Sequence[Query]]


@dataclass(frozen=True)
class Pipeline:
    """What `@pipeline` makes of a function; calling it still calls the function."""

    build: Build
    every: timedelta
    name: str

    def __call__(self, spark: SparkSession) -> Query | Sequence[Query]:
        return self.build(spark)

    def queries(self, spark: SparkSession) -> dict[str, Query]:
        """The queries by the name of their checkpoint below the pipeline's, which is empty for a single one."""
        with blame(self.build.__code__.co_filename):
            made = self.build(spark)
        queries = [made] if isinstance(made, Query) else list(made) if isinstance(made, Sequence) else []
        if not queries or not all(isinstance(query, Query) for query in queries):
            raise PenstockError(
                f"the pipeline {self.name} returned {type(made).__name__} instead of a query",
                next="end its function with `return penstock.write(frame, sink)`, or with a list of these",
            )
        if len(queries) == 1:
            return {"": queries[0]}
        names = [query.name or "" for query in queries]
        if "" in names or len(set(names)) < len(names):
            raise PenstockError(
                f"the pipeline {self.name} has {len(names)} queries, and their names are {', '.join(map(repr, names))}",
                next="give each its own: penstock.write(frame, sink, name=...)",
            )
        for name in names:
            _check_name(name)
        return dict(zip(names, queries, strict=True))


def pipeline(*, every: timedelta | str, name: str | None = None) -> Callable[[Build], Pipeline]:
    """Mark a function `(spark) -> query or list of queries` as a pipeline that runs a batch `every` so often.

    `name` is the function's unless given. The checkpoint stands under it: a pipeline that is renamed starts anew.
    """
    pace = duration(every, name="every")

    def mark(build: Build) -> Pipeline:
        chosen = name if name is not None else getattr(build, "__name__", "")
        _check_name(chosen)
        return Pipeline(build, pace, chosen)

    return mark


def _check_name(name: str) -> None:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise PenstockError(
            f"{name!r} is no name for a pipeline or query: it becomes a folder",
            next="use letters, digits, dots, dashes and underscores",
        )
