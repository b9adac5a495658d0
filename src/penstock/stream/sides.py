"""Two tables in one stream of rows, each with the number of its side; the columns of the other side are null."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SIDE = "_side"
LEFT, RIGHT = 0, 1


def both(left: DataFrame, right: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows of both, in the columns given, with `_side`."""
    rows = left.withColumn(SIDE, F.lit(LEFT)).unionByName(
        right.withColumn(SIDE, F.lit(RIGHT)), allowMissingColumns=True
    )
    return rows.select(*columns, SIDE)
