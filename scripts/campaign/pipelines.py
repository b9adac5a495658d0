"""The shop's pipeline in a campaign: the demo's pipeline, with the settings of the round."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession, functions as F

import penstock
from penstock import cdc, files, kafka, postgres
from penstock.query.query import Query
from penstock_demo.shop import KEYSPACE

CQL, SERVERS = os.environ["PENSTOCK_DEMO_CQL"], os.environ["PENSTOCK_DEMO_KAFKA"]
PACE = os.environ["CAMPAIGN_PACE"]
DELIVERY: Any = os.environ["CAMPAIGN_DELIVERY"]
SINKS, FORMAT = os.environ["CAMPAIGN_SINKS"].split("+"), os.environ["CAMPAIGN_FORMAT"]
TABLES = os.environ["CAMPAIGN_TABLES"].split("+")
FAST: dict[str, Any] = {"confidence": timedelta(seconds=5), "partitions": 1}
"""Confidence: the time an acknowledged write to three nodes may take while a node dies; the default is 30 seconds."""


@penstock.pipeline(every="500 milliseconds" if PACE == "fast" else "2 seconds")
def changes(spark: SparkSession) -> Query:
    events = reduce(DataFrame.unionAll, (_events(spark, table) for table in TABLES))
    sinks: list[Any] = [kafka.sink(servers=SERVERS, delivery=DELIVERY)]
    if "postgres" in SINKS:
        sinks.append(postgres.sink("soak.events", url=os.environ["PENSTOCK_DEMO_POSTGRES"]))
    if "files" in SINKS:
        sinks.append(files.sink(os.environ["CAMPAIGN_FILES"]))
    if len(sinks) > 1:
        events = events.select("topic", F.col("key").cast("string"), F.col("value").cast("string"))
    return penstock.write(events, *sinks)


def _events(spark: SparkSession, table: str) -> DataFrame:
    chosen = FAST if PACE == "fast" else {}
    changes = cdc.read(spark, f"{KEYSPACE}.{table}", hosts=CQL, name=table, images="full", **chosen)
    if FORMAT == "json":
        return cdc.events(changes, prefix="shop")
    return cdc.events(changes, prefix="shop", key=kafka.codec("avro", registry=os.environ["CAMPAIGN_REGISTRY"]))
