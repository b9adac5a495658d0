"""A pipeline file that uses Spark at its top, before its pipelines are called."""

from __future__ import annotations

import os

from pyspark.sql import SparkSession, functions as F

import penstock as ps
from penstock import kafka, table
from penstock.query.query import Query

DOUBLED = F.col("id") * 2
NAMES = table.global_table("names", servers=os.environ["KAFKA"], schema="name string")


@F.udf("int")
def plus_one(number):  # type: ignore[no-untyped-def]
    return number + 1


@ps.pipeline(every="1 second")
def numbers(spark: SparkSession) -> Query:
    rows = spark.readStream.schema("id int").json(os.environ["NUMBERS"])
    value = plus_one(DOUBLED).cast("string").alias("value")
    return ps.write(rows.select(value), kafka.sink(os.environ["TOPIC"], servers=os.environ["KAFKA"]))


@ps.pipeline(every="real-time")
def soon(spark: SparkSession) -> Query:
    raise AssertionError("Spark has too few cores for it")
