"""Metrics of a function on Arrow batches, reported in the query's progress.

The first row of each batch has the numbers in an extra column. Spark adds them up (`observe`), then the column is
dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from pyspark.sql import DataFrame, functions as F, types as st

MEASURED = "penstock$measured"
WAIT, CACHED = "wait_ms", "cached"


@dataclass(frozen=True)
class Measures:
    """The names of the metrics, including `wait_ms` and `cached`."""

    names: tuple[str, ...]

    @property
    def field(self) -> st.StructField:
        return st.StructField(MEASURED, st.StructType([st.StructField(name, st.LongType()) for name in self.names]))

    @cached_property
    def arrow(self) -> pa.DataType:
        return pa.struct([(name, pa.int64()) for name in self.names])

    def column(self, numbers: Sequence[int], rows: int) -> pa.Array:
        """The numbers in the first row, null in the others."""
        first = pa.array([dict(zip(self.names, numbers, strict=True))], self.arrow)
        return pa.concat_arrays([first, pa.nulls(rows - 1, self.arrow)])


def measured(frame: DataFrame, name: str, measures: Measures) -> DataFrame:
    """The frame without the metrics, which the query's progress reports under `name`.

    They are summed over a micro-batch, except `slowest_ms`, the longest wait of an Arrow batch, and `cached`, the most
    that a process holds.
    """
    sums = [F.coalesce(F.sum(f"{MEASURED}.{each}"), F.lit(0)).alias(each) for each in measures.names if each != CACHED]
    most = [F.max(f"{MEASURED}.{WAIT}").alias("slowest_ms"), F.max(f"{MEASURED}.{CACHED}").alias(CACHED)]
    return frame.observe(name, *sums, *most).drop(MEASURED)
