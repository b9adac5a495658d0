"""The changes of a table as Debezium events: replace it by your own pipeline."""

import os

import penstock as ps
from penstock import cdc, kafka


@ps.pipeline(every="1 second")
def orders(spark):
    changes = cdc.read(spark, "shop.orders", hosts=os.environ["CQL"], name="orders")
    return ps.write(changes, kafka.sink(prefix="shop", servers=os.environ["KAFKA"]))
