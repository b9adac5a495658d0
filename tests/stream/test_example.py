"""The example with counts per minute, on a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kafka_topics import messages, new_topics
from pyspark.sql import SparkSession

from penstock.cli.pipeline_file import load
from penstock.local.services import Services

EXAMPLE = Path(__file__).parents[2] / "examples/03_counts_per_minute.py"
TOPICS = ["clicks", "minutes", "clicks.dead"]


@pytest.mark.slow
def test_clicks_are_counted_by_the_minute(
    spark: SparkSession, services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(EXAMPLE.read_text().splitlines()) <= 40
    monkeypatch.setenv("KAFKA", services.kafka)
    with new_topics(services.kafka, TOPICS, 1):
        producer = Producer({"bootstrap.servers": services.kafka})
        for page, second in (("a", "12:00:01"), ("a", "12:00:59"), ("b", "12:00:30"), ("a", "12:02:00")):
            producer.produce("clicks", json.dumps({"page": page, "ts": f"2024-02-29T{second}Z"}))
        producer.produce("clicks", "no click")
        assert producer.flush(20) == 0
        for name, query in load(f"{EXAMPLE}:pages").queries(spark).items():
            query.start(checkpoint=tmp_path / name, trigger="once").awaitTermination()
        found = sorted((json.loads(one.value()) for one in messages(services.kafka, "minutes", 1)), key=str)
        assert [(one["page"], one["n"], one["late"]) for one in found] == [("a", 2, False), ("b", 1, False)]
        assert [one.value() for one in messages(services.kafka, "clicks.dead", 1)] == [b"no click"]
