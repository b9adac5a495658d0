"""The Kafka sink and `write`: what they refuse when built, and what reaches a real broker."""

from __future__ import annotations

import uuid
from collections import defaultdict
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from change_frames import INSERT, ROW_DELETE, Table
from checkpoints import forget_last_commit
from confluent_kafka import Consumer
from kafka_topics import new_topic, stored
from pyspark.sql import DataFrame, SparkSession, functions as F

from penstock import kafka, write
from penstock.errors import PenstockError
from penstock.kafka.kafka_read import TableOptions
from penstock.local.services import Services
from penstock.query.delivery import Delivery

USERS = Table({"id": "int", "name": "text"}, ["id"], name="shop.users")
HERE = "127.0.0.1:9092"


LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ann",
    "sasl.password": "hush",
}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"format": "thrift"}, "unknown format 'thrift'.*use 'json' or 'avro'"),
        ({"format": "legacy"}, "unknown format 'legacy'.*for 'legacy' use cdc.events"),
        ({"servers": "localhost"}, "servers is not a list of host:port: 'localhost'"),
        ({"options": {"acks": "1"}}, "the option acks cannot be set.*lower level loses records"),
        ({"options": {"kafka.bootstrap.servers": "x:1"}}, "the option bootstrap.servers cannot be set.*give servers="),
        ({"delivery": "twice"}, "unknown delivery 'twice'.*use 'exactly-once' or 'at-least-once'"),
        (
            {"delivery": "exactly-once", "options": {"max.block.ms": "1"}},
            "no option 'max.block.ms'.*kafka.sink with delivery='exactly-once'.*use one of .*security.protocol",
        ),
        ({"options": {"linger.sm": "5"}}, "producer has no option linger.sm.*did you mean linger.ms"),
        ({"options": {"no.such": "5"}}, "producer has no option no.such.*docs/delivery.md"),
        ({"options": {"linger.sm": "5"}, "client": "spark"}, "no option linger.sm.*did you mean linger.ms"),
        ({"options": {"compression": "lz4"}, "client": "spark"}, "Java's producer.*compression.*mean compression.type"),
        ({"options": {"compression": "lz4", "max.block.ms": "1"}}, "Java's.*compression.*mean compression.type"),
        ({"options": {"compression": "lz4", "no.such": "1"}}, "producer has no option no.such.*docs/delivery.md"),
        ({"options": {"sasl.password": "hush"}}, "no use for sasl.password .kafka.sink.*set security.protocol"),
        ({"options": LOGIN | {"max.block.ms": "1"}}, "Java's.*no option sasl.username.*mean sasl.jaas.config"),
        ({"options": {"enable.idempotence": "false"}}, "the option enable.idempotence cannot be set"),
        ({"options": {"delivery": "x"}}, "the option delivery cannot be set.*give delivery="),
        ({"options": {"topic": "x"}}, "the option topic cannot be set.*give topic="),
    ],
)
def test_a_wrong_setting_is_refused_when_the_sink_is_made(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        kafka.sink("t", **{"servers": HERE, **wrong})


def test_the_producer_keeps_order_and_durability_and_takes_options() -> None:
    options = kafka.sink("t", servers=HERE, options={"linger.ms": "0", "kafka.security.protocol": "SSL"}).spark_options
    assert options["kafka.acks"] == "all" and options["kafka.enable.idempotence"] == "true"
    assert options["kafka.linger.ms"] == "0" and options["kafka.security.protocol"] == "SSL"
    assert int(options["kafka.delivery.timeout.ms"]) >= 120_000


def test_the_options_of_sparks_client_are_those_of_javas_producer(spark: SparkSession) -> None:
    assert spark._jvm
    known = {str(name) for name in spark._jvm.org.apache.kafka.clients.producer.ProducerConfig.configNames()}
    assert set((resources.files("penstock.kafka") / "producer_options.txt").read_text().split()) == known


def test_another_client_than_ours_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        kafka.sink("t", servers=HERE, options={"linger.ms": "0", "acks": "all"})
        assert not caplog.messages
        kafka.sink("t", servers=HERE, options={"max.block.ms": "1"})
    assert caplog.messages == ["kafka.sink writes through Spark's client, for max.block.ms: docs/delivery.md"]


def test_counts_of_keys_of_changes_are_no_changes(spark: SparkSession) -> None:
    counts = USERS.frame(spark, [{"kind": INSERT, "key": (1,)}]).groupBy("key").count()
    (row,) = kafka.sink("t", servers=HERE).records(counts.selectExpr("key.id AS id", "count")).collect()
    assert row.value == '{"id":1,"count":1}'
    (row,) = kafka.sink("t", servers=HERE, key="key").records(counts).collect()
    assert (row.key, row.value) == ('{"key":{"id":1}}', '{"key":{"id":1},"count":1}')


def test_changes_become_events_with_a_prefix_or_a_topic(spark: SparkSession) -> None:
    frame = USERS.frame(spark, [{"kind": INSERT, "key": (1,)}])
    by_prefix = kafka.sink(prefix="p", servers=HERE).records(frame).collect()
    assert [(row.topic, row.key) for row in by_prefix] == [("p.shop.users", '{"id":1}')]
    by_topic = kafka.sink("t", servers=HERE).records(frame).collect()
    assert by_topic[0].topic == "t" and '"name":"penstock"' in by_topic[0].value
    with pytest.raises(PenstockError, match=r"the Kafka sink has no topic.*give the sink topic=, or prefix="):
        kafka.sink(servers=HERE).records(frame)


def test_other_frames_go_as_they_are(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 'k' AS key, 'v' AS value, 1 AS other")
    (row,) = kafka.sink(F.concat(F.lit("t"), F.col("other")), servers=HERE).records(frame).collect()
    assert row.asDict() == {"topic": "t1", "key": "k", "value": "v"}
    with pytest.raises(PenstockError, match=r"has no topic.*or add a column `topic`"):
        kafka.sink(servers=HERE).records(frame)


def test_write_refuses_what_cannot_run(spark: SparkSession) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(PenstockError, match="got no sink"):
        write(stream)
    with pytest.raises(PenstockError, match="not a stream"):
        write(spark.range(1), kafka.sink("t", servers=HERE))
    with pytest.raises(PenstockError, match=r"column `value` is bigint.*cast it to string, or make it a struct"):
        write(stream, kafka.sink("t", servers=HERE))
    with pytest.raises(PenstockError, match=r"unknown mode 'upsert'.*use one of 'append', 'update'"):
        write(stream.selectExpr("'v' AS value"), kafka.sink("t", servers=HERE), mode="upsert")  # type: ignore[arg-type]


def test_a_table_of_a_topic_takes_the_arguments_of_a_read(spark: SparkSession) -> None:
    with pytest.raises(PenstockError, match=r"unknown argument 'shema' .kafka.read_table of t.*mean .schema"):
        kafka.read_table(spark, "t", key="id", servers=HERE, name="t", shema="id int")  # type: ignore[call-arg]
    of_read = get_type_hints(kafka.read)
    assert get_type_hints(TableOptions) == {name: of_read[name] for name in TableOptions.__annotations__}


def files(spark: SparkSession, folder: Path) -> DataFrame:
    """A stream of three files with two keys, one file per batch."""
    for number in range(3):
        rows = [f"{i % 2},{number * 10 + i}" for i in range(10)]
        (folder / f"{number}.csv").write_text("\n".join(rows))
    reader = spark.readStream.schema("key string, value string").option("maxFilesPerTrigger", 1)
    return reader.csv(str(folder))


def consume(services: Services, topic: str) -> dict[bytes, list[int]]:
    """The values of each key in the order they came."""
    settings = {"bootstrap.servers": services.kafka, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: dict[bytes, list[int]] = defaultdict(list)
    try:
        while sum(map(len, found.values())) < 30 and (message := consumer.poll(60)):
            if not message.error():
                found[message.key()].append(int(message.value()))
    finally:
        consumer.close()
    return found


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("sinks", [1, 2])
def test_every_sink_gets_every_row_in_order(
    spark: SparkSession, services: Services, tmp_path: Path, sinks: int
) -> None:
    topics = [f"sink-{uuid.uuid4().hex}" for _ in range(sinks)]
    (tmp_path / "in").mkdir()
    made = [kafka.sink(topic, servers=services.kafka) for topic in topics]
    query = write(files(spark, tmp_path / "in"), *made).start(checkpoint=tmp_path / "checkpoint", trigger="once")
    query.awaitTermination()
    for topic in topics:
        found = consume(services, topic)
        assert sorted(found) == [b"0", b"1"]
        # Files come in any order; within one, the order of the rows is kept.
        for key, values in found.items():
            assert sorted(values) == list(range(int(key), 30, 2))
            assert [sorted(values[i : i + 5]) for i in (0, 5, 10)] == [values[i : i + 5] for i in (0, 5, 10)]


def test_a_batch_that_is_run_again_comes_once_to_each_of_several_sinks(
    spark: SparkSession, services: Services, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    checkpoint, frame = tmp_path / "checkpoint", files(spark, tmp_path / "in")
    with new_topic(services.kafka, "first", 1) as first, new_topic(services.kafka, "second", 1) as second:
        made = [kafka.sink(name, servers=services.kafka, delivery="exactly-once") for name in (first, second)]
        for _ in range(2):
            write(frame, *made).start(checkpoint=checkpoint, trigger="once").awaitTermination()
            forget_last_commit(checkpoint)
        found = [stored(services.kafka, name, 1)[0] for name in (first, second)]
    assert [sorted(map(int, values)) for values in found] == [list(range(30))] * 2


def changes(spark: SparkSession, folder: Path, rows: list[dict[str, Any]]) -> DataFrame:
    """A stream of the changes in the folder, to which these are added."""
    frame = USERS.frame(spark, rows).coalesce(1)
    frame.write.mode("append").parquet(str(folder))
    return spark.readStream.schema(frame.schema).parquet(str(folder))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_changes_of_a_batch_that_is_run_again(
    spark: SparkSession, services: Services, tmp_path: Path, delivery: Delivery
) -> None:
    checkpoint = tmp_path / "checkpoint"
    batches = [
        [{"kind": INSERT, "key": (n,), "after": (n, "ann")} for n in range(20)],
        [{"kind": ROW_DELETE, "key": (n,), "before": (n, "ann")} for n in range(20)],
    ]
    with new_topic(services.kafka, "changes", 1) as topic:
        sink = kafka.sink(topic, servers=services.kafka, delivery=delivery)
        for rows in batches:
            query = write(changes(spark, tmp_path / "in", rows), sink)
            query.start(checkpoint=checkpoint, trigger="once").awaitTermination()
            forget_last_commit(checkpoint)
        query.start(checkpoint=checkpoint, trigger="once").awaitTermination()
        (found,) = stored(services.kafka, topic, 1)
    inserts, deletes = 20, 20 * 2  # with a tombstone each
    assert len(found) == (inserts + deletes) * (1 if delivery == "exactly-once" else 2)
    assert len(set(found)) == inserts + 20 + 1
