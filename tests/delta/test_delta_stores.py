"""The Delta sink on a server of S3's interface: rows, conflicts, and a server that stops, hangs or refuses."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from checkpoints import forget_last_commit
from delta_tables import rows
from deltalake import DeltaTable
from hdfs import hdfs
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession, functions as F
from s3_server import BUCKET, S3Server, s3_server

from penstock import delta, write
from penstock.delta.delta_table import DeltaLog
from penstock.errors import PenstockError
from penstock.query.query import Batch
from penstock.run import faults
from penstock.spark_runtime.failures import Unavailable


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as running:
        yield running


def test_rows_are_appended_upserted_and_deleted(spark: SparkSession, server: S3Server) -> None:
    path = f"s3://{BUCKET}/a folder/both"
    frame = spark.range(6, numPartitions=2).selectExpr("id", "concat('a/ü ', id % 2) AS p", "'a' AS s")
    for number in (0, 0):
        delta.sink(path, partition_by="p", storage_options=server.options).save(frame, Batch("append", number))
    changes = frame.where("id < 2").selectExpr("id", "p", "'b' AS s", "id = 1 AS gone")
    sink = delta.sink(f"s3a://{BUCKET}/a folder/both/", key=["id", "p"], deleted="gone", storage_options=server.options)
    for number in (0, 0):
        sink.save(changes, Batch("upsert", number))
    found = rows(path, "id", **server.options)
    assert [(row["id"], row["p"], row["s"]) for row in found] == [
        (0, "a/ü 0", "b"),
        (2, "a/ü 0", "a"),
        (3, "a/ü 1", "a"),
        (4, "a/ü 0", "a"),
        (5, "a/ü 1", "a"),
    ]


def test_keys_may_be_in_the_environment(spark: SparkSession, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in server.options.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    stream = spark.readStream.format("rate").load()
    write(stream, delta.sink(f"s3://{BUCKET}/environment"))


def test_two_writers_at_once_lose_nothing(spark: SparkSession, server: S3Server) -> None:
    path = f"s3://{BUCKET}/writers"

    def run(writer: int) -> None:
        sink = delta.sink(path, storage_options=server.options)
        for number in range(3):
            begin = (writer * 3 + number) * 10
            sink.save(spark.range(begin, begin + 10), Batch(f"writer-{writer}", number))

    delta.sink(path, storage_options=server.options).save(spark.range(0), Batch("first", 0))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    assert [row["id"] for row in rows(path, "id", **server.options)] == list(range(60))
    assert DeltaTable(path, storage_options=server.options).version() == 6


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("key", [None, "id"], ids=["append", "upsert"])
def test_a_server_that_hangs_before_the_commit_and_comes_back(
    spark: SparkSession, server: S3Server, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    path = f"s3://{BUCKET}/hangs-{key}"
    sink = delta.sink(path, key=key, storage_options=server.options)
    sink.save(spark.range(3), Batch("hangs", 0))
    name = "merge" if key else "append"
    commit = getattr(DeltaLog, name)

    def hanging(*arguments: Any) -> None:
        os.kill(server.process.pid, signal.SIGSTOP)
        commit(*arguments)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(DeltaLog, name, hanging)
            with pytest.raises(Unavailable, match=r"the storage of the Delta table is away: .*the batch is repeated"):
                sink.save(spark.range(3, 6), Batch("hangs", 1))
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    # What it had received before may be done by now.
    sink.save(spark.range(3, 6), Batch("hangs", 1))
    assert [row["id"] for row in rows(path, "id", **server.options)] == list(range(6))


@pytest.mark.slow
def test_a_server_that_hangs_while_tasks_write_is_a_failure_that_passes(
    spark: SparkSession, server: S3Server, tmp_path: Path
) -> None:
    path, pid, hung = f"s3://{BUCKET}/tasks", server.process.pid, tmp_path / "hung"
    for part in range(2):
        spark.range(part * 100, part * 100 + 100, numPartitions=1).write.mode("append").parquet(str(tmp_path / "in"))

    @F.udf("bigint", useArrow=False)
    def stopping(n: int) -> int:
        if n == 150 and not hung.exists():
            hung.touch()
            os.kill(pid, signal.SIGSTOP)
        return n

    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "in")).select(stopping("id").alias("id"))
    query = write(stream, delta.sink(path, storage_options=server.options))
    try:
        running = query.start(checkpoint=tmp_path / "checkpoint", trigger="once")
        with pytest.raises(StreamingQueryException):
            running.awaitTermination()
    finally:
        os.kill(pid, signal.SIGCONT)
    fault = faults.of_query(running)
    assert fault and fault.retriable and "the storage of the Delta table is away" in fault.text
    for _ in range(2):
        query.start(checkpoint=tmp_path / "checkpoint", trigger="once").awaitTermination()
        forget_last_commit(tmp_path / "checkpoint")
    assert [row["id"] for row in rows(path, "id", **server.options)] == list(range(200))


def test_a_bucket_that_does_not_exist_is_a_mistake(spark: SparkSession, server: S3Server) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(PenstockError, match=r"NoSuchBucket.*Next: fix the path, the rights or storage_opt") as refused:
        write(stream, delta.sink("s3://nothing/t", storage_options=server.options))
    assert not refused.value.retriable and "a-secret" not in str(refused.value)


def test_a_server_that_was_killed_is_told_and_the_batch_is_repeated(spark: SparkSession, tmp_path: Path) -> None:
    path = f"s3://{BUCKET}/killed"
    with s3_server(tmp_path) as first:
        sink = delta.sink(path, storage_options=first.options)
        sink.save(spark.range(1), Batch("killed", 0))
        first.process.kill()
        first.process.wait()
        with pytest.raises(Unavailable, match=r"the storage of the Delta table is away: .*Connection refused"):
            sink.save(spark.range(1, 3), Batch("killed", 1))
        with pytest.raises(Unavailable):
            sink.records(spark.range(1))


@pytest.mark.slow
def test_a_table_may_be_in_hdfs(spark: SparkSession, tmp_path: Path) -> None:
    with hdfs(tmp_path) as uri:
        sink = delta.sink(f"{uri}/tables/t", partition_by="p")
        for number in (0, 0, 1):
            numbers = spark.range(number * 10, number * 10 + 10).selectExpr("id", "concat('a/ü ', id % 2) AS p")
            sink.save(numbers, Batch("hdfs", number))
        changes = spark.range(5).selectExpr("id", "concat('a/ü ', id % 2) AS p", "id < 3 AS gone")
        delta.sink(f"{uri}/tables/t", key=["id", "p"], deleted="gone").save(changes, Batch("upsert", 0))
        assert [row["id"] for row in rows(f"{uri}/tables/t", "id")] == list(range(3, 20))
    with pytest.raises(Unavailable, match="the storage of the Delta table is away"):
        sink.save(numbers, Batch("hdfs", 2))
