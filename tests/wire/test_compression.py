"""Codecs: compressed data comes back, damaged or too large data is refused."""

from __future__ import annotations

import random
import tracemalloc
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from java_records import JavaRecords
from pyspark.sql import SparkSession

from penstock.native import crc32c
from penstock.wire.records.batch_header import HEADER_SIZE, stamp
from penstock.wire.records.compression import (
    CODECS,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    ZSTD,
    CorruptRecords,
    codec_number,
    compress,
    decompress,
    require_level,
)
from penstock.wire.records.record_encoder import TableEncoder

# A bomb takes its time.

SIZES = [0, 1, 32 * 1024, 32 * 1024 + 1, 64 * 1024, 64 * 1024 + 1, 300_000]
REAL = [GZIP, SNAPPY, LZ4, ZSTD]


def some(size: int) -> bytes:
    """Bytes half of which compress well."""
    chosen = random.Random(size)
    return b"".join(chosen.randbytes(50) + bytes(50) for _ in range(size // 100 + 1))[:size]


@pytest.mark.parametrize("codec", CODECS.values())
@pytest.mark.parametrize("size", SIZES)
def test_what_is_compressed_comes_back(codec: int, size: int) -> None:
    for data in (some(size), bytearray(some(size)), memoryview(b"_" + some(size))[1:]):
        assert bytes(decompress(codec, compress(codec, None, data))) == bytes(data)


@pytest.mark.parametrize("codec", REAL)
def test_damaged_data_leaves_no_memory_behind(codec: int) -> None:
    whole, refused = bytes(compress(codec, None, some(2000))), 0
    tracemalloc.start()
    try:
        for place in range(30, len(whole)):
            try:
                decompress(codec, whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :], max_size=1 << 20)
            except CorruptRecords:
                refused += 1
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused > 20 and kept < 1 << 20


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_higher_level_compresses_more(codec: int) -> None:
    chosen = random.Random(1)
    words = [chosen.randbytes(chosen.randrange(2, 9)) for _ in range(300)]
    data = b"".join(chosen.choices(words, k=20_000))
    assert len(compress(codec, 9, data)) < len(compress(codec, 1, data))


@pytest.mark.parametrize(
    ("codec", "level", "problem"),
    [
        (NONE, 1, "compression 'none' has no levels; leave compression_level out"),
        (SNAPPY, 1, "compression 'snappy' has no levels"),
        (GZIP, 10, "compression_level 10 of 'gzip' is not within 1 to 9"),
        (LZ4, 13, "of 'lz4' is not within 1 to 12"),
        (ZSTD, 23, "of 'zstd' is not within -131072 to 22"),
    ],
)
def test_levels_that_a_codec_lacks_are_refused(codec: int, level: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        require_level(codec, level)
    require_level(codec, None)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_without_a_level_it_compresses_as_java_does(spark: SparkSession, codec: str) -> None:
    text = b"".join(b"%d is followed by %d; " % (n, n * n) for n in range(20_000))
    (plain,) = TableEncoder(1, batch_size=2**21, compression=NONE).encode(pa.record_batch({"value": [text]}))
    stamp(plain.data, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    java = len(JavaRecords(spark).copy(bytes(plain.data), codec))
    ours = len(compress(CODECS[codec], None, plain.data[HEADER_SIZE:])) + HEADER_SIZE
    assert abs(ours / java - 1) < 0.02, (ours, java)


def test_lz4_blocks_are_independent_as_java_wants_them() -> None:
    flags = bytes(compress(LZ4, None, some(300_000)))[4]
    assert flags & 0x20


def test_raw_snappy_is_read_too() -> None:
    raw = pa.Codec("snappy").compress(some(1000), asbytes=True)
    assert bytes(decompress(SNAPPY, raw)) == some(1000)


@pytest.mark.parametrize("codec", REAL)
def test_a_bomb_is_refused(codec: int) -> None:
    bomb = compress(codec, None, bytes(10_000_000))
    with pytest.raises(CorruptRecords, match="more than 1000000 bytes"):
        decompress(codec, bomb, max_size=1_000_000)
    assert len(decompress(codec, bomb, max_size=10_000_000)) == 10_000_000


@pytest.mark.parametrize("codec", REAL)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(codec: int, data: bytes) -> None:
    with suppress(CorruptRecords):
        decompress(codec, data, max_size=1_000_000)


@pytest.mark.parametrize("codec", REAL)
def test_cut_data_is_refused(codec: int) -> None:
    whole = bytes(compress(codec, None, some(1000)))
    # The first 16 bytes of snappy are a header, after which nothing need follow.
    for size in range(17, len(whole)):
        with pytest.raises(CorruptRecords):
            decompress(codec, whole[:size])


def test_snappy_that_claims_gigabytes_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(CorruptRecords, match="claim"):
        decompress(SNAPPY, b"\xff\xff\xff\xff\x07abc")


def test_codecs_have_kafkas_numbers() -> None:
    assert (
        [codec_number(name) for name in ("none", "gzip", "snappy", "lz4", "zstd")] == [NONE, *REAL] == [0, 1, 2, 3, 4]
    )
    with pytest.raises(ValueError, match="unknown compression 'brotli'"):
        codec_number("brotli")
    with pytest.raises(CorruptRecords, match="number 7"):
        decompress(7, b"")


def test_crc32c_of_known_bytes_and_any_buffer() -> None:
    # RFC 3720, B.4.
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytearray(b"123456789")) == crc32c(memoryview(b"x123456789y")[1:-1]) == 0xE3069283
    assert crc32c(b"") == crc32c(memoryview(b"")) == crc32c(bytearray()) == 0
