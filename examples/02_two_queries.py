"""A pipeline of two queries over the table of example 01: all events, and a topic of orders as they get paid.

    CQL=... KAFKA=... penstock run examples/02_two_queries.py:paid_orders

What stands between source and sink is plain Spark. The frame for `paid` has key and value of its own making.
"""

import os

from pyspark.sql import DataFrame, SparkSession, functions as F

import penstock as ps
from penstock import cdc, kafka

CQL = os.environ.get("CQL", "127.0.0.1:9042")
KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")


def paid(changes: DataFrame) -> DataFrame:
    """One record for each order that was not paid before the change and is after it."""
    became_paid = F.expr("after.paid AND NOT coalesce(before.paid, false)")
    order = F.to_json(F.struct("after.id", "after.total"))
    return changes.where(became_paid).select(F.col("after.customer").alias("key"), order.alias("value"))


@ps.pipeline(every="1 second")
def paid_orders(spark: SparkSession) -> list[ps.Query]:
    changes = cdc.read(spark, "market.orders", hosts=CQL, name="orders", images="full", confidence="1 second")
    return [
        ps.write(changes, kafka.sink(prefix="market", servers=KAFKA), name="events"),
        ps.write(changes.transform(paid), kafka.sink("paid-orders", servers=KAFKA), name="paid"),
    ]
