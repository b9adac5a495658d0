"""`kafka.read(..., group=)`: an independent client sees the ends of finished batches as the group's offsets."""

from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient
from kafka_topics import new_topic, stored
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from waiting import PATIENCE, patience, until

from penstock import kafka
from penstock.errors import PenstockError
from penstock.kafka import group_position
from penstock.kafka.group_position import GroupPosition
from penstock.kafka.kafka_settings import KafkaSettings
from penstock.kafka.kafka_source import TopicStreamReader
from penstock.kafka.source_format import EARLIEST, TopicOffsets
from penstock.kafka.topic_reader import TopicReader
from penstock.local.services import Services
from penstock.query.delivery import MARKER_GROUPS, is_marker_group, marker_group


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "mirrored", 2) as name:
        yield name


@pytest.fixture
def group() -> str:
    return f"shop-{uuid.uuid4().hex[:8]}"


def write(services: Services, topic: str, count: int, partition: int) -> None:
    producer = Producer({"bootstrap.servers": services.kafka})
    for value in range(count):
        producer.produce(topic, json.dumps({"v": value}).encode(), partition=partition)
    assert producer.flush(PATIENCE) == 0


def read(spark: SparkSession, services: Services, topic: str, group: str, **more: Any) -> DataFrame:
    return kafka.read(spark, topic, servers=services.kafka, schema="v int", name="numbers", group=group, **more)


