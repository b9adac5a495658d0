"""Decodes the records of a fetch response to an Arrow table: one row per record, without control records.

It does not talk to brokers: its input is the bytes, and for read_committed the aborted transactions of the same
response. The header of each batch, with its producer and sequence, comes from `batch_header.read_headers`.

Memory: batches are decompressed one after the other, each to at most `max_size` bytes, and their records become columns
in parts of about `PART` bytes. Claimed sizes and numbers of records and headers are compared with the bytes present
before anything is allocated for them. A batch is checked completely before its first part is made.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.native import Array, Data
from penstock.native.jit import compiled, copy, read_only
from penstock.wire.records.batch_header import HEADER_SIZE, Header, read_headers
from penstock.wire.records.compression import MAX_SIZE, CorruptRecords, DecompressedTooLarge, decompress

# Compiled loops that find keys, values and headers in the records of a batch (see `encode_kernel`), and gather them.
#
# The bytes may be anything: no loop reads outside them, and a loop over a claimed count ends where the bytes end.


# The numbers stored for each record.
OFFSET, TIME, KEY, KEY_LENGTH, VALUE, VALUE_LENGTH, HEADERS, HEADER_COUNT = range(8)
FIELDS = 8

# Length, attributes, two deltas, two lengths and the number of headers take at least a byte each.
SMALLEST = 7


@compiled
def get_varint(data: Array, at: int, end: int) -> tuple[Any, int]:
    """A zig-zag varint of at most ten bytes and where it ends, -1 if it is not complete."""
    value, shift = np.uint64(0), np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
        shift += np.uint64(7)
    return 0, -1


@compiled
def skip_bytes(data: Array, at: int, end: int) -> tuple[int, int]:
    """The length of the value at `at`, which follows its length, -1 for null; and where it ends, -1 if incomplete.

    Any length below 0 is null, as in Java's client.
    """
    length, at = get_varint(data, at, end)
    if at < 0 or length > end - at:
        return 0, -1
    return max(length, -1), at + max(length, 0)


@compiled
def skip_headers(data: Array, at: int, end: int, count: int) -> int:
    """Where `count` headers end, -1 if they are not complete."""
    for _ in range(count):
        length, at = skip_bytes(data, at, end)
        if at < 0 or length < 0:
            return -1
        length, at = skip_bytes(data, at, end)
        if at < 0:
            return -1
    return at


@compiled
def index_records(data: Array, at: int, least: int, most: int, out: Array) -> tuple[int, int]:
    """Store the positions of the records' parts from `at` in `out`, FIELDS x records; returns where they end, and -1.

    If a record is damaged, returns its number instead of -1. Offset deltas must ascend from `least` to `most`.
    """
    count = out.shape[1]
    for i in range(count):
        size, at = get_varint(data, at, len(data))
        if at < 0 or size < 1 or size > len(data) - at:
            return 0, i
        end = at + size
        out[OFFSET, i] = out[TIME, i] = out[HEADER_COUNT, i] = 0
        out[TIME, i], at = get_varint(data, at + 1, end)
        if at >= 0:
            out[OFFSET, i], at = get_varint(data, at, end)
        if at >= 0:
            out[KEY_LENGTH, i], at = skip_bytes(data, at, end)
            out[KEY, i] = at - max(out[KEY_LENGTH, i], 0)
        if at >= 0:
            out[VALUE_LENGTH, i], at = skip_bytes(data, at, end)
            out[VALUE, i] = at - max(out[VALUE_LENGTH, i], 0)
        if at >= 0:
            out[HEADER_COUNT, i], at = get_varint(data, at, end)
            out[HEADERS, i] = at
        if at >= 0:
            at = skip_headers(data, at, end, out[HEADER_COUNT, i]) if out[HEADER_COUNT, i] >= 0 else -1
        if at != end or out[OFFSET, i] < least or out[OFFSET, i] > most:
            return 0, i
        least = out[OFFSET, i]
    return at, -1


@compiled
def index_headers(data: Array, starts: Array, counts: Array, out: Array) -> None:
    """Store the positions and lengths of each header's key and value; `index_records` has checked them.

    `out` has a column for each header, which bounds the writes.
    """
    n = 0
    for i in range(len(starts)):
        at = starts[i]
        for _ in range(min(counts[i], out.shape[1] - n)):
            for part in range(2):
                length, at = skip_bytes(data, at, len(data))
                out[2 * part, n], out[2 * part + 1, n] = at - max(length, 0), length
            n += 1


@compiled
def gather(data: Array, starts: Array, lengths: Array, out: Array) -> None:
    """Copy cells to `out` end to end, as many as it has room for."""
    at = 0
    for i in range(len(starts)):
        if lengths[i] > len(out) - at:
            return
        if lengths[i] > 0:
            copy(out, at, data, starts[i], lengths[i])
            at += lengths[i]


_HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
_NO_ENTRIES = pa.nulls(0, _HEADERS.value_type)

SCHEMA = pa.schema(
    {
        "offset": pa.int64(),
        "timestamp": pa.timestamp("ms", "UTC"),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": _HEADERS,
    }
)

ABORT, COMMIT = 0, 1

_MARKER = struct.Struct(">hh")  # version, type


PART = 16 << 20
"""Bytes of keys, values and headers that become columns at once; or one larger record."""
_ROWS = 1 << 16
"""Records to index at once."""
_HEADER_COST = 48
"""Bytes that a header takes in the index and in columns, without its key and value."""


def decode(
    data: Data, *, verify: bool = True, aborted: Iterable[tuple[int, int]] | None = None, max_size: int = MAX_SIZE
) -> pa.Table:
    """The records of the complete batches in `data`, in the columns of SCHEMA.

    `aborted` has (producer id, first offset) of the response's aborted transactions: their records are left out
    (read_committed). With None, all records are returned. A batch cut off at the end, as by brokers, is left out.
    Raises CorruptRecords, with the offset, if bytes are not a batch, have a wrong checksum (if `verify`), or decompress
    to more than `max_size`.
    """
    batches = data_batches(data, verify=verify, aborted=aborted, max_size=max_size)
    return pa.Table.from_batches((part for header in batches for part in parts(data, header, max_size)), SCHEMA)


def data_batches(
    data: Data, *, verify: bool = True, aborted: Iterable[tuple[int, int]] | None = None, max_size: int = MAX_SIZE
) -> Iterator[Header]:
    """The headers of the batches whose records `decode` returns; each is verified when it is yielded."""
    headers = read_headers(data, verify=verify)
    if aborted is not None:
        ahead = sorted(aborted, key=lambda transaction: transaction[1])
        headers = _committed(memoryview(data), headers, ahead, max_size)
    return (header for header in headers if not header.control)


def parts(data: Data, header: Header, max_size: int = MAX_SIZE) -> Iterator[pa.RecordBatch]:
    """The records of one batch in the columns of SCHEMA; raises CorruptRecords before it yields the first part."""
    records = _plain(memoryview(data), header, max_size)
    starts, index = [0], None
    for first in range(0, header.count, _ROWS):
        index, end = _index(records, header, first, starts[-1], max_size)
        starts.append(end)
    if starts[-1] != len(records):
        raise CorruptRecords(f"the batch at offset {header.base_offset} has more bytes than its {header.count} records")
    for first, start in zip(range(0, header.count, _ROWS), starts, strict=False):
        if index is None or header.count > _ROWS:
            index, _ = _index(records, header, first, start, max_size)
        for begin, end in _cuts(index):
            yield _columns(header, records, index[:, begin:end])


def control_type(data: Data, header: Header, *, max_size: int = MAX_SIZE) -> int:
    """A control batch's marker for its producer's transaction, ABORT or COMMIT; other numbers are the broker's own."""
    records = _plain(memoryview(data), header, max_size)
    index, _ = _index(records, header, 0, 0, max_size)
    if index.shape[1] != 1 or index[KEY_LENGTH, 0] < _MARKER.size:
        raise CorruptRecords(f"the control batch at offset {header.base_offset} has no type")
    return int(_MARKER.unpack_from(records.data, index[KEY, 0])[1])


