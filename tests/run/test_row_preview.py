"""`preview` on a real broker, a real node and Spark: what it shows, how much it reads, and that nothing of it stays."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from _thread import interrupt_main
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from kafka_topics import new_topic
from pyspark.sql import DataFrame, SparkSession, functions as F
from waiting import PATIENCE, until

import penstock as ps
from penstock import cdc, kafka, window
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.process.signals import kept_interrupt
from penstock.table import Table

CLICK = "user string, page string NOT NULL, ts timestamp"


@pytest.fixture(autouse=True)
def nothing_stays(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each preview no query runs, and its checkpoint is gone."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert spark.streams.active == []
    assert list(temporary.glob("penstock-preview-*")) == []


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "preview", 1) as name:
        yield name


@pytest.fixture
def clicks(spark: SparkSession, services: Services, topic: str) -> DataFrame:
    """Three clicks in each of four minutes, one batch for each minute, and then a record that cannot be read."""
    sent = [{"user": f"u{n % 3}", "page": "a", "ts": f"2026-01-01T00:{n // 3:02}:{n:02}Z"} for n in range(12)]
    send(services, topic, [*map(json.dumps, sent), "not JSON"])
    return kafka.read(
        *(spark, topic), servers=services.kafka, schema=CLICK, at="ts", late="1 second", batch=3, name="clicks"
    )


def send(services: Services, topic: str, values: Sequence[str]) -> None:
    producer = Producer({"bootstrap.servers": services.kafka, "queue.buffering.max.messages": 1_000_000})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def per_minute(clicks: DataFrame) -> DataFrame:
    return window.tumbling(clicks, "1 minute", at="ts", key="page", name="minutes", n="count(*)")


def test_it_shows_the_first_records_of_a_topic(clicks: DataFrame) -> None:
    found = ps.preview(clicks, rows=4)
    assert list(found.columns) == clicks.columns
    assert list(found["user"]) == ["u0", "u1", "u2", "u0"]
    assert str(found["ts"].dtype) == "datetime64[ns]"
    assert list(found.index) == [0, 1, 2, 3]


@pytest.mark.slow
def test_it_shows_all_if_there_is_less(clicks: DataFrame) -> None:
    found = ps.preview(clicks, rows=100)
    assert len(found) == 13
    assert found["problem"][12]["reason"].startswith("not a JSON object")


@pytest.mark.slow
def test_no_rows_have_columns_too(clicks: DataFrame) -> None:
    found = ps.preview(clicks.select("user", "ts").where("user = 'nobody'"))
    assert found.empty
    assert list(found.columns) == ["user", "ts"]


@pytest.mark.slow
def test_it_reads_no_further_than_it_needs(spark: SparkSession, services: Services, topic: str, tmp_path: Path) -> None:
    send(services, topic, ['{"id": 1}'] * 200_000)
    log = tmp_path / "read"

    def widened(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with log.open("a") as file:
                file.write(f"{len(batch)}\n")
            # More than the sockets between the processes hold.
            yield pa.record_batch({"text": pa.array(["x" * 1000] * len(batch))})

    frame = kafka.read(spark, topic, servers=services.kafka, schema="id int", name="large")
    found = ps.preview(frame.select("id").mapInArrow(widened, "text string"), rows=5)
    assert len(found) == 5
    assert 5 <= sum(map(int, log.read_text().split())) < 100_000


def test_changes_of_a_table(spark: SparkSession, services: Services, cql: Any, keyspace: str) -> None:
    options = "{'enabled': true, 'preimage': 'full', 'postimage': true}"
    cql.execute(f"CREATE TABLE {keyspace}.shown (id int PRIMARY KEY, name text) WITH cdc = {options}")
    for number in range(3):
        cql.execute(f"INSERT INTO {keyspace}.shown (id, name) VALUES ({number}, 'n{number}')")
    cql.execute(f"DELETE FROM {keyspace}.shown WHERE id = 0")
    changes = cdc.read(
        spark, f"{keyspace}.shown", hosts=services.cql, name="shown", images="full", confidence=timedelta(0)
    )
    found = ps.preview(changes)
    assert sorted(found["op"]) == ["c", "c", "c", "d"]
    assert sorted(row["name"] for row in found["after"] if row is not None) == ["n0", "n1", "n2"]
    assert len(ps.preview(changes, rows=2)) == 2


@pytest.mark.slow
def test_windows_are_shown_when_they_end(clicks: DataFrame) -> None:
    found = ps.preview(per_minute(clicks), timeout="5 minutes")
    assert list(found["n"]) == [3, 3, 3]
    assert list(found["window_start"].dt.minute) == [0, 1, 2]
    assert list(ps.preview(per_minute(clicks), rows=1, timeout="5 minutes")["window_start"].dt.minute) == [0]


@pytest.mark.slow
def test_revisions_of_a_table(spark: SparkSession, services: Services, topic: str) -> None:
    send(services, topic, ['{"id": 1, "name": "a"}', '{"id": 1, "name": "b"}'])
    rows = kafka.read(spark, topic, servers=services.kafka, schema="id int, name string", name="users")
    people = Table(rows.select("id", "name", "offset"), key=("id",), version="offset")
    assert list(ps.preview(people)["name"]) == ["a", "b"]


@pytest.mark.slow
def test_each_output_mode(clicks: DataFrame) -> None:
    counts = clicks.where("problem IS NULL").groupBy("page").count()
    assert list(ps.preview(counts, rows=3, mode="update", timeout="5 minutes")["count"]) == [3, 6, 9]
    assert list(ps.preview(counts, rows=1, mode="complete", timeout="5 minutes")["count"]) == [12]
    with pytest.raises(PenstockError, match=r"(?s)output mode: append.*preview\(\).*mode='update' or mode='complete'"):
        ps.preview(counts)


def test_a_frame_that_is_no_stream(spark: SparkSession) -> None:
    assert list(ps.preview(spark.range(100), rows=3)["id"]) == [0, 1, 2]


@pytest.mark.slow
def test_errors_are_in_our_words(spark: SparkSession, clicks: DataFrame) -> None:
    def to_int(text):  # type: ignore[no-untyped-def]
        return int(text)

    to_int = F.udf(to_int, "int")
    said = r"ValueError: invalid literal for int\(\) .*'u0', in to_int, .*/test_row_preview.py, line .* \(preview\(\)\)"
    with pytest.raises(PenstockError, match=said) as streamed:
        ps.preview(clicks.select(to_int("user")))
    assert streamed.value.where == "preview()"
    with pytest.raises(PenstockError, match=said):
        ps.preview(spark.sql("SELECT 'u0' AS user").select(to_int("user")))


def test_errors_of_a_source_keep_their_words(spark: SparkSession, services: Services) -> None:
    frame = kafka.read(spark, "preview-no-such-topic", servers=services.kafka, schema="id int", name="none")
    with pytest.raises(PenstockError, match="preview-no-such-topic"):
        ps.preview(frame)


@pytest.mark.slow
def test_it_ends_after_the_timeout(clicks: DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="penstock"):
        began = time.monotonic()
        found = ps.preview(waiting(clicks, tmp_path / "started"), timeout="2 seconds")
    assert found.empty
    assert time.monotonic() - began < PATIENCE
    assert "0 of 10 rows within 2 s" in caplog.text


@pytest.mark.slow
def test_it_ends_with_ctrl_c(clicks: DataFrame, tmp_path: Path) -> None:
    started = tmp_path / "started"

    def interrupt() -> None:
        until(started.exists, "the function of the frame runs")
        interrupt_main()

    user = threading.Thread(target=interrupt)
    user.start()
    with pytest.raises(KeyboardInterrupt):
        ps.preview(waiting(clicks, started), timeout="2 minutes")
    user.join()


def test_ctrl_c_comes_while_the_jvm_is_asked(spark: SparkSession) -> None:
    main, jvm = threading.main_thread().ident, spark.sparkContext._jvm

    def waits_for_answer() -> bool:
        return sys._current_frames()[main or 0].f_code.co_name == "readinto"

    def interrupt() -> None:
        until(waits_for_answer, "call into the JVM")
        os.kill(os.getpid(), signal.SIGINT)

    user = threading.Thread(target=interrupt)
    with kept_interrupt() as interrupted:
        user.start()
        while not interrupted.is_set():
            jvm.java.lang.Thread.sleep(100)  # type: ignore[union-attr]
        assert jvm.java.lang.Integer.toString(7) == "7"  # type: ignore[union-attr]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    user.join()


def waiting(frame: DataFrame, started: Path) -> DataFrame:
    """A frame that gives no row; it makes the file when it is read."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            started.touch()
            threading.Event().wait()
            yield batch

    return frame.select("user").mapInArrow(wait, "user string")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows": 0}, "rows is 0 .*from 1 to 100000"),
        ({"rows": True}, r"rows is a bool \(preview\)\. Next: give an integer"),
        ({"rows": 100_001}, "rows is 100001 .*write them to a sink"),
        ({"rows": "10"}, "rows is a str"),
        ({"timeout": "soon"}, "timeout is not a duration: 'soon'"),
        ({"timeout": 0}, "timeout is zero"),
        ({"mode": "all"}, "unknown mode 'all' .*'append', 'update', 'complete'"),
        ({"frame": "clicks"}, "frame is a str .*give a DataFrame or a KeyedFrame"),
    ],
)
def test_wrong_arguments(spark: SparkSession, given: dict[str, Any], said: str) -> None:
    with pytest.raises(PenstockError, match=said):
        ps.preview(**({"frame": spark.range(1)} | given))
