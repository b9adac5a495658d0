"""Checkpoints that do not match the sink: the query stops with an error, and no row is lost or written twice."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import delta_tables
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from checkpoints import forget_last_commit, put_back
from confluent_kafka import Consumer, TopicPartition
from kafka_topics import messages, new_topic
from keyspaces import new_keyspace
from postgres_server import execute, new_table, query
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock import cdc, delta, files, kafka, postgres, write
from penstock.local.services import Services
from penstock.run import faults

PARTITIONS = 2


class Pipeline:
    """Numbers from files to a sink, with their checkpoint."""

    def __init__(
        self, spark: SparkSession, folder: Path, start: Callable[..., Any], written: Callable[[], Any]
    ) -> None:
        self.folder, self.checkpoint = folder / "in", folder / "checkpoint"
        self.folder.mkdir()
        self.frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 8).parquet(str(self.folder))
        self.start, self.written = start, written

    def run(self) -> None:
        self.start(self.frame, self.checkpoint).awaitTermination()

    def batch(self, numbers: range, count: int = 1) -> None:
        """Write the next numbers in `count` files, and run a batch of them."""
        self.arrive(numbers, count)
        self.run()

    def arrive(self, numbers: range, count: int = 1) -> None:
        for n in range(count):
            pq.write_table(pa.table({"id": list(numbers[n::count])}), self.folder / f"{numbers.start}-{n}.parquet")

    def refuses(self, *said: str) -> None:
        """The next batch ends the run with these words in the message of `penstock run`."""
        running = self.start(self.frame, self.checkpoint)
        with pytest.raises(StreamingQueryException):
            running.awaitTermination()
        fault = faults.of_query(running)
        assert fault and not fault.retriable
        for text in said:
            assert text in fault.text, fault.text

    @property
    def id(self) -> str:
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])

    def keep(self, name: str) -> Path:
        return Path(shutil.copytree(self.checkpoint, self.checkpoint.with_name(name)))


def of_topic(servers: str, topic: str) -> Counter[int]:
    return Counter(int(message.value()) for message in messages(servers, topic, PARTITIONS))


def to(sink: Callable[[], Any], select: str) -> Callable[[DataFrame, Path], Any]:
    return lambda frame, checkpoint: write(frame.selectExpr(select), sink()).start(
        checkpoint=checkpoint, trigger="once"
    )


def raw(servers: str, topic: str) -> Callable[[DataFrame, Path], Any]:
    """The format by itself."""

    def start(frame: DataFrame, checkpoint: Path) -> Any:
        writer = frame.selectExpr("CAST(id AS STRING) AS value").writeStream.format("penstock-kafka")
        writer = writer.options(servers=servers, topic=topic, checkpointLocation=str(checkpoint))
        return writer.trigger(availableNow=True).start()

    return start


def by_sink(servers: str, topic: str) -> Callable[[DataFrame, Path], Any]:
    return to(lambda: kafka.sink(topic, servers=servers, delivery="exactly-once"), "CAST(id AS STRING) AS value")


@contextmanager
def pipeline(kind: str, spark: SparkSession, request: pytest.FixtureRequest, folder: Path) -> Iterator[Pipeline]:
    with ExitStack() as stack:
        if kind == "files":
            out = folder / "out"
            start = to(lambda: files.sink(out), "id")
            yield Pipeline(spark, folder, start, lambda: Counter(ds.dataset(out).to_table()["id"].to_pylist()))
        elif kind == "delta":
            out = folder / "out"
            start = to(lambda: delta.sink(out), "id")
            yield Pipeline(spark, folder, start, lambda: Counter(row["id"] for row in delta_tables.rows(out)))
        elif kind == "postgres":
            url = request.getfixturevalue("postgres")
            table = stack.enter_context(new_table(url, "id bigint"))
            rows = f"SELECT id FROM {table}"
            start = to(lambda: postgres.sink(table, url=url), "id")
            yield Pipeline(spark, folder, start, lambda: Counter(int(row[0]) for row in query(url, rows)))
        else:
            servers = request.getfixturevalue("services").kafka
            topic = stack.enter_context(new_topic(servers, "restored", PARTITIONS))
            start = raw(servers, topic) if kind == "penstock-kafka" else by_sink(servers, topic)
            yield Pipeline(spark, folder, start, lambda: of_topic(servers, topic))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["kafka", "penstock-kafka", "postgres", "files", "delta"])
def test_a_sink_that_is_ahead_of_the_checkpoint_stops_the_query(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    with pipeline(kind, spark, request, tmp_path) as made:
        made.batch(range(100))
        first = made.keep("first")
        made.batch(range(100, 200))
        second = made.keep("second")
        made.batch(range(200, 300))
        newest = made.keep("newest")
        assert made.written() == Counter(range(300))
        made.arrive(range(300, 350))
        put_back(made.checkpoint, first)
        made.refuses(
            "is ahead of the checkpoint", "continues with batch 1, whose rows", "Next: restore the newest checkpoint"
        )
        # Ahead by the last batch only: it has the number of the next one.
        put_back(made.checkpoint, second)
        made.refuses("has another batch 2 of this query", "penstock checkpoints set NAME --to TIME")
        assert made.written() == Counter(range(300))
        put_back(made.checkpoint, newest)
        made.run()
        forget_last_commit(made.checkpoint)
        made.batch(range(350, 400))
        assert made.written() == Counter(range(400))


@pytest.mark.parametrize("kind", ["files", "delta", "postgres", pytest.param("kafka", marks=pytest.mark.slow)])
def test_a_batch_that_a_sink_has_already_is_computed_for_the_state(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    with pipeline(kind, spark, request, tmp_path) as made:
        made.frame = made.frame.dropDuplicates(["id"])
        made.batch(range(100))
        made.batch(range(100, 200))
        for _ in range(2):
            forget_last_commit(made.checkpoint)
            made.run()
        made.batch(range(150, 250))
        assert made.written() == Counter(range(250))


@pytest.mark.slow
def test_a_query_of_the_format_goes_on_with_the_sink(spark: SparkSession, services: Services, tmp_path: Path) -> None:
    with new_topic(services.kafka, "restored", PARTITIONS) as topic:
        made = Pipeline(spark, tmp_path, raw(services.kafka, topic), lambda: of_topic(services.kafka, topic))
        made.batch(range(100), 4)
        made.batch(range(100, 200), 4)
        forget_last_commit(made.checkpoint)
        # Both describe the batch in the same way, and it is run again.
        made.start = by_sink(services.kafka, topic)
        made.batch(range(200, 300), 4)
        assert made.written() == Counter(range(300))


@pytest.mark.slow
def test_a_batch_that_comes_again_in_other_tasks_stops_the_query(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with pipeline("kafka", spark, request, tmp_path) as made:
        made.batch(range(100), 4)
        forget_last_commit(made.checkpoint)
        spark.conf.set("spark.sql.files.minPartitionNum", "4")
        try:
            made.refuses("by 2 tasks, and is run again with 4: rows would be skipped or written twice", "--cores")
        finally:
            spark.conf.unset("spark.sql.files.minPartitionNum")
        assert made.written() == Counter(range(100))
        made.batch(range(100, 200), 4)
        assert made.written() == Counter(range(200))


@pytest.mark.slow
def test_a_batch_of_changes_comes_again_in_the_same_tasks_with_more_cores(
    spark: SparkSession, services: Services, cql: Any, tmp_path: Path
) -> None:
    with new_keyspace(cql, "restored") as keyspace, new_topic(services.kafka, "restored", PARTITIONS) as topic:
        cql.execute(f"CREATE TABLE {keyspace}.t (id int PRIMARY KEY, v int) WITH cdc = {{'enabled': true}}")
        sink = kafka.sink(topic, servers=services.kafka, delivery="exactly-once")

        def run(cores: int) -> None:
            changes = cdc.read(
                spark, f"{keyspace}.t", hosts=services.cql, name="t", confidence="0 seconds", partitions=cores
            )
            rows = changes.selectExpr("CAST(key.id AS STRING) AS value")
            write(rows, sink).start(checkpoint=tmp_path / "checkpoint", trigger="once").awaitTermination()

        for count, cores in ((400, 2), (450, 4)):
            for n in range(count - 50 if cores == 4 else 0, count):
                cql.execute(f"INSERT INTO {keyspace}.t (id, v) VALUES ({n}, 0)")
            run(cores)
            assert of_topic(services.kafka, topic) == Counter(range(count))
            # The last batch, whichever it was, is run again with other cores.
            forget_last_commit(tmp_path / "checkpoint")


@pytest.mark.slow
def test_a_database_that_is_older_than_the_checkpoint_stops_the_query(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = request.getfixturevalue("postgres")
    with pipeline("postgres", spark, request, tmp_path) as made:
        made.batch(range(10))
        (marker,) = query(url, f"SELECT marker FROM penstock.applied WHERE query = '{made.id}'")[0]
        made.batch(range(10, 20))
        made.batch(range(20, 30))
        # As in a backup of that time.
        execute(url, f"UPDATE penstock.applied SET batch = 0, marker = '{marker}' WHERE query = '{made.id}'")
        made.arrive(range(30, 40))
        made.refuses("is older than the checkpoint: it has batches up to 0", "DELETE FROM penstock.applied WHERE query")
        execute(url, f"DELETE FROM penstock.applied WHERE query = '{made.id}'")
        made.run()
        assert made.written() == Counter(range(40))


def forget_offsets(kind: str, request: pytest.FixtureRequest, made: Pipeline, batch: int) -> None:
    """Markers of builds that stored only numbers."""
    if kind == "files":
        for marker in (made.folder.parent / "out").glob("batch=*/_penstock"):
            marker.unlink()
    elif kind == "postgres":
        execute(request.getfixturevalue("postgres"), "ALTER TABLE penstock.applied DROP COLUMN marker")
    else:
        options = {"bootstrap.servers": request.getfixturevalue("services").kafka, "group.id": f"penstock-{made.id}"}
        consumer = Consumer(options)
        places = [TopicPartition("__consumer_offsets", task, batch + 1) for task in range(2)]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["kafka", "postgres", "files"])
def test_markers_of_the_build_before_are_read(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    with pipeline(kind, spark, request, tmp_path) as made:
        made.batch(range(100), 4)
        first = made.keep("first")
        made.batch(range(100, 200), 4)
        made.batch(range(200, 300), 4)
        newest = made.keep("newest")
        forget_offsets(kind, request, made, 2)
        put_back(made.checkpoint, first)
        made.refuses("is ahead of the checkpoint")
        put_back(made.checkpoint, newest)
        forget_last_commit(made.checkpoint)
        made.run()
        made.batch(range(300, 400), 4)
        assert made.written() == Counter(range(400))
