"""The Spark session: loopback, UTC, our Python, and the Kafka connector in place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from waiting import patience, until

import penstock.session
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.native import shared_memory
from penstock_demo import child


def test_spark_keeps_to_this_machine_and_to_utc(spark: SparkSession) -> None:
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    ours = subprocess.check_output([os.environ["PYSPARK_PYTHON"], "-c", "import sys; print(sys.executable)"], text=True)
    assert ours.strip() == sys.executable


def test_a_second_call_gives_the_same_session(spark: SparkSession) -> None:
    assert penstock.session.spark("again").sparkContext is spark.sparkContext


def test_spark_writes_to_kafka_and_reads_it_back(spark: SparkSession, services: Services) -> None:
    rows = [("k1", "a"), ("k2", "b")]
    frame = spark.createDataFrame(rows, "key string, value string")
    kafka = {"kafka.bootstrap.servers": services.kafka}
    frame.write.format("kafka").options(**kafka).option("topic", "session").save()
    stored = spark.read.format("kafka").options(**kafka).option("subscribe", "session").load()
    assert sorted(stored.selectExpr("string(key)", "string(value)").collect()) == rows


def test_a_missing_pyarrow_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock.session, "find_spec", lambda name: None)
    with pytest.raises(PenstockError, match=r"Spark needs pyarrow .*\. Next: run: pip install pyarrow"):
        penstock.session.spark()


def test_python_workers_have_their_libraries_when_they_are_forked(spark: SparkSession) -> None:
    loaded = spark.sparkContext.parallelize([0], 1).map(lambda _: sorted(sys.modules)).collect()[0]
    assert {"numba", "pandas", "pyarrow"} <= set(loaded)


@pytest.mark.skipif(shared_memory.SharedMemory.make() is None, reason="this system gives no such memory")
def test_python_workers_share_memory(spark: SparkSession) -> None:
    def counted(_: int) -> int:
        with shared_memory.held("test_session") as slot:
            assert slot
            slot.notes[0] += 1
            return int(slot.notes[0])

    assert sorted(spark.sparkContext.parallelize(range(8), 8).map(counted).collect()) == list(range(1, 9))


def threes() -> type[DataSource]:
    """A source of one row; made here, so that it goes to other processes by value."""

    class Reader(DataSourceReader):
        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            yield (3,)

    class Threes(DataSource):
        @classmethod
        def name(cls) -> str:
            return "threes"

        def schema(self) -> str:
            return "three int"

        def reader(self, schema: object) -> DataSourceReader:
            return Reader()

    return Threes


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_spark_starts_a_daemon_again_that_ended_because_it_was_idle(spark: SparkSession) -> None:
    def daemons() -> list[int]:
        return [one.pid for one in child.below(os.getpid()) if one.name == "pyspark.daemon"]

    spark.dataSource.register(threes())
    assert [row.three for row in spark.read.format("threes").load().collect()] == [3]
    # Spark ends a worker after a minute; the daemon then has none.
    until(lambda: not daemons(), "end of the daemons", patience(180))
    assert [row.three for row in spark.read.format("threes").load().collect()] == [3]
