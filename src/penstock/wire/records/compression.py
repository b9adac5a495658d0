"""Kafka's compression codecs by number: one buffer in, one buffer out; knows nothing of record batches.

Two formats are Kafka's own choice. lz4 is a frame of independent blocks: Java refuses linked blocks, which Arrow writes
for more than 64 KiB, so each 64 KiB are compressed as a separate frame and the blocks are joined into one frame.
snappy is the xerial framing: a header (0x82 "SNAPPY" 0, version 1, compatible 1, both int32), then blocks of raw
snappy, each after its length as int32. Readers also find raw snappy, which some clients write.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Literal, TypeAlias

import pyarrow as pa

from penstock.native import Data

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
Compression: TypeAlias = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS = {"none": NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
CODEC_NAMES = {number: name for name, number in CODECS.items()}

# The largest batch: its length is an int32.
MAX_SIZE = 2**31 - 1

# As in the Java client (CompressionType.defaultLevel): Arrow's own are 9 for gzip and 1 for zstd. Java's default for
# lz4 is level 9, but it then uses the fast compressor, which is level 1 here.
_DEFAULT_LEVELS = {GZIP: 6, LZ4: 1, ZSTD: 3}

_STEP = 1 << 20
_LZ4_BLOCK, _LZ4_HEADER, _LZ4_END = 64 * 1024, 7, 4
_XERIAL = struct.pack(">8sii", b"\x82SNAPPY\0", 1, 1)
_XERIAL_BLOCK = 32 * 1024
_INT32 = struct.Struct(">i")


class CorruptRecords(ValueError):
    """The bytes are not a record batch, or not the batch that was written."""


class DecompressedTooLarge(CorruptRecords):
    """Records that take more memory than their reader allows."""


def codec_number(name: str) -> int:
    """The number of a codec in a batch's attributes."""
    if name not in CODECS:
        raise ValueError(f"unknown compression {name!r}; use one of {', '.join(CODECS)}")
    return CODECS[name]


def require_level(codec: int, level: int | None) -> None:
    """Raises ValueError for a level that the codec does not have; None is always valid."""
    name = CODEC_NAMES[codec]
    if level is None:
        return
    if codec not in _DEFAULT_LEVELS:
        raise ValueError(f"compression {name!r} has no levels; leave compression_level out")
    lowest, highest = pa.Codec.minimum_compression_level(name), pa.Codec.maximum_compression_level(name)
    if not lowest <= level <= highest:
        raise ValueError(f"compression_level {level} of {name!r} is not within {lowest} to {highest}")


def compress(codec: int, level: int | None, data: Data) -> Data:
    """`data` in a codec's format; the default level is the Java client's (snappy and none have no levels)."""
    if codec == NONE:
        return data
    arrow = pa.Codec(CODEC_NAMES[codec], compression_level=_DEFAULT_LEVELS.get(codec) if level is None else level)
    if codec == LZ4:
        return _lz4(arrow, memoryview(data))
    if codec == SNAPPY:
        return _xerial(arrow, memoryview(data))
    return _pack(arrow, data)


def _pack(arrow: pa.Codec, data: Data) -> bytes:
    # As bytes: memoryview sees a pa.Buffer of the result with its length before truncation (seen with pyarrow 26).
    packed: bytes = arrow.compress(data, asbytes=True)
    return packed


def _lz4(arrow: pa.Codec, data: memoryview) -> bytes:
    frames = [_pack(arrow, data[at : at + _LZ4_BLOCK]) for at in range(0, len(data) or 1, _LZ4_BLOCK)]
    blocks = (memoryview(frame)[_LZ4_HEADER:-_LZ4_END] for frame in frames)
    return b"".join([frames[0][:_LZ4_HEADER], *blocks, frames[0][-_LZ4_END:]])


def _xerial(arrow: pa.Codec, data: memoryview) -> bytes:
    parts: list[Data] = [_XERIAL]
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = _pack(arrow, data[at : at + _XERIAL_BLOCK])
        parts += _INT32.pack(len(block)), block
    return b"".join(parts)


def decompress(codec: int, data: Data, *, max_size: int = MAX_SIZE) -> Data:
    """The decompressed bytes.

    Raises CorruptRecords if the bytes are not in the codec's format, and TooLarge if the result exceeds `max_size`. It
    does not trust a claimed size, and allocates at most an eighth more than it has decompressed so far.
    """
    if codec == NONE:
        return data
    if codec not in CODEC_NAMES:
        raise CorruptRecords(f"unknown codec number {codec}; the codecs are {CODECS}")
    try:
        return _unsnap(memoryview(data), max_size) if codec == SNAPPY else _stream(codec, data, max_size)
    except OSError as error:
        raise CorruptRecords(f"the {CODEC_NAMES[codec]} data of {len(data)} bytes is damaged: {error}") from error


def _stream(codec: int, data: Data, max_size: int) -> Data:
    with pa.CompressedInputStream(pa.BufferReader(data), CODEC_NAMES[codec]) as stream:
        # A read of everything at once would allocate all of it: a small batch could take gigabytes.
        first = _read(stream, min(_STEP, max_size + 1))
        _check_size(len(first), max_size)
        if len(first) < _STEP:
            return first
        plain = bytearray(first)
        while part := _read(stream, min(_STEP, max_size + 1 - len(plain))):
            plain += part
            _check_size(len(plain), max_size)
    return plain


def _read(stream: pa.NativeFile, most: int) -> bytes:
    # Not with stream.read: its memory is never freed if the data is damaged (seen with pyarrow 26).
    data: bytes = stream.read_buffer(most).to_pybytes()
    return data


def _unsnap(data: memoryview, max_size: int) -> Data:
    codec = pa.Codec("snappy")
    if data[:8] != _XERIAL[:8]:
        return _raw_snappy(codec, data, 0, max_size)
    plain = bytearray()
    for block in _xerial_blocks(data):
        plain += _raw_snappy(codec, block, len(plain), max_size)
    return plain


def _xerial_blocks(data: memoryview) -> Iterator[memoryview]:
    at = len(_XERIAL)
    while at != len(data):
        length = _INT32.unpack_from(data, at)[0] if at + 4 <= len(data) else -1
        at += 4
        if not 0 <= length <= len(data) - at:
            raise CorruptRecords(f"the snappy data of {len(data)} bytes ends within a block")
        yield data[at : at + length]
        at += length


def _raw_snappy(codec: pa.Codec, data: memoryview, before: int, max_size: int) -> bytes:
    size = _snappy_size(data)
    _check_size(before + size, max_size)
    # A copy element of 3 bytes makes at most 64 bytes: a larger claim is damaged, so allocate nothing for it.
    if size > 22 * len(data) + 64:
        raise CorruptRecords(f"{len(data)} bytes of snappy data claim to decompress to {size}")
    plain: bytes = codec.decompress(data, size, asbytes=True)
    return plain


def _snappy_size(data: memoryview) -> int:
    """The size of the decompressed data: the varint at the start of raw snappy."""
    size = 0
    for i, byte in enumerate(data[:5]):
        size |= (byte & 127) << 7 * i
        if byte < 128:
            return size
    raise CorruptRecords("the snappy data does not start with its size")


def _check_size(size: int, max_size: int) -> None:
    if size > max_size:
        raise DecompressedTooLarge(f"the records decompress to more than {max_size} bytes")
