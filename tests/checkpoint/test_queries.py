"""What real queries leave in their checkpoints, and which queries they refuse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as ps
from penstock import files, kafka
from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.hadoop_folder import Hadoop, store_of
from penstock.checkpoint.identity import SinkTarget, SourceIdentity, of_query, stored_identity
from penstock.checkpoint.log import CheckpointLog, DamagedCheckpoint
from penstock.errors import PenstockError
from penstock.query.query import Query
from penstock.run.life_signs import Observer
from penstock.run.supervise import PipelineRun, StopRequests


def lines(spark: SparkSession, folder: Path, *values: str) -> DataFrame:
    """A stream of the lines of a file."""
    folder.mkdir(exist_ok=True)
    (folder / "lines.txt").write_text("\n".join(values))
    return spark.readStream.text(str(folder))


def written(spark: SparkSession, folder: Path) -> list[str]:
    return sorted(row.value for row in spark.read.parquet(str(folder)).collect())


def test_a_second_pipeline_of_one_name_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    def run(source: str, sink: str) -> None:
        @ps.pipeline(every="0 seconds")
        def orders(spark: SparkSession) -> Query:
            return ps.write(lines(spark, tmp_path / source, source), files.sink(tmp_path / sink))

        stop = StopRequests(threading.Event(), threading.Event())
        PipelineRun(orders, spark, tmp_path / "checkpoints" / "orders", stop, Observer(), True).supervise()

    run("first", "out")
    with pytest.raises(PenstockError, match=r"reads text path .*/first, and this one reads text path .*/second"):
        run("second", "out")
    with pytest.raises(PenstockError, match=r"writes to files .*/out, and this one writes to files .*/other"):
        run("first", "other")
    assert written(spark, tmp_path / "out") == ["first"]
    run("first", "out")


@pytest.fixture
def done(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Query, Path]]:
    """A query whose checkpoint has one batch."""
    query = ps.write(lines(spark, tmp_path / "in", "1"), files.sink(tmp_path / "out"))
    query.start(checkpoint=tmp_path / "checkpoint", trigger="once").awaitTermination()
    yield query, tmp_path / "checkpoint"


def test_a_checkpoint_that_a_power_cut_left_is_told_without_java(done: tuple[Query, Path]) -> None:
    query, checkpoint = done
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "offsets" / "0").write_text("")
    with pytest.raises(DamagedCheckpoint, match="the checkpoint's file offsets/0 is empty"):
        query.start(checkpoint=checkpoint, trigger="once")


def test_a_batch_that_was_added_is_where_spark_goes_on(done: tuple[Query, Path], tmp_path: Path) -> None:
    query, checkpoint = done
    log = CheckpointLog(Local(checkpoint))
    assert log.add(log.batch(0).offsets) == 1
    (tmp_path / "in" / "more.txt").write_text("2")
    query.start(checkpoint=checkpoint, trigger="once").awaitTermination()
    assert CheckpointLog(Local(checkpoint)).committed == [0, 1, 2]
    assert written(query.frame.sparkSession, tmp_path / "out") == ["1", "2"]


def test_sources_of_a_plan_are_known_in_order_without_secrets(spark: SparkSession, tmp_path: Path) -> None:
    text = lines(spark, tmp_path / "in")
    rate = spark.readStream.format("rate").load().selectExpr("CAST(value AS string) AS value")
    spark_kafka = spark.readStream.format("kafka").options(
        **{"kafka.bootstrap.servers": "nowhere:1", "subscribe": "b,a", "kafka.sasl.jaas.config": "a-secret"}
    )
    ours = kafka.read(spark, "clicks", servers="nowhere:1", schema="value string", name="clicks").select("value")
    static = spark.createDataFrame([("1",)], "value string")
    frame = text.union(rate).union(spark_kafka.load().selectExpr("CAST(value AS string)")).union(ours)
    found = of_query(frame.join(static, "value"), [kafka.sink("out", servers="nowhere:1"), object()])
    assert found.sources == (
        SourceIdentity("text", {"path": str(tmp_path / "in")}, "text"),
        SourceIdentity("rate", {}, "rate"),
        SourceIdentity("kafka", {"topic": "a,b"}, "kafka"),
        SourceIdentity("kafka", {"topic": "clicks"}, "penstock-kafka-topic"),
    )
    assert found.sinks == (SinkTarget("kafka", "topic out"), SinkTarget("object"))
    assert "secret" not in found.text() and "nowhere" not in found.text()


def test_a_checkpoint_may_be_a_uri(spark: SparkSession, tmp_path: Path) -> None:
    folder = Hadoop(spark, f"file://{tmp_path}/checkpoint")
    assert folder.read("penstock.json") is None and folder.numbers("offsets") == []
    for text in ("before", "after: ü"):
        folder.write("penstock.json", text)
    folder.write("offsets/10", "v1")
    folder.write("offsets/9", "v1")
    assert folder.read("penstock.json") == "after: ü" and folder.numbers("offsets") == [9, 10]
    assert store_of("hdfs://name:8020/a/", spark) == Hadoop(spark, "hdfs://name:8020/a")
    assert store_of(f"file://{tmp_path}", spark) == Local(tmp_path)
    assert stored_identity(Local(tmp_path)) is None
