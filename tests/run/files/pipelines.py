"""Pipelines that tests run with `penstock run`; the environment says where to write and which faults to cause."""

from __future__ import annotations

import os

from counting import Counting  # type: ignore[import-not-found]
from pyspark.sql import SparkSession

import penstock as ps
from penstock import kafka
from penstock.query.query import Query


@ps.pipeline(every="100 milliseconds")
def count(spark: SparkSession) -> Query:
    spark.dataSource.register(Counting)
    options = {
        name.removeprefix("COUNT_").lower(): value for name, value in os.environ.items() if name.startswith("COUNT_")
    }
    rows = spark.readStream.format("counting").options(**options).load()
    return ps.write(rows, kafka.sink(os.environ["TOPIC"], servers=os.environ["KAFKA"]))


@ps.pipeline(every="real-time")
def early(spark: SparkSession) -> Query:
    clicks = kafka.read(
        spark, os.environ["CLICKS"], servers=os.environ["KAFKA"], schema="id int, user string", name="clicks"
    )
    found = clicks.where("problem IS NULL").selectExpr("to_json(struct(id, user)) AS value")
    return ps.write(found, kafka.sink(os.environ["TOPIC"], servers=os.environ["KAFKA"]))


@ps.pipeline(every="1 second")
def no_query(spark: SparkSession) -> Query:
    return spark.range(3)  # type: ignore[return-value]


@ps.pipeline(every="1 second")
def broken(spark: SparkSession) -> Query:
    raise ValueError("not today")


not_a_pipeline = 5
