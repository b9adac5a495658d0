"""`format("penstock-kafka")` on a real broker: the written records, and that a repeated batch is not written again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checkpoints import forget_last_commit, write_batches
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient
from kafka_topics import messages, new_topic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.streaming.query import StreamingQuery
from waiting import patience, until

from penstock.checkpoint.batch_offsets import newest_in_checkpoint
from penstock.errors import PenstockError
from penstock.kafka.kafka_writer import BATCH, MARKERS, QUERY, PenstockKafka
from penstock.local.services import Services
from penstock.query.markers import Marker
from penstock.query.query import Batch
from penstock.wire.records.compression import CODECS

PARTITIONS = 2
ROWS = 20_000


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    """A new topic of two partitions."""
    with new_topic(services.kafka, "writer", PARTITIONS) as name:
        yield name


def read(servers: str, topic: str) -> list[Message]:
    """All committed records."""
    return list(messages(servers, topic, PARTITIONS))


def numbers(servers: str, topic: str) -> Counter[int]:
    return Counter(int(message.value()) for message in read(servers, topic))


def files(spark: SparkSession, folder: Path, first: int, count: int) -> None:
    """Write a Parquet file of numbers, enough for two row groups, for a stream to find."""
    spark.range(first, first + count, numPartitions=1).write.mode("append").parquet(str(folder))


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    """The numbers in the folder as records, spread over two tasks."""
    found = spark.readStream.schema("id long").option("maxFilesPerTrigger", 2).parquet(str(folder))
    return found.select(F.col("id").cast("string").cast("binary").alias("value"))


def run(frame: DataFrame, services: Services, topic: str, checkpoint: Path, **options: str) -> None:
    writer = frame.writeStream.format("penstock-kafka").options(servers=services.kafka, topic=topic, **options)
    # `penstock run` names its queries, and Spark shows the name to the sink as an option.
    writer = writer.option("checkpointLocation", str(checkpoint)).queryName(f"of {topic}")
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def test_records_of_a_batch_frame_arrive_whole(spark: SparkSession, services: Services, topic: str) -> None:
    frame = spark.sql(
        "SELECT 'k' AS key, CAST(NULL AS STRING) AS value, array(struct('h' AS key, X'01' AS value)) AS headers, "
        f"TIMESTAMP '2024-02-29 12:00:00.123Z' AS timestamp, 1 AS partition, '{topic}' AS topic"
    )
    frame.write.format("penstock-kafka").option("servers", services.kafka).mode("append").save()
    (record,) = read(services.kafka, topic)
    assert (record.key(), record.value(), record.partition()) == (b"k", None, 1)
    assert record.headers() == [("h", b"\x01")]
    assert record.timestamp()[1] == 1_709_208_000_123


def test_each_row_goes_to_the_topic_in_its_column(spark: SparkSession, services: Services, topic: str) -> None:
    with new_topic(services.kafka, "other", 2) as other:
        named = F.when(F.col("id") % 3 == 0, F.lit(topic)).otherwise(F.lit(other)).alias("topic")
        frame = spark.range(100, numPartitions=2).select(named, F.col("id").cast("string").alias("value"))
        frame.write.format("penstock-kafka").option("servers", services.kafka).mode("append").save()
        assert numbers(services.kafka, topic) == Counter(range(0, 100, 3))
        assert numbers(services.kafka, other) == Counter(n for n in range(100) if n % 3)


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_batch_that_is_run_again(
    spark: SparkSession, services: Services, topic: str, tmp_path: Path, delivery: str
) -> None:
    data, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    files(spark, data, 0, 500)
    run(stream(spark, data), services, topic, checkpoint, delivery=delivery)
    forget_last_commit(checkpoint)
    files(spark, data, 500, 500)
    run(stream(spark, data), services, topic, checkpoint, delivery=delivery)
    found = numbers(services.kafka, topic)
    assert set(found) == set(range(1_000))
    assert set(found.values()) == ({1} if delivery == "exactly-once" else {1, 2})


@pytest.mark.slow
def test_a_batch_of_more_tasks_than_the_broker_keeps_offsets_for(
    spark: SparkSession, services: Services, topic: str, tmp_path: Path
) -> None:
    data, checkpoint, tasks = tmp_path / "data", tmp_path / "checkpoint", 10
    kept = AdminClient({"bootstrap.servers": services.kafka}).list_topics(MARKERS).topics[MARKERS].partitions
    assert 2 * len(kept) < tasks
    for first in (0, 200):
        files(spark, data, first, 200)
        run(stream(spark, data).repartition(tasks), services, topic, checkpoint)
        assert numbers(services.kafka, topic) == Counter(range(first + 200))
    forget_last_commit(checkpoint)
    run(stream(spark, data).repartition(tasks), services, topic, checkpoint)
    assert numbers(services.kafka, topic) == Counter(range(400))


def test_a_task_that_failed_beside_one_that_committed(
    spark: SparkSession, services: Services, topic: str, tmp_path: Path
) -> None:
    data, checkpoint, healed = tmp_path / "data", tmp_path / "checkpoint", tmp_path / "healed"
    files(spark, data, 0, 300)
    files(spark, data, 300, 300)

    @F.udf("binary", useArrow=False)
    def sick(value: bytes) -> bytes:
        if value == b"450" and not healed.exists():
            raise RuntimeError("sick")
        return value

    frame = stream(spark, data).select(sick("value").alias("value"))
    with pytest.raises(PySparkException):
        run(frame, services, topic, checkpoint)
    assert all(count == 1 for count in numbers(services.kafka, topic).values())
    healed.touch()
    run(frame, services, topic, checkpoint)
    assert numbers(services.kafka, topic) == Counter(range(600))


def committed(spark: SparkSession, services: Services, group: str) -> tuple[int, str]:
    """The position and the text that a group has in the first partition of MARKERS, read by Kafka's own client.

    confluent-kafka returns such a text with bytes of others behind it: librdkafka ends it with no zero byte.
    """
    java: Any = spark.sparkContext._jvm
    servers = java.java.util.HashMap({"bootstrap.servers": services.kafka})
    admin = java.org.apache.kafka.clients.admin.AdminClient.create(servers)
    try:
        all = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get()
    finally:
        admin.close()
    found = all.get(java.org.apache.kafka.common.TopicPartition(MARKERS, 0))
    return found.offset(), found.metadata()


@pytest.mark.slow
def test_the_marker_of_each_batch_has_its_own_offsets(
    spark: SparkSession, services: Services, topic: str, tmp_path: Path
) -> None:
    data, checkpoint = tmp_path / "data", tmp_path / "checkpoint"
    for first in range(0, 600, 100):
        files(spark, data, first, 100)
    run(stream(spark, data), services, topic, checkpoint)
    assert has_begun(checkpoint, 2)
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    number, *offsets = newest_in_checkpoint(str(checkpoint))
    assert number == 2
    # A broker confirms a commit before it is valid in the group.
    until(lambda: committed(spark, services, f"penstock-{query}")[0] == 3, "marker of the last batch")
    marker = committed(spark, services, f"penstock-{query}")[1]
    assert marker == Marker.for_batch(Batch(query, number, *offsets)).text()


@pytest.mark.slow
def test_a_task_that_outlives_its_query_takes_no_offsets_of_a_restored_checkpoint(
    spark: SparkSession, services: Services, topic: str, tmp_path: Path
) -> None:
    settings = {"servers": services.kafka, "topic": topic, "checkpointLocation": str(tmp_path / "checkpoint")}
    frame = spark.createDataFrame([(b"0",), (b"1",)], "value binary").repartition(2)

    def planned(offset: str) -> DataSourceStreamArrowWriter:
        """What Spark makes for batch 1 when the checkpoint has these offsets for it."""
        shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)
        write_batches(tmp_path / "checkpoint", ["1", offset], committed=0)
        return PenstockKafka(settings).streamWriter(frame.schema, overwrite=False)

    def run_tasks(writer: DataSourceStreamArrowWriter, frame: DataFrame) -> None:
        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            writer.write(batches)
            return iter(())

        context = spark.sparkContext
        for name, value in properties.items():
            context.setLocalProperty(name, value)
        try:
            frame.mapInArrow(write, "rows bigint").collect()
        finally:
            for name in properties:
                context.setLocalProperty(name, None)  # type: ignore[arg-type]

    properties = {QUERY: uuid.uuid4().hex, BATCH: "1"}
    of_query = planned("2")
    outlived = planned("9")
    # The checkpoint is put back; the query writes the batch in one task, and then the late tasks of the other begin.
    planned("2")
    run_tasks(of_query, frame.coalesce(1))
    with pytest.raises(PySparkException, match="has another batch 1 of this query"):
        run_tasks(outlived, frame)
    assert numbers(services.kafka, topic) == Counter(range(2))


def endless(spark: SparkSession, services: Services, topic: str, checkpoint: Path) -> StreamingQuery:
    """A query over endless numbers, 20 000 in each batch of two tasks."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).option("numPartitions", 2).load()
    writer = source.selectExpr("CAST(CAST(value AS STRING) AS BINARY) AS value").writeStream.format("penstock-kafka")
    writer = writer.options(servers=services.kafka, topic=topic, checkpointLocation=str(checkpoint))
    return writer.trigger(processingTime="100 milliseconds").start()


