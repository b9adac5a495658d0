"""Fetched bytes become a table: batches from Java, transactions, and bytes that are damaged anywhere."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from java_records import JavaRecords
from pyspark.sql import SparkSession
from wire_rows import Row, batch_of, varint

from penstock.wire.records.batch_header import HEADER_SIZE, LOG_START, read_headers, stamp
from penstock.wire.records.compression import CODECS, GZIP, NONE, ZSTD, CorruptRecords, DecompressedTooLarge, compress
from penstock.wire.records.record_decoder import ABORT, COMMIT, SCHEMA, control_type, decode, parts

# The first call of a compiled loop may compile it.


def batch(
    rows: list[Row], codec: int = NONE, *, offset: int = 0, producer: int = -1, transactional: bool = False
) -> bytes:
    made = batch_of(rows, codec)
    stamp(made, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=transactional)
    return offset.to_bytes(8, "big") + bytes(made[8:])


ROWS: list[Row] = [
    (b"k1", b"value" * 9, [("a", b"1"), ("b", None)], 1_700_000_000_000),
    (None, b"", (), 1_700_000_000_005),
    (b"", None, [("ü", b"")], 1_699_999_999_000),
]


@pytest.mark.parametrize("codec", CODECS)
def test_what_java_writes_is_read(spark: SparkSession, codec: str) -> None:
    chosen = random.Random(5)
    rows: list[Row] = [
        (*row[:2], [*row[2], ("n", b"%d" % n)][: n % 4], row[3] + chosen.randrange(10**6))
        for n in range(700)
        for row in [ROWS[n % 3]]
    ]
    ours = batch(rows)
    theirs = JavaRecords(spark).copy(ours, codec)
    assert next(read_headers(theirs)).codec == CODECS[codec]
    assert decode(theirs).equals(decode(ours))


def test_columns_offsets_and_batches_one_after_the_other() -> None:
    data = batch(ROWS, ZSTD, offset=10) + batch(ROWS[:1], offset=50)
    table = decode(data)
    assert table.schema == SCHEMA
    assert table.column("offset").to_pylist() == [10, 11, 12, 50]
    assert table.column("key").to_pylist() == [b"k1", None, b"", b"k1"]
    assert table.column("value").to_pylist() == [b"value" * 9, b"", None, b"value" * 9]
    assert table.column("headers").to_pylist()[2] == [{"key": "ü", "value": b""}]
    table.validate(full=True)


def test_a_batch_that_is_cut_off_is_left_out() -> None:
    whole = batch(ROWS)
    for size in range(len(whole)):
        assert decode(whole + whole[:size]).num_rows == 3
        assert decode(whole[:size]).num_rows == 0
    assert decode(b"").schema == SCHEMA


def test_the_brokers_append_time_holds_for_all_records() -> None:
    made = bytearray(batch(ROWS))
    made[22] |= 8
    made[35:43] = (1_800_000_000_000).to_bytes(8, "big")
    assert set(decode(made, verify=False).column("timestamp").cast(pa.int64()).to_pylist()) == {1_800_000_000_000}


def test_compacted_batches_keep_their_offsets(spark: SparkSession) -> None:
    java = JavaRecords(spark)
    builder, out = java.builder("gzip", 4096, offset=100)
    for offset in (100, 103, 110):
        builder.appendWithOffset(offset, 5, b"k", b"%d" % offset)
    table = decode(java.built(builder, out))
    assert table.column("offset").to_pylist() == [100, 103, 110]
    assert table.column("value").to_pylist() == [b"100", b"103", b"110"]


class Log:
    """A partition with transactions of producers 1 and 2, and records without a transaction."""

    def __init__(self, java: JavaRecords) -> None:
        self.data = b"".join(
            [
                self.part(0, 1, b"aborted 1"),
                self.part(1, 2, b"committed 2"),
                batch([(None, b"plain", (), 0)], offset=2),
                java.marker(3, 1, "ABORT"),
                self.part(4, 1, b"committed 1"),
                java.marker(5, 2, "COMMIT"),
                self.part(6, 2, b"aborted 2"),
                java.marker(7, 1, "COMMIT"),
                self.part(8, 2, b"aborted 2 too"),
                java.marker(9, 2, "ABORT"),
                self.part(10, 2, b"open 2"),
            ]
        )
        self.aborted = [(2, 6), (1, 0)]

    def part(self, offset: int, producer: int, value: bytes) -> bytes:
        return batch([(None, value, (), 0)], offset=offset, producer=producer, transactional=True)


def found(log: Log, **options: Any) -> list[bytes]:
    values: list[bytes] = decode(log.data, **options).column("value").to_pylist()
    return values


def test_aborted_transactions_are_left_out(spark: SparkSession) -> None:
    log = Log(JavaRecords(spark))
    committed = [b"committed 2", b"plain", b"committed 1", b"open 2"]
    assert found(log, aborted=log.aborted) == committed
    assert sorted(found(log)) == sorted([*committed, b"aborted 1", b"aborted 2", b"aborted 2 too"])
    assert found(log, aborted=[]) == found(log)


def test_control_batches_tell_how_a_transaction_ended(spark: SparkSession) -> None:
    log = Log(JavaRecords(spark))
    markers = [(h.base_offset, h.producer_id, control_type(log.data, h)) for h in read_headers(log.data) if h.control]
    assert markers == [(3, 1, ABORT), (5, 2, COMMIT), (7, 1, COMMIT), (9, 2, ABORT)]


@pytest.mark.parametrize("codec", CODECS.values())
def test_every_damaged_byte_under_the_checksum_is_found(codec: int) -> None:
    whole = batch(ROWS, codec)
    good = decode(whole)
    for at in range(len(whole)):
        for change in (1, 0x80, 0xFF):
            damaged = bytearray(whole)
            damaged[at] ^= change
            # The checksum leaves out the base offset, the length and the leader's epoch.
            if at < 8:
                assert decode(damaged).drop_columns("offset").equals(good.drop_columns("offset"))
            elif 12 <= at < 16:
                assert decode(damaged).equals(good)
            elif 8 <= at < 12:
                none_or_refused(damaged)
            else:
                with pytest.raises(CorruptRecords, match=r"offset \d+"):
                    decode(damaged)


def none_or_refused(damaged: bytearray) -> None:
    """A length that is too large looks like a batch that was cut off."""
    with suppress(CorruptRecords):
        assert decode(damaged).num_rows == 0


@pytest.mark.parametrize("codec", CODECS.values())
@given(at=st.integers(LOG_START, 400), change=st.binary(min_size=1, max_size=9))
def test_damage_is_refused_or_read_where_nothing_is_verified(codec: int, at: int, change: bytes) -> None:
    whole = bytearray(batch(ROWS, codec))
    at %= len(whole)
    whole[at : at + len(change)] = change
    try:
        table = decode(whole, verify=False, max_size=1_000_000)
    except CorruptRecords:
        return
    table.validate(full=True)
    assert table.num_rows <= 1_000_000


@given(records=st.binary(max_size=120), count=st.integers(-2, 20))
def test_any_bytes_as_records_are_refused_or_read(records: bytes, count: int) -> None:
    head = bytearray(batch(ROWS)[:HEADER_SIZE])
    head[8:12] = (HEADER_SIZE - LOG_START + len(records)).to_bytes(4, "big")
    head[57:61] = count.to_bytes(4, "big", signed=True)
    with suppress(CorruptRecords):
        decode(head + records, verify=False).validate(full=True)


def test_a_count_of_billions_takes_no_memory() -> None:
    made = bytearray(batch(ROWS))
    made[57:61] = (2**31 - 1).to_bytes(4, "big")
    with pytest.raises(CorruptRecords, match="offset 0 cannot have 2147483647 records"):
        decode(made, verify=False)


def test_a_batch_that_decompresses_to_too_much_is_refused() -> None:
    data = batch([(None, bytes(1_000_000), (), 0)], GZIP, offset=77)
    with pytest.raises(CorruptRecords, match="offset 77: the records decompress to more than 1000 bytes"):
        decode(data, max_size=1000)
    assert decode(data).num_rows == 1


def test_header_keys_that_are_not_utf8_are_read_as_javas_client_does() -> None:
    made = batch([(None, None, [("abc", b""), ("ü", b"")], 0)])
    (headers,) = decode(made.replace(b"abc", b"a\xffc"), verify=False)["headers"].to_pylist()
    assert [one["key"] for one in headers] == ["a\ufffdc", "ü"]


def record(offset: int, *, headers: int = 0) -> bytes:
    """A record without key and value, and headers that take two bytes each."""
    body = b"\0\0" + bytes([2 * offset]) + b"\1\1" + varint(headers) + b"\0\1" * headers
    return varint(len(body)) + body


def made_of(records: bytes, count: int, *, last: int, codec: int = NONE) -> bytes:
    """A batch whose header claims `count` records and `last` as the last offset delta."""
    made = bytearray(batch(ROWS[:1])[:HEADER_SIZE]) + bytes(compress(codec, None, records))
    made[8:12] = (len(made) - LOG_START).to_bytes(4, "big")
    made[22], made[23:27], made[57:61] = codec, last.to_bytes(4, "big"), count.to_bytes(4, "big")
    return bytes(made)


@pytest.mark.parametrize("offsets", [(0, 3), (2, 1), (0, 63)])
def test_offsets_that_go_back_or_beyond_their_batch_are_refused(offsets: tuple[int, int]) -> None:
    """A search by offset would lose records among them."""
    data = made_of(b"".join(map(record, offsets)), 2, last=2)
    with pytest.raises(CorruptRecords, match="offset 0 is damaged at record 1"):
        decode(data, verify=False)
    same = made_of(record(1) * 2, 2, last=2)
    assert decode(same, verify=False)["offset"].to_pylist() == [1, 1]


@pytest.mark.parametrize("more", [b"", b"x"])
def test_a_batch_of_many_records_comes_in_parts_and_is_checked_whole(more: bytes) -> None:
    count = 2 * 65_536 + 1
    data = made_of(record(0) * count + more, count, last=count - 1, codec=ZSTD)
    (header,) = read_headers(data, verify=False)
    found = parts(data, header)
    if more:
        with pytest.raises(CorruptRecords, match="has more bytes than its 131073 records"):
            next(found)
    else:
        assert [part.num_rows for part in found] == [65_536, 65_536, 1]


def test_large_records_come_in_parts_of_some_megabytes() -> None:
    data = batch([(None, bytes(1 << 20), (), 0)] * 15 + [(None, None, (), 0)] * 3, ZSTD)
    (header,) = read_headers(data)
    assert sum(part.num_rows for part in parts(data, header)) == 18
    larger = made_of(b"".join(varint(3 << 20) + b"\0" * (3 << 20) for _ in range(8)), 8, last=7, codec=ZSTD)
    (header,) = read_headers(larger, verify=False)
    with pytest.raises(CorruptRecords, match="damaged at record 0"):
        next(parts(larger, header))


def test_headers_take_no_more_memory_than_the_bound() -> None:
    data = made_of(record(0, headers=100_000), 1, last=0, codec=ZSTD)
    with pytest.raises(DecompressedTooLarge, match="100000 headers of a record exceed 1000000 bytes"):
        decode(data, verify=False, max_size=1_000_000)
    assert len(decode(data, verify=False)["headers"][0]) == 100_000
