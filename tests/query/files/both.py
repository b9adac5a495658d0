"""A pipeline with two sinks, for a test that breaks first one and then the other."""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

import penstock as ps
from penstock import files, postgres
from penstock.query.query import Query


@ps.pipeline(every="100 milliseconds")
def both(spark: SparkSession) -> Query:
    rows = spark.readStream.schema("id long").parquet(os.environ["ARRIVING"])
    sinks = files.sink(os.environ["FOLDER"]), postgres.sink(os.environ["TABLE"], url=os.environ["POSTGRES"])
    return ps.write(rows, *sinks)
