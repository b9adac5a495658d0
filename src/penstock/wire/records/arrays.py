"""Arrow columns as flat arrays for compiled loops: the start of each cell, its bytes, its length.

Binary and string columns are used without a copy, also slices; dictionaries, views and fixed widths are copied once.
All arrays are marked read-only, because Numba compiles writable arrays separately.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.native import Array
from penstock.wire.records.encode_kernel import ByteColumn, header_ends, write_headers


def read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


NO_BYTES = read_only(np.empty(0, np.uint8))
NO_OFFSETS = read_only(np.empty(0, np.int64))
NO_ROWS = read_only(np.empty(0, np.int32))


def no_cells(like: ByteColumn) -> ByteColumn:
    """An absent column, with the types of a present column."""
    return ByteColumn(like.offsets[:0], NO_BYTES, like.lengths[:0])


def widen(cells: ByteColumn) -> ByteColumn:
    """The same column with 64-bit offsets."""
    offsets, data, lengths = cells
    return ByteColumn(read_only(offsets.astype(np.int64)), data, lengths)


def cells(array: pa.Array, name: str) -> ByteColumn:
    """A column of bytes or strings; raises TypeError for other types, with `name` in the message."""
    array = _plain(array, name)
    large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, offsets_buffer, data_buffer = array.buffers()
    width = np.int64 if large else np.int32
    if offsets_buffer is None or offsets_buffer.size == 0:
        offsets = np.zeros(1, width)
    else:
        offsets = np.frombuffer(offsets_buffer, width)[array.offset : array.offset + len(array) + 1]
    lengths = np.subtract(offsets[1:], offsets[:-1], dtype=np.int64)
    if array.null_count:
        lengths[pc.is_null(array).to_numpy(zero_copy_only=False)] = -1
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else NO_BYTES
    return ByteColumn(read_only(offsets), read_only(data), read_only(lengths))


def _plain(array: pa.Array, name: str) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    is_bytes = any(is_kind(kind) for is_kind in _BYTES)
    if not is_bytes:
        raise TypeError(f"column {name} is {array.type}; cast it to binary or string first")
    return array if any(is_kind(array.type) for is_kind in _BYTES[:4]) else array.cast(pa.large_binary())


_BYTES: tuple[Any, ...] = (
    pa.types.is_binary,
    pa.types.is_string,
    pa.types.is_large_binary,
    pa.types.is_large_string,
    pa.types.is_fixed_size_binary,
    pa.types.is_binary_view,
    pa.types.is_string_view,
    pa.types.is_null,
)


def milliseconds(array: pa.Array | None, rows: int) -> Array:
    """Times in milliseconds since 1970, from timestamps of any unit or from int64; now where there is none."""
    now = time.time_ns() // 1_000_000
    if array is None:
        return read_only(np.full(rows, now, np.int64))
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.timestamp("ms", array.type.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_int64(array.type):
        raise TypeError(f"column timestamp is {array.type}; it must be a timestamp or int64 milliseconds")
    if array.null_count:
        array = array.fill_null(now)
    return read_only(array.to_numpy())


def headers(array: pa.Array) -> tuple[Array, Array]:
    """A column of headers, encoded with their counts: the start of each row's headers and the end, and the bytes."""
    starts, counts, entries = _entries(array)
    key, value = (widen(cells(entry, f"headers.{name}")) for entry, name in zip(entries, ("key", "value"), strict=True))
    if len(key.lengths) and key.lengths.min() < 0:
        raise ValueError("a header has no key; Kafka's headers may have null values, but not null keys")
    ends = np.empty(len(array) + 1, np.int64)
    header_ends(starts, counts, key.lengths, value.lengths, ends)
    out = np.empty(ends[-1], np.uint8)
    write_headers(starts, counts, key, value, out)
    return read_only(ends), read_only(out)


def _entries(array: pa.Array) -> tuple[Array, Array, tuple[pa.Array, pa.Array]]:
    """The start and number of each row's headers (0 for null), and all keys and values."""
    kind = array.type
    fields = [0, 1]
    if not pa.types.is_map(kind):
        struct = kind.value_type if pa.types.is_list(kind) or pa.types.is_large_list(kind) else pa.null()
        fields = [struct.get_field_index(name) for name in ("key", "value")] if pa.types.is_struct(struct) else [-1]
    if -1 in fields:
        raise TypeError(f"column headers is {kind}; it must be list<struct<key: string, value: binary>> or a map")
    offsets = array.offsets.to_numpy().astype(np.int64)
    counts = np.diff(offsets)
    if array.null_count:
        counts[pc.is_null(array).to_numpy(zero_copy_only=False)] = 0
    flat = array.values.flatten()
    first, last = int(offsets[0]), int(offsets[-1])
    key, value = (flat[i].slice(first, last - first) for i in fields)
    return read_only(offsets[:-1] - first), read_only(counts), (key, value)
