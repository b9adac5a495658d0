"""A cache of rows by key, limited in time and size; it also keeps that a key has no row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.keyed_state.byte_index import KeyIndex
from penstock.native import Array

CHUNKS = 32
"""Chunks above which the table is rewritten: each batch with misses adds a chunk, and `take` visits all."""
KEY = pa.field("penstock$key", pa.binary())
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
