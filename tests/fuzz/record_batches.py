"""Record batches of Kafka, against the specification and kafka-python.

An input is a byte of flags and what a broker returns: bit 0 asks for checksums, bit 1 sets them right first, so that
what is behind them is reached. The reference is the protocol guide's "Record Batch", written down here once more as
plainly as Python can; kafka-python has to agree where it follows that. It does not with attributes of a record above
127 (it takes that byte for a varint) and with keys of headers that are not UTF-8 (it refuses them, and Java's client
replaces what is wrong). lz4, snappy and zstd are unpacked by our own function for both sides, gzip by Python's as well.
"""

from __future__ import annotations

import gzip
import random as randoms
import struct
import zlib
from typing import Any

from google_crc32c import value as crc32c
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch

from penstock.wire.records.compression import GZIP, NONE, CorruptRecords, compress, decompress
from penstock.wire.records.record_decoder import decode

from .mutate import mutated, noise
from .runner import Decoder, Difference

HEADER = struct.Struct(">qiibIhiqqqhii")
VERIFY, RIGHT = 1, 2
MOST = 1 << 20
HEADER_COST = 48
"""Bytes that a header counts towards the bound."""
Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


class Refused(Exception):
    """What is no record batch."""


def _varint(number: int) -> bytes:
    number = number << 1 ^ number >> 63
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _cell(random: randoms.Random) -> bytes:
    if random.random() < 0.2:
        return _varint(-1)
    data = noise(random, 40)
    return _varint(len(data)) + data


def _record(random: randoms.Random, delta: int) -> bytes:
    headers = b""
    count = random.choice((0, 0, 0, 1, 2))
    for _ in range(count):
        key = random.choice(("a", "ü", "")).encode()
        headers += _varint(len(key)) + key + _cell(random)
    body = b"\0" + _varint(random.randrange(-(10**6), 10**12)) + _varint(delta) + _cell(random) + _cell(random)
    body += _varint(count) + headers
    return _varint(len(body)) + body


def _batch(random: randoms.Random, offset: int) -> bytes:
    count = random.randrange(5)
    records = b"".join(_record(random, n) for n in range(count))
    if random.random() < 0.5:
        records = mutated(random, records)
    codec = random.choice((NONE, NONE, NONE, GZIP, 2, 3, 4))
    packed = bytes(compress(codec, None, records))
    if codec and random.random() < 0.2:
        packed = mutated(random, packed)
    attributes = codec | random.choice((0, 0, 0, 8, 16))
    times = random.randrange(2**41), random.randrange(2**41)
    last = max(count - 1, 0)
    return HEADER.pack(offset, 49 + len(packed), 0, 2, 0, attributes, last, *times, -1, -1, -1, count) + packed


def _draw(random: randoms.Random) -> bytes:
    data = b"".join(_batch(random, 10 * n) for n in range(random.randrange(1, 4)))
    flags = random.choice((RIGHT, VERIFY | RIGHT, RIGHT, VERIFY, 0))
    if random.random() < 0.3:
        data = mutated(random, data)
    return bytes([flags]) + data


def _corrected(data: bytes) -> bytes:
    """With the right checksum in each batch that is whole."""
    made, at = bytearray(data), 0
    while at + 61 <= len(made):
        (length,) = struct.unpack_from(">i", made, at + 8)
        if length < 49 or at + 12 + length > len(made):
            break
        made[at + 17 : at + 21] = crc32c(bytes(made[at + 21 : at + 12 + length])).to_bytes(4, "big")
        at += 12 + length
    return bytes(made)


