"""Rows of Spark's UnsafeRow format, written by its rules in plain Python, and hashes as Spark has them."""

from __future__ import annotations

import math
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as some
from pyspark.sql import Row, SparkSession, functions as F, types as st
from store_bytes import encoded

from penstock.state.unsafe_rows import FIXED, DamagedRow, OtherType, decoder, hashed, partition, schema, shown

NUMBERS = {st.ByteType: 8, st.ShortType: 16, st.IntegerType: 32, st.DateType: 32, st.LongType: 64, st.TimestampType: 64}
SINGLE: list[tuple[st.DataType, some.SearchStrategy[Any]]] = [
    *((kind(), some.integers(-1 << bits - 1, (1 << bits - 1) - 1)) for kind, bits in NUMBERS.items()),
    (st.BooleanType(), some.booleans()),
    (st.FloatType(), some.floats(width=32, allow_nan=False)),
    (st.DoubleType(), some.floats(allow_nan=False)),
    (st.StringType(), some.text(max_size=20)),
    (st.BinaryType(), some.binary(max_size=20)),
    (st.DecimalType(10, 2), some.decimals(-99_999_999, 99_999_999, places=2)),
    (st.DecimalType(30, 4), some.integers(-(10**30) + 1, 10**30 - 1).map(lambda one: Decimal(one).scaleb(-4))),
]


@some.composite
def typed_values(draw: some.DrawFn, depth: int = 2) -> tuple[st.DataType, Any]:
    """A type, and a value of it as it is decoded."""
    kind = draw(some.sampled_from(["single", "struct", "array", "map"])) if depth else "single"
    if kind == "single":
        of, values = draw(some.sampled_from(SINGLE))
        return of, draw(values)
    if kind == "struct":
        parts = draw(some.lists(typed_values(depth - 1), max_size=70 if depth == 1 else 4))
        fields = [st.StructField(f"f{place}", of) for place, (of, _) in enumerate(parts)]
        return st.StructType(fields), [draw(some.sampled_from([value, value, None])) for _, value in parts]
    of, value = draw(typed_values(depth - 1))
    if kind == "array":
        return st.ArrayType(of), draw(some.lists(some.sampled_from([value, None]), max_size=70))
    return st.MapType(st.IntegerType(), of), [(n, value) for n in draw(some.sets(some.integers(0, 99), max_size=5))]


@given(typed_values(3))
def test_rows_are_read_as_they_were_written(made: tuple[st.DataType, Any]) -> None:
    kind = st.StructType([st.StructField("one", made[0])])
    assert decoder(kind)(memoryview(encoded(kind, [made[1]]))) == [made[1]]


@given(typed_values(3), some.data())
def test_damaged_rows_are_refused_or_read(made: tuple[st.DataType, Any], data: some.DataObject) -> None:
    kind = st.StructType([st.StructField("one", made[0])])
    row = bytearray(encoded(kind, [made[1]]))
    for _ in range(data.draw(some.integers(1, 4))):
        row[data.draw(some.integers(0, len(row) - 1))] = data.draw(some.integers(0, 255))
    for broken in (row, row[: data.draw(some.integers(0, len(row)))]):
        try:
            shown(decoder(kind)(memoryview(bytes(broken))), kind)
        except (DamagedRow, OtherType):
            continue


@given(typed_values(2), some.binary(max_size=100))
def test_any_bytes_are_refused_or_read(made: tuple[st.DataType, Any], data: bytes) -> None:
    try:
        decoder(made[0])(memoryview(data))
    except DamagedRow as error:
        assert str(error)


def test_bytes_that_are_named_over_and_over_are_refused() -> None:
    kind: st.DataType = st.LongType()
    data = struct.pack("<qqq", 1, 0, 7)
    for _ in range(6):
        # An array of 100 arrays, all at the same place: 100 to the power of its depth values.
        kind = st.ArrayType(kind)
        begin = 8 + 16 + 800
        data = struct.pack("<q", 100) + bytes(16) + struct.pack("<II", len(data), begin) * 100 + data
    with pytest.raises(DamagedRow, match="more bytes than it has"):
        decoder(st.ArrayType(kind))(memoryview(data))


@pytest.mark.parametrize("count", [-1, 1 << 31, (1 << 63) - 1, 200])
def test_a_count_that_cannot_be_is_refused_before_anything_is_allocated(count: int) -> None:
    for kind in (
        st.ArrayType(st.LongType()),
        st.ArrayType(st.StringType()),
        st.MapType(st.StringType(), st.ByteType()),
    ):
        with pytest.raises(DamagedRow):
            decoder(kind)(memoryview(struct.pack("<qqq", count, 0, 0)))


def test_types_that_are_not_known_are_left_to_spark() -> None:
    for other in (st.VariantType(), st.DayTimeIntervalType(), st.StringType("UTF8_LCASE")):
        with pytest.raises(OtherType):
            decoder(st.ArrayType(other))
    with pytest.raises(ValueError, match="not a struct"):
        schema('"long"')
    for value, kind in ((1 << 62, st.TimestampType()), ([(1, 1)], st.MapType(st.DateType(), st.LongType()))):
        with pytest.raises(OtherType):
            shown(value, kind)


KINDS = "a tinyint, b smallint, c int, d long, e boolean, f string, g binary, h date, i timestamp"
ROWS: list[tuple[Any, ...]] = [
    (1, 2, 3, 4, True, "ann", b"\x00\x80\xff", date(2024, 2, 29), datetime(2024, 2, 29, 1, 2, 3, 4, UTC)),
    (-1, -2, -3, -4, False, "é☃x", b"", date(1969, 1, 1), datetime(1900, 2, 28, tzinfo=UTC)),
    (-128, -32768, -(1 << 31), -(1 << 63), None, "", None, None, None),
    (None, None, None, (1 << 63) - 1, True, "abcdefgh\u07ff", bytes(range(250, 256)), None, None),
]


def test_hashes_and_partitions_are_those_of_spark(spark: SparkSession) -> None:
    frame = spark.createDataFrame(ROWS, KINDS)
    numbers = frame.withColumn("h", F.expr("unix_date(h)")).withColumn("i", F.expr("unix_micros(i)"))
    kinds = [one.dataType for one in frame.schema.fields]
    hashes = [F.hash(name).alias(f"{name}_") for name in frame.columns]
    found: list[Row] = frame.select(F.hash(*frame.columns).alias("all"), *hashes).collect()
    for values, expected in zip(numbers.collect(), found, strict=True):
        assert hashed(values, kinds) == expected["all"]
        assert partition(values, kinds, 7) == expected["all"] % 7
        for value, kind, name in zip(values, kinds, frame.columns, strict=True):
            assert hashed([value], [kind]) == expected[f"{name}_"]
    with pytest.raises(OtherType):
        hashed([1.0], [st.DoubleType()])


def test_numbers_that_json_does_not_have_are_texts() -> None:
    for value, text in ((math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")):
        assert shown(value, st.DoubleType()) == shown(value, st.FloatType()) == text
    assert shown(FIXED[st.FloatType].unpack(FIXED[st.FloatType].pack(0.1))[0], st.FloatType()) == 0.1
