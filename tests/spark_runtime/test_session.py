"""The Spark session: loopback, UTC, our Python, and the Kafka connector in place."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.clientserver import ClientServerConnection, JavaParameters, PythonParameters
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.sql import SparkSession
from waiting import patience

import penstock.spark_runtime.session
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
    assert penstock.spark_runtime.session.spark("again").sparkContext is spark.sparkContext


def test_spark_writes_to_kafka_and_reads_it_back(spark: SparkSession, services: Services) -> None:
    rows = [("k1", "a"), ("k2", "b")]
    frame = spark.createDataFrame(rows, "key string, value string")
    kafka = {"kafka.bootstrap.servers": services.kafka}
    frame.write.format("kafka").options(**kafka).option("topic", "session").save()
    stored = spark.read.format("kafka").options(**kafka).option("subscribe", "session").load()
    assert sorted(stored.selectExpr("string(key)", "string(value)").collect()) == rows


def test_a_missing_pyarrow_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock.spark_runtime.session, "find_spec", lambda name: None)
    with pytest.raises(PenstockError, match=r"Spark needs pyarrow .*\. Next: run: pip install pyarrow"):
        penstock.spark_runtime.session.spark()


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


def refused() -> ConnectionRefusedError:
    """As py4j raises it for a new connection to a JVM that has ended."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    gateway: Any = SimpleNamespace(pool=None)
    with pytest.raises(ConnectionRefusedError) as raised:
        ClientServerConnection(JavaParameters(port=port), PythonParameters(), gateway, None).connect_to_java_server()
    return raised.value


def java_error(text: str) -> Py4JJavaError:
    class Told(Py4JJavaError):  # type: ignore[misc]
        def __init__(self) -> None:
            pass

        def __str__(self) -> str:
            return text

    return Told()


LOST = [
    Py4JNetworkError(),
    refused(),
    java_error("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."),
    java_error("org.apache.spark.SparkException: Job 3 cancelled because SparkContext was shut down"),
]
OTHERS = [ConnectionRefusedError(), OSError("disk"), java_error("java.lang.ArithmeticException"), ValueError("wrong")]


def caused_by(error: Exception) -> PenstockError:
    """As an error in a pipeline's file is raised."""
    found = PenstockError("in the pipeline's file")
    found.__cause__ = error
    return found


@pytest.fixture(scope="module")
def ended() -> subprocess.Popen[bytes]:
    with subprocess.Popen(["sh", "-c", "exit 3"]) as process:
        process.wait()
    return process


@pytest.mark.parametrize("lost", [*LOST, *map(caused_by, LOST)])
def test_the_end_of_java_explains_an_error_of_its_connection(lost: Exception, ended: subprocess.Popen[bytes]) -> None:
    with pytest.raises(PenstockError, match=r"Spark's Java process ended \(exit code 3\)\. Next: run it again"):
        penstock.spark_runtime.session.explain(lost, ended, "run it again")


@pytest.mark.parametrize("error", [*OTHERS, *map(caused_by, OTHERS)])
def test_the_end_of_java_is_not_blamed_for_other_errors(error: Exception, ended: subprocess.Popen[bytes]) -> None:
    penstock.spark_runtime.session.explain(error, ended, "run it again")


def test_java_may_end_after_its_connection() -> None:
    with subprocess.Popen(["sleep", "0.3"]) as ends_soon, pytest.raises(PenstockError, match=r"ended \(exit code 0\)"):
        penstock.spark_runtime.session.explain(Py4JNetworkError(), ends_soon, "run it again")


def test_an_error_while_java_runs_is_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penstock.spark_runtime.session, "JVM_ENDS", 0.1)
    with subprocess.Popen(["sleep", "600"]) as running:
        penstock.spark_runtime.session.explain(Py4JNetworkError(), running, "run it again")
        running.kill()


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
