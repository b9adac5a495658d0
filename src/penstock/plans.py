"""Plans of frames, which only Spark's JVM has, and what Spark writes into them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WATERMARK = "spark.watermarkDelayMs"
"""Spark's metadata key on the column with a watermark."""


def analyzed(frame: DataFrame) -> Any:
    """The plan of a frame before it is optimized."""
    return frame._jdf.queryExecution().analyzed()


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
