"""The header of Kafka record batches v2: 61 bytes, including the producer fields and the checksum.

The header (Kafka protocol guide, "Record Batch"; KIP-98 for the producer fields), all numbers big-endian:

     0 base offset i64       12 leader epoch i32    23 last offset delta i32   43 producer id i64
     8 length i32            16 magic i8 = 2        27 base timestamp i64      51 producer epoch i16
       of all that follows   17 crc u32 from 21 on  35 largest timestamp i64   53 base sequence i32
                             21 attributes i16                                 57 number of records i32

The attributes' bits 0-2 are the codec, 3 the broker's append time for every record, 4 transactional, 5 control. Records
follow in the layout that `encode_kernel` describes. Compression covers only the records, the checksum the compressed
bytes.

A batch is made without producer and checksum; `stamp` sets both just before it is sent. A batch that is sent again is
not stamped again: the broker recognizes a repeated batch by its sequence.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from penstock.native import Data, crc32c
from penstock.wire.records.compression import NONE, CorruptRecords, compress

HEADER_SIZE = 61
LOG_START = 12  # bytes of base offset and length, which the length does not count

_HEADER = struct.Struct(">qiibIhiqqqhii")
_INT16, _UINT32, _PRODUCER = struct.Struct(">h"), struct.Struct(">I"), struct.Struct(">qhi")
_AT_CRC, _AT_ATTRIBUTES, _AT_PRODUCER = 17, 21, 43
_CODEC, _APPEND_TIME, _TRANSACTIONAL, _CONTROL = 7, 8, 16, 32


@dataclass(frozen=True, slots=True)
class Header:
    """The header of one batch, and its position in the bytes it was read from."""

    start: int
    base_offset: int
    length: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def end(self) -> int:
        """Where the batch ends in the bytes it was read from."""
        return self.start + LOG_START + self.length

    @property
    def codec(self) -> int:
        return self.attributes & _CODEC

    @property
    def append_time(self) -> bool:
        """Whether every record's time is `max_timestamp`, at which the broker appended the batch."""
        return bool(self.attributes & _APPEND_TIME)

    @property
    def transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


def finish(
    buffer: memoryview, *, count: int, base_timestamp: int, max_timestamp: int, compression: int, level: int | None
) -> memoryview:
    """Make a batch of a buffer with records after HEADER_SIZE spare bytes: in place, or compressed to a new buffer."""
    if compression != NONE:
        packed = compress(compression, level, buffer[HEADER_SIZE:])
        buffer = memoryview(bytearray(HEADER_SIZE + len(packed)))
        buffer[HEADER_SIZE:] = packed
    length, times = len(buffer) - LOG_START, (base_timestamp, max_timestamp)
    _HEADER.pack_into(buffer, 0, 0, length, -1, 2, 0, compression, count - 1, *times, -1, -1, -1, count)
    return buffer


def stamp(
    batch: memoryview, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool = False
) -> None:
    """Set a batch's producer and checksum in place, its last change; without idempotence all three numbers are -1."""
    attributes = _INT16.unpack_from(batch, _AT_ATTRIBUTES)[0] & ~_TRANSACTIONAL
    _INT16.pack_into(batch, _AT_ATTRIBUTES, attributes | (_TRANSACTIONAL if transactional else 0))
    _PRODUCER.pack_into(batch, _AT_PRODUCER, producer_id, producer_epoch, base_sequence)
    _UINT32.pack_into(batch, _AT_CRC, crc32c(batch[_AT_ATTRIBUTES:]))


def read_headers(data: Data, *, verify: bool = True) -> Iterator[Header]:
    """The headers of the complete batches in `data`; a batch cut off at the end, as by brokers, is left out.

    Raises CorruptRecords for a wrong length or format, and with `verify` for a wrong checksum.
    """
    at, view = 0, memoryview(data)
    while (header := _read_header(view, at)) is not None:
        if verify and crc32c(view[at + _AT_ATTRIBUTES : header.end]) != header.crc:
            raise CorruptRecords(f"the batch at offset {header.base_offset} has a wrong checksum")
        yield header
        at = header.end


def _read_header(view: memoryview, at: int) -> Header | None:
    if len(view) - at < HEADER_SIZE:
        return None
    base_offset, length, epoch, magic, *rest = _HEADER.unpack_from(view, at)
    if length < HEADER_SIZE - LOG_START:
        raise CorruptRecords(f"the batch at offset {base_offset} has a length of {length}, less than its header's")
    if magic != 2:
        raise CorruptRecords(f"the batch at offset {base_offset} has format {magic}; only 2 (Kafka 0.11) is supported")
    header = Header(at, base_offset, length, epoch, *rest)
    return header if header.end <= len(view) else None
