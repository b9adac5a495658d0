"""From changes to results: revenue by region and minute, and what each customer owes, in PostgreSQL.

    CQL=... POSTGRES=postgresql://... penstock run examples/07_revenue.py:revenue

docs/from-changes-to-results.md explains it, and has the tables.
"""

import os

from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock import cdc, cql, join, postgres, table, window

CQL = os.environ.get("CQL", "127.0.0.1:9042")
POSTGRES = os.environ.get("POSTGRES", "postgresql://127.0.0.1/market")
AMOUNT = "cast(after.total AS decimal(12,2)) AS total"  # CQL decimals are strings


def by_minute(changes: DataFrame) -> DataFrame:
    """Orders and revenue of each region and minute: an order counts once, when it is placed."""
    placed = changes.where("op = 'c' AND before IS NULL").selectExpr("ts", "key.customer", AMOUNT)
    regions = cql.global_table("market.customers", hosts=CQL, columns=["region"])
    known = join.enrich(placed, regions, on="customer", name="regions").fillna("unknown", ["region"])
    sums = {"orders": "count(*)", "total": "sum(total)"}
    return window.tumbling(known, "1 minute", at="ts", key="region", name="minutes", emit="changes", **sums)


def owed(changes: DataFrame) -> table.Table:
    """Number and sum of each customer's unpaid orders: an order that is paid or deleted leaves them."""
    rows = changes.selectExpr("key.*", AMOUNT, "ts", "op = 'd' OR after.paid AS done")
    orders = table.Table(rows, ("customer", "id"), "ts", "done")
    return table.aggregate(orders, by="customer", name="owed", orders="count(*)", total="sum(total)")


@ps.pipeline(every="1 second")
def revenue(spark: SparkSession) -> list[ps.Query]:
    changes = cdc.read(
        spark, "market.orders", hosts=CQL, name="orders", images="full", latency="low", late="10 seconds"
    )
    columns = ["region", "window_start", "orders", "total"]
    in_time = postgres.sink("revenue", url=POSTGRES, key=["region", "window_start"])
    late = postgres.sink("late_revenue", url=POSTGRES)
    parts = [ps.only("NOT late", in_time, columns=columns), ps.only("late", late, columns=columns)]
    return [
        ps.write(by_minute(changes), *parts, name="revenue"),
        ps.write(owed(changes), postgres.sink("owed", url=POSTGRES, key="customer"), name="owed"),
    ]
