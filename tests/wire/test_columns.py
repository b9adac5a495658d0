"""Columns of Arrow become record batches: every type, slice and null; each row once, in order, and as Java reads it."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from java_records import JavaRecords
from pyspark.sql import SparkSession

from penstock.wire.records.batch_header import HEADER_SIZE, read_headers, stamp
from penstock.wire.records.compression import CODECS, LZ4, NONE
from penstock.wire.records.partitioner import partition_for, partitions_for
from penstock.wire.records.record_decoder import decode
from penstock.wire.records.record_encoder import Encoded, TableEncoder, cells

# The first call of a compiled loop may compile it.

BYTES = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXT = [pa.string(), pa.large_string(), pa.string_view()]
DICTIONARIES = [pa.dictionary(pa.int8(), kind) for kind in (pa.string(), pa.binary(), pa.large_binary())]
ENTRIES = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))


def encoded(batch: pa.RecordBatch, partitions: int = 1, batch_size: int = 2**20, codec: int = NONE) -> list[Encoded]:
    return stamped(TableEncoder(partitions, batch_size=batch_size, compression=codec), batch)


def stamped(encoder: TableEncoder, batch: pa.RecordBatch) -> list[Encoded]:
    made = list(encoder.encode(batch))
    for one in made:
        stamp(one.data, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    return made


def rows_of(made: list[Encoded]) -> dict[int, list[int]]:
    """The rows of each partition."""
    found: dict[int, list[int]] = {}
    for one in made:
        found.setdefault(one.partition, []).extend(map(int, one.rows))
    return found


def values(made: list[Encoded]) -> list[Any]:
    return [value for one in made for value in decode(one.data).column("value").to_pylist()]


def as_bytes(cell: str | bytes | None) -> bytes | None:
    return cell.encode() if isinstance(cell, str) else cell


@pytest.mark.parametrize("kind", [*BYTES, *TEXT, *DICTIONARIES], ids=str)
@given(given_values=st.lists(st.none() | st.text(max_size=70), max_size=30), data=st.data())
def test_values_of_every_type_and_slice(kind: pa.DataType, given_values: list[str | None], data: st.DataObject) -> None:
    array = pa.array(given_values).cast(kind) if given_values else pa.array([], kind)
    start = data.draw(st.integers(0, len(array)))
    sliced = array.slice(start, data.draw(st.integers(0, len(array) - start)))
    batch = pa.record_batch({"value": sliced, "key": sliced})
    made = encoded(batch)
    expected = [as_bytes(cell) for cell in sliced.to_pylist()]
    assert values(made) == expected
    assert [key for one in made for key in decode(one.data).column("key").to_pylist()] == expected


@pytest.mark.parametrize("key", [*BYTES, *TEXT, *DICTIONARIES, pa.null()], ids=str)
@pytest.mark.parametrize("value", [pa.binary(), pa.large_string()], ids=str)
def test_keys_and_values_of_different_types(key: pa.DataType, value: pa.DataType) -> None:
    keys = pa.nulls(3) if key == pa.null() else pa.array(["a", None, "c"]).cast(key)
    (made,) = encoded(pa.record_batch({"key": keys, "value": pa.array(["x", "y", None]).cast(value)}))
    table = decode(made.data)
    assert table.column("value").to_pylist() == [b"x", b"y", None]
    assert table.column("key").to_pylist() == [as_bytes(cell) for cell in keys.to_pylist()]


def test_fixed_widths_slices_and_only_nulls() -> None:
    ids = pa.array([b"1234", None, b"5678", b"9012"], pa.binary(4)).slice(1, 2)
    assert values(encoded(pa.record_batch({"value": ids}))) == [None, b"5678"]
    assert values(encoded(pa.record_batch({"value": pa.nulls(3)}))) == [None] * 3
    assert values(encoded(pa.record_batch({"value": pa.nulls(3, pa.binary())}))) == [None] * 3


def test_an_empty_batch_gives_nothing() -> None:
    assert encoded(pa.record_batch({"value": pa.array([], pa.binary())})) == []


HEADER_LISTS = st.lists(
    st.none() | st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=70)), max_size=3),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize(
    "kind", [ENTRIES, pa.large_list(ENTRIES.value_type), pa.map_(pa.string(), pa.binary())], ids=str
)
@given(lists=HEADER_LISTS, data=st.data())
def test_headers(kind: pa.DataType, lists: list[list[tuple[str, bytes | None]] | None], data: st.DataObject) -> None:
    entries = [None if one is None else [{"key": k, "value": v} for k, v in one] for one in lists]
    array = pa.array(lists if pa.types.is_map(kind) else entries, kind)
    start = data.draw(st.integers(0, len(lists) - 1))
    batch = pa.record_batch({"value": pa.array([b"v"] * len(lists)), "headers": array}).slice(start)
    (made,) = encoded(batch)
    assert decode(made.data).column("headers").to_pylist() == [one or [] for one in entries[start:]]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_timestamps_of_every_unit(unit: str, zone: str | None) -> None:
    times = (
        pa.array([1_700_000_000, 1_600_000_000, 1_800_000_000]).cast(pa.timestamp("s")).cast(pa.timestamp(unit, zone))
    )
    (made,) = encoded(pa.record_batch({"value": pa.array([b"v"] * 3), "timestamp": times}))
    found = decode(made.data).column("timestamp").cast(pa.int64()).to_pylist()
    assert found == [1_700_000_000_000, 1_600_000_000_000, 1_800_000_000_000]
    (header,) = read_headers(made.data)
    assert (header.base_timestamp, header.max_timestamp) == (1_700_000_000_000, 1_800_000_000_000)


def test_a_missing_timestamp_is_now() -> None:
    batch = pa.record_batch({"value": pa.array([b"a", b"b"]), "timestamp": pa.array([5, None], pa.int64())})
    for given_batch, nows in ((batch, [1]), (batch.select(["value"]), [0, 1])):
        times = decode(encoded(given_batch)[0].data).column("timestamp").to_pylist()
        for row in nows:
            assert abs(times[row] - datetime.now(UTC)) < timedelta(seconds=60)


@given(
    keys=st.lists(st.none() | st.binary(max_size=3), min_size=1, max_size=60),
    partitions=st.integers(1, 9),
    batch_size=st.integers(HEADER_SIZE + 1, 400),
    named=st.booleans(),
)
def test_each_row_is_sent_once_in_its_partition_and_in_order(
    keys: list[bytes | None], partitions: int, batch_size: int, named: bool
) -> None:
    columns = {"value": pa.array([b"%d" % row for row in range(len(keys))]), "key": pa.array(keys, pa.binary())}
    chosen = [row % partitions if named and row % 3 else None for row in range(len(keys))]
    if named:
        columns["partition"] = pa.array(chosen, pa.int64())
    made = encoded(pa.record_batch(columns), partitions, batch_size)
    rows = rows_of(made)
    assert sorted(row for one in rows.values() for row in one) == list(range(len(keys)))
    for p, its_rows in rows.items():
        assert its_rows == sorted(its_rows)
        for row in its_rows:
            key = keys[row]
            expected = (
                chosen[row] if chosen[row] is not None else partition_for(key, partitions) if key is not None else p
            )
            assert p == expected
    for one in made:
        assert len(one.data) <= batch_size or one.count == 1
        assert values([one]) == [b"%d" % row for row in one.rows]


def test_batches_are_as_full_as_they_can_be() -> None:
    made = encoded(pa.record_batch({"value": pa.array([b"x" * 100] * 1000)}), batch_size=5000)
    assert all(5000 - 110 < len(one.data) <= 5000 for one in made[:-1])
    assert [row for one in made for row in one.rows] == list(range(1000))


def test_a_record_larger_than_a_batch_has_one_of_its_own() -> None:
    made = encoded(pa.record_batch({"value": pa.array([b"a", b"b" * 1000, b"c"])}), batch_size=200)
    assert [one.count for one in made] == [1, 1, 1]
    assert len(made[1].data) > 1000


def test_rows_without_key_stay_in_a_partition_for_a_batch_and_go_round() -> None:
    encoder = TableEncoder(4, batch_size=5000, compression=NONE)
    batch = pa.record_batch({"value": pa.array([b"x" * 100] * 1000)})
    order = [one.partition for _ in range(4) for one in encoder.encode(batch)]
    assert set(order[:4]) == {0, 1, 2, 3}
    sizes = Counter[int]()
    for _ in range(20):
        for one in encoder.encode(
            batch.slice(0, 70)
        ):  # a full batch and a small one: neither partition gets only these
            sizes[one.partition] += one.count
    assert max(sizes.values()) - min(sizes.values()) <= 50


def test_null_keys_among_others_stay_in_a_partition_for_a_batch() -> None:
    keys = [None if row % 2 else b"%d" % row for row in range(1000)]
    batch = pa.record_batch({"value": pa.array([b"x" * 100] * 1000), "key": pa.array(keys)})
    found = np.empty(1000, np.int32)
    for p, rows in rows_of(encoded(batch, 4, 5000)).items():
        found[rows] = p
    changes = np.count_nonzero(np.diff(found[1::2]))
    assert set(found[1::2]) == {0, 1, 2, 3}
    assert 3 <= changes <= 500 * 110 // (5000 - HEADER_SIZE)


def with_partitioner(partitioner: Any, partitions: int = 3) -> TableEncoder:
    return TableEncoder(partitions, batch_size=1000, compression=NONE, partitioner=partitioner)


KEYED = pa.record_batch({"value": [b"v"] * 6, "key": pa.array([b"a", b"a", None, b"b", b"c", b"d"])})


@pytest.mark.parametrize("batch", [KEYED, KEYED.select(["value"]), KEYED.slice(2, 3)], ids=["keys", "none", "slice"])
@pytest.mark.parametrize("kind", [list, np.array, pa.array], ids=lambda kind: kind.__name__)
def test_an_own_partitioner_is_asked(batch: pa.RecordBatch, kind: Any) -> None:
    asked = []

    def last_but_nulls(keys: pa.Array, partitions: int) -> Any:
        asked.extend(keys.to_pylist())
        return kind([partitions - 1 if key else 0 for key in keys.to_pylist()])

    keys = batch.column("key").to_pylist() if "key" in batch.schema.names else [None] * batch.num_rows
    found = rows_of(list(with_partitioner(last_but_nulls).encode(batch)))
    assert asked == keys
    expected = {2: [row for row, key in enumerate(keys) if key], 0: [row for row, key in enumerate(keys) if not key]}
    assert found == {p: rows for p, rows in expected.items() if rows}


def test_a_partitioner_need_not_decide_and_a_named_partition_is_stronger() -> None:
    def anywhere_or_two(keys: pa.Array, partitions: int) -> list[int]:
        return [-1, -1, -1, 2, 2, 2]

    batch = KEYED.append_column("partition", pa.array([0, None, None, None, 1, None]))
    found = {
        row: p for p, rows in rows_of(list(with_partitioner(anywhere_or_two).encode(batch))).items() for row in rows
    }
    assert (found[0], found[3], found[4], found[5]) == (0, 2, 1, 2)
    assert found[1] == found[2]


def test_round_robin_goes_on_from_batch_to_batch() -> None:
    encoder = with_partitioner("round-robin")
    order: list[int] = []
    for batch in (KEYED.slice(0, 4), KEYED.slice(0, 1), KEYED.select(["value"])):
        found = {row: p for p, rows in rows_of(list(encoder.encode(batch))).items() for row in rows}
        order += [found[row] for row in range(batch.num_rows)]
    assert order == [(order[0] + row) % 3 for row in range(11)]


def test_sticky_fills_a_batch_of_one_partition_whatever_the_keys() -> None:
    batch = pa.record_batch({"value": [b"x" * 100] * 1000, "key": [b"%d" % row for row in range(1000)]})
    made = list(TableEncoder(4, batch_size=5000, compression=NONE, partitioner="sticky").encode(batch))
    assert all(5000 - 110 < len(one.data) <= 5000 for one in made[:-1])
    assert {one.partition for one in made[:4]} == {0, 1, 2, 3}
    assert [row for one in made for row in one.rows] == list(range(1000))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ([], r"float64 \(0,\); it must return 6 integers"),
        ([0] * 5, r"int64 \(5,\); it must return 6"),
        ([0.5] * 6, "float64"),
        ([0, 0, 0, 3, 0, 0], "row 3 is for partition 3; the topic has 3"),
        ([0, -2, 0, 0, 0, 0], "row 1 is for partition -2"),
        ([0, 0, 2**32, 0, 0, 0], "row 2 is for partition 4294967296"),
    ],
)
def test_a_partitioner_that_answers_wrong_is_told(answer: list[Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        list(with_partitioner(lambda keys, partitions: answer).encode(KEYED))


@pytest.mark.parametrize("wanted", ["random", 7, None])
def test_a_partitioner_that_is_none_is_refused(wanted: Any) -> None:
    with pytest.raises(ValueError, match="neither a function nor one of key, sticky, round-robin"):
        with_partitioner(wanted)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"value": pa.array([1])}, "column value is int64"),
        ({"value": pa.array([b"v"]), "topic": pa.array(["t"])}, r"columns \['topic'\] are not part"),
        ({"value": pa.array([b"v"]), "timestamp": pa.array(["now"])}, "column timestamp is string"),
        ({"value": pa.array([b"v"] * 2), "timestamp": pa.array([7, -2])}, "timestamp -2 is before 1970; give milli"),
        ({"value": pa.array([b"v"]), "timestamp": pa.array([-1], pa.timestamp("s"))}, "timestamp -1000 is before 1970"),
        ({"value": pa.array([b"v"]), "headers": pa.array(["h"])}, "column headers is string"),
        ({"value": pa.array([b"v"]), "headers": pa.array([[{"key": None, "value": b""}]], ENTRIES)}, "no key"),
        ({"value": pa.array([b"v"]), "partition": pa.array(["0"])}, "column partition is string"),
        ({"value": pa.array([b"v"]), "partition": pa.array([3])}, "row 0 is for partition 3; the topic has 3"),
        ({"value": pa.array([b"v"]), "partition": pa.array([-1])}, "row 0 is for partition -1"),
        ({"key": pa.array([b"k"])}, "no column value"),
    ],
)
def test_columns_that_cannot_be_sent(columns: dict[str, pa.Array], problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        encoded(pa.record_batch(columns), partitions=3)


def test_settings_that_cannot_be() -> None:
    for partitions, batch_size, problem in (
        (0, 1000, "at least one partition, not 0"),
        (1, HEADER_SIZE, "batch_size must be 62 to 2147483647 bytes, not 61"),
        (1, 2**31, "not 2147483648"),
    ):
        with pytest.raises(ValueError, match=problem):
            TableEncoder(partitions, batch_size=batch_size, compression=NONE)
    with pytest.raises(ValueError, match="number 9"):
        TableEncoder(1, batch_size=1000, compression=9)


@pytest.mark.parametrize("codec", CODECS)
def test_java_reads_what_we_write(spark: SparkSession, codec: str) -> None:
    chosen = random.Random(3)
    rows = range(3000)
    columns = {
        "key": pa.array([None if row % 5 == 0 else b"key %d" % (row % 97) for row in rows]),
        "value": pa.array([None if row % 7 == 0 else chosen.randbytes(row % 200) + bytes(100) for row in rows]),
        "headers": pa.array(
            [[{"key": "ä", "value": b"1"}, {"key": "b", "value": None}][: row % 3] for row in rows], ENTRIES
        ),
        "timestamp": pa.array([1_700_000_000_000 + chosen.randrange(-1000, 10**9) for _ in rows]),
    }
    batch = pa.record_batch(columns)
    java = JavaRecords(spark)
    (plain,) = encoded(batch)
    (packed,) = encoded(batch, codec=CODECS[codec])
    stamp(packed.data, producer_id=77, producer_epoch=5, base_sequence=1234, transactional=True)
    (found,) = java.batches(bytes(packed.data))
    assert (found.producerId(), found.producerEpoch(), found.baseSequence()) == (77, 5, 1234)
    assert (found.isTransactional(), found.isControlBatch(), found.lastOffset()) == (True, False, len(rows) - 1)
    assert found.compressionType().toString() == codec
    # Java writes again what it has read, and gets exactly the bytes that we wrote without compression.
    assert java.copy(bytes(packed.data), "none") == bytes(plain.data)


def test_java_reads_one_batch_after_the_other(spark: SparkSession) -> None:
    batch = pa.record_batch({"value": pa.array([b"x" * 1000] * 1000)})
    made = encoded(batch, batch_size=100_000, codec=LZ4)
    found = JavaRecords(spark).batches(b"".join(bytes(one.data) for one in made))
    assert [one.countOrNull() for one in found] == [one.count for one in made]


def test_partitions_of_a_column_and_of_its_batches_agree() -> None:
    keys = pa.array([b"%d" % row for row in range(500)])
    batch = pa.record_batch({"value": keys, "key": keys})
    expected = partitions_for(cells(keys, "key"), 7)
    for p, rows in rows_of(encoded(batch, 7)).items():
        assert (expected[rows] == p).all()
