"""Plans of frames, which only Spark's JVM has, and what Spark writes into them; sessions that have no JVM here.

A session of Spark Connect (`sc://`) sends plans to a server. Its frames can be made, but this process cannot look into
them, and the server does not run functions of this process for each batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WATERMARK = "spark.watermarkDelayMs"
"""Spark's metadata key on the column with a watermark."""
CONNECT = "pyspark.sql.connect."


def is_connect(of: SparkSession | DataFrame) -> bool:
    """Whether a session, or the session of a frame, is one of Spark Connect."""
    return any(kind.__module__.startswith(CONNECT) for kind in type(of).__mro__)


def require_classic(of: SparkSession | DataFrame, what: str) -> None:
    """Raise PenstockError for a session of Spark Connect, or a frame of one."""
    if is_connect(of):
        raise PenstockError(
            f"{what} needs a classic Spark session, and this is a Spark Connect session",
            next="run it where Spark's driver is, with penstock.spark(); docs/notebook.md has what Connect can do",
        )


def parallelism(spark: SparkSession) -> int:
    """How many tasks of a source run at the same time; a Connect server says only how many a shuffle has."""
    if is_connect(spark):
        return int(str(spark.conf.get("spark.sql.shuffle.partitions")))
    return spark.sparkContext.defaultParallelism


def analyzed(frame: DataFrame) -> Any:
    """The plan of a frame before it is optimized; raises PenstockError for a frame of Spark Connect."""
    require_classic(frame, "the plan of a frame")
    return frame._jdf.queryExecution().analyzed()


def require_streamable(frame: DataFrame, mode: str) -> None:
    """Raise Spark's AnalysisException where the start of a query with this output mode would."""
    jvm: Any = frame.sparkSession._jvm
    checker = getattr(jvm.org.apache.spark.sql.catalyst.analysis, "UnsupportedOperationChecker$")
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    getattr(checker, "MODULE$").checkForStreaming(analyzed(frame), getattr(modes, mode.capitalize())())


def nodes(tree: Any) -> Iterator[Any]:
    """A node of a plan or an expression, and all below it."""
    yield tree
    for child in each(tree.children()):
        yield from nodes(child)


def each(found: Any) -> Iterator[Any]:
    """The elements of a Scala collection."""
    items = found.iterator()
    while items.hasNext():
        yield items.next()
