"""A user's file with most of the public functions and all kinds of arguments; type checkers find nothing in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame, SparkSession, functions as F

import penstock as ps
from penstock import cdc, cql, files, join, kafka, postgres, segment, table, window
from penstock.wire import BlockingProducer, Producer, Reader

KAFKA, CQL = "127.0.0.1:9092", "127.0.0.1:9042"
URL = "postgresql://shop@127.0.0.1:5432/shop"
PAUSE: ps.Duration = 0.5


@ps.pipeline
def plain(spark: SparkSession) -> ps.Query:
    return ps.write(
        kafka.read(spark, "clicks", servers=KAFKA, name="clicks", schema="id int"), kafka.sink("copies", servers=KAFKA)
    )


@ps.pipeline(every=PAUSE, name="orders")
def changes(spark: SparkSession) -> list[ps.Query]:
    orders = cdc.read(
        spark,
        "shop.orders",
        hosts=CQL,
        name="orders",
        images=("none", "full"),
        start=datetime(2026, 1, 31, tzinfo=UTC),
        confidence="5 seconds",
        bad_values="problem",
        latency="low",
        max_rows=10_000,
        max_time=timedelta(minutes=10),
        patience=60,
        user="ann",
        password="secret",
        consistency="LOCAL_QUORUM",
        tls=True,
        ca="ca.pem",
    )
    registry = kafka.Registry("http://127.0.0.1:8081", user="ann")
    events = cdc.events(orders, prefix="shop", format="extended", images=("full", "only-updated"), skipped=["r"])
    sink = kafka.sink(
        prefix="shop",
        servers=KAFKA,
        format="avro",
        registry=registry,
        subjects="topic-record",
        delivery="exactly-once",
        client="penstock",
        options={"linger.ms": "5"},
    )
    return [
        ps.write(orders, sink, name="orders"),
        ps.write(events, kafka.sink(servers=KAFKA), name="events"),
        ps.write(orders, kafka.dead_letters("orders.dead", servers=KAFKA), name="dead"),
    ]


@ps.pipeline(every="real-time")
def early(spark: SparkSession) -> ps.Query:
    clicks = ps.kafka.read(
        spark, "clicks", servers=KAFKA, schema="id int", name="clicks", client="spark", start="latest"
    )
    return ps.write(clicks, ps.kafka.sink("ids", servers=KAFKA, key=["id"]), mode="update")


def clicks(spark: SparkSession) -> DataFrame:
    read = kafka.read(
        spark,
        "clicks",
        servers=KAFKA,
        schema="user string, page string, ts timestamp",
        format="json-schema",
        at="ts",
        late=600,
        ahead="1 day",
        name="clicks",
    )
    looked = cql.lookup(read, "shop.users", hosts=CQL, on="user", columns=["city"], ttl=30, name="users", timeout=1.5)
    places = cql.global_table("shop.places", hosts=CQL, columns=["city", "land"], refresh="1 hour", every=2)
    return join.enrich(looked, places, on="city", name="places", how="inner")


def counts(spark: SparkSession) -> list[ps.Query]:
    rows = clicks(spark)
    tumbling = window.tumbling(rows, "1 minute", at="ts", key="page", name="minutes", emit="changes", n="count(*)")
    hopping = window.hopping(rows, 120, every=timedelta(minutes=1), at="ts", key="page", name="hops", n="count(*)")
    visits = window.session(rows, 30.5, at="ts", key=["user"], name="visits", n="count(*)")
    users = kafka.read_table(spark, "users", key="id", servers=KAFKA, schema="id int, city string", name="users")
    topic = table.global_table("pages", servers=KAFKA, schema="page string, title string")
    people = table.count(users, by="city", name="people")
    both = join.tables(users, table.Table(rows, ("id",), "ts"), name="both", how="full")
    pairs = join.streams(rows, tumbling, on="page", at=("ts", "window_start"), within="5 minutes", how="left")
    return [
        ps.write(tumbling, kafka.sink(F.col("page"), servers=KAFKA, format="csv"), name="minutes"),
        ps.write(hopping, files.sink("/data/hops", partition_by="page", compression="gzip"), name="hops"),
        ps.write(visits, cql.sink("shop.visits", hosts=CQL, mode="upsert", ttl="30 days", user="ann"), name="visits"),
        ps.write(people, postgres.sink("shop.people", url=URL, key="city"), name="people"),
        ps.write(both, cql.sink("shop.both", hosts=CQL, ttl=3600), name="both"),
        ps.write(join.enrich(pairs, topic, on="page", name="titles"), kafka.sink("pairs", servers=KAFKA), name="pairs"),
    ]


def members(spark: SparkSession) -> ps.Query:
    store = cql.ids("people", hosts=CQL, user="ann", local_dc="near", verify_hostname=False)
    persons = cql.match(
        clicks(spark), store=store, ids=["user"], into="person", unknown="create", ttl="90 days", fresh=10
    )
    rules = [
        segment.rule(
            "buyers", when="page = 'pay'", at_least=2, within="7 days", ttl=timedelta(days=30), to="seg.buyers"
        ),
        segment.rule(
            "left", when=segment.absence("page = 'pay'", after="page = 'cart'", within=3600), ttl="1 day", to="seg.left"
        ),
    ]
    found = segment.match(persons, rules, key="person", name="segments", late=5, clock="events")
    return ps.write(found, segment.sink("seg", hosts=CQL, password="secret"), kafka.sink(F.col("to"), servers=KAFKA))


def deliver() -> int:
    receipt = segment.sync("buyers", to="partner", mode="changes", keyspace="seg", hosts=CQL, servers=KAFKA)
    segment.erase(["ann"], keyspace="seg", hosts=CQL, consistency="ALL")
    return receipt.added


def started(query: ps.Query) -> str:
    try:
        return str(query.start(checkpoint="/tmp/checkpoint", trigger=5).id)
    except ps.PenstockError as error:
        return error.next


async def produce() -> int:
    async with Producer(KAFKA, linger="5 milliseconds", delivery_timeout=120, compression="zstd") as producer:
        future = await producer.send("clicks", b"value", key=b"user-1")
        offset = (await future).offset
    with BlockingProducer(KAFKA, acks=1, request_timeout=timedelta(seconds=5), partitioner="sticky") as blocking:
        offset += blocking.send("clicks", b"value").result().offset
    async with Reader(KAFKA, patience="1 minute") as reader:
        async for _, rows in reader.read("clicks", start=await reader.earliest("clicks"), max_wait=0.5):
            offset += len(rows)
    return offset
