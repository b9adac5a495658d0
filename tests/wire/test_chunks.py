"""Fetched batches of a partition become tables, batch by batch, within memory bounds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from wire_rows import batch_of, varint

from penstock.wire.fetcher import FetchedBatches, RecordsDamaged, RecordsTooLarge, RecordsUnreadable, Unreadable
from penstock.wire.records.batch_header import HEADER_SIZE, LOG_START, stamp
from penstock.wire.records.compression import CODECS, NONE, ZSTD

BOUND = 1_000_000
PEAK = """
import resource, sys
from penstock.wire.fetcher import FetchedBatches, RecordsTooLarge

small, large = (memoryview(open(name, "rb").read()) for name in sys.argv[1:])

def read(data):
    return sum(table.num_rows for table in FetchedBatches("t", 0, 0, None, data, None).tables(116_000_000, None))

assert read(small) == 1
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read(large)
except RecordsTooLarge:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def batch(offset: int, values: list[bytes], codec: int = ZSTD) -> bytes:
    made = batch_of([(None, value, (), 1000 + n) for n, value in enumerate(values)], codec)
    stamp(made, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return offset.to_bytes(8, "big") + bytes(made[8:])


def malformed(offset: int) -> bytes:
    """A batch with a right checksum and a wrong record."""
    made = bytearray(batch(offset, [b"value"], NONE))
    made[61] += 2
    stamp(memoryview(made), producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return bytes(made)


def chunk(data: bytes, start: int = 0, end: int | None = None) -> FetchedBatches:
    return FetchedBatches("clicks", 3, start, end, memoryview(data), None)


DATA = batch(10, [b"a", b"b"]) + batch(12, [bytes(BOUND)] * 4) + batch(16, [b"c"]) + malformed(17) + batch(18, [b"d"])


def test_a_batch_that_decompresses_to_too_much_is_told_with_place_size_and_bound() -> None:
    told = (
        r"RECORDS_TOO_LARGE \(topic clicks, partition 3\).*raise max_decompressed_bytes.*"
        r"offsets 12 to 15, 4 records in \d+ bytes \(zstd\).*more than 1000000 bytes"
    )
    with pytest.raises(RecordsTooLarge, match=told) as raised:
        list(chunk(DATA).tables(BOUND, None))
    assert not raised.value.retriable
    # Batches that are not requested are not decompressed.
    assert [table["value"].to_pylist() for table in chunk(DATA, end=12).tables(BOUND, None)] == [[b"a", b"b"]]
    assert [table["value"].to_pylist() for table in chunk(DATA, 16, 17).tables(BOUND, None)] == [[b"c"]]


def test_a_batch_with_its_checksum_that_is_not_in_kafkas_format_is_told_as_such() -> None:
    with pytest.raises(RecordsUnreadable, match=r"offsets 17 to 17.*damaged at record 0") as raised:
        list(chunk(DATA, 16).tables(BOUND, None))
    assert not raised.value.retriable


def test_what_cannot_be_read_is_passed_over_in_order() -> None:
    came: list[object] = []

    def pass_over(batch: Unreadable) -> None:
        came.append((batch.offset, batch.timestamp, batch.error.name))

    came.extend(table["value"].to_pylist() for table in chunk(DATA, start=13).tables(BOUND, pass_over))
    assert came == [(13, 1003, "RECORDS_TOO_LARGE"), [b"c"], (17, 1000, "RECORDS_UNREADABLE"), [b"d"]]


def test_a_wrong_checksum_is_never_passed_over() -> None:
    """Its offsets may be wrong too."""
    damaged = DATA[:-1] + bytes([DATA[-1] ^ 1])
    with pytest.raises(RecordsDamaged, match=r"partition 3.*the batch at offset 18 has a wrong checksum"):
        list(chunk(damaged).tables(BOUND, lambda batch: None))


def test_tables_are_of_some_megabytes() -> None:
    data = b"".join(batch(n, [bytes(1 << 20)]) for n in range(40))
    tables = list(chunk(data).tables(2 * BOUND, None))
    assert [table.num_rows for table in tables] == [16, 16, 8]


def bomb(codec: str, count: int) -> bytes:
    """A batch of records of 1 MiB of zeros."""
    body = b"\0\0\0\1" + varint(1 << 20) + bytes(1 << 20) + b"\0"
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, codec) as stream:
        for _ in range(count):
            stream.write(varint(len(body)) + body)
    made = bytearray(batch(0, [b""])[:HEADER_SIZE]) + packed.getvalue().to_pybytes()
    made[8:12], made[22] = (len(made) - LOG_START).to_bytes(4, "big"), CODECS[codec]
    made[23:27], made[57:61] = (count - 1).to_bytes(4, "big"), count.to_bytes(4, "big")
    stamp(memoryview(made), producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return bytes(made)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_small_batch_takes_no_gigabytes(codec: str, tmp_path: Path) -> None:
    files = [tmp_path / "small", tmp_path / "large"]
    for file, count in zip(files, (1, 400), strict=True):
        file.write_bytes(bomb(codec, count))
    peak = subprocess.run([sys.executable, "-c", PEAK, *files], capture_output=True, text=True, check=True).stdout
    assert int(peak) < 200
