"""Encodes record batches v2 from Arrow columns: partitions rows, divides them into batches, accounts for each row.

Rows of one partition keep their order. A row goes to the partition in its column `partition`, otherwise to the
partition of its key's hash, or of the partitioner. Rows without a partition are sticky (KIP-480): the rows of one batch
go to one partition, the next rows to the partition with the fewest bytes so far. This rotates the partitions, and evens
out small batches.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.native import Array
from penstock.native.jit import read_only
from penstock.native.text_slices import Texts
from penstock.wire.records.batch_header import HEADER_SIZE, finish
from penstock.wire.records.compression import CODECS, MAX_SIZE, require_level
from penstock.wire.records.encode_kernel import (
    VALUE_ONLY,
    ByteColumn,
    fixed_sizes,
    group,
    header_ends,
    measure,
    write,
    write_headers,
    write_values,
)
from penstock.wire.records.partitioner import Partitioner, partitioner_of, partitions_for, sticky

COLUMNS = ("key", "value", "headers", "timestamp", "partition")

# Most bytes of a record besides those that `fixed_sizes` counts: its length and the two deltas.
_SLACK = 5 + 10 + 5


@dataclass(frozen=True, slots=True)
class Encoded:
    """One record batch without producer and checksum; `rows` are its row numbers in the Arrow batch, in order."""

    partition: int
    rows: range | Array
    data: memoryview

    @property
    def count(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class _Records:
    """The columns of one Arrow batch as flat arrays."""

    key: ByteColumn
    value: ByteColumn
    header_offsets: Array
    header_data: Array
    times: Array
    sizes: Array


class TableEncoder:
    """Encodes Arrow batches for one topic; counts the bytes of each partition.

    `batch_size` bounds a batch before compression, including the header; a larger record gets its own batch. Raises
    ValueError if no batches can be made with these options.
    """

    def __init__(
        self,
        partitions: int,
        *,
        batch_size: int,
        compression: int,
        level: int | None = None,
        partitioner: str | Partitioner = "key",
    ) -> None:
        if partitions < 1:
            raise ValueError(f"a topic has at least one partition, not {partitions}")
        if not HEADER_SIZE < batch_size <= MAX_SIZE:
            raise ValueError(f"batch_size must be {HEADER_SIZE + 1} to {MAX_SIZE} bytes, not {batch_size}")
        if compression not in CODECS.values():
            raise ValueError(f"unknown codec number {compression}; the codecs are {CODECS}")
        require_level(compression, level)
        self.partitions, self._partitioner = partitions, partitioner_of(partitioner)
        self._limit, self._compression, self._level = batch_size - HEADER_SIZE, compression, level
        # Starts anywhere, so that many short-lived encoders do not all start with partition 0.
        self._first = random.randrange(partitions)
        self._given = np.zeros(partitions, np.int64)

    def encode(self, batch: pa.RecordBatch) -> Iterator[Encoded]:
        """Batches for all rows, made lazily, one at a time.

        Columns: `value`; optionally `key`, `headers` (list of key and value, or map), `timestamp` (any unit, or int64
        in milliseconds; null is now), `partition` (integer; null: the encoder chooses). Raises ValueError or TypeError
        for other columns or types.
        """
        if unknown := set(batch.schema.names) - set(COLUMNS):
            raise ValueError(f"columns {sorted(unknown)} are not part of a record, whose columns are {COLUMNS}")
        if "value" not in batch.schema.names:
            raise ValueError(f"there is no column value among {batch.schema.names}; add it (null is a tombstone)")
        if batch.num_rows == 0:
            return
        records = _records(batch)
        partition = self._choose(batch, records)
        if partition is None:
            yield from self._sticky(records)
            return
        starts, rows = np.empty(self.partitions + 1, np.int64), np.empty(len(partition), np.int32)
        group(partition, starts, rows)
        read_only(rows)
        for p in np.flatnonzero(np.diff(starts)):
            yield from self._run(records, int(p), rows, int(starts[p]), int(starts[p + 1]))

    def joins(self, parts: Sequence[Texts]) -> bool:
        """Whether values without keys may go to any partition, and these values fit into one batch."""
        rows = sum(len(part.starts) for part in parts)
        anywhere = self._partitioner is None or self._partitioner is sticky
        return anywhere and rows > 0 and sum(part.bound() for part in parts) + VALUE_ONLY * rows <= self._limit

    def join(self, parts: Sequence[Texts]) -> Encoded:
        """One batch of all these values, written directly from their buffers."""
        rows, size = sum(len(part.starts) for part in parts), sum(part.bound() for part in parts)
        buffer = np.empty(HEADER_SIZE + size + VALUE_ONLY * rows, np.uint8)
        first, at, now = 0, HEADER_SIZE, time.time_ns() // 1_000_000
        for part in parts:
            at = write_values(np.frombuffer(part.data, np.uint8), part.starts, part.lengths, first, buffer, at)
            first += len(part.starts)
        p, data = self._next(), self._finish(buffer[:at], rows, now, now)
        self._give(p, len(data))
        return Encoded(p, range(rows), data)

    def _choose(self, batch: pa.RecordBatch, records: _Records) -> Array | None:
        """The partition of each row; None if all rows are sticky, and need no sorting."""
        names = batch.schema.names
        if self.partitions == 1 and "partition" not in names:
            return None
        chosen = self._ask(batch) if self._partitioner else self._hash(records)
        if "partition" in names:
            column = batch.column("partition")
            chosen = _overlay(column, chosen, batch.num_rows)
        if chosen is None or chosen.max() < 0:
            return None
        self._check(chosen)
        self._spread(chosen, records)
        return chosen

    def _hash(self, records: _Records) -> Array | None:
        return partitions_for(records.key, self.partitions) if len(records.key.lengths) else None

    def _ask(self, batch: pa.RecordBatch) -> Array:
        """The partitioner's result; without a column `key` it gets nulls."""
        assert self._partitioner
        rows = batch.num_rows
        keys = batch.column("key") if "key" in batch.schema.names else pa.nulls(rows, pa.binary())
        chosen = np.asarray(self._partitioner(keys, self.partitions))
        if chosen.shape != (rows,) or chosen.dtype.kind not in "iu":
            raise ValueError(f"the partitioner returned {chosen.dtype} {chosen.shape}; it must return {rows} integers")
        self._check(chosen)
        return chosen.astype(np.int32)

    def _check(self, chosen: Array) -> None:
        if chosen.max() >= self.partitions or chosen.min() < -1:
            row = int(np.flatnonzero((chosen >= self.partitions) | (chosen < -1))[0])
            raise ValueError(f"row {row} is for partition {chosen[row]}; the topic has {self.partitions} partitions")

    def _spread(self, chosen: Array, records: _Records) -> None:
        """Assign the rows that may go anywhere to one partition per full batch."""
        free = np.flatnonzero(chosen < 0)
        if not len(free):
            return
        ends = np.cumsum(records.sizes[free])
        cuts = np.searchsorted(ends, np.arange(0, ends[-1], self._limit), side="right")
        for start, stop in zip(cuts, [*cuts[1:], len(free)], strict=True):
            p = self._next()
            chosen[free[start:stop]] = p
            self._give(p, int(records.sizes[free[start:stop]].sum()))

    def _sticky(self, records: _Records) -> Iterator[Encoded]:
        first, stop = 0, len(records.sizes)
        while first < stop:
            p = self._next()
            encoded = self._one(records, p, NO_ROWS, first, stop)
            self._give(p, len(encoded.data))
            yield encoded
            first += encoded.count

    def _run(self, records: _Records, p: int, rows: Array, first: int, stop: int) -> Iterator[Encoded]:
        while first < stop:
            encoded = self._one(records, p, rows, first, stop)
            yield encoded
            first += encoded.count

    def _one(self, records: _Records, p: int, rows: Array, first: int, stop: int) -> Encoded:
        """The batch of the rows from `first`."""
        count, size, base, largest = measure(records.sizes, records.times, rows, first, stop, self._limit)
        r, buffer = records, np.empty(HEADER_SIZE + size, np.uint8)
        sources = r.key, r.value, r.header_offsets, r.header_data, r.sizes, r.times
        write(*sources, rows, first, count, buffer[HEADER_SIZE:])
        data = self._finish(buffer, count, base, largest)
        return Encoded(p, rows[first : first + count] if len(rows) else range(first, first + count), data)

    def _finish(self, buffer: Array, count: int, base: int, largest: int) -> memoryview:
        return finish(
            buffer.data,
            count=count,
            base_timestamp=base,
            max_timestamp=largest,
            compression=self._compression,
            level=self._level,
        )

    def _next(self) -> int:
        return (int(self._given.argmin()) + self._first) % self.partitions

    def _give(self, p: int, size: int) -> None:
        self._given[(p - self._first) % self.partitions] += size


