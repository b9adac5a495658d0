"""Distinct members by minute as theta sketches, made by Spark: exact up to 4 096 of a minute, estimates above.

A theta sketch (Dasgupta, Lang, Rhodes, Thaler 2016) can be united and intersected, and tells its error. Spark
writes the same bytes that the Apache DataSketches libraries read.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SIZE = 12
"""The logarithm of how many hashes a sketch keeps, as in `segments.expression`, which unites them."""


def minutes(changes: DataFrame) -> DataFrame:
    """The persons who entered or stayed longer in each segment and minute: segment, at (its begin), members (a sketch).

    `changes` are membership events as `segment.match` gives them.
    """
    minute = F.date_trunc("minute", "at").alias("at")
    active = changes.where("event IN ('enter', 'prolong')")
    return active.groupBy("segment", minute).agg(F.theta_sketch_agg("person", SIZE).alias("members"))
