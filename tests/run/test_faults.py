"""Failures of real queries, as `faults` reads them from Spark's errors."""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery

from penstock import kafka, write
from penstock.errors import PenstockError, SchemaChanged
from penstock.metrics.delays import stage_failures
from penstock.run.faults import Fault, _summary, of_error, of_query
from penstock.spark_runtime.failures import Unavailable
from penstock.wire.errors import (
    ConnectionLost,
    DeliveryTimeout,
    KafkaError,
    LeaderNotAvailable,
    MessageTooLarge,
    ProducerFenced,
    TransactionAbortable,
)


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.txt").write_text("1\n0\n")
    return spark.readStream.text(str(tmp_path / "in"))


def failed(query: StreamingQuery) -> Fault:
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    fault = of_query(query)
    assert fault
    return fault


def raising(rows: DataFrame, error: Exception) -> StreamingQuery:
    def save(batch: DataFrame, number: int) -> None:
        raise error

    return rows.writeStream.foreachBatch(save).start()


def test_our_errors_are_found_in_a_traceback(rows: DataFrame) -> None:
    changed = SchemaChanged("the columns changed", where="ks.t", next="wait")
    assert failed(raising(rows, changed)) == Fault("the columns changed (ks.t). Next: wait", True, at_once=True)
    refused = PenstockError("no permission", where="ks.t")
    assert failed(raising(rows, refused)) == Fault("no permission (ks.t)", False)


@pytest.mark.parametrize(
    "text",
    [
        "first\npenstock.errors.SchemaChanged: try again",
        "penstock.errors.SchemaChanged: try again",
        "first\npenstock.no.such.Thing: x",
        "first\n  indented\npenstock.__main__.main: x",
        "first\n  indented\npenstock.errors.NoSuch: x",
    ],
)
def test_a_text_that_names_our_errors_is_none(rows: DataFrame, text: str) -> None:
    found = failed(raising(rows, ValueError(text)))
    assert not found.retriable and not found.at_once and found.text


def test_an_error_of_ours_reads_the_same_in_the_driver() -> None:
    changed = SchemaChanged("the columns changed", where="ks.t", next="wait")
    assert of_error(changed) == Fault("the columns changed (ks.t). Next: wait", True, at_once=True)


def test_other_errors_are_final_and_told_in_one_line(rows: DataFrame) -> None:
    python = failed(raising(rows, KeyError("amount")))
    assert not python.retriable and "KeyError: 'amount'" in python.text and "\n" not in python.text
    sql = failed(rows.selectExpr("1 / CAST(value AS int) AS v").writeStream.format("noop").start())
    assert not sql.retriable and sql.text.startswith("[DIVIDE_BY_ZERO]") and "\n" not in sql.text


def test_an_error_of_a_users_function_has_its_place_and_its_columns(rows: DataFrame) -> None:
    def to_int(text):  # type: ignore[no-untyped-def]
        return _parsed(text)

    to_int = F.udf(to_int, "int")
    found = failed(rows.select(to_int(F.concat("value", F.lit("x"))).alias("v")).writeStream.format("noop").start())
    line = inspect.getsourcelines(_parsed)[1] + 1
    assert found.text == (
        f"ValueError: invalid literal for int() with base 10: '1x', in _parsed, {__file__}, line {line}, "
        "called as to_int(concat(value, 'x'))"
    )


def _parsed(text: str) -> int:
    return int(text)


