"""Compiled loop that tells rows apart by some of their cells: a 64-bit hash of each row's key."""

from __future__ import annotations

import numpy as np

from penstock.database.cells import inside
from penstock.native import Array
from penstock.native.jit import compiled


@compiled
def _row_hashes(buffer: Array, starts: Array, lengths: Array, columns: Array, out: Array) -> None:
    for row in range(min(len(starts), len(lengths), len(out))):
        # FNV-1a (Fowler, Noll, Vo) over each cell's length and bytes, then the finaliser of SplitMix64.
        h = np.uint64(0xCBF29CE484222325)
        for column in columns:
            length = lengths[row, column]
            h = (h ^ np.uint64(length + 1)) * np.uint64(0x100000001B3)
            for i in range(length if inside(len(buffer), starts[row, column], length) else 0):
                h = (h ^ np.uint64(buffer[starts[row, column] + i])) * np.uint64(0x100000001B3)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[row] = h ^ (h >> np.uint64(31))


def row_hashes(buffer: Array, starts: Array, lengths: Array, columns: list[int]) -> Array:
    """A hash of the cells that each row has in `columns`; null differs from an empty value."""
    out = np.empty(len(starts), np.uint64)
    _row_hashes(buffer, starts, lengths, np.array(columns, np.int64), out)
    return out
