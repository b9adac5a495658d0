"""The example: clicks from Kafka become members in the database, their counts, and records of the segments' topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cassandra.cluster import Session
from kafka_topics import new_topics, stored
from pyspark.sql import SparkSession
from waiting import until as wait_until

from penstock import segment
from penstock.cli.pipeline_file import load
from penstock.local.services import Services
from penstock.wire.producer.blocking import BlockingProducer

EXAMPLE = Path(__file__).parents[2] / "examples/05_segments.py"
TOPICS = ["shop-clicks", "seg-back", "seg-buyers"]


@pytest.fixture
def places(cql: Session, services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The keyspace and the topics that the example names."""
    monkeypatch.setenv("CQL", services.cql)
    monkeypatch.setenv("KAFKA", services.kafka)
    cql.execute("CREATE KEYSPACE seg WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}")
    segment.create_tables(cql, "seg")
    with new_topics(services.kafka, TOPICS, 1):
        yield
    cql.execute("DROP KEYSPACE seg")


@pytest.mark.slow
@pytest.mark.usefixtures("places")
def test_the_example_finds_members(spark: SparkSession, services: Services, cql: Session, tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 40
    now = datetime.now(UTC)
    clicks = [("ann", "visit"), ("ann", "visit"), ("ann", "visit"), ("bob", "visit"), ("bob", "buy"), ("eve", "buy")]
    clicks.append(("eve", "optout"))
    with BlockingProducer(services.kafka) as producer:
        for i, (person, event) in enumerate(clicks):
            at = (now - timedelta(seconds=10 - i)).isoformat()
            producer.send("shop-clicks", json.dumps({"person": person, "event": event, "ts": at}).encode())
    (query,) = load(f"{EXAMPLE}:segments").queries(spark).values()
    # Not "once": a query on processing time never runs out of batches.
    running = query.start(checkpoint=tmp_path, trigger=timedelta(0))
    try:
        wait_until(lambda: len(stored(services.kafka, TOPICS[2], 1)[0]) == 3, "the buyers")
    finally:
        running.stop()
    members = {row[:2] for row in cql.execute("SELECT segment, person FROM seg.members")}
    assert members == {("returning", "ann"), ("buyers", "bob")}
    ((back,), buyers) = (stored(services.kafka, topic, 1)[0] for topic in TOPICS[1:])
    assert json.loads(back)["person"] == "ann"
    told = [(json.loads(value)["person"], json.loads(value)["event"]) for value in buyers]
    assert sorted(told) == [("bob", "enter"), ("eve", "enter"), ("eve", "leave")]
    counts = segment.counts("seg", hosts=services.cql)
    until = now + timedelta(minutes=1)
    assert counts.count("returning | buyers", now - timedelta(minutes=5), until).members == 3
