"""Record batches of rows given as tuples, made by the encoder of columns."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa

from penstock.wire.records.compression import NONE
from penstock.wire.records.record_encoder import TableEncoder

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Row = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]], int]
"""Key, value, headers, timestamp in milliseconds."""


def batch_of(rows: Sequence[Row], codec: int = NONE) -> memoryview:
    """One record batch, without producer and checksum; its times may be before 1970, which our producers refuse."""
    first = min(0, *(row[3] for row in rows))
    columns = {
        "key": pa.array([row[0] for row in rows], pa.binary()),
        "value": pa.array([row[1] for row in rows], pa.binary()),
        "headers": pa.array([[{"key": k, "value": v} for k, v in row[2]] for row in rows], HEADERS),
        "timestamp": pa.array([row[3] - first for row in rows], pa.int64()),
    }
    (made,) = TableEncoder(1, batch_size=2**24, compression=codec).encode(pa.record_batch(columns))
    # The times of records are relative to the batch's first one; see batch_header for where that and the largest are.
    base, largest = struct.unpack_from(">qq", made.data, 27)
    struct.pack_into(">qq", made.data, 27, base + first, largest + first)
    return made.data


def varint(number: int) -> bytes:
    """A zig-zag varint of a number that is not negative."""
    number, out = 2 * number, b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])
