"""Checkpoints on HDFS: queries with state, batches that run again, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hdfs import hdfs
from number_files import add, pipeline, written
from pyspark.sql import SparkSession
from waiting import patience

import penstock as ps
from penstock import files
from penstock.checkpoint import checkpoint_folder
from penstock.checkpoint.checkpoint_folder import Local
from penstock.checkpoint.hadoop_folder import Away, Hadoop
from penstock.checkpoint.lease import Lease
from penstock.checkpoint.log import CheckpointLog
from penstock.errors import PenstockError
from penstock.query.query import Query
from penstock.run import positions
from penstock.spark_runtime.settings import FILE_MANAGER, MANAGER

FILE = pipeline('frame.dropDuplicates(["id"])')


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as found:
        yield found


@pytest.fixture
def folder(spark: SparkSession, uri: str, tmp_path: Path) -> Hadoop:
    return Hadoop(spark, f"{uri}/{tmp_path.name}")


def test_files_are_written_replaced_and_removed(folder: Hadoop) -> None:
    assert folder.read("offsets/0") is None and folder.numbers("offsets") == []
    for text in ("a longer text: ü", "short", ""):
        folder.write("offsets/0", text)
        assert folder.read("offsets/0") == text
    folder.write("offsets/10", "v1")
    assert folder.numbers("offsets") == [0, 10]
    folder.remove("offsets/0")
    folder.remove("offsets/7")
    assert folder.numbers("offsets") == [10]


def test_a_file_that_is_too_large_is_not_read(folder: Hadoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_folder, "LARGEST", 5)
    for store in (folder, Local(tmp_path)):
        store.write("offsets/1", "12345")
        store.write("offsets/2", "123456")
        assert store.read("offsets/1") == "12345" and store.read("offsets/3") is None
        with pytest.raises(PenstockError, match=r"has 6 bytes, and at most 5 .*offsets/2.*restore the checkpoint"):
            store.read("offsets/2")


def test_of_several_callers_one_adds_a_file(folder: Hadoop) -> None:
    for number in range(5):
        with ThreadPoolExecutor(4) as pool:
            added = [pool.submit(folder.add, str(number), f"of {one}") for one in range(4)]
        winner = [one for one, future in enumerate(added) if future.result()]
        assert len(winner) == 1 and folder.read(str(number)) == f"of {winner[0]}"


def distinct(spark: SparkSession, folder: Path) -> Query:
    frame = spark.readStream.schema("id long").json(str(folder / "in"))
    return ps.write(frame.dropDuplicates(["id"]), files.sink(folder / "out"))


def test_a_batch_with_state_runs_again(spark: SparkSession, folder: Hadoop, tmp_path: Path) -> None:
    def run() -> None:
        distinct(spark, tmp_path).start(checkpoint=folder.uri, trigger="once").awaitTermination()

    for ids in ((1, 2), (2, 3)):
        add(tmp_path, *ids)
        run()
    # As if the driver had died before its commit: the batch's files of state are there already.
    for _ in range(2):
        folder.remove(f"commits/{CheckpointLog(folder).committed[-1]}")
        run()
    add(tmp_path, 3, 4)
    run()
    assert written(tmp_path) == [1, 2, 3, 4]
    assert len(CheckpointLog(folder).committed) == len(CheckpointLog(folder).planned) == 3
    assert spark.conf.get(MANAGER) == FILE_MANAGER
    said = r"the checkpoint belongs to another query.*`penstock checkpoints adopt \S+ --checkpoints hdfs://"
    with pytest.raises(PenstockError, match=said):
        ps.write(spark.readStream.text(str(tmp_path / "in")), files.sink(tmp_path / "other")).claim(folder.uri)


@pytest.mark.slow
def test_the_commands_of_checkpoints_work_elsewhere(folder: Hadoop, spark: SparkSession, tmp_path: Path) -> None:
    add(tmp_path, 1, 2)
    frame = spark.readStream.schema("id long").json(str(tmp_path / "in"))
    query = ps.write(frame, files.sink(tmp_path / "out"))
    query.start(checkpoint=folder.below("numbers").uri, trigger="once").awaitTermination()
    assert positions.checkpoints(folder) == ["numbers"]
    shown = positions.show(folder, "numbers")
    assert (shown.batch, shown.running, shown.stateful) == (0, None, False)
    assert shown.folder == f"{folder.uri}/numbers" and datetime.now(UTC) - shown.created < timedelta(hours=1)
    run = Lease(folder.below("numbers.lease"), "numbers")
    assert run.take(lambda seconds: True)
    holder = positions.show(folder, "numbers").running
    assert isinstance(holder, str) and holder.startswith(f"process {os.getpid()} on ")
    with run.renewed(), pytest.raises(PenstockError, match="already runs this pipeline"):
        positions.reset(folder, "numbers")
    assert positions.adopt(folder, "numbers") and not positions.adopt(folder, "numbers")
    with pytest.raises(PenstockError, match=r"the source .* has no times in its offsets"):
        positions.move(folder, "numbers", "earliest")
    aside = positions.reset(folder, "numbers")
    assert aside.startswith(f"{folder.uri}/.reset/numbers-") and positions.checkpoints(folder) == []
    assert Hadoop(spark, aside).numbers("commits") == [0]
    inner = folder.below("several")
    query.claim(inner.below("one").uri)
    whole = Lease(folder.below("several.lease"), "several")
    assert whole.take(lambda seconds: True)
    # Of a pipeline with several queries the lease is beside its folder.
    with whole.renewed(), pytest.raises(PenstockError, match="already runs this pipeline"):
        positions.reset(inner, "one")
    assert positions.reset(inner, "one").startswith(f"{inner.uri}/.reset/one-")
    # The root of the file system, which has nothing above it.
    query.claim(folder.uri)
    root = Hadoop(spark, folder.uri.rpartition("/")[0])
    assert positions.show(root, tmp_path.name).running is None
    folder.remove("penstock.json")
    with pytest.raises(PenstockError, match=f"there is no folder {folder.uri}/none"):
        positions.checkpoints(folder.below("none"))


def test_a_path_is_a_folder_of_this_machine_whatever_is_the_default(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    add(tmp_path, 1)
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", uri)
    try:
        frame = spark.readStream.schema("id long").json(f"file:{tmp_path}/in")
        query = ps.write(frame, files.sink(f"file:{tmp_path}/out"))
        query.start(checkpoint=str(tmp_path / "kept"), trigger="once").awaitTermination()
    finally:
        hadoop.set("fs.defaultFS", before)
    assert CheckpointLog(Local(tmp_path / "kept")).committed == [0] and (tmp_path / "kept/penstock.json").exists()


def test_what_spark_cannot_use_is_told(spark: SparkSession, tmp_path: Path) -> None:
    add(tmp_path, 1)
    query = distinct(spark, tmp_path)
    cases: list[tuple[str, type[PenstockError], str]] = [
        ("nofs://host/a", PenstockError, r'No FileSystem for scheme "nofs" .*nofs://host/a/.*jars and settings'),
        ("s3a://bucket/a", PenstockError, "is in an object store, which cannot rename files .*AbortableStreamBased"),
    ]
    for checkpoint, kind, said in cases:
        with pytest.raises(kind, match=said):
            query.start(checkpoint=checkpoint)
    with pytest.raises(PenstockError, match=r"S3AFileSystem not found .*give Spark the jars") as raised:
        Hadoop(spark, "s3a://bucket/a").read("metadata")
    assert not raised.value.retriable


def test_a_file_system_that_is_away_is_one_to_try_again(spark: SparkSession) -> None:
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    hadoop.set("ipc.client.connect.max.retries", "0")
    try:
        folder = Hadoop(spark, "hdfs://127.0.0.1:1/a")
        asks: list[Callable[[], object]] = [
            lambda: folder.read("a"),
            lambda: folder.write("a", ""),
            lambda: folder.add("a", ""),
            lambda: folder.remove("a"),
            lambda: folder.numbers(""),
        ]
        for ask in asks:
            with pytest.raises(Away, match=r"the checkpoint cannot be used: .*refused.*that the file system is up"):
                ask()
    finally:
        hadoop.unset("ipc.client.connect.max.retries")


@pytest.mark.slow
def test_a_run_with_a_checkpoint_elsewhere(uri: str, spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(FILE)
    root = f"{uri}/{tmp_path.name}/kept"
    for ids in ((1, 2), (2, 3)):
        add(tmp_path, *ids)
        ran = subprocess.run(
            [sys.executable, "-m", "penstock", "run", "shop.py:numbers", "--once", "--checkpoints", root],
            cwd=tmp_path,
            env=os.environ | {"FOLDER": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=patience(300),
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert f"the checkpoint is {root}/numbers" in ran.stderr
    assert written(tmp_path) == [1, 2, 3]
    listed = subprocess.run(
        [sys.executable, "-m", "penstock", "checkpoints", "show", "numbers", "--checkpoints", root],
        capture_output=True,
        text=True,
        timeout=patience(300),
        check=False,
    )
    assert listed.returncode == 0 and f"folder       {root}/numbers\n" in listed.stdout, listed.stderr
    lease = Hadoop(spark, f"{root}/numbers.lease")
    assert lease.numbers("") == [2] and '"released": true' in (lease.read("2") or "")
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out", "shop.py"}
