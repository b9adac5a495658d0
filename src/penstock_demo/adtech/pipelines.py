"""The demo's pipelines: the good events at once; and the person of each, segments of persons, and counts for campaigns.

`checked` is a first hop in real-time mode. Persons read what it writes. Segments and counts read the events themselves:
their clock, which runs on its own, would be ahead of the events that wait while the first hop restarts.
"""

import os

from pyspark.sql import Column, DataFrame, SparkSession, functions as F

import penstock as ps
from penstock import cql, kafka, postgres, segment, window
from penstock.query.query import Query
from penstock_demo.adtech import site
from penstock_demo.adtech.rules import RULES

CQL, SERVERS = os.environ["PENSTOCK_DEMO_CQL"], os.environ["PENSTOCK_DEMO_KAFKA"]
POSTGRES = os.environ["PENSTOCK_DEMO_POSTGRES"]
IDS = cql.ids(site.KEYSPACE, hosts=CQL)
FRESH = f"{site.FRESH} milliseconds"
EVENT = (
    "id string NOT NULL, tracker string, event string, ts long, campaign string, price long, "
    "cookie string, device string, email_hash string"
)
ORIGIN = "origin"
"""Partition and offset of an event in `tracking`: the first hop sends it again with the same one."""


@ps.pipeline(every="real-time")
def checked(spark: SparkSession) -> Query:
    """Each event that can be read, hundredths of a second after its arrival; at least once."""
    events = kafka.read(spark, site.EVENTS, servers=SERVERS, schema=EVENT, name="arrived").where("problem IS NULL")
    told = events.select(
        "key",
        F.struct(
            *(column.split()[0] for column in EVENT.split(", ")),
            F.concat_ws("-", "partition", "offset").alias(ORIGIN),
            _millis("timestamp"),
        ).alias("value"),
    )
    return ps.write(told, kafka.sink(site.CHECKED, servers=SERVERS), name="checked")


@ps.pipeline(every="2 seconds")
def adtech(spark: SparkSession) -> list[Query]:
    # Three parallel queries keep two cores busy with one task each, and each task has its own Python processes.
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    return [persons(spark), segments(spark), minutes(spark)]


def persons(spark: SparkSession) -> Query:
    """Each event with its person and all known identities of the person."""
    checked = _events(spark, "seen", site.CHECKED, f"{EVENT}, {ORIGIN} string NOT NULL", late="15 minutes")
    # The first hop repeats what came since its last checkpoint, at most five minutes, when it was killed.
    once = checked.dropDuplicatesWithinWatermark([ORIGIN])
    found = cql.match(once, store=IDS, ids=site.KINDS, into="person", unknown="create", ttl="1 day", fresh=FRESH)
    visits = found.select(F.col("person").alias("key"), F.struct("id", "event", "person", "person_ids").alias("value"))
    return ps.write(visits, kafka.sink(site.VISITS, servers=SERVERS, delivery="exactly-once"), name="persons")


def segments(spark: SparkSession) -> Query:
    """Membership events, written to the tables and to the topics of the rules."""
    known = cql.match(
        _once(_events(spark, "acts")),
        store=IDS,
        ids=site.KINDS,
        into="person",
        unknown="ignore",
        ttl="1 day",
        fresh=FRESH,
    )
    changes = segment.match(
        known, RULES, key="person", at="at", late=f"{site.LATE} milliseconds", name="segments", buckets=8
    )
    told = changes.withColumns(
        {
            "topic": F.col("to"),
            "key": F.col("person"),
            "value": F.struct("person", "segment", "event", _millis("at"), _millis("until")),
        }
    )
    sinks = segment.sink(site.KEYSPACE, hosts=CQL), kafka.sink(servers=SERVERS, delivery="exactly-once")
    return ps.write(told, *sinks, name="segments")


def minutes(spark: SparkSession) -> Query:
    """Events, clicks and revenue of each campaign and minute, as they grow."""
    counted = window.tumbling(
        _once(_events(spark, "counted")),
        "1 minute",
        at="at",
        key="campaign",
        name="minutes",
        emit="changes",
        events="count(*)",
        clicks="sum(if(event = 'click', 1, 0))",
        revenue="sum(coalesce(price, 0))",
    )
    rows = counted.where("NOT late").selectExpr("campaign", "window_start AS minute", "events", "clicks", "revenue")
    return ps.write(rows, postgres.sink(site.COUNTS, url=POSTGRES, key=["campaign", "minute"]), name="minutes")


def _events(
    spark: SparkSession, name: str, topic: str = site.EVENTS, schema: str = EVENT, late: str = "2 minutes"
) -> DataFrame:
    return kafka.read(
        spark, topic, servers=SERVERS, schema=schema, at="timestamp_millis(ts)", late=late, name=name
    ).where("problem IS NULL")


def _millis(time: str) -> Column:
    return F.unix_millis(time).alias(time)


def _once(events: DataFrame) -> DataFrame:
    """The actions, without copies from requests that were sent again."""
    return events.where(f"event <> '{site.SIGN_IN}'").dropDuplicatesWithinWatermark(["id"])