def _committed(
    view: memoryview, headers: Iterable[Header], aborted: Sequence[tuple[int, int]], max_size: int
) -> Iterator[Header]:
    """Leaves out the batches of aborted transactions; a transaction ends at its producer's abort marker."""
    ahead, aborting = list(reversed(aborted)), set()
    for header in headers:
        while ahead and ahead[-1][1] <= header.last_offset:
            aborting.add(ahead.pop()[0])
        if header.control:
            if header.producer_id in aborting and control_type(view, header, max_size=max_size) == ABORT:
                aborting.discard(header.producer_id)
        elif not (header.transactional and header.producer_id in aborting):
            yield header


def _plain(view: memoryview, header: Header, max_size: int) -> Array:
    """The decompressed records of a batch, checked to be long enough for the number that its header claims."""
    packed = view[header.start + HEADER_SIZE : header.end]
    try:
        records = read_only(np.frombuffer(decompress(header.codec, packed, max_size=max_size), np.uint8))
    except CorruptRecords as error:
        raise type(error)(f"the batch at offset {header.base_offset}: {error}") from error
    if not 0 <= header.count <= len(records) // SMALLEST:
        raise CorruptRecords(
            f"the batch at offset {header.base_offset} cannot have {header.count} records in {len(records)} bytes"
        )
    return records


