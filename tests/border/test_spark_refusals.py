"""What Spark refuses, in our words: the misspelt name, what it was meant to be, and what there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F

import penstock as ps
from penstock.border.spark_refusals import refusal
from penstock.errors import PenstockError
from penstock.query.query import Query


@pytest.fixture
def sales(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1, 2.5, (3,))], "id int, price double, of struct<size: int>")


MEANT = "there is no column prise", "did you mean price? the columns are id, price, of"
COLUMNS: dict[str, Callable[[DataFrame], Any]] = {
    "select": lambda f: f.select("prise"),
    "where": lambda f: f.where("prise > 1"),
    "item": lambda f: f["prise"],
    "attribute": lambda f: f.prise,
    "expression": lambda f: f.withColumn("twice", F.col("prise") * 2),
    "group": lambda f: f.groupBy("id").agg(F.sum("prise")),
    "pairs": lambda f: f.dropDuplicates(["prise"]),
    "join": lambda f: f.join(f, "prise"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_misspelt_column_is_named_with_those_that_there_are(sales: DataFrame, name: str) -> None:
    with pytest.raises(PySparkException) as caught:
        COLUMNS[name](sales)
    told = refusal(caught.value)
    assert (told.what, told.next) == MEANT


@pytest.mark.parametrize(
    ("use", "what", "next"),
    [
        (lambda f: f.select("of.sise"), "there is no field sise", "did you mean size? the fields are size"),
        (
            lambda f: f.select("total"),
            "there is no column total",
            "the columns are id, price, of",
        ),
        (
            lambda f: f.selectExpr("round_(price)"),
            "there is no function round_",
            "did you mean round? docs of Spark's SQL have all functions",
        ),
        (
            lambda f: f.select(F.col("of") + 1),
            'Spark refuses the query: Cannot resolve "(of + 1)" due to data type mismatch: the left and right operands'
            ' of the binary operator have incompatible types ("STRUCT<size: INT>" and "INT").',
            "correct it; Spark's documentation has this error as DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES",
        ),
        (
            lambda f: f.where("price >"),
            "Spark refuses the query: Syntax error at or near end of input.",
            "correct it; Spark's documentation has this error as PARSE_SYNTAX_ERROR",
        ),
        (
            lambda f: f.select(F.col("id").cast(1)),  # type: ignore[arg-type]
            "Spark refuses the query: Argument `dataType` should be DataType or str, got int.",
            "correct it; Spark's documentation has this error as NOT_EXPECTED_TYPE",
        ),
    ],
)
def test_other_refusals_have_no_codes_in_their_words(
    sales: DataFrame, use: Callable[[DataFrame], Any], what: str, next: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        use(sales)
    told = refusal(caught.value)
    assert (told.what, told.next) == (what, next)


def test_columns_of_steps_inside_are_not_offered(sales: DataFrame) -> None:
    with pytest.raises(PySparkException) as caught:
        sales.withColumn("_penstock_prise", F.lit(1)).select("_penstock_pris")
    assert refusal(caught.value).next == "the columns are id, price, of"


def test_a_pipeline_that_misspells_a_column_names_it_and_the_line(spark: SparkSession) -> None:
    """The line is whole, also where the call has several and is an argument of another one."""

    @ps.pipeline
    def totals(spark: SparkSession) -> Query:
        ticks = spark.readStream.format("rate").load()
        frames = [
            ticks.select(
                "timestamp",
                "valeu",
            ),
        ]
        return ps.write(frames[0])

    with pytest.raises(PenstockError) as caught:
        totals.queries(spark)
    where, next = r'py, line \d+: ticks\.select\( "timestamp", "valeu", \)', "did you mean value"
    assert caught.match(rf"^there is no column valeu \(.*{where}\)\. Next: {next}\? the columns are timestamp, value$")


def test_a_format_that_spark_does_not_have_is_told_without_java(spark: SparkSession) -> None:
    @ps.pipeline
    def read(spark: SparkSession) -> Query:
        return ps.write(spark.readStream.format("jsonn").load("/data"))

    with pytest.raises(PenstockError, match=r"^Spark refuses the query: Failed to find the data source: jsonn\. "):
        read.queries(spark)
