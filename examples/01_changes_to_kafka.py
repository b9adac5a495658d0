"""Every change of a table becomes a Debezium event in the topic `market.market.orders`.

    penstock up                                   # prints the two addresses
    CQL=... KAFKA=... penstock run examples/01_changes_to_kafka.py:order_events

The table, made with any CQL client:

    CREATE KEYSPACE market WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1};
    CREATE TABLE market.orders (customer text, id int, total decimal, paid boolean, PRIMARY KEY (customer, id))
        WITH cdc = {'enabled': true, 'preimage': 'full', 'postimage': true};
"""

import os

from pyspark.sql import SparkSession

import penstock as ps
from penstock import cdc, kafka

CQL = os.environ.get("CQL", "127.0.0.1:9042")
KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")


@ps.pipeline(every="1 second")
def order_events(spark: SparkSession) -> ps.Query:
    changes = cdc.read(spark, "market.orders", hosts=CQL, name="orders", images="full", confidence="1 second")
    return ps.write(changes, kafka.sink(prefix="market", servers=KAFKA))