def _records(batch: pa.RecordBatch) -> _Records:
    names = batch.schema.names
    value = cells(batch.column("value"), "value")
    key = cells(batch.column("key"), "key") if "key" in names else no_cells(value)
    if key.offsets.dtype != value.offsets.dtype:
        key, value = widen(key), widen(value)
    offsets, data = headers(batch.column("headers")) if "headers" in names else (NO_OFFSETS, NO_BYTES)
    times = milliseconds(batch.column("timestamp") if "timestamp" in names else None, batch.num_rows)
    sizes = np.empty(batch.num_rows, np.int64)
    fixed_sizes(key.lengths, value.lengths, offsets, sizes)
    if (largest := int(sizes.max())) > MAX_SIZE - HEADER_SIZE - _SLACK:
        raise ValueError(f"row {sizes.argmax()} takes {largest} bytes; a record batch has at most {MAX_SIZE}")
    return _Records(key, value, offsets, data, times, read_only(sizes))


def _overlay(column: pa.Array, chosen: Array | None, rows: int) -> Array:
    """The partitions of the column; where it is null, the chosen ones."""
    if not pa.types.is_integer(column.type) and not pa.types.is_null(column.type):
        raise TypeError(f"column partition is {column.type}, not an integer")
    out = np.full(rows, -1, np.int32) if chosen is None else chosen
    wanted = column.cast(pa.int32())
    is_given = wanted.is_valid().to_numpy(zero_copy_only=False)
    values = wanted.fill_null(0).to_numpy(zero_copy_only=False)
    if len(bad := np.flatnonzero(is_given & (values < 0))):
        raise ValueError(f"row {bad[0]} is for partition {values[bad[0]]}; partitions are numbered from 0")
    out[is_given] = values[is_given]
    return out


# Arrow columns as flat arrays for compiled loops: the start of each cell, its bytes, its length.
#
# Binary and string columns are used without a copy, also slices; dictionaries, views and fixed widths are copied once.


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
    times = array.to_numpy()
    if len(times) and (first := int(times.min())) < 0:
        raise ValueError(before_1970(first))
    return read_only(times)


def before_1970(timestamp: int) -> str:
    """What is wrong with a negative time of a record: Java's producer refuses it, and Kafka Streams ends at it."""
    return f"timestamp {timestamp} is before 1970; give milliseconds since 1970, or none for now"


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
