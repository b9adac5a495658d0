"""Defects of the connector that cases describe in prose: the right behaviour, on a real node and in Kafka."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra.util import uuid_from_time
from confluent_kafka import Producer
from kafka_topics import messages, new_topic
from keyspaces import new_keyspace
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from waiting import PATIENCE

from penstock import cdc, kafka, write
from penstock.local.services import Services

LOGGED = "WITH cdc = {'enabled': true, 'preimage': true, 'postimage': true}"


@pytest.fixture
def keyspace(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "defects") as name:
        yield name


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "defects", 1) as name:
        yield name


@pytest.fixture
def events(spark: SparkSession, services: Services, topic: str) -> Callable[..., DataFrame]:
    def read(table: str, **options: Any) -> DataFrame:
        after = options.get("images", ("none", "none"))
        changes = cdc.read(spark, table, hosts=services.cql, name=table, confidence="0 seconds", **options)
        return cdc.events(changes, prefix="p", topic=topic, images=after)

    return read


def produce(services: Services, topic: str, event: Row) -> None:
    """Not in the function that fails: the error would keep the producer."""
    producer = Producer({"bootstrap.servers": services.kafka})
    producer.produce(topic, event.value, event.key)
    assert producer.flush(PATIENCE) == 0


def test_a_restart_inside_a_batch_loses_no_row(
    cql: Any, services: Services, keyspace: str, topic: str, events: Any, tmp_path: Path
) -> None:
    """BUG_resume_inside_batch: two rows of one mutation; the process dies when the record of the first is in Kafka."""
    cql.execute(f"CREATE TABLE {keyspace}.t (pk int, ck int, v text, PRIMARY KEY (pk, ck)) {LOGGED}")
    inserts = "".join(f"INSERT INTO {keyspace}.t (pk, ck, v) VALUES (1, {ck}, 'a'); " for ck in (1, 2))
    cql.execute(f"BEGIN UNLOGGED BATCH {inserts} APPLY BATCH")

    def die_after_one(batch: DataFrame, number: int) -> None:
        rows = batch.collect()
        if rows:
            produce(services, topic, rows[0])
            raise RuntimeError("the process died")

    dying = events(f"{keyspace}.t").writeStream.foreachBatch(die_after_one)
    query = dying.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="the process died"):
        query.awaitTermination()
    write(events(f"{keyspace}.t"), kafka.sink(servers=services.kafka)).start(
        checkpoint=tmp_path, trigger="once"
    ).awaitTermination()
    keys = [json.loads(message.key()) for message in messages(services.kafka, topic, 1)]
    assert keys == [{"pk": 1, "ck": 1}, {"pk": 1, "ck": 1}, {"pk": 1, "ck": 2}]


def test_a_list_keeps_the_order_of_appends_minutes_apart(
    cql: Any, services: Services, keyspace: str, topic: str, events: Any, tmp_path: Path
) -> None:
    """BUG_list_order: element ids are times with the lowest bits first, which start again every 7 minutes."""
    cql.execute(f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY, lst list<int>) {LOGGED}")
    (streams,) = cql.execute("SELECT streams FROM system_distributed.cdc_streams_descriptions_v2 LIMIT 1").one()
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(minutes=10)
    appends = {str(uuid_from_time(begin + i * dt.timedelta(seconds=120))): i for i in range(6)}
    place = {"cdc$stream_id": "0x" + sorted(streams)[0].hex(), "cdc$time": str(uuid.uuid1()), "id": 1}
    for number, operation in enumerate((2, 9)):
        row = {**place, "cdc$batch_seq_no": number, "cdc$operation": operation, "lst": appends}
        text = json.dumps({f'"{name}"': value for name, value in row.items()})
        cql.execute(f"INSERT INTO {keyspace}.t_scylla_cdc_log JSON %s", (text,))
    frame = events(f"{keyspace}.t", images=("none", "full"))
    write(frame, kafka.sink(servers=services.kafka)).start(checkpoint=tmp_path, trigger="once").awaitTermination()
    (message,) = messages(services.kafka, topic, 1)
    assert json.loads(message.value())["after"] == {"id": 1, "lst": [0, 1, 2, 3, 4, 5]}
