"""Plans of frames, which only Spark's JVM has, and what Spark writes into them; sessions that have no JVM here.

A session of Spark Connect (`sc://`) sends plans to a server. It can have frames, but this process cannot look into
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
LATE, STARTS = "penstock.late", "penstock.starts"
"""Metadata keys on columns of a window's results, which keep them under other names: what is true for late results, and
the window's start."""
WINDOW_START = "window_start"
EQUAL = {"EqualTo", "EqualNullSafe"}
OWN_ROWS = {"Aggregate", "TransformWithStateInPySpark", "TransformWithStateInPandas", "FlatMapGroupsInPandasWithState"}
"""Nodes whose rows are not those of the node below."""
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


def tasks(frame: DataFrame) -> int:
    """How many tasks a frame that is not a stream runs in at the end of its plan."""
    return int(frame._jdf.queryExecution().toRdd().getNumPartitions())


def require_streamable(frame: DataFrame, mode: str) -> None:
    """Raise Spark's AnalysisException where the start of a query with this output mode would."""
    jvm: Any = frame.sparkSession._jvm
    checker = getattr(jvm.org.apache.spark.sql.catalyst.analysis, "UnsupportedOperationChecker$")
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    getattr(checker, "MODULE$").checkForStreaming(analyzed(frame), getattr(modes, mode.capitalize())())


def has_late_results(frame: DataFrame) -> bool:
    """Whether rows of the frame may be late results of a window, as no condition excludes them."""
    if not frame.isStreaming or is_connect(frame):
        return False
    plan = analyzed(frame)
    # One call shows it for most frames: each node and column is a call to the JVM.
    return WINDOW_START in plan.toString() and _has_late_results(plan)


def _has_late_results(node: Any) -> bool:
    name, below = str(node.nodeName()), list(each(node.children()))
    if name in OWN_ROWS or (name == "Filter" and _of_late(node.condition()) is False):
        return False
    if _tells_late(node.output()) and not any(_tells_late(child.output()) for child in below):
        return True
    return any(map(_has_late_results, below))


def _of_late(condition: Any) -> bool | None:
    """The value of a condition for a late result; None if it depends on more than that."""
    name = str(condition.nodeName())
    if name == "AttributeReference":
        return condition.metadata().contains(LATE) or None
    if name == "Literal":
        return {"true": True, "false": False}.get(str(condition.toString()))
    parts = [_of_late(part) for part in each(condition.children())]
    if name == "And":
        return False if False in parts else None if None in parts else True
    if name == "Or":
        return True if True in parts else None if None in parts else False
    if None in parts[:1]:
        return None
    if name == "Not":
        return not parts[0]
    if name == "Coalesce":
        return parts[0]
    return parts[0] == parts[1] if name in EQUAL and None not in parts else None


def _tells_late(columns: Any) -> bool:
    return any(column.metadata().contains(LATE) for column in each(columns))


def nodes(tree: Any) -> Iterator[Any]:
    """A node of a plan or an expression, and all below it."""
    yield tree
    for child in each(tree.children()):
        yield from nodes(child)


def each(collection: Any) -> Iterator[Any]:
    """The elements of a Scala collection."""
    items = collection.iterator()
    while items.hasNext():
        yield items.next()
