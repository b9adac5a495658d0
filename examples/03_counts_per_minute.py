"""Clicks of each page by the minute, out of JSON events in Kafka; unreadable events go to a topic of their own.

    penstock up --only kafka                      # prints its address
    KAFKA=... penstock run examples/03_counts_per_minute.py:pages

Results come when the watermark has passed a minute's end. Clicks that come still later are not lost: they come as a row
with `late` true, whose count is to be added.
"""

import os

from pyspark.sql import SparkSession

import penstock as ps
from penstock import kafka, window

KAFKA = os.environ.get("KAFKA", "127.0.0.1:9092")
CLICK = "user string, page string NOT NULL, ts timestamp"


@ps.pipeline(every="1 second")
def pages(spark: SparkSession) -> list[ps.Query]:
    clicks = kafka.read(spark, "clicks", servers=KAFKA, schema=CLICK, at="ts", late="10 seconds", name="clicks")
    minutes = window.tumbling(
        clicks.where("problem IS NULL"), "1 minute", at="ts", key="page", name="minutes", n="count(*)"
    )
    return [
        ps.write(
            minutes.select("page", "window_start", "n", "late"),
            kafka.sink("minutes", servers=KAFKA, key="page"),
            name="minutes",
        ),
        ps.write(clicks, kafka.dead_letters("clicks.dead", servers=KAFKA), name="dead"),
    ]
