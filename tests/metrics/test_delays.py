"""What sinks count: in memory, and on real servers the buckets of events whose times are known."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from change_frames import AT, INSERT, ROW_DELETE, Table
from checkpoints import forget_last_commit
from hypothesis import given, strategies
from kafka_topics import messages, new_topic
from postgres_server import new_table, query as postgres_rows
from pyspark.sql import DataFrame, SparkSession, functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock import cdc, cql as pcql, files, kafka, postgres as pg, write
from penstock.codec.problem import reason_number
from penstock.database.retrying import DatabaseUnavailable
from penstock.errors import PenstockError
from penstock.kafka import kafka_writer
from penstock.kafka.kafka_sink import KafkaSink, _stage
from penstock.local.services import Services
from penstock.metrics import delays
from penstock.metrics.delays import BOUNDS, TIME, UNKNOWN, DelayCounts, EventTimes, SinkCounts, counts_of
from penstock.query.delivery import Delivery
from penstock.query.query import Batch, Query
from penstock.run.faults import of_query
from penstock.table.table import Table as Keyed
from penstock.wire import BlockingProducer
from penstock.wire.errors import DeliveryTimeout, MessageTooLarge
from penstock.wire.producer.table_receipts import Receipt, TableFailed

NOW = 1_800_000_000_000_000
MICROS = [round(bound * 1_000_000) for bound in BOUNDS]
# Seconds, and the number of events that are as old: far above a bucket's lower bound, so that a slow machine stays
# below the upper one.
AGES = {121: 16, 301: 7, 4_000: 2}
"""Records by their age in seconds: each bucket is minutes wide, as a query may take one on a busy machine."""
BUCKETS = {14: 16, 15: 7, 16: 2}
ROWS = sum(AGES.values())


def exact(delays_of: Sequence[int]) -> list[int]:
    """The buckets of delays in microseconds, as Prometheus defines them."""
    found = [0] * (len(BOUNDS) + 1)
    for delay in delays_of:
        found[next((place for place, bound in enumerate(MICROS) if delay <= bound), len(BOUNDS))] += 1
    return found


def filled(counts: SinkCounts) -> dict[int, int]:
    """The buckets that have rows."""
    return {bucket: count for bucket, count in enumerate(counts.buckets) if count}


# In memory.


def test_a_delay_on_a_bound_is_in_the_bucket_below_it() -> None:
    counts = DelayCounts()
    counts.acknowledged(32, np.array([NOW - bound - more for bound in MICROS for more in (0, 1)]), NOW)
    assert counts.counts().buckets == (1, *[2] * 15, 1)
    assert counts.counts().seconds == pytest.approx(2 * sum(BOUNDS) + 16e-6)


def test_times_of_the_future_are_no_delay_and_extreme_ones_no_overflow() -> None:
    counts = DelayCounts()
    counts.acknowledged(5, np.array([NOW + 1, (1 << 63) - 1, UNKNOWN, UNKNOWN + 1, 0]), NOW)
    assert counts.rows == 5 and filled(counts.counts()) == {0: 2, 16: 2}
    assert 6.2e10 < counts.seconds < 6.6e10
    counts.acknowledged(3, None, NOW)
    assert counts.rows == 8 and sum(counts.counts().buckets) == 4


TIMES = strategies.lists(strategies.integers(-2_000_000_000, 800_000_000), max_size=60)


@given(TIMES, strategies.integers(0, 400_000_000), strategies.integers(1, 60))
def test_times_that_wait_for_a_commit_are_counted_to_the_millisecond(offsets: list[int], wait: int, part: int) -> None:
    """However often they are condensed, and also on their way through bytes."""
    times = [NOW - offset // 1000 * 1000 for offset in offsets]
    waiting = EventTimes()
    waiting._old_until = NOW
    for first in range(0, len(times), part):
        waiting.add(part, np.array(times[first : first + part]))
        waiting.condense(NOW + first)
    for made in (waiting, EventTimes.of_packed(waiting.packed(), waiting.rows)):
        counts = made.acknowledged(DelayCounts(), commit := max(NOW + wait, made._old_until)).counts()
        ages = [max(0, commit - at) for at in times]
        assert counts.buckets == tuple(exact(ages)) and counts.rows == waiting.rows
        assert counts.seconds == pytest.approx(sum(ages) / 1e6, abs=1e-3 * len(times) + 1e-6)


def test_times_that_wait_for_a_commit_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delays, "MOST_TIMES", 1_000)
    waiting, now = EventTimes(), time.time_ns() // 1000
    random = np.random.default_rng(1)
    for _ in range(50):
        # Hostile times anywhere, beside many within the last second.
        waiting.add(2_000, random.integers(-(1 << 63), (1 << 63) - 1, 1_000))
        waiting.add(0, now - random.integers(0, 1_000_000, 1_000))
    assert len(waiting._millis) < 2_000 and not waiting._times
    counts = waiting.acknowledged(DelayCounts()).counts()
    assert sum(counts.buckets) == counts.rows == 100_000


def test_counts_add_up_and_survive_the_way_through_a_row() -> None:
    one = SinkCounts(3, 10, 1, tuple(range(17)), 1.5, {"A": 1}, {"not_json": 2})
    assert SinkCounts.of(one.batch().to_pylist()[0]) == SinkCounts(
        3, 10, 1, tuple(range(17)), 1.5, letters={"not_json": 2}
    )
    both = one + one
    assert both == SinkCounts(6, 20, 2, tuple(range(0, 34, 2)), 3.0, {"A": 2}, {"not_json": 4})


def test_threads_add_to_the_counts_of_a_sink_and_idle_sinks_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    one = SinkCounts(1, 2, 0, (1, *[0] * 16), 0.5)

    def work() -> None:
        for _ in range(500):
            delays.add("threads.1", one)

    monkeypatch.setattr(delays, "_sinks", OrderedDict())
    monkeypatch.setattr(delays, "MOST_SINKS", 2)
    delays.add("oldest", one)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (counts,) = counts_of("threads").values()
    assert (counts.rows, counts.bytes, counts.seconds) == (2_000, 4_000, 1_000.0) and list(counts_of("threads")) == [1]
    delays.add("newest", one)
    assert counts_of("threads") and counts_of("newest") and not counts_of("oldest")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeliveryTimeout("not\nacknowledged", topic="t"), "DeliveryTimeout"),
        (TableFailed(Receipt("t", 1, {}), [(0, 0, MessageTooLarge("one record of 9 bytes"))]), "MessageTooLarge"),
        (ValueError("row 3 of a batch has no topic"), "ValueError"),
        (DatabaseUnavailable("writing failed for 5 min"), "DatabaseUnavailable"),
        (type("lower", (Exception,), {})("no name of an error"), "other"),
    ],
)
def test_a_failure_of_a_stage_has_the_class_of_its_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    """Where Spark passes it on as text, and only if the stage writes for a streaming query."""
    monkeypatch.setattr(kafka_writer, "write_part", Mock(side_effect=error))
    query = f"fault-of-{reason}"
    delays.add_fault(query, said_of(_stage({}, delays.stage_failures)))
    assert counts_of(query)[0].failures == {reason: 1}
    # A sink that writes from the driver counts it there, and the failure of a source is none of the sink.
    delays.add_fault(query, said_of(_stage({}, nullcontext)))
    assert counts_of(query)[0].failures == {reason: 1}


def said_of(stage: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> str:
    """What Spark says of a task that this stage ends."""
    try:
        list(stage(iter(())))
    except Exception:
        return f"[PYTHON_EXCEPTION] {traceback.format_exc()}\nSQLSTATE: 38000"
    pytest.fail("the stage has written")


def test_failures_have_few_reasons_and_a_query_that_is_stopped_has_none() -> None:
    for number in range(100):
        with pytest.raises(RuntimeError), delays.failures("reasons.2"):
            raise type(f"Error{number}", (RuntimeError,), {})("once")
    with pytest.raises(RuntimeError), delays.failures("reasons.2"):
        raise RuntimeError("java.lang.InterruptedException")
    failures = counts_of("reasons")[2].failures
    assert len(failures) == delays.MOST_REASONS + 1 and failures["other"] == 100 - delays.MOST_REASONS


OF_REASONS = {
    "no_value": ["no value (a tombstone)"],
    "not_utf8": ["not valid UTF-8"],
    "not_json": ["not a JSON object: 'x is not a valid int: 1'", "an array, not an object: '[]'"],
    "not_csv": ["not 3 values: '1,a'"],
    "not_framed": ["not in Confluent's wire format: no zero byte with a schema id at the start"],
    "unknown_schema": ["the registry had no schema with the id 8 when this query started"],
    "not_of_schema": [
        "not valid Avro for the schema",
        "not valid Protobuf for the schema 7",
        "no valid message indexes after the schema id 7",
        "the schema 7 has no message 1.2",
    ],
    "wrong_type": [
        "id is not a valid int: 'x'",
        "a b is not a valid struct<a:int>: '{}'",
        "values of other types: '{}'",
    ],
    "missing_field": ["missing or null: id"],
    "wrong_time": ["no time in ts", "the time ts is ahead of its arrival: 2999", "a time out of range: month"],
    "unreadable": ["RECORDS_UNREADABLE (topic t)", "cannot be read: m in after: a list ends early"],
    "too_large": ["RECORDS_TOO_LARGE (topic t)"],
    "other": ["something new"],
}


def test_each_reason_of_a_bad_record_has_a_class(spark: SparkSession) -> None:
    pairs = [(name, text) for name, texts in OF_REASONS.items() for text in texts]
    frame = spark.createDataFrame([*pairs, (None, None)], "name string, text string")
    rows = frame.select("name", reason_number(F.col("text")).alias("number")).collect()
    assert [row["name"] for row in rows] == [
        None if row["number"] is None else delays.REASONS[row["number"]] for row in rows
    ]
    assert set(OF_REASONS) == set(delays.REASONS)


# Which column has the times.


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ("timestamp'2024-01-01' AS timestamp", ()),
        ("struct(timestamp'2024-01-01' AS start, timestamp'2024-01-02' AS end) AS window", ("window", "end")),
        ("struct(1 AS start, 2 AS end) AS window", ()),
        ("timestamp'2024-01-01' AS window_end, 1 AS n", ("window_end",)),
        ("'x' AS window_end", ()),
    ],
)
def test_the_time_of_a_window_is_its_end(spark: SparkSession, columns: str, field: tuple[str, ...]) -> None:
    frame = spark.sql(f"SELECT {columns}")
    assert delays.event_field(frame) == field
    assert (TIME in delays.timed(frame).columns) is bool(field)


def test_the_time_of_a_change_is_its_ts_and_it_stays_with_the_events(spark: SparkSession) -> None:
    table = Table({"id": "int", "v": "int"}, ["id"])
    frame = table.frame(spark, [{"kind": INSERT, "key": (1,), "after": (1, 2)}, {"kind": ROW_DELETE, "key": (1,)}])
    assert delays.event_field(frame) == ("ts",)
    events = cdc.events(frame, prefix="p")
    assert events.columns == ["topic", "key", "value", "timestamp"]
    micros = round(AT.timestamp() * 1_000_000)
    assert [row[TIME] for row in delays.timed(events).collect()] == [micros] * 3
    sink = kafka.sink(prefix="p", servers="h:1")
    assert sink.records(frame).columns == ["topic", "key", "value"]
    both = delays.timed(events.where("value IS NOT NULL").unionAll(events))
    assert [row[TIME] for row in both.collect()] == [micros] * 5


def test_the_column_of_times_can_be_named(spark: SparkSession) -> None:
    frame = spark.sql("SELECT 1 AS id, timestamp'2024-02-29 12:00:00Z' AS `at.x`, timestamp'2024-01-01' AS window_end")
    sink = kafka.sink("t", servers="h:1", event_time="at.x")
    (row,) = sink._timed(frame).collect()
    assert row[TIME] == 1_709_208_000_000_000
    assert sorted(json.loads(row.value)) == ["at.x", "id", "window_end"]
    with pytest.raises(PenstockError, match=r"event_time= is int"):
        kafka.sink("t", servers="h:1", event_time="id").records(frame)
    with pytest.raises(PenstockError, match=r"event_time= names no column: 'at'"):
        kafka.sink("t", servers="h:1", event_time="at").records(frame)
    changes = Table({"id": "int"}, ["id"]).frame(spark, [])
    with pytest.raises(PenstockError, match=r"the time of a change is when it was written.*leave event_time= out"):
        kafka.sink("t", servers="h:1", event_time="ts").records(changes)


# On real servers.


@pytest.fixture
def topics(services: Services) -> Iterator[tuple[str, str]]:
    """Two new topics of two partitions: one to read, one to write."""
    with new_topic(services.kafka, "events", 2) as source, new_topic(services.kafka, "out", 2) as target:
        yield source, target


def produce(servers: str, topic: str, ages: Mapping[int, int] = AGES) -> None:
    """Write records that are as old, each with a different key."""
    now = time.time_ns() // 1_000_000
    stamps = [now - 1000 * age for age, count in ages.items() for _ in range(count)]
    keys = [str(number) for number in range(len(stamps))]
    values = [f'{{"id": {number}}}' for number in keys]
    with BlockingProducer(servers) as producer:
        producer.send_table(topic, pa.table({"key": keys, "value": values, "timestamp": stamps}))


def read(spark: SparkSession, services: Services, topic: str, **options: Any) -> DataFrame:
    return kafka.read(spark, topic, servers=services.kafka, name="events", schema="id int", **options)


def run(query: Query, checkpoint: Path) -> dict[int, SinkCounts]:
    """The counts after this run."""
    running: StreamingQuery = query.start(checkpoint=checkpoint, trigger="once")
    running.awaitTermination()
    for progress in running.recentProgress:
        delays.add_observed(str(progress["id"]), progress["observedMetrics"])
    return counts_of(str(running.id))


def ids(services: Services, topic: str) -> list[int]:
    return sorted(json.loads(one.value())["id"] for one in messages(services.kafka, topic, 2))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_made_up_delays_are_in_their_buckets(
    spark: SparkSession, services: Services, topics: tuple[str, str], tmp_path: Path, delivery: Delivery
) -> None:
    """Over several batches and tasks; a batch that is run again counts what is written again, and no more."""
    source, target = topics
    produce(services.kafka, source)
    frame = read(spark, services, source, batch=9).select("id", "timestamp")
    query = write(frame, kafka.sink(target, servers=services.kafka, delivery=delivery))
    counts = run(query, tmp_path / "checkpoint")
    assert list(counts) == [0] and counts[0].rows == ROWS
    assert filled(counts[0]) == BUCKETS
    assert counts[0].retries == 0 and not counts[0].failures and not counts[0].letters
    ages = sum(age * count for age, count in AGES.items())
    assert ages < counts[0].seconds < ages + ROWS * 170
    assert ids(services, target) == list(range(ROWS))
    (record, *_) = messages(services.kafka, target, 2)
    assert sorted(json.loads(record.value())) == ["id", "timestamp"]
    forget_last_commit(tmp_path / "checkpoint")
    (again,) = run(query, tmp_path / "checkpoint").values()
    assert again.rows == len(ids(services, target))
    if delivery == "exactly-once":
        assert again == counts[0]
    else:
        assert again.rows > ROWS and sum(again.buckets) == again.rows and again.bytes > counts[0].bytes


class Memory:
    """A sink of a user, which knows nothing of counts."""

    delivery: ClassVar[str] = "exactly-once"
    target: ClassVar[tuple[str, str]] = ("memory", "")

    def __init__(self) -> None:
        self.columns: list[str] = []

    def records(self, frame: DataFrame) -> DataFrame:
        return frame

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        raise NotImplementedError

    def save(self, frame: DataFrame, batch: Batch) -> None:
        self.columns = frame.columns


@pytest.mark.slow
def test_each_sink_of_a_query_has_its_counts(
    spark: SparkSession, services: Services, topics: tuple[str, str], tmp_path: Path
) -> None:
    source, target = topics
    produce(services.kafka, source)
    with BlockingProducer(services.kafka) as producer:
        bad = pa.table({"value": [b"no json", b"[]", b'{"id": "x"}'], "timestamp": [round(AT.timestamp() * 1000)] * 3})
        producer.send_table(source, bad)
    frame = read(spark, services, source)
    other = Memory()
    with new_topic(services.kafka, "dead", 2) as dead:
        sinks = (
            kafka.dead_letters(dead, servers=services.kafka),
            kafka.sink(target, servers=services.kafka),
            files.sink(tmp_path / "out", partition_by="topic"),
            kafka.sink(target, servers=services.kafka, delivery="exactly-once"),
            other,
        )
        counts = run(write(frame, *sinks), tmp_path / "checkpoint")
        letters = list(messages(services.kafka, dead, 2))
        assert {header for letter in letters for header, _ in letter.headers()} >= {"__connect.errors.topic"}
    assert sorted(counts) == [0, 1, 2, 3]
    assert [counts[place].rows for place in range(4)] == [len(letters), ROWS + 3, ROWS + 3, ROWS + 3] == [3, *[28] * 3]
    assert [filled(counts[place]) for place in range(1, 4)] == [BUCKETS | {16: 5}] * 3 and filled(counts[0]) == {16: 3}
    assert counts[0].letters == {"not_json": 2, "wrong_type": 1} and not counts[1].letters
    parquet = list((tmp_path / "out").rglob("*.parquet"))
    assert counts[2].bytes == sum(path.stat().st_size for path in parquet)
    assert TIME not in pa.dataset.dataset(parquet).schema.names and other.columns == frame.columns


@pytest.mark.slow
@pytest.mark.parametrize("delivery", ["at-least-once", "exactly-once"])
def test_dead_letters_of_one_sink_are_counted_by_reason(
    spark: SparkSession, services: Services, topics: tuple[str, str], tmp_path: Path, delivery: Delivery
) -> None:
    source, target = topics
    with BlockingProducer(services.kafka) as producer:
        producer.send_table(source, pa.table({"value": [b"no json", b'{"id": 1}', None]}))
    query = write(read(spark, services, source), kafka.dead_letters(target, servers=services.kafka, delivery=delivery))
    (counts,) = run(query, tmp_path / "checkpoint").values()
    assert counts.letters == {"not_json": 1, "no_value": 1} and counts.rows == sum(counts.buckets) == 2


@pytest.mark.slow
def test_rows_of_a_database_table(
    spark: SparkSession,
    services: Services,
    cql: Any,
    keyspace: str,
    topics: tuple[str, str],
    tmp_path: Path,
) -> None:
    cql.execute(f"CREATE TABLE {keyspace}.delays (id int PRIMARY KEY, timestamp timestamp)")
    source, _ = topics
    produce(services.kafka, source)
    frame = read(spark, services, source, batch=9).select("id", "timestamp")
    query = write(frame, pcql.sink(f"{keyspace}.delays", hosts=services.cql))
    (counts,) = run(query, tmp_path / "checkpoint").values()
    assert counts.rows == ROWS and filled(counts) == BUCKETS
    # Four bytes of the int, and eight of the timestamp.
    assert (counts.bytes, counts.retries) == (12 * ROWS, 0)
    assert len(list(cql.execute(f"SELECT id FROM {keyspace}.delays"))) == ROWS


@pytest.mark.slow
def test_rows_of_a_table_keep_the_time_of_their_event(
    spark: SparkSession, services: Services, cql: Any, keyspace: str, topics: tuple[str, str], tmp_path: Path
) -> None:
    """A compacted topic's table to a database and to a topic: the frame of the table has no column with the time."""
    cql.execute(f"CREATE TABLE {keyspace}.people (id int PRIMARY KEY, deleted boolean)")
    source, target = topics
    produce(services.kafka, source)
    table = kafka.read_table(spark, source, key="id", servers=services.kafka, name="people", schema="id int")
    assert isinstance(table, Keyed) and TIME not in table.df.columns
    sinks = pcql.sink(f"{keyspace}.people", hosts=services.cql), kafka.sink(target, servers=services.kafka)
    counts = run(write(table, *sinks), tmp_path / "checkpoint")
    assert [filled(counts[place]) for place in (0, 1)] == [BUCKETS, BUCKETS]
    assert {json.loads(one.value()).keys() == {"id"} for one in messages(services.kafka, target, 2)} == {True}