def _index(records: Array, header: Header, first: int, start: int, max_size: int) -> tuple[Array, int]:
    """The positions of the parts of the next records, from number `first`, and where these records end."""
    index = np.empty((FIELDS, min(header.count - first, _ROWS)), np.int64)
    end, damaged = index_records(records, start, 0, header.last_offset_delta, index)
    if damaged >= 0:
        raise CorruptRecords(f"the batch at offset {header.base_offset} is damaged at record {first + damaged}")
    most = int(index[HEADER_COUNT].max(initial=0))
    if most * _HEADER_COST > max_size:
        raise DecompressedTooLarge(
            f"the batch at offset {header.base_offset}: {most} headers of a record exceed {max_size} bytes"
        )
    return index, int(end)


def _cuts(index: Array) -> Iterator[tuple[int, int]]:
    """Parts of the index whose columns take PART bytes, or one larger record."""
    ends = index[HEADERS] + _HEADER_COST * np.cumsum(index[HEADER_COUNT])
    begin, done = 0, int(index[KEY, 0])
    while begin < len(ends):
        end = max(begin + 1, int(np.searchsorted(ends, done + PART, side="right")))
        yield begin, end
        begin, done = end, int(ends[end - 1])


def _columns(header: Header, records: Array, index: Array) -> pa.RecordBatch:
    rows = index.shape[1]
    times = np.full(rows, header.max_timestamp) if header.append_time else header.base_timestamp + index[TIME]
    columns = [
        pa.array(header.base_offset + index[OFFSET]),
        pa.array(times).cast(SCHEMA.field("timestamp").type),
        _bytes(pa.binary(), records, index[KEY], index[KEY_LENGTH]),
        _bytes(pa.binary(), records, index[VALUE], index[VALUE_LENGTH]),
        _headers(records, index[HEADERS], index[HEADER_COUNT]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _bytes(kind: pa.DataType, data: Array, starts: Array, lengths: Array) -> pa.Array:
    # All are in the bytes of one batch, which is less than 2 GiB, so 32 bits hold their sum.
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    gather(data, starts, lengths, out)
    valid = lengths >= 0
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(lengths), [bitmap, pa.py_buffer(offsets), pa.py_buffer(out)])


def _headers(records: Array, starts: Array, counts: Array) -> pa.Array:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    entries = _entries(records, starts, counts, int(offsets[-1])) if offsets[-1] else _NO_ENTRIES
    return pa.ListArray.from_arrays(pa.array(offsets), entries, type=_HEADERS)


def _entries(records: Array, starts: Array, counts: Array, total: int) -> pa.Array:
    index = np.empty((4, total), np.int64)
    index_headers(records, starts, counts, index)
    key = _text(_bytes(pa.binary(), records, index[0], index[1]))
    value = _bytes(pa.binary(), records, index[2], index[3])
    return pa.StructArray.from_arrays([key, value], fields=list(_HEADERS.value_type))


def _text(keys: pa.Array) -> pa.Array:
    """Keys of headers, with U+FFFD for bytes that are not UTF-8, as in Java's client."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([str(key, "utf-8", "replace") for key in keys.to_pylist()], pa.string())