def test_a_disk_that_is_full_may_get_room(rows: DataFrame) -> None:
    fault = failed(raising(rows, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    assert fault.retriable and "No space left on device" in fault.text


@pytest.mark.parametrize("sinks", [1, 2])
def test_a_broker_that_is_away_can_come_back(rows: DataFrame, tmp_path: Path, sinks: int) -> None:
    sink = kafka.sink("t", servers="127.0.0.1:1", options={"max.block.ms": "300"})
    fault = failed(write(rows, *[sink] * sinks).start(checkpoint=tmp_path / "checkpoint", trigger="once"))
    assert fault.retriable and not fault.at_once
    assert "not present in metadata" in fault.text


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (ConnectionLost(detail="127.0.0.1:1 closed the connection"), True),
        (LeaderNotAvailable(topic="t"), True),
        (DeliveryTimeout(topic="t"), True),
        (TransactionAbortable(), True),
        (MessageTooLarge(topic="t"), False),
        (ProducerFenced(), False),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_errors_of_our_kafka_client_pass_as_its_own_do(rows: DataFrame, error: KafkaError, retriable: bool) -> None:
    """`penstock run` once ended because a broker was out of reach at the start of a transaction."""
    assert failed(raising(rows, error)) == Fault(str(error), retriable)


@pytest.mark.parametrize(
    ("error", "retriable"),
    [
        (LeaderNotAvailable(topic="t"), True),
        (MessageTooLarge(topic="t"), False),
        (Unavailable("no answer", where="the database"), True),
        (PenstockError("no permission", where="ks.t"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_errors_of_the_stage_of_a_sink_pass_as_its_own_do(
    rows: DataFrame, tmp_path: Path, error: Exception, retriable: bool
) -> None:
    """PySpark leaves out what the stage's error was raised from: a topic that was deleted ended its task."""

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with stage_failures():
            for _ in batches:
                raise error
        yield from ()

    query = rows.mapInArrow(stage, rows.schema).writeStream.format("noop")
    fault = failed(query.option("checkpointLocation", str(tmp_path / "c")).start())
    assert fault == Fault(str(error), retriable)


def test_a_query_that_was_stopped_has_no_fault(rows: DataFrame) -> None:
    query = rows.writeStream.format("noop").start()
    query.stop()
    assert of_query(query) is None


def test_a_failure_of_which_spark_says_nothing_is_told_by_its_class() -> None:
    query: Any = None
    said = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: SQLSTATE: XXKST\n=== Streaming Query ==="
    )
    outer = {"org.apache.spark.sql.streaming.StreamingQueryException"}, said
    died = "a Python process of Spark ended, for example because it was killed"
    assert _summary([outer, ({"java.io.EOFException", "java.io.IOException"}, "")], query) == died
    assert _summary([outer, ({"java.lang.IllegalStateException"}, "")], query) == "Spark gave no reason"
    assert _summary([outer, ({"java.io.IOException"}, "Stream closed")], query) == "Stream closed"
    assert _summary([], query) == "Spark gave no reason"


# Threads that die of an error of the JVM.


def test_an_error_of_the_jvm_is_final_and_has_its_stack(rows: DataFrame, tmp_path: Path) -> None:
    # Evaluated while a batch is planned, in the query's thread: Java's matcher needs a frame for each letter.
    overflows = F.repeat(F.lit("ab"), F.lit(200_000)).rlike("^(a|b)*$")
    query = rows.select(overflows.alias("x")).writeStream.format("noop")
    fault = failed(query.option("checkpointLocation", str(tmp_path / "c")).start())
    assert (fault.text, fault.retriable) == ("java.lang.StackOverflowError", False)
    first, second, *_ = fault.trace.splitlines()
    assert first == "java.lang.StackOverflowError" and "java.util.regex.Pattern" in second
    assert "Current Committed Offsets" in fault.trace


@pytest.mark.parametrize(
    ("active", "message", "stopped", "died"),
    [
        (False, "Processing new data", False, True),
        (False, "Getting offsets from the log", False, True),
        (True, "Processing new data", False, False),
        (False, "Processing new data", True, False),
        (False, "Stopped", False, False),
        (False, "Initializing sources", False, False),
    ],
)
def test_a_thread_that_dies_while_spark_reports_why_is_a_failure(
    active: bool, message: str, stopped: bool, died: bool
) -> None:
    nothing = SimpleNamespace(isDefined=lambda: False)
    java = SimpleNamespace(exception=lambda: nothing)
    query: Any = SimpleNamespace(name="shop.a", isActive=active, status={"message": message}, _jsq=java)
    fault = of_query(query, stopped=stopped)
    assert (fault is not None) is died
    if fault:
        assert not fault.retriable and fault.query == "shop.a"
        assert "Spark has not kept why" in fault.text and "java.lang.Error" in fault.trace