@pytest.mark.slow
@pytest.mark.parametrize("key", [None, "id"])
def test_rows_of_postgres_count_when_they_are_merged(
    spark: SparkSession,
    services: Services,
    postgres: str,
    topics: tuple[str, str],
    tmp_path: Path,
    key: str | None,
) -> None:
    source, _ = topics
    produce(services.kafka, source)
    with new_table(postgres, "id int PRIMARY KEY, timestamp timestamptz") as name:
        frame = read(spark, services, source, batch=9).select("id", "timestamp")
        query = write(frame, pg.sink(name, url=postgres, key=key))
        (counts,) = run(query, tmp_path / "checkpoint").values()
        assert counts.rows == ROWS and filled(counts) == BUCKETS and counts.bytes == 12 * ROWS
        forget_last_commit(tmp_path / "checkpoint")
        assert run(query, tmp_path / "checkpoint")[0] == counts
        assert postgres_rows(postgres, f"SELECT count(*) FROM {name}") == [(ROWS,)]


def test_a_batch_of_files_that_exists_counts_nothing(
    spark: SparkSession, services: Services, topics: tuple[str, str], tmp_path: Path
) -> None:
    source, _ = topics
    produce(services.kafka, source)
    windows = F.window("timestamp", "1 second").alias("window")
    frame = read(spark, services, source).select("id", windows)
    query = write(frame, files.sink(tmp_path / "out"))
    (counts,) = run(query, tmp_path / "checkpoint").values()
    assert counts.rows == ROWS and filled(counts) == BUCKETS
    forget_last_commit(tmp_path / "checkpoint")
    assert run(query, tmp_path / "checkpoint")[0] == counts


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("several", [False, True])
def test_a_failure_is_counted_by_its_class(
    spark: SparkSession, services: Services, topics: tuple[str, str], tmp_path: Path, several: bool
) -> None:
    source, _ = topics
    produce(services.kafka, source, {1: 1})
    with new_topic(services.kafka, "small", 2, {"max.message.bytes": "1000"}) as target:
        frame = read(spark, services, source).select(F.repeat(F.uuid(), F.lit(2_000)).alias("value"))
        sink = kafka.sink(target, servers=services.kafka, options={"compression.type": "none"})
        query = write(frame, *([files.sink(tmp_path / "out")] if several else []), sink)
        running = query.start(checkpoint=tmp_path / "checkpoint", trigger="once")
        with pytest.raises(Exception, match="MESSAGE_TOO_LARGE"):
            running.awaitTermination()
        fault = of_query(running)
        assert fault is not None
        delays.add_fault(str(running.id), fault.trace)
    counts = counts_of(str(running.id))
    assert counts[1 if several else 0].failures == {"MessageTooLarge": 1}
    assert counts[0].rows == (1 if several else 0)


def test_events_of_changes_carry_the_time_of_the_change(
    spark: SparkSession, services: Services, topics: tuple[str, str]
) -> None:
    _, target = topics
    table = Table({"id": "int", "v": "int"}, ["id"])
    frame = table.frame(spark, [{"kind": INSERT, "key": (n,), "after": (n, 2)} for n in range(7)])
    ago = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=125)
    frame = frame.withColumn("ts", F.lit(ago))
    for number, changes in enumerate((frame, cdc.events(frame, prefix="p", topic=target))):
        KafkaSink.save(kafka.sink(target, servers=services.kafka), changes, Batch("changes", number))
    assert filled(counts_of("changes")[0]) == {14: 14}
