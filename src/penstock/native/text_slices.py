"""Byte strings as slices of a larger buffer, such as the body of a request, without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.native import Array
from penstock.native.jit import compiled, copy


class Texts(NamedTuple):
    """The start of each byte string in `data`, and its length in bytes (-1: null); both are int64."""

    data: bytes
    starts: Array
    lengths: Array

    @classmethod
    def of(cls, texts: Sequence[bytes | None]) -> Texts:
        lengths = np.array([-1 if text is None else len(text) for text in texts], np.int64)
        ends = np.cumsum(np.maximum(lengths, 0))
        return cls(b"".join(filter(None, texts)), ends - np.maximum(lengths, 0), lengths)

    @classmethod
    def same(cls, text: bytes | None, count: int) -> Texts:
        """The same byte string `count` times."""
        return cls(text or b"", np.zeros(count, np.int64), np.full(count, -1 if text is None else len(text), np.int64))

    def listed(self) -> list[bytes | None]:
        pairs = zip(self.starts.tolist(), self.lengths.tolist(), strict=True)
        return [None if length < 0 else self.data[start : start + length] for start, length in pairs]

    def bound(self) -> int:
        """An upper bound of the total length: the size of `data`, times the count if all slices are the same."""
        if len(self.starts) > 1 and self.starts[0] == self.starts[-1]:
            return len(self.data) * len(self.starts)
        return len(self.data)


def column(parts: Sequence[Texts]) -> pa.LargeBinaryArray:
    """A column of all byte strings in order."""
    count, size = sum(len(part.starts) for part in parts), sum(part.bound() for part in parts)
    out, ends, row, missing = np.empty(size, np.uint8), np.zeros(count + 1, np.int64), 0, 0
    for part in parts:
        missing += _append(np.frombuffer(part.data, np.uint8), part.starts, part.lengths, out, ends, row)
        row += len(part.starts)
    buffers = [_validity(parts) if missing else None, pa.py_buffer(ends), pa.py_buffer(out)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, buffers, missing)


def _validity(parts: Sequence[Texts]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(np.concatenate([part.lengths for part in parts]) >= 0, bitorder="little"))


@compiled
def _append(data: Array, starts: Array, lengths: Array, out: Array, ends: Array, row: int) -> int:
    """Append the byte strings after the first `row` rows; returns the number of nulls."""
    at, missing = ends[row], 0
    for i in range(len(starts)):
        length = lengths[i]
        missing += length < 0
        if length > 0:
            copy(out, at, data, starts[i], length)
            at += length
        ends[row + i + 1] = at
    return missing
