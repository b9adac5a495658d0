"""The header of a record batch, and batches of any rows."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from wire_rows import Row, batch_of

from penstock.native import crc32c
from penstock.wire.records.batch_header import HEADER_SIZE, read_headers, stamp
from penstock.wire.records.compression import CODECS, NONE, CorruptRecords
from penstock.wire.records.record_decoder import decode

CELLS = st.none() | st.binary(max_size=100)
ROWS = st.lists(
    st.tuples(CELLS, CELLS, st.lists(st.tuples(st.text(max_size=8), CELLS), max_size=3), st.integers(-(2**61), 2**61)),
    min_size=1,
    max_size=20,
)

# The first call of a compiled loop may compile it.


def batch(rows: list[Row], codec: int = NONE) -> memoryview:
    made = batch_of(rows, codec)
    stamp(made, producer_id=7, producer_epoch=3, base_sequence=11)
    return made


@pytest.mark.parametrize("codec", CODECS.values())
@given(rows=ROWS)
def test_messages_come_back(codec: int, rows: list[Row]) -> None:
    table = decode(batch(rows, codec))
    headers = [[{"key": key, "value": value} for key, value in row[2]] for row in rows]
    assert table.column("key").to_pylist() == [row[0] for row in rows]
    assert table.column("value").to_pylist() == [row[1] for row in rows]
    assert table.column("headers").to_pylist() == headers
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [row[3] for row in rows]
    assert table.column("offset").to_pylist() == list(range(len(rows)))


def test_the_header_has_its_fields_where_the_protocol_has_them() -> None:
    made = batch([(None, b"a", (), 1000), (None, b"b", (), 3000), (None, b"c", (), 2000)])
    fields = struct.unpack_from(">qiibIhiqqqhii", made)
    crc = crc32c(made[21:])
    assert fields == (0, len(made) - 12, -1, 2, crc, 0, 2, 1000, 3000, 7, 3, 11, 3)
    (header,) = read_headers(made)
    assert (header.start, header.end, header.last_offset, header.codec) == (0, len(made), 2, NONE)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.count) == (7, 3, 11, 3)
    assert not (header.transactional or header.control or header.append_time)


def test_a_stamp_changes_only_the_producer_and_the_transaction() -> None:
    made = batch([(b"k", b"v", (), 1)], CODECS["lz4"])
    before = bytes(made)
    stamp(made, producer_id=8, producer_epoch=0, base_sequence=0, transactional=True)
    (header,) = read_headers(made)
    assert (header.transactional, header.producer_id, header.codec) == (True, 8, CODECS["lz4"])
    stamp(made, producer_id=7, producer_epoch=3, base_sequence=11)
    assert bytes(made) == before


def test_headers_of_cut_and_foreign_bytes() -> None:
    made = bytes(batch([(None, b"a", (), 1)]))
    assert [header.start for header in read_headers(made + made + made[:-1])] == [0, len(made)]
    assert list(read_headers(b"")) == list(read_headers(made[: HEADER_SIZE - 1])) == []
    old = made[:16] + b"\1" + made[17:]
    with pytest.raises(CorruptRecords, match="format 1; only 2"):
        list(read_headers(old))
    with pytest.raises(CorruptRecords, match="length of 48"):
        list(read_headers(made[:8] + struct.pack(">i", 48) + made[12:]))
    with pytest.raises(CorruptRecords, match="offset 0 has a wrong checksum"):
        list(read_headers(made[:-1] + b"?"))
    assert len(list(read_headers(made[:-1] + b"?", verify=False))) == 1
