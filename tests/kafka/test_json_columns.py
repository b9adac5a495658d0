"""The loop that reads JSON into columns finds what Spark's parser finds, or leaves the value to it."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql import SparkSession, functions as F, types as sql

from penstock.codec.decode_columns import CORRUPT
from penstock.codec.decode_json import EPOCHS, MICROS, Epoch, JsonDecoder
from penstock.kafka.kafka_records import columns, members

KINDS: dict[str, sql.DataType] = {
    "i": sql.IntegerType(),
    "n": sql.LongType(),
    "price": sql.DoubleType(),
    "ok": sql.BooleanType(),
    "name": sql.StringType(),
    "at": sql.TimestampType(),
    "day": sql.DateType(),
    "small": sql.ShortType(),
    "tiny": sql.ByteType(),
    "share": sql.FloatType(),
}
SCHEMA = sql.StructType([sql.StructField(name, kind) for name, kind in KINDS.items()])
WHOLES = ["0", "-0", "7", "-12", "2147483647", "2147483648", "-2147483648", "-2147483649", "999999999999999999"]
WHOLES += ["-999999999999999999", "-1000000000000000000"]
WHOLES += ["9223372036854775807", "9223372036854775808", "1.0", "1e2", "01", "+1", '"5"', '""', "1099511627777"]
WHOLES += ["253402300799", "253402300800", "253402300799999", "-62135596800000", "-62135596800001", "1780210800123"]
DECIMALS = [
    "0.0",
    "-0.0",
    "0.1",
    "1e400",
    "-1e-400",
    "123456789012345.6",
    "12345678901234567",
    "3.",
    ".5",
    "NaN",
    '"NaN"',
]
DECIMALS += ["0.30000000000000004", "999999999999999", "9007199254740993", "1E+2", "5e-324", "00.5", "-", '"NaN"']
TEXTS = ['""', '"a"', '"é"', '"\U0001f600"', r'"\u0041\n\t\b\f\r\/\\\""', r'"\ud83d\ude00"', r'"\ud800"', r'"\u00e9"']
TEXTS += [r'"\x"', '"a\tb"', '"\x7f"', r'"\u20AC"', '"a', r'"\u00"', '"' + "long " * 9 + '"', r'"\uDFFF"']
TIMES = ['"2024-02-29T12:00:00Z"', '"2024-02-28T23:59:59.123456Z"', '"2026-01-31T12:00:00.5+05:30"', '"2026-01-31"']
TIMES += [
    '"1900-03-01T00:00:00-18:00"',
    '"2026-01-31T12:00:00"',
    '"2026-01-31T12:00:00.1234567Z"',
    '"0001-01-01T00:00:00Z"',
]
TIMES += [
    '"2026-13-01T00:00:00Z"',
    '"1969-12-31T23:59:59.000001Z"',
    '"2026-01-31T12:00:00+19:00"',
    '"9999-12-31T23:59:59Z"',
]
DATES = [
    '"2026-01-31"',
    '"2024-02-29"',
    '"1582-10-10"',
    '"0001-01-01"',
    '"2026-02-30"',
    '"2026-1-1"',
    '"2026-01-31T00:00"',
]
OTHERS = ["true", "false", "null", "nul", "{}", "[]", '[1,{"a":[]},"x"]', '{"a":{"b":[1,2]},"c":null}', "[1,]", '{"a"}']
OTHERS += ['{"i":1}', "'x'", "[" * 70 + "]" * 70, "", '{"a":1 "b":2}', "[1 2]", "{,}", "truee"]
SMALL = ["127", "128", "-128", "-129", "255", "32767", "32768", "-32768", "1.5", "0.1", "16777217", "3.4e39", "-0.25"]
VALUES = SMALL + DATES + WHOLES + DECIMALS + TEXTS + TIMES + OTHERS
LIKELY = {
    "i": WHOLES,
    "n": WHOLES,
    "price": WHOLES + DECIMALS,
    "ok": ["true", "false"],
    "name": TEXTS,
    "at": TIMES + WHOLES,
    "day": DATES + TIMES,
    "small": SMALL,
    "tiny": SMALL,
    "share": SMALL + DECIMALS,
}
NAMES = [*KINDS, *KINDS, "other", "ii", "", "é", r"\u0069"]
SPACES = ["", "", "", "", " ", "\t", "\n", "\r", "\x0b", "\ufeff"]


def written(draw: random.Random) -> bytes:
    """JSON, or nearly."""
    names = [draw.choice(NAMES) for _ in range(draw.randint(0, 6))]
    if draw.random() < 0.8:
        names = list(dict.fromkeys(names))

    def value(name: str) -> str:
        return draw.choice(LIKELY[name] if name in LIKELY and draw.random() < 0.9 else VALUES)

    def space() -> str:
        return draw.choice(SPACES) if draw.random() < 0.1 else ""

    inner = ",".join(f'{space()}"{name}"{space()}:{space()}{value(name)}{space()}' for name in names)
    text = f"{space()}{{{inner}}}{space()}".encode(errors="surrogatepass")
    if draw.random() < 0.1:
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice([b"", b"\xff", b'"', b"}", b" x", b"\\", text[at:]]) + text[at + 1 :]
    return text


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, float):
        return struct.pack("d", ours) == struct.pack("d", theirs)
    return bool(ours == theirs)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("epoch", EPOCHS)
def test_what_is_read_is_what_spark_reads(spark: SparkSession, epoch: Epoch) -> None:
    draw = random.Random(20_240_229)
    values = [written(draw) for _ in range(20_000 if epoch == "seconds" else 2_000)]
    wanted = members(SCHEMA, MICROS[epoch])
    assert wanted
    # Slices of an array, like those of a batch.
    whole = pa.array([b"x", *values], pa.binary())
    read, ours = columns(whole.slice(1), wanted)
    record = JsonDecoder(SCHEMA, epoch=epoch).decode(F.col("value"))
    frame = spark.createDataFrame(pa.table({"value": pa.array(values, pa.binary())})).select(record.alias("r"))
    # Bytes that are not UTF-8 would not come back as a string.
    made = {
        "name": F.col("r.name").cast("binary"),
        "at": F.unix_micros("r.at"),
        "bad": F.col("r").isNull() | F.col(f"r.{CORRUPT}").isNotNull(),
    }
    plain = [F.col(f"r.{name}") for name in KINDS if name not in made]
    theirs = frame.select(*plain, *(one.alias(name) for name, one in made.items())).toArrow().to_pylist()
    ours[4:6] = ours[4].cast(pa.binary()), ours[5].cast(pa.int64())
    found = [dict(zip(KINDS, row, strict=True)) for row in zip(*(one.to_pylist() for one in ours), strict=True)]
    for value, good, mine, spark_row in zip(values, read.to_pylist(), found, theirs, strict=True):
        if good:
            assert not spark_row["bad"], value
            assert all(same(mine[name], spark_row[name]) for name in KINDS), (value, mine, spark_row)
        else:
            assert set(mine.values()) == {None}
    # It does not leave everything to Spark: it reads most of what Spark reads.
    right = sum(not row["bad"] for row in theirs)
    assert right * 0.5 < read.true_count < right


anything = st.recursive(
    st.text() | st.integers(0, 9), lambda one: st.lists(one) | st.dictionaries(st.text(), one), max_leaves=4
)
MEMBERS = {
    "i": st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
    "n": st.none() | st.integers(-(10**18) + 1, 10**18 - 1),
    "price": st.none() | st.decimals(0, 10**6, places=2).map(float),
    "ok": st.none() | st.booleans(),
    "name": st.none() | st.text(),
    "extra": anything,
}


@given(st.lists(st.fixed_dictionaries({}, optional=MEMBERS), max_size=4), st.booleans())
def test_what_a_usual_writer_writes_is_read(objects: list[dict[str, Any]], plain: bool) -> None:
    wanted = members(SCHEMA)
    assert wanted
    values = [json.dumps(one, ensure_ascii=plain).encode() for one in objects]
    read, cells = columns(pa.array([*values, None], pa.binary()), wanted)
    assert read.to_pylist() == [*(True for _ in objects), False]
    for name, column in zip(KINDS, cells, strict=True):
        column.validate(full=True)
        assert column.to_pylist() == [*(one.get(name) for one in objects), None]


def test_schemas_that_only_spark_reads() -> None:
    assert members(sql.StructType().add("a", sql.ArrayType(sql.StringType()))) is None
    assert members(sql.StructType().add('a"b', sql.StringType())) is None
    assert members(sql.StructType().add("é", sql.StringType())) is None
    assert members(sql.StructType().add("a", sql.StringType("UTF8_LCASE"))) is None
    assert members(sql.StructType()) is None
    assert members(sql.StructType([sql.StructField(f"m{n}", sql.LongType()) for n in range(63)])) is None
