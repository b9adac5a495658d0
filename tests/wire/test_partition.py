"""Partitions by key: the same as Java's."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from java_records import JavaRecords
from pyspark.sql import SparkSession

from penstock.wire.records.partitioner import RoundRobin, murmur2, partition_for, partitioner_of, partitions_for, sticky
from penstock.wire.records.record_encoder import cells


@pytest.mark.parametrize(
    ("key", "hashed"),
    [  # from UtilsTest.testMurmur2 of Kafka's clients
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_known_hashes(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % 2**32
    assert partition_for(key, 7) == (hashed & 0x7FFFFFFF) % 7


def test_a_hundred_thousand_keys_hash_as_in_java(spark: SparkSession) -> None:
    chosen = random.Random(4)
    keys = [chosen.randbytes(chosen.randrange(1, 40)) for _ in range(100_000)]
    theirs = np.array([hashed & 0x7FFFFFFF for hashed in JavaRecords(spark).murmur2(keys)])
    for partitions in (1, 4, 1009, 2**31 - 1):
        assert (partitions_for(cells(pa.array(keys), "key"), partitions) == theirs % partitions).all()


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_columns_are_partitioned_as_single_keys_and_null_keys_are_free(kind: pa.DataType) -> None:
    keys = [b"", b"a", None, b"abcd", b"abcde", b"x" * 1000]
    array = pa.array([b"before", *keys, b"after"], kind).slice(1, len(keys))
    expected = [-1 if key is None else partition_for(key, 5) for key in keys]
    assert partitions_for(cells(array, "key"), 5).tolist() == expected


def javas(key: bytes) -> int:
    """Kafka's Utils.murmur2, line by line, with Java's `int` as Python's integers modulo 2**32."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(key[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


@given(st.lists(st.none() | st.binary(max_size=30), max_size=20), st.integers(1, 2**31 - 1))
def test_any_key_goes_where_javas_rule_sends_it(keys: list[bytes | None], partitions: int) -> None:
    expected = [-1 if key is None else (javas(key) & 0x7FFFFFFF) % partitions for key in keys]
    assert partitions_for(cells(pa.array(keys, pa.binary()), "key"), partitions).tolist() == expected
    assert [partition_for(key, partitions) for key in keys if key is not None] == [p for p in expected if p >= 0]


@given(st.lists(st.integers(0, 7), max_size=6), st.integers(1, 9))
def test_round_robin_continues_where_the_records_before_ended(counts: list[int], partitions: int) -> None:
    choose = RoundRobin()
    chosen = [int(p) for count in counts for p in choose(pa.nulls(count), partitions)]
    assert all(p == (chosen[0] + n) % partitions for n, p in enumerate(chosen))
    assert len(chosen) == sum(counts)


def test_each_producer_has_its_own_round_robin() -> None:
    one, other = partitioner_of("round-robin"), partitioner_of("round-robin")
    assert isinstance(one, RoundRobin) and isinstance(other, RoundRobin) and one is not other


def test_partitioners_by_name_and_of_ones_own() -> None:
    def own(keys: pa.Array, partitions: int) -> list[int]:
        return []

    assert (partitioner_of("key"), partitioner_of("sticky"), partitioner_of(own)) == (None, sticky, own)
    assert sticky(pa.array([b"a", None]), 3).tolist() == [-1, -1]
