"""Records that would cost a parser much time or memory get a reason: exponents, depth, lengths that are not real."""

from __future__ import annotations

import json
import time

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession, functions as F, types as st
from waiting import PATIENCE

from penstock.codec.decode_avro import AvroDecoder
from penstock.codec.decode_columns import CsvDecoder, Decoder
from penstock.codec.decode_json import JsonDecoder
from penstock.errors import PenstockError

DECIMALS = st.StructType().add("a", st.DecimalType(10, 2)).add("s", st.StringType())


def read(spark: SparkSession, decoder: Decoder, *values: bytes) -> list[Row]:
    """The columns and the reason of each value; fails if decoding takes long."""
    frame = spark.createDataFrame(pa.table({"value": pa.array(values, pa.binary())})).select(
        decoder.decode(F.col("value")).alias("r"), "value"
    )
    fields = [F.col("r").getField(name).alias(name) for name in decoder.schema.names]
    columns = [*fields, decoder.reason(F.col("r"), F.col("value")).alias("reason")]
    began = time.monotonic()
    rows = frame.select(*columns).collect()
    assert time.monotonic() - began < PATIENCE
    return rows


@pytest.mark.slow
def test_exponents_of_decimals_are_bounded(spark: SparkSession) -> None:
    endless = [b"1e999999999", b"-1.5E+99999999", b'"1e99999999"', b"1e-99999999", b"12e0001000"]
    good = [b'{"a": 1e3, "s": "id 7e12345 of x7e12345"}', b'{"a": 12.345e-1, "s": "7e12345a"}']
    rows = read(spark, JsonDecoder(DECIMALS), *(b'{"s": "x", "a":%s}' % one for one in endless), *good)
    assert [str(row.reason)[:41] for row in rows[:5]] == ["a number with an exponent of four digits:"] * 5
    assert [(str(row.a), row.reason) for row in rows[5:]] == [("1000.00", None), ("1.23", None)]
    rows = read(spark, CsvDecoder(DECIMALS), b"1e99999999,x", b'"+1.e99999999",x', b"1.5e1,7e12345a")
    assert [row.a and str(row.a) for row in rows] == [None, None, "15.00"]
    assert rows[0].reason == "a number with an exponent of four digits: '1e99999999,x'"
    # Doubles are not expanded to digits.
    (row,) = read(spark, JsonDecoder(st.StructType().add("a", st.DoubleType())), b'{"a": 1e99999999}')
    assert row.a is None and row.reason.startswith("a is not a valid double: ")


@pytest.mark.slow
def test_depth_digits_and_length_of_json_are_bounded(spark: SparkSession) -> None:
    values = [b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b'{"a":' + b"9" * 1_000_000 + b"}", b"[" * 1_000_000]
    for row in read(spark, JsonDecoder(DECIMALS), *values):
        assert row.a is None and "no" in row.reason


def zigzag(number: int) -> bytes:
    number, out = (number << 1 ^ number >> 63) & (1 << 64) - 1, b""
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


@pytest.mark.parametrize(
    "kind", ["string", "bytes", {"type": "array", "items": "int"}, {"type": "map", "values": "int"}], ids=str
)
def test_lengths_that_an_avro_record_only_claims_take_no_memory(spark: SparkSession, kind: object) -> None:
    """Without limits Avro allocates 2 GiB for the first, and the query ends with an OutOfMemoryError."""
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": kind}]})
    claims = [2**31 - 9, 2**31, 2**40, 2**62, -1, -(2**31), -(2**62)]
    rows = read(spark, AvroDecoder.plain(schema), *(zigzag(claim) + zigzag(5) + b"x" for claim in claims))
    assert [row.reason for row in rows] == ["not valid Avro for the schema"] * len(claims)


def test_elements_without_bytes_are_bounded_in_number(spark: SparkSession) -> None:
    nulls = {"type": "array", "items": "null"}
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": nulls}]})
    rows = read(spark, AvroDecoder.plain(schema), zigzag(2**27) + b"\0", zigzag(3) + b"\0")
    assert [(row.a, row.reason) for row in rows] == [(None, "not valid Avro for the schema"), ([None] * 3, None)]


def test_avro_schemas_that_are_none_or_hold_themselves_are_refused(spark: SparkSession) -> None:
    with pytest.raises(PenstockError, match="not valid JSON: it is nested too deeply"):
        AvroDecoder.plain("[" * 100_000)
    itself = {"type": "record", "name": "r", "fields": [{"name": "next", "type": ["null", "r"]}]}
    with pytest.raises(PenstockError, match=r"cannot read this Avro schema: .*recursive"):
        AvroDecoder.plain(json.dumps(itself))
