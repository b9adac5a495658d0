"""The file sink: what it refuses, what readers see, and batches that are run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from checkpoints import forget_last_commit
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions as F

from penstock import files, write
from penstock.errors import PenstockError
from penstock.query.query import Batch

QUERY = "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed"


@pytest.mark.parametrize(
    ("path", "options", "said"),
    [
        ("s3a://bucket/a", {}, "in an object store, which cannot rename.*with delta.sink; or to a file system"),
        ("/tmp/a", {"compression": "zip"}, "unknown compression 'zip'.*use one of zstd, snappy"),
    ],
)
def test_a_wrong_setting_is_refused_when_the_sink_is_made(path: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        files.sink(path, **options)


def test_a_folder_may_be_a_path(tmp_path: Path) -> None:
    assert files.sink(tmp_path) == files.sink(f"{tmp_path}/")


@pytest.mark.parametrize(
    ("select", "partition_by", "said"),
    [
        ("1 AS id", "day", "the frame has no column day.*columns id.*correct partition_by="),
        ("1 AS id, 2 AS batch", (), "column batch would hide the folders' column.*rename it"),
        ("1 AS id", "id", "leaves no column for the files"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused(
    spark: SparkSession, tmp_path: Path, select: str, partition_by: Any, said: str
) -> None:
    stream = spark.readStream.format("rate").load().selectExpr(*select.split(", "))
    with pytest.raises(PenstockError, match=said):
        write(stream, files.sink(str(tmp_path), partition_by=partition_by))


def test_a_folder_that_cannot_be_made_is_told_when_the_query_is_built(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    stream = spark.readStream.format("rate").load()
    with pytest.raises(PenstockError, match=r"files cannot be written: .*file.*make the folder"):
        write(stream, files.sink(f"{tmp_path}/file"))


def test_readers_see_whole_batches_by_their_partitions_and_each_once(spark: SparkSession, tmp_path: Path) -> None:
    sink = files.sink(str(tmp_path), partition_by=["day", "kind"])
    for number in (0, 1, 1, 0):
        frame = spark.range(number * 10, number * 10 + 10).selectExpr(
            "id", "DATE '2024-02-29' AS day", "id % 2 AS kind", "TIMESTAMP '2024-02-29 12:00:00.123456Z' AS at"
        )
        sink.save(frame, Batch(QUERY, number))
    sink.save(frame, Batch(f"{QUERY}.1", 0))  # another sink of the same query
    # The files of a killed attempt, which the next one removes.
    (tmp_path / f"_staging/batch={QUERY[:8]}-00000002.gone").mkdir()
    sink.save(frame.limit(0), Batch(QUERY, 2))
    assert not list((tmp_path / "_staging").iterdir())
    names = [f"{QUERY[:8]}-0000000{n}" for n in (0, 1, 2)] + [f"{QUERY[:8]}.1-00000000"]
    assert sorted(path.name for path in tmp_path.glob("batch=*")) == sorted(f"batch={name}" for name in names)
    by_arrow = ds.dataset(tmp_path, partitioning="hive").to_table().to_pylist()
    by_spark = [row.asDict() for row in spark.read.parquet(str(tmp_path)).collect()]
    assert len(by_arrow) == len(by_spark) == 30
    assert sorted(row["id"] for row in by_arrow if row["batch"] == names[1]) == list(range(10, 20))
    assert sorted(row["id"] for row in by_spark if row["batch"] == names[1] and row["kind"] == 1) == [
        11,
        13,
        15,
        17,
        19,
    ]
    assert {str(row["at"]) for row in by_arrow} == {"2024-02-29 12:00:00.123456+00:00"}


@pytest.mark.slow
def test_a_batch_that_fails_half_way_is_not_seen(spark: SparkSession, tmp_path: Path) -> None:
    data, out, checkpoint = tmp_path / "data", tmp_path / "out", tmp_path / "checkpoint"
    for part in range(2):
        spark.range(part * 100, part * 100 + 100, numPartitions=1).write.mode("append").parquet(str(data))

    @F.udf("bigint", useArrow=False)
    def sick(n: int) -> int:
        if n == 150 and not (tmp_path / "healed").exists():
            raise RuntimeError("sick")
        return n

    stream = spark.readStream.schema("id long").parquet(str(data)).select(sick("id").alias("id"))
    query = write(stream, files.sink(str(out)))
    with pytest.raises(PySparkException, match="sick"):
        query.start(checkpoint=checkpoint, trigger="once").awaitTermination()
    assert ds.dataset(out).count_rows() == 0
    (tmp_path / "healed").touch()
    for _ in range(2):
        query.start(checkpoint=checkpoint, trigger="once").awaitTermination()
        forget_last_commit(checkpoint)
    assert sorted(ds.dataset(out).to_table()["id"].to_pylist()) == list(range(200))
