"""The Spark session: loopback, UTC, our Python, and the Kafka connector in place."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession
from waiting import patience

import penstock.session
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.native import shared_memory


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


def test_the_end_of_java_is_not_blamed_for_errors_of_other_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    monkeypatch.setattr(penstock.session, "jvm_process", lambda session: ended)
    monkeypatch.setattr(penstock.session, "end", lambda session: None)
    session: Any = None
    with pytest.raises(PenstockError, match="no Kafka"), penstock.session.until_end(session):
        raise PenstockError("no Kafka") from ConnectionRefusedError()
    for lost in (Py4JNetworkError(), PenstockError("in the pipeline's file")):
        lost.__cause__ = Py4JNetworkError()
        with (
            pytest.raises(PenstockError, match=r"Java process ended \(exit code 0\)"),
            penstock.session.until_end(session),
        ):
            raise lost


AGAIN = """
import os
import time

import penstock
from penstock_demo import child
from pyspark.sql.datasource import DataSource, DataSourceReader


class Reader(DataSourceReader):
    def read(self, partition):
        yield (3,)


class Threes(DataSource):
    @classmethod
    def name(cls):
        return "threes"

    def schema(self):
        return "three int"

    def reader(self, schema):
        return Reader()


def look():
    print([row.three for row in spark.read.format("threes").load().collect()], flush=True)


spark = penstock.spark()
spark.dataSource.register(Threes)
look()
while any(one.name == "pyspark.daemon" for one in child.below(os.getpid())):
    time.sleep(0.1)
look()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_spark_starts_a_daemon_again_that_ended_because_it_was_idle() -> None:
    # Spark ends a worker after a minute; the daemon then has none.
    ran = subprocess.run(
        [sys.executable, "-c", AGAIN], capture_output=True, text=True, timeout=patience(300), check=False
    )
    assert ran.stdout.split() == ["[3]", "[3]"], ran.stderr
    # In a shell or a notebook Spark's warnings are seen.
    assert "WARN" not in ran.stderr
