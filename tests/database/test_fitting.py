"""Which Spark types fit a CQL column, and the cast to the type that is encoded."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from cql_values import TYPES, to_bytes
from hypothesis import given, settings
from pyspark.sql import SparkSession, types as st

from penstock.database.cql_types import CqlType, parse_type, spark_type
from penstock.database.encode_cells import as_bytes, encode
from penstock.database.table_catalog import canonical, fits, require_fit
from penstock.errors import PenstockError
from penstock.spark_runtime.arrow_types import to_arrow_type

BYTE, SHORT, INT, LONG = st.ByteType(), st.ShortType(), st.IntegerType(), st.LongType()
FLOAT, DOUBLE, STRING = st.FloatType(), st.DoubleType(), st.StringType()
SPARK: dict[str, st.DataType] = {
    "tinyint": BYTE,
    "smallint": SHORT,
    "int": INT,
    "bigint": LONG,
    "float": FLOAT,
    "double": DOUBLE,
    "string": STRING,
    "binary": st.BinaryType(),
    "boolean": st.BooleanType(),
    "date": st.DateType(),
    "timestamp": st.TimestampType(),
    "timestamp_ntz": st.TimestampNTZType(),
    "decimal(5,0)": st.DecimalType(5, 0),
    "decimal(5,2)": st.DecimalType(5, 2),
    "varchar(3)": st.VarcharType(3),
    "char(3)": st.CharType(3),
}
# For each CQL type all of the types above that fit without loss.
FITTING = {
    "ascii": "string varchar(3) char(3)",
    "bigint": "tinyint smallint int bigint",
    "blob": "binary",
    "boolean": "boolean",
    "counter": "bigint",
    "date": "date",
    "decimal": "tinyint smallint int bigint string decimal(5,0) decimal(5,2)",
    "double": "tinyint smallint int float double",
    "duration": "string",
    "float": "tinyint smallint float",
    "inet": "string",
    "int": "tinyint smallint int",
    "smallint": "tinyint smallint",
    "text": "string varchar(3) char(3)",
    "time": "tinyint smallint int bigint",
    "timestamp": "timestamp",
    "timeuuid": "string",
    "tinyint": "tinyint",
    "uuid": "string",
    "varchar": "string varchar(3) char(3)",
    "varint": "tinyint smallint int bigint string",
}


@pytest.mark.parametrize("name", FITTING)
def test_only_types_whose_every_value_fits_are_accepted(name: str) -> None:
    found = {text for text, kind in SPARK.items() if fits(kind, CqlType(name))}
    assert found == set(FITTING[name].split())


@given(TYPES)
def test_the_spark_type_of_any_type_fits_it(kind: CqlType) -> None:
    assert fits(spark_type(kind), kind)


UDTS = {"place": (("city", "at"), ("text", "bigint"))}


@pytest.mark.parametrize(
    ("text", "given", "fit"),
    [
        ("list<bigint>", st.ArrayType(SHORT), True),
        ("list<smallint>", st.ArrayType(LONG), False),
        ("set<text>", STRING, False),
        ("vector<float, 3>", st.ArrayType(SHORT), True),
        ("vector<float, 3>", st.ArrayType(INT), False),
        ("map<text, double>", st.MapType(STRING, FLOAT), True),
        ("map<int, text>", st.MapType(LONG, STRING), False),
        ("map<text, int>", st.ArrayType(STRING), False),
        ("place", st.StructType().add("city", STRING).add("at", INT), True),
        ("place", st.StructType().add("at", INT).add("city", STRING), True),
        ("place", st.StructType().add("city", STRING), False),
        ("place", st.StructType().add("city", STRING).add("at", LONG).add("more", LONG), False),
        ("place", st.StructType().add("City", STRING).add("at", LONG), False),
        ("tuple<int, text>", st.StructType().add("field_0", BYTE).add("field_1", STRING), True),
        ("tuple<int, text>", st.StructType().add("a", INT).add("b", STRING), False),
        ("list<frozen<map<text, place>>>", st.ArrayType(st.MapType(STRING, st.StructType())), False),
    ],
)
def test_nested_types_fit_by_their_parts(text: str, given: st.DataType, fit: bool) -> None:
    assert fits(given, parse_type(text, UDTS)) is fit


def test_a_column_that_does_not_fit_is_told_with_the_cast(spark: SparkSession) -> None:
    frame = spark.range(1).selectExpr("1.5d AS price")
    require_fit(frame, "price", CqlType("double"), "ks.t")
    with pytest.raises(PenstockError) as raised:
        require_fit(frame, "price", CqlType("float"), "ks.t")
    assert str(raised.value) == (
        "column price is double, but in the table it is float (ks.t). "
        'Next: cast it: frame.withColumn("price", F.col("price").cast("float"))'
    )


# A CQL type, SQL for a value of another type that fits, and the value for the driver.
CAST: list[tuple[str, str, Any]] = [
    ("bigint", "CAST(-7 AS tinyint)", -7),
    ("int", "CAST(300 AS smallint)", 300),
    ("time", "CAST(86399 AS int)", 86_399),
    ("varint", "9223372036854775807L", 2**63 - 1),
    ("varint", "'-170141183460469231731687303715884105729'", -(2**127) - 1),
    ("decimal", "CAST(1.50 AS decimal(5,2))", Decimal("1.50")),
    ("decimal", "CAST(-12 AS tinyint)", Decimal(-12)),
    ("decimal", "'1E+3'", Decimal("1E+3")),
    ("double", "CAST(0.1 AS float)", 0.10000000149011612),
    ("float", "CAST(-3 AS smallint)", -3.0),
    ("text", "CAST('ab' AS varchar(3))", "ab"),
    ("list<bigint>", "array(CAST(1 AS tinyint), CAST(2 AS tinyint))", [1, 2]),
    ("map<text, double>", "map('a', CAST(2 AS int))", [("a", 2.0)]),
    ("timestamp", "TIMESTAMP '1969-12-31 23:59:59.999Z'", dt.datetime(1969, 12, 31, 23, 59, 59, 999_000)),  # noqa: DTZ001
    ("tuple<bigint, text>", "named_struct('field_0', 5, 'field_1', 'x')", (5, "x")),
    # By name: two fields of one type would change places without a word.
    ("tuple<text, text>", "named_struct('field_1', 'second', 'field_0', 'first')", ("first", "second")),
    ("list<frozen<tuple<text, text>>>", "array(named_struct('field_1', 'b', 'field_0', 'a'))", [("a", "b")]),
    ("map<text, frozen<tuple<int, int>>>", "map('k', named_struct('field_1', 2, 'field_0', 1S))", [("k", (1, 2))]),
    ("tuple<bigint, text>", "if(false, named_struct('field_1', 'x', 'field_0', 5), NULL)", None),
]


def test_fitting_values_are_written_as_the_driver_writes_them(spark: SparkSession) -> None:
    # One Spark job for all of them; a name with a backtick and a dot is a name too.
    frame = spark.range(1).selectExpr(*(f"{sql} AS `c``.{n}`" for n, (_, sql, _) in enumerate(CAST)))
    kinds = [parse_type(text, {}) for text, _, _ in CAST]
    names = [f"c`.{n}" for n in range(len(CAST))]
    for name, kind in zip(names, kinds, strict=True):
        require_fit(frame, name, kind, "ks.t")
    (batch,) = (
        frame.select(*(canonical(frame, name, kind).alias(name) for name, kind in zip(names, kinds, strict=True)))
        .toArrow()
        .to_batches()
    )
    for column, kind, (text, _, value) in zip(batch.columns, kinds, CAST, strict=True):
        array = column.cast(to_arrow_type(spark_type(kind), timezone="UTC"))
        assert as_bytes(encode(kind, array)) == [None if value is None else to_bytes(kind, value)], text


@settings(max_examples=30)
@given(TYPES)
def test_a_column_without_rows_has_no_cells(kind: CqlType) -> None:
    nothing = pa.array([], to_arrow_type(spark_type(kind), timezone="UTC"))
    assert as_bytes(encode(kind, nothing)) == []
    nulls = pa.nulls(3, to_arrow_type(spark_type(kind), timezone="UTC"))
    assert as_bytes(encode(kind, nulls)) == [None] * 3