def committed(services: Services, group: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": services.kafka})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    return {one.partition: one.offset for one in asked[group].result(PATIENCE).topic_partitions}


def forget(services: Services, group: str) -> None:
    """Delete the group, as Kafka does after the time for which it keeps offsets."""
    admin = AdminClient({"bootstrap.servers": services.kafka})
    admin.delete_consumer_groups([group])[group].result(PATIENCE)


def ends(checkpoint: Path, topic: str) -> dict[int, int]:
    """The end of the newest batch in the checkpoint, which is finished."""
    number = max(int(one.name) for one in (checkpoint / "commits").iterdir() if one.name.isdecimal())
    lines = (checkpoint / "offsets" / str(number)).read_text().splitlines()
    return {int(p): at for p, at in json.loads(lines[2])[topic].items()}


def run_once(frame: DataFrame, checkpoint: Path) -> None:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_the_group_has_the_end_of_the_last_finished_batch_across_restarts(
    spark: SparkSession, services: Services, topic: str, group: str, tmp_path: Path
) -> None:
    write(services, topic, 30, 0)
    write(services, topic, 5, 1)
    run_once(read(spark, services, topic, group, batch=10), tmp_path)
    assert committed(services, group) == ends(tmp_path, topic) == {0: 30, 1: 5}
    write(services, topic, 7, 1)
    run_once(read(spark, services, topic, group), tmp_path)
    assert committed(services, group) == ends(tmp_path, topic) == {0: 30, 1: 12}
    # The query reads its checkpoint, never the group.
    admin = AdminClient({"bootstrap.servers": services.kafka})
    admin.delete_consumer_groups([group])[group].result(PATIENCE)
    write(services, topic, 1, 0)
    run_once(read(spark, services, topic, group), tmp_path)
    assert committed(services, group) == {0: 31, 1: 12}


def test_a_running_query_shows_no_lag_when_it_has_read_all(
    spark: SparkSession, services: Services, topic: str, group: str, tmp_path: Path
) -> None:
    frame = read(spark, services, topic, group)
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    try:
        write(services, topic, 3, 0)
        until(lambda: committed(services, group).get(0) == 3, "the offset 3", PATIENCE)
        write(services, topic, 10, 0)
        until(lambda: committed(services, group).get(0) == 13, "the offset 13", PATIENCE)
    finally:
        query.stop()


@pytest.mark.slow
def test_a_query_that_writes_exactly_once_has_its_position_and_its_markers_in_groups_of_their_own(
    spark: SparkSession, services: Services, topic: str, group: str, tmp_path: Path
) -> None:
    write(services, topic, 20, 0)
    with new_topic(services.kafka, "out", 1) as out:
        frame = read(spark, services, topic, group).selectExpr("cast(v AS string) AS value")
        writer = frame.writeStream.format("penstock-kafka").option("servers", services.kafka).option("topic", out)
        for _ in range(2):
            query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
            query.awaitTermination()
            write(services, topic, 1, 1)
        assert len(stored(services.kafka, out, 1)[0]) == 21
        assert committed(services, group) == ends(tmp_path, topic) == {0: 20, 1: 1}
        markers = marker_group(str(query.id))
        assert is_marker_group(markers) and committed(services, markers)


def test_a_group_with_members_is_left_to_them(
    services: Services, topic: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = KafkaSettings.of({"servers": services.kafka, "topic": topic, "group": group})
    consumer = Consumer({"bootstrap.servers": services.kafka, "group.id": group})
    try:
        consumer.subscribe([topic])

        def assigned() -> bool:
            consumer.poll(0.1)
            return bool(consumer.assignment())

        until(assigned, "an assignment", PATIENCE)
        position = GroupPosition(settings, TopicReader(settings))
        with caplog.at_level(logging.WARNING):
            for offset in (1, 2):
                position.finished({0: offset})
                position.wait(PATIENCE)
        (warning,) = [one.getMessage() for one in caplog.records if "was not committed" in one.getMessage()]
        assert f"the position in {topic} of the group {group} was not committed" in warning
        assert "the group has active members" in warning and "Next: stop its members" in warning
    finally:
        consumer.close()
    position.finished({0: 3})
    position.wait(PATIENCE)
    assert committed(services, group) == {0: 3}


def test_a_failed_commit_is_tried_again_with_the_next_batch(
    services: Services, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    with new_topic(services.kafka, "later", 1) as name:
        settings = KafkaSettings.of({"servers": services.kafka, "topic": name, "group": group})
        position = GroupPosition(settings, TopicReader(settings))
        position.finished({0: 1, 7: 1})
        position.wait(PATIENCE)
        assert "UNKNOWN_TOPIC_OR_PARTITION" in caplog.text and "the query goes on" in caplog.text
        position.finished({0: 2})
        position.wait(PATIENCE)
        assert committed(services, group) == {0: 2}


def test_a_position_that_stays_is_committed_again_before_kafka_forgets_it(
    services: Services, topic: str, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = KafkaSettings.of({"servers": services.kafka, "topic": topic, "group": group})
    position = GroupPosition(settings, TopicReader(settings))
    position.finished({0: 1})
    position.wait(PATIENCE)
    assert committed(services, group) == {0: 1}
    forget(services, group)
    position.finished({0: 1})
    position.wait(PATIENCE)
    assert committed(services, group) == {}
    monkeypatch.setattr(group_position, "FRESH", 0.0)
    position.finished({0: 1})
    until(lambda: committed(services, group) == {0: 1}, "the position", PATIENCE)


def test_a_position_that_was_set_but_not_read_is_not_committed(services: Services, topic: str, group: str) -> None:
    write(services, topic, 3, 0)
    reader = TopicStreamReader(KafkaSettings.of({"servers": services.kafka, "topic": topic, "group": group}))
    start = TopicOffsets(topic, {0: 3, 1: 0}, time=EARLIEST)
    moved = reader.latestOffset(start.offset(), ReadAllAvailable())
    reader.stop()
    assert committed(services, group) == {}
    reader.latestOffset(moved, ReadAllAvailable())
    reader.stop()
    assert committed(services, group) == {0: 0, 1: 0}


def test_a_kafka_that_is_away_costs_a_query_no_time() -> None:
    settings = KafkaSettings.of({"servers": "127.0.0.1:1", "topic": "t", "group": "g"})
    position = GroupPosition(settings, TopicReader(settings))
    began = time.monotonic()
    for offset in range(100):
        position.finished({0: offset})
    position.wait(0.2)
    assert time.monotonic() - began < patience(20)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"client": "spark", "group": "g"}, "Spark's client commits no positions"),
        ({"group": ""}, "group is empty"),
        ({"group": marker_group(str(uuid.UUID(int=7)), 2)}, "is one of markers"),
    ],
)
def test_what_cannot_be_mirrored_is_refused(spark: SparkSession, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(PenstockError, match=reason):
        kafka.read(spark, "t", servers="127.0.0.1:1", schema="v int", name="n", **more)


@pytest.mark.parametrize(
    ("name", "is_marker"),
    [
        ("penstock-6b0a4c36-8c4d-4c1f-9b1e-0123456789ab", True),
        ("penstock-6b0a4c36-8c4d-4c1f-9b1e-0123456789ab-1", True),
        ("penstock-6b0a4c36-8c4d-4c1f-9b1e-0123456789ab.1", True),
        ("penstock-6b0a4c36-8c4d-4c1f-9b1e-0123456789ab.1-2", True),
        ("penstock-6b0a4c36-8c4d-4c1f-9b1e-0123456789ab-x", False),
        ("my-penstock-6b0a4c36-8c4d-4c1f-9b1e-0123456789ab", False),
        ("penstock-demo", False),
        ("shop", False),
    ],
)
def test_groups_of_markers_are_known_by_their_names(name: str, is_marker: bool) -> None:
    assert is_marker_group(name) == is_marker


@pytest.mark.parametrize("page", ["delivery.md", "topics.md"])
def test_the_documents_have_the_pattern_of_their_names(page: str) -> None:
    assert MARKER_GROUPS in (Path(__file__).parents[2] / "docs" / page).read_text()
