"""What a broker returns from a fetch, as an Arrow table: one row per record, control records left out.

Knows no broker: it is given the bytes, and for read_committed the aborted transactions of the same response. The header
of each batch, with its producer and sequence, comes from `batch.read_headers`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from penstock.wire.arrays import read_only
from penstock.wire.batch import HEADER_SIZE, Header, read_headers
from penstock.wire.compression import MAX_SIZE, CorruptRecords, decompress
from penstock.wire.crc import Data
from penstock.wire.kernels import Array
from penstock.wire.scan import (
    FIELDS,
    HEADER_COUNT,
    HEADERS,
    KEY,
    KEY_LENGTH,
    OFFSET,
    SMALLEST,
    TIME,
    VALUE,
    VALUE_LENGTH,
    gather,
    index_headers,
    index_records,
)

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


def decode(
    data: Data, *, verify: bool = True, aborted: Iterable[tuple[int, int]] | None = None, max_size: int = MAX_SIZE
) -> pa.Table:
    """The records of the whole batches in `data`, in the columns of SCHEMA.

    `aborted` has (producer id, first offset) of the aborted transactions of the response, perhaps none: their records
    are left out (read_committed). Without it all records are returned. A batch that the end cuts off is left out, as
    brokers cut there. CorruptRecords, with the offset, for bytes that are no batch, that do not have their checksum (if
    `verify`), or that decompress to over `max_size`.
    """
    view = memoryview(data)
    headers = list(read_headers(view, verify=verify))
    if aborted is not None:
        headers = _committed(view, headers, sorted(aborted, key=lambda transaction: transaction[1]), max_size)
    batches = [_batch(view, header, max_size) for header in headers if not header.control]
    return pa.Table.from_batches(batches, SCHEMA)


def control_type(data: Data, header: Header, *, max_size: int = MAX_SIZE) -> int:
    """What a control batch says of its producer's transaction, ABORT or COMMIT; other numbers are the broker's own."""
    records, index = _index(memoryview(data), header, max_size)
    if index.shape[1] != 1 or index[KEY_LENGTH, 0] < _MARKER.size:
        raise CorruptRecords(f"the control batch at offset {header.base_offset} has no type")
    return int(_MARKER.unpack_from(records.data, index[KEY, 0])[1])


def _committed(
    view: memoryview, headers: list[Header], aborted: Sequence[tuple[int, int]], max_size: int
) -> list[Header]:
    """Without the batches of aborted transactions, each of which lasts until its producer's abort marker."""
    kept, ahead, aborting = [], list(reversed(aborted)), set()
    for header in headers:
        while ahead and ahead[-1][1] <= header.last_offset:
            aborting.add(ahead.pop()[0])
        if header.control:
            if header.producer_id in aborting and control_type(view, header, max_size=max_size) == ABORT:
                aborting.discard(header.producer_id)
        elif not (header.transactional and header.producer_id in aborting):
            kept.append(header)
    return kept


def _index(view: memoryview, header: Header, max_size: int) -> tuple[Array, Array]:
    """The decompressed records of a batch, and where their parts stand."""
    packed = view[header.start + HEADER_SIZE : header.end]
    try:
        records = read_only(np.frombuffer(decompress(header.codec, packed, max_size=max_size), np.uint8))
    except CorruptRecords as error:
        raise CorruptRecords(f"the batch at offset {header.base_offset}: {error}") from error
    if not 0 <= header.count <= len(records) // SMALLEST:
        raise CorruptRecords(
            f"the batch at offset {header.base_offset} cannot have {header.count} records in {len(records)} bytes"
        )
    index = np.empty((FIELDS, header.count), np.int64)
    if (damaged := index_records(records, index)) >= 0:
        raise CorruptRecords(f"the batch at offset {header.base_offset} is damaged at record {damaged}")
    return records, index


def _batch(view: memoryview, header: Header, max_size: int) -> pa.RecordBatch:
    records, index = _index(view, header, max_size)
    times = np.full(header.count, header.max_timestamp) if header.append_time else header.base_timestamp + index[TIME]
    columns = [
        pa.array(header.base_offset + index[OFFSET]),
        pa.array(times).cast(SCHEMA.field("timestamp").type),
        _bytes(pa.binary(), records, index[KEY], index[KEY_LENGTH]),
        _bytes(pa.binary(), records, index[VALUE], index[VALUE_LENGTH]),
        _headers(header, records, index[HEADERS], index[HEADER_COUNT]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _bytes(kind: pa.DataType, data: Array, starts: Array, lengths: Array) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(np.maximum(lengths, 0), out=offsets[1:])
    out = np.empty(offsets[-1], np.uint8)
    gather(data, starts, lengths, out)
    valid = lengths >= 0
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(lengths), [bitmap, pa.py_buffer(offsets), pa.py_buffer(out)])


def _headers(header: Header, records: Array, starts: Array, counts: Array) -> pa.Array:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    entries = _entries(header, records, starts, counts, int(offsets[-1])) if offsets[-1] else _NO_ENTRIES
    return pa.ListArray.from_arrays(pa.array(offsets), entries, type=_HEADERS)


def _entries(header: Header, records: Array, starts: Array, counts: Array, total: int) -> pa.Array:
    index = np.empty((4, total), np.int64)
    index_headers(records, starts, counts, index)
    key = _bytes(pa.string(), records, index[0], index[1])
    try:
        key.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptRecords(f"the batch at offset {header.base_offset} has a header whose key is not UTF-8") from error
    value = _bytes(pa.binary(), records, index[2], index[3])
    return pa.StructArray.from_arrays([key, value], fields=list(_HEADERS.value_type))
