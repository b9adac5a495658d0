"""A pipeline: a function from a Spark session to queries, with an interval of batches and a name for its checkpoint.

The function is called again at each restart, so that the queries read the table's current schema. Errors of a user's
file are reported with the line of that file.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal, overload

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.border import trial
from penstock.border.public import public
from penstock.durations import Duration, duration
from penstock.errors import PenstockError
from penstock.query import real_time
from penstock.query.query import Query
from penstock.query.real_time import REAL_TIME
from penstock.run import faults
from penstock.spark_runtime.failures import passing_failure

EVERY = "1 second"
TARGET = timedelta(minutes=1)
"""The shortest target that a pipeline has if its user gives none."""

Build = Callable[[SparkSession], Query | Sequence[Query]]


@dataclass(frozen=True)
class Pipeline:
    """A function marked with `@pipeline`; calling it calls the function.

    `target` is the longest time from an event to a sink's acknowledgement with which its user is content.
    """

    build: Build
    every: timedelta | str
    name: str
    target: timedelta = TARGET

    def __call__(self, spark: SparkSession) -> Query | Sequence[Query]:
        return self.build(spark)

    def queries(self, spark: SparkSession) -> dict[str, Query]:
        """The queries by the name of their checkpoint below the pipeline's folder; "" for a single query.

        Raises PenstockError if the function fails, returns something else, or several queries lack names of their own.
        """
        with blame(self.build.__code__.co_filename), real_time.building(self.every == REAL_TIME):
            built = self.build(spark)
        queries = [built] if isinstance(built, Query) else list(built) if isinstance(built, Sequence) else []
        if not queries or not all(isinstance(query, Query) for query in queries):
            raise PenstockError(
                f"the pipeline {self.name} returned {type(built).__name__} instead of a query",
                next="end its function with `return penstock.write(frame, sink)`, or return a list of queries",
            )
        if self.every == REAL_TIME:
            for query in queries:
                real_time.require(query, f"pipeline {self.name}" + (f", query {query.name}" if query.name else ""))
        if len(queries) == 1:
            return {"": queries[0]}
        names = [query.name or "" for query in queries]
        if "" in names or len(set(names)) < len(names):
            raise PenstockError(
                f"the pipeline {self.name} has {len(names)} queries, and their names are {', '.join(map(repr, names))}",
                next="give each query its own name: penstock.write(frame, sink, name=...)",
            )
        for name in names:
            _check_name(name)
        return dict(zip(names, queries, strict=True))


@overload
def pipeline(build: Build, /) -> Pipeline: ...


@overload
def pipeline(
    *, every: Literal["real-time"] | Duration = ..., name: str | None = None, target: Duration = ...
) -> Callable[[Build], Pipeline]: ...


@public("pipeline")
def pipeline(
    build: Build | None = None,
    /,
    *,
    every: Literal["real-time"] | Duration = EVERY,
    name: str | None = None,
    target: Duration | None = None,
) -> Pipeline | Callable[[Build], Pipeline]:
    """Mark a function `(spark) -> query or list of queries` as a pipeline that starts a batch at each interval `every`.

    `@pipeline` without parentheses has a batch a second. With `every="real-time"` each row is sent as soon as it
    arrives, in queries from topics to a topic that need no Python (docs/real-time.md); other queries raise
    PenstockError when the function has made them. `name` is the function's name by default, and the name of the
    checkpoint's folder: a renamed pipeline starts from scratch. `target` is the delay from an event to a sink's
    acknowledgement that `penstock status` and the alerts compare the pipeline with (docs/metrics.md), by default 1
    minute, or two intervals if that is longer; it changes nothing in the run. Raises PenstockError if `every` or
    `target` is not a duration, `target` is zero, or `name` cannot be a folder's name.
    """
    pace = REAL_TIME if every == REAL_TIME else duration(every, name="every")
    goal = default_target(pace) if target is None else duration(target, name="target")
    if not goal:
        raise PenstockError(
            "target is zero, and no row takes no time", next='give a longer one, as in target="1 minute"'
        )

    def mark(build: Build) -> Pipeline:
        chosen = name if name is not None else getattr(build, "__name__", "")
        _check_name(chosen)
        return Pipeline(build, pace, chosen, goal)

    return mark if build is None else mark(build)


def default_target(every: timedelta | str) -> timedelta:
    """The target of a pipeline whose user gives none: a row waits for an interval at most, and then for its batch."""
    return TARGET if isinstance(every, str) else max(TARGET, 2 * min(every, timedelta.max // 2))


def _check_name(name: str) -> None:
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise PenstockError(
            f"{name!r} is not a valid name for a pipeline or query, as a folder gets this name",
            next="use letters, digits, dots, dashes and underscores",
        )


@contextmanager
def blame(file: str | Path) -> Iterator[None]:
    """Turn every exception into a `PenstockError` that names the last line of `file` in its traceback."""
    try:
        yield
    except PenstockError as error:
        places = [place for place in (_line(error, file), error.where) if place]
        raise type(error)(error.what, where=", ".join(places), next=error.next) from error
    except SyntaxError as error:
        where = f"{error.filename}, line {error.lineno}" + (f": {error.text.strip()}" if error.text else "")
        raise PenstockError(
            f"SyntaxError: {error.msg}", where=where, next="correct this line, or those above"
        ) from error
    except SystemExit as error:
        raise PenstockError(
            f"the file ends the program: sys.exit({error.code!r})",
            where=_line(error, file) or str(file),
            next='remove the call, or put it below `if __name__ == "__main__":`',
        ) from error
    except Exception as error:
        place = _line(error, file) or str(file)
        # Spark asks a Python process for the columns of a source, and that process may have been killed.
        if isinstance(error, (PySparkException, Py4JJavaError)) and (passing := passing_failure(error, place)):
            raise passing from error
        if isinstance(error, (PySparkException, Py4JJavaError)):
            raise faults.of_spark(error, place) from error
        said = "".join(traceback.format_exception_only(error)).strip().splitlines()[0]
        raise PenstockError(said, where=place) from error


def _line(error: BaseException, file: str | Path) -> str:
    entry = error.__traceback__
    places = []
    while entry is not None:
        if entry.tb_frame.f_code.co_filename == str(file):
            places.append(trial.place(entry.tb_frame, entry.tb_lasti))
        entry = entry.tb_next
    return places[-1] if places else ""