class _Bytes:
    """Bytes that are read from the start on."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count < 0 or count > len(self.data) - self.at:
            raise Refused
        self.at += count
        return self.data[self.at - count : self.at]

    def varint(self) -> int:
        number = 0
        for place in range(10):
            byte = self.take(1)[0]
            number |= (byte & 127) << 7 * place
            if byte < 128:
                number &= 2**64 - 1
                return (number >> 1) ^ -(number & 1)
        raise Refused

    def cell(self) -> bytes | None:
        length = self.varint()
        return None if length < 0 else self.take(length)


def _signed(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _specified(data: bytes, verify: bool) -> tuple[list[Row], list[bytes]]:
    """The records, and the batches that they are in."""
    rows: list[Row] = []
    batches: list[bytes] = []
    at = 0
    while at + 61 <= len(data):
        base, length, _, magic, crc, attributes, last, first, largest, *_, count = HEADER.unpack_from(data, at)
        if length < 49 or magic != 2:
            raise Refused
        batch = data[at : at + 12 + length]
        if len(batch) < 12 + length:
            break
        at += len(batch)
        if verify and crc32c(batch[21:]) != crc:
            raise Refused
        if attributes & 32:
            continue
        batches.append(batch)
        try:
            plain = bytes(decompress(attributes & 7, batch[61:], max_size=MOST))
        except CorruptRecords:
            raise Refused from None
        source, delta = _Bytes(plain), 0
        if not 0 <= count <= len(plain):
            raise Refused
        for _ in range(count):
            size = source.varint()
            record = _Bytes(source.take(size))
            record.take(1)
            time, before, delta = record.varint(), delta, record.varint()
            if not before <= delta <= last:
                raise Refused
            key, value, headers = record.cell(), record.cell(), []
            number = record.varint()
            if number < 0:
                raise Refused
            for _ in range(number):
                name = record.take(record.varint())
                headers.append((name.decode("utf-8", "replace"), record.cell()))
            if record.at != size or len(headers) * HEADER_COST > MOST:
                raise Refused
            rows.append(
                (_signed(base + delta), largest if attributes & 8 else _signed(first + time), key, value, headers)
            )
        if source.at != len(plain):
            raise Refused
    return rows, batches


def _kafka_python(batches: list[bytes]) -> list[Row] | None:
    """What kafka-python reads; None if it refuses, or does not follow the specification."""
    rows: list[Row] = []
    try:
        for batch in batches:
            if batch[22] & 7 not in (NONE, GZIP):
                return None
            rows.extend(
                (one.offset, _signed(one.timestamp), one.key, one.value, one.headers)
                for one in DefaultRecordBatch(batch)
            )
    except (CorruptRecordError, OSError, EOFError, zlib.error):
        return None
    return rows


def _ours(data: bytes, verify: bool) -> list[Row]:
    table = decode(data, verify=verify, max_size=MOST)
    table.validate(full=True)
    columns: list[list[Any]] = [table["offset"].to_pylist(), table["timestamp"].cast("int64").to_pylist()]
    columns += [table[name].to_pylist() for name in ("key", "value")]
    headers = [[(one["key"], one["value"]) for one in row] for row in table["headers"].to_pylist()]
    return list(zip(*columns, headers, strict=True))


def _check(data: bytes) -> bool:
    flags, data = (data[0], data[1:]) if data else (0, b"")
    verify = bool(flags & VERIFY)
    data = _corrected(data) if flags & RIGHT else data
    try:
        expected, batches = _specified(data, verify)
    except Refused:
        expected, batches = None, []
    try:
        found = _ours(data, verify)
    except CorruptRecords as refusal:
        if expected is not None:
            raise Difference(f"refused with {refusal}; there are {expected}") from refusal
        return False
    if found != expected:
        raise Difference(f"{found} and {expected}")
    peer = _kafka_python(batches)
    if peer is not None and _plain(batches) and found != peer:
        raise Difference(f"{found}, and kafka-python {peer}")
    return True


def _plain(batches: list[bytes]) -> bool:
    """Whether kafka-python follows the specification: no attributes above 127, and gzip that Python reads."""
    for batch in batches:
        data = batch[61:]
        if batch[22] & 7 == GZIP:
            try:
                data = gzip.decompress(data)
            except (OSError, EOFError, zlib.error):
                return False
        source = _Bytes(data)
        while source.at < len(data):
            if source.take(source.varint())[0] > 127:
                return False
    return True


DECODER = Decoder(name="record_batches", draw=_draw, check=_check)
