"""Partitions by key: the same as Java's."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from java_records import JavaRecords
from pyspark.sql import SparkSession

from penstock.wire.records.partitioner import murmur2, partition_for, partitions_for
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
