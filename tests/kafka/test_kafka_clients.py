"""`kafka.sink` through both clients: the same records, which client it takes, and a producer that tasks share."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import node_peer
import pyarrow as pa
import pytest
from kafka_topics import messages, new_topic
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock import kafka, write
from penstock.errors import PenstockError
from penstock.kafka import kafka_writer
from penstock.local.ports import HOST, free
from penstock.local.services import Services
from penstock.query.delivery import Client
from penstock.query.query import Batch
from penstock.run import faults
from penstock.wire.errors import KafkaError

PARTITIONS = 3
HERE = "127.0.0.1:9092"
ROWS = """SELECT concat('k', id % 50) AS key, if(id % 7 = 0, NULL, concat('wert ', id, ' \\U0001F600')) AS value,
    if(id % 3 = 0, array(struct('h' AS key, encode(cast(id AS string), 'UTF-8') AS value)), NULL) AS headers
    FROM {numbers}"""


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "clients", PARTITIONS) as name:
        yield name


def stream(spark: SparkSession, folder: Path, rows: int = 2000) -> DataFrame:
    """A stream of one batch with keys, headers and values, some of them null."""
    spark.range(rows, numPartitions=1).write.parquet(str(folder))
    return spark.sql(ROWS, numbers=spark.readStream.schema("id long").parquet(str(folder)))


def records(servers: str, topic: str) -> list[tuple[Any, ...]]:
    """Partition by partition, in the order of their offsets."""
    found = [(m.partition(), m.key(), m.value(), m.headers()) for m in messages(servers, topic, PARTITIONS)]
    return sorted(found, key=lambda one: one[0])


def run(frame: DataFrame, sink: Any, checkpoint: Path) -> None:
    write(frame, sink).start(checkpoint=checkpoint, trigger="once").awaitTermination()


def test_both_clients_write_the_same_records_to_the_same_partitions(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    frame, found = stream(spark, tmp_path / "in"), []
    for client in ("penstock", "spark"):
        with new_topic(services.kafka, client, PARTITIONS) as topic:
            run(frame, kafka.sink(topic, servers=services.kafka, client=client), tmp_path / client)
            found.append(records(services.kafka, topic))
    assert found[0] == found[1] and len(found[0]) == 2000


@pytest.mark.parametrize(
    ("client", "options", "format"),
    [
        (None, {}, "noop"),
        (None, {"linger.ms": "0", "compression.type": "zstd"}, "noop"),
        (None, {"max.request.size": "9000000"}, "kafka"),
        (None, {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}, "kafka"),
        ("spark", {}, "kafka"),
        ("penstock", {"batch.size": "5000"}, "noop"),
    ],
)
def test_the_client_is_ours_where_it_has_the_options(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, client: Client | None, options: dict[str, str], format: str
) -> None:
    made: list[str] = []
    frame = spark.readStream.format("rate").load().selectExpr("cast(value AS string) AS value")
    writers = type(frame.writeStream)

    def named(self: DataStreamWriter, name: str) -> DataStreamWriter:
        made.append(name)
        return self

    monkeypatch.setattr(writers, "format", named)
    kafka.sink("t", servers=HERE, client=client, options=options).stream(frame)
    assert made == [format]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"client": "java"}, "unknown client 'java'.*leave client= out, or use 'penstock'"),
        ({"client": "spark", "delivery": "exactly-once"}, "Spark's client has no exactly-once delivery"),
        ({"client": "penstock", "options": {"max.block.ms": "1"}}, "no option 'max.block.ms'.*client='penstock'"),
        ({"options": {"linger.ms": "soon"}}, "invalid linger.ms 'soon'.*kafka.sink.*give milliseconds"),
        ({"options": {"compression.type": "br"}}, "unknown compression 'br'.*use one of"),
    ],
)
def test_a_wrong_client_or_option_is_refused_when_the_sink_is_made(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        kafka.sink("t", servers=HERE, **wrong)


def test_a_frame_that_is_not_a_stream(spark: SparkSession, services: Services, topic: str) -> None:
    frame = spark.sql("SELECT 'k' AS key, 'v' AS value")
    sink = kafka.sink(topic, servers=services.kafka)
    sink.save(frame)
    sink.save(frame, Batch("q", 0))
    assert [one[1:] for one in records(services.kafka, topic)] == [(b"k", b"v", None)] * 2


@pytest.mark.parametrize("client", ["penstock", "spark"])
def test_a_client_that_cannot_decompress_reads_what_we_write(
    spark: SparkSession, services: Services, topic: str, client: Client
) -> None:
    frame = spark.sql("SELECT 'k' AS key, repeat('value ', 50) AS value FROM range(20)")
    kafka.sink(topic, servers=services.kafka, client=client).save(frame)
    found = node_peer.read(services.kafka, topic, 20, as_installed=True)
    assert [(one.key, one.value) for one in found] == [(b"k", b"value " * 50)] * 20


def test_topics_of_each_row_and_a_row_without_one(
    spark: SparkSession, services: Services, topic: str, tmp_path: Path
) -> None:
    rows = stream(spark, tmp_path / "in", 10)
    run(rows.withColumn("topic", F.lit(topic)), kafka.sink(servers=services.kafka), tmp_path / "c")
    assert len(records(services.kafka, topic)) == 10
    lost = rows.withColumn("topic", F.when(F.col("key") != "k5", topic))
    with pytest.raises(PySparkException, match="topic"):
        run(lost, kafka.sink(servers=services.kafka), tmp_path / "lost")


def test_a_record_that_the_broker_refuses_ends_the_query_with_its_words(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    wide = stream(spark, tmp_path / "in", 3).withColumn("value", F.repeat(F.lit("x"), 50_000))
    options = {"compression.type": "none"}
    with new_topic(services.kafka, "narrow", 1, {"max.message.bytes": "10000"}) as narrow:
        sink = kafka.sink(narrow, servers=services.kafka, options=options)
        query = write(wide, sink).start(checkpoint=tmp_path / "c", trigger="once")
        with pytest.raises(PySparkException):
            query.awaitTermination()
    fault = faults.of_query(query)
    assert fault and not fault.retriable and narrow in fault.text


def parts(*values: str | Exception) -> Iterator[pa.RecordBatch]:
    for value in values:
        if isinstance(value, Exception):
            raise value
        yield pa.record_batch({"value": pa.array([value])})


def test_tasks_share_a_producer_until_it_was_idle_or_failed(
    services: Services, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = (("servers", services.kafka), ("topic", topic))
    kept: dict[Any, Any] = {}
    monkeypatch.setattr(kafka_writer, "_producers", kept)
    kafka_writer.write_part(given, parts("a"))
    first = kept[given][0]
    kafka_writer.write_part(given, parts("b"))
    assert kept[given][0] is first
    kept[given] = first, time.monotonic() - kafka_writer.IDLE
    kafka_writer.write_part(given, parts("c"))
    assert kept[given][0] is not first
    with pytest.raises(ZeroDivisionError):
        kafka_writer.write_part(given, parts("d", ZeroDivisionError()))
    assert not kept
    kafka_writer.write_part(given, parts("e"))
    kept[given][0].close()
    assert sorted(value for _, _, value, _ in records(services.kafka, topic)) == [b"a", b"b", b"c", b"e"]


def test_a_broker_that_is_not_there_is_an_error_that_passes() -> None:
    given = (("delivery.timeout.ms", "500"), ("servers", f"{HOST}:{free(set())}"), ("topic", "t"))
    with pytest.raises(KafkaError) as caught:
        kafka_writer.write_part(given, parts("a"))
    assert caught.value.retriable