def has_begun(checkpoint: Path, batch: int) -> bool:
    return (checkpoint / "offsets" / str(batch)).exists()


SCRIPT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from test_kafka_writer import endless
from penstock.spark_runtime.session import spark
endless(spark(), SimpleNamespace(kafka=sys.argv[1]), sys.argv[2], Path(sys.argv[3])).awaitTermination()
"""


@pytest.mark.kill
def test_a_driver_killed_in_the_middle_writes_nothing_twice(
    spark: SparkSession, services: Services, topic: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    modules = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    driver = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, services.kafka, topic, str(checkpoint)],
        env=os.environ | modules,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: driver.poll() is not None or has_begun(checkpoint, 2), "third batch", patience(120))
        assert driver.poll() is None
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    query = endless(spark, services, topic, checkpoint)
    try:
        until(lambda: not query.isActive or has_begun(checkpoint, 5), "sixth batch", patience(120))
        assert query.isActive
    finally:
        query.stop()
    done = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    found = numbers(services.kafka, topic)
    assert max(found.values()) == 1
    assert set(range((done + 1) * ROWS)) <= set(found)


def test_wrong_settings_are_told_when_the_sink_is_made(spark: SparkSession) -> None:
    schema = spark.range(1).select(F.lit(b"v").alias("value")).schema
    for given, said in [
        ({}, r'has no servers.*option\("servers"'),
        ({"server": "x:1"}, "no option 'server'.*did you mean 'servers'"),
        ({"servers": "x:1"}, "no topic, or two"),
        ({"servers": "x:1", "topic": "t", "delivery": "maybe"}, "the unknown delivery 'maybe'.*'exactly-once'"),
        ({"servers": "x:1", "topic": "t", "compression": "br"}, f"the unknown compression 'br'.*{', '.join(CODECS)}"),
    ]:
        with pytest.raises(PenstockError, match=said):
            PenstockKafka(given).streamWriter(schema, overwrite=False)
    with pytest.raises(PenstockError, match=r"the unknown columns id.*select topic"):
        PenstockKafka({"servers": "x:1", "topic": "t"}).streamWriter(spark.range(1).schema, overwrite=False)
