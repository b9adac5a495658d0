"""The demo's pipeline: the changes of all tables of the shop as Debezium events, with a topic for each table."""

import os
from datetime import timedelta
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock import cdc, kafka
from penstock.query.query import Query
from penstock_demo.shop import KEYSPACE, TABLES

CQL, SERVERS = os.environ["PENSTOCK_DEMO_CQL"], os.environ["PENSTOCK_DEMO_KAFKA"]


@penstock.pipeline(every="500 milliseconds")
def changes(spark: SparkSession) -> Query:
    frames = [
        cdc.events(
            cdc.read(
                spark,
                f"{KEYSPACE}.{table}",
                hosts=CQL,
                name=table,
                images="full",
                confidence=timedelta(seconds=1),
                consistency="ONE",
                # The four tables are read in parallel: a task for each keeps all cores busy.
                partitions=1,
            ),
            prefix="shop",
        )
        for table in TABLES
    ]
    return penstock.write(reduce(DataFrame.unionAll, frames), kafka.sink(servers=SERVERS))
