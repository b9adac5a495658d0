"""What lookups and matching keep between batches, and report: cached rows by key, and metrics in a query's progress.

The cache is limited in time and size; it also keeps that a key has no row. The first row of each Arrow batch has the
numbers in an extra column. Spark adds them up (`observe`), then the column is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, functions as F, types as st

from penstock.keyed_state.byte_index import KeyIndex
from penstock.native import Array

CHUNKS = 32
"""Chunks above which the table is rewritten: each batch with misses adds a chunk, and `take` visits all."""
KEY = pa.field("penstock$key", pa.binary())
MEASURED = "penstock$measured"
WAIT, CACHED = "wait_ms", "cached"
SPARE = 4096
"""Keys that the index may have above twice the cached rows: it forgets keys only when it is rebuilt."""


class RowCache:
    """An Arrow table with an index by key; new rows replace the rows that were cached first."""

    def __init__(self, schema: pa.Schema, limit: int, seconds: float) -> None:
        self.limit, self.seconds = limit, seconds
        self.rows = schema.append(KEY).empty_table()
        self.ends: Array = np.empty(0)
        # Positions count from the first row ever cached; the first `dropped` are gone.
        self.dropped = 0
        self.index = KeyIndex()
        self.places: Array = np.empty(0, np.int64)
        """The position of each key of the index; that of a dropped key is below `dropped`."""

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def table(self) -> pa.Table:
        """The rows, in the positions that `find` returns."""
        return self.rows.drop_columns(KEY.name)

    def find(self, keys: pa.Array, now: float) -> Array:
        """The position of each key's row in `table`; -1 if there is none or it has expired."""
        if not len(self):
            return np.full(len(keys), -1, np.int64)
        numbers = self.index.find(keys)
        rows = np.where(numbers < 0, -1, np.maximum(self.places[numbers] - self.dropped, -1))
        rows[self.ends[rows] <= now] = -1
        return rows

    def add(self, keys: pa.Array, rows: pa.Table, now: float) -> None:
        """Cache the row of each key, instead of an older one."""
        if len(self.index) > 2 * len(self) + SPARE:
            self.index, self.places = KeyIndex(), np.empty(0, np.int64)
            self._place(self.rows.column(KEY.name).combine_chunks(), self.dropped)
        self._place(keys, self.dropped + len(self))
        self.rows = pa.concat_tables([self.rows, rows.append_column(KEY, keys)])
        self.ends = np.append(self.ends, np.full(len(keys), now + self.seconds))
        self._drop(max(len(self) - self.limit, int(np.searchsorted(self.ends, now))))
        if self.rows.column(KEY.name).num_chunks > CHUNKS:
            self.rows = self.rows.combine_chunks()

    def _place(self, keys: pa.Array, first: int) -> None:
        numbers = self.index.add(keys)
        if len(self.index) > len(self.places):
            self.places = np.resize(self.places, 2 * len(self.index))
        self.places[numbers] = np.arange(first, first + len(keys))

    def _drop(self, count: int) -> None:
        self.rows, self.ends = self.rows.slice(count), self.ends[count:]
        self.dropped += count


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
