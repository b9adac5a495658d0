"""Changes of a table, a join with a table and segments on a standalone cluster, while one of its workers is killed."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cassandra.cluster import Session
from cluster_runs import ClusterRuns
from confluent_kafka import Producer
from kafka_topics import messages, new_topics
from spark_cluster import SparkCluster, spark_cluster
from waiting import PATIENCE

from penstock import segment
from penstock.local.services import Services

pytestmark = [pytest.mark.kill, pytest.mark.slow]

FILE = """
import os

import penstock as ps
from penstock import cdc, join, kafka, segment

KAFKA, CQL, KEYSPACE, CLICKS, USERS, CHANGES, NAMED = (
    os.environ[name] for name in ("KAFKA", "CQL", "KEYSPACE", "CLICKS", "USERS", "CHANGES", "NAMED")
)
BUYERS = segment.rule("buyers", when="page = 'pay'", ttl="30 days", to="seg-buyers")


@ps.pipeline(every="500 milliseconds")
def shop(spark):
    orders = cdc.read(spark, f"{KEYSPACE}.orders", hosts=CQL, name="orders", latency="low", images=("none", "full"))
    changes = kafka.sink(CHANGES, servers=KAFKA, delivery="exactly-once")
    schema = "id long, user string, page string, at timestamp"
    clicks = kafka.read(spark, CLICKS, servers=KAFKA, schema=schema, name="clicks", format="json")
    users = kafka.read_table(spark, USERS, key="id", servers=KAFKA, schema="city string", name="users", format="json")
    named = join.enrich(clicks.select("id", "user"), users, on="user", name="cities").select("id", "city")
    members = segment.match(clicks.drop("id"), [BUYERS], key="user", at="at", name="segments")
    return [
        ps.write(orders, changes, name="changes"),
        ps.write(named, kafka.sink(NAMED, servers=KAFKA, delivery="exactly-once"), name="named"),
        ps.write(members, segment.sink(KEYSPACE, hosts=CQL), name="members"),
    ]
"""
PARTITIONS, WAVE, USERS = 2, 500, 20


class Shop:
    """What the pipeline reads, and what it wrote."""

    def __init__(self, services: Services, cql: Session, keyspace: str, topics: list[str]) -> None:
        self.kafka, self.cql, self.keyspace, self.sent = services.kafka, cql, keyspace, 0
        self.clicks, self.users, self.changes, self.named = topics
        producer = Producer({"bootstrap.servers": self.kafka})
        for number in range(USERS):
            producer.produce(self.users, json.dumps({"city": f"city{number}"}), key=f"u{number}")
        assert producer.flush(PATIENCE) == 0

    def send(self) -> None:
        """The next orders and clicks."""
        put = self.cql.prepare(f"INSERT INTO {self.keyspace}.orders (id, total) VALUES (?, ?)")
        producer = Producer({"bootstrap.servers": self.kafka})
        at = datetime.now(UTC) - timedelta(seconds=5)
        for number in range(self.sent, self.sent + WAVE):
            self.cql.execute(put, (number, number * 2))
            page = "pay" if number % 3 == 0 else "home"
            click = {"id": number, "user": f"u{number % USERS}", "page": page, "at": at.isoformat()}
            producer.produce(self.clicks, json.dumps(click), partition=number % PARTITIONS)
        assert producer.flush(PATIENCE) == 0
        self.sent += WAVE

    def told(self) -> list[tuple[int, int]]:
        """The orders of all events, in the order of their ids."""
        rows = [json.loads(one.value())["after"] for one in messages(self.kafka, self.changes, PARTITIONS)]
        return sorted((row["id"], row["total"]) for row in rows)

    def joined(self) -> list[tuple[int, str]]:
        rows = [json.loads(one.value()) for one in messages(self.kafka, self.named, PARTITIONS)]
        return sorted((row["id"], row["city"]) for row in rows)

    def members(self) -> set[str]:
        return {row[0] for row in self.cql.execute(f"SELECT person FROM {self.keyspace}.members")}

    def is_done(self) -> bool:
        return len(self.told()) >= self.sent and len(self.joined()) >= self.sent


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path) as made:
        yield made


@pytest.fixture
def shop(services: Services, cql: Session) -> Iterator[Shop]:
    keyspace = f"cluster_{uuid.uuid4().hex[:8]}"
    cql.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}")
    log = "{'enabled': true, 'postimage': true}"
    cql.execute(f"CREATE TABLE {keyspace}.orders (id int PRIMARY KEY, total int) WITH cdc = {log}")
    segment.create_tables(cql, keyspace)
    names = [f"{keyspace}-{name}" for name in ("clicks", "users", "changes", "named")]
    with new_topics(services.kafka, names, PARTITIONS):
        yield Shop(services, cql, keyspace, names)
    cql.execute(f"DROP KEYSPACE {keyspace}", timeout=PATIENCE)


def test_changes_joins_and_segments_survive_a_killed_worker(
    cluster: SparkCluster, shop: Shop, services: Services, tmp_path: Path
) -> None:
    topics = {"CLICKS": shop.clicks, "USERS": shop.users, "CHANGES": shop.changes, "NAMED": shop.named}
    places = {"KAFKA": services.kafka, "CQL": services.cql, "KEYSPACE": shop.keyspace}
    runs = ClusterRuns(tmp_path, cluster.url, FILE, **places, **topics)
    try:
        shop.send()
        runs.start("machine1")
        runs.wait(shop.is_done)
        cluster.kill(0)
        shop.send()
        runs.wait(shop.is_done)
        runs.stop()
    finally:
        runs.kill()
    assert shop.told() == [(number, number * 2) for number in range(shop.sent)]
    assert shop.joined() == [(number, f"city{number % USERS}") for number in range(shop.sent)]
    assert shop.members() == {f"u{number % USERS}" for number in range(0, shop.sent, 3)}
