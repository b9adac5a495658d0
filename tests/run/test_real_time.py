"""Real-time mode on a real broker: rows come before a batch ends, stops and kills lose nothing, others are refused."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka_topics import messages, new_topic, stored
from observing import Said
from pyspark.sql import DataFrame, SparkSession, functions as F
from shuffles import one_partition
from waiting import PATIENCE, patience, until

import penstock as ps
from penstock import files, kafka, table, window
from penstock.errors import PenstockError
from penstock.local.services import Services, down, up
from penstock.query import real_time
from penstock.query.query import Query
from penstock.run.life_signs import CUT, Observer
from penstock.run.pipeline import Build, Pipeline
from penstock.run.supervise import PipelineRun, StopRequests
from penstock.table import Table

FILE = Path(__file__).parent / "files" / "pipelines.py"
SCHEMA = "id int NOT NULL, user string, ts timestamp"


@dataclass
class Topics:
    """A topic of clicks, in which they are sent with rising ids, one of results, and one of dead letters."""

    servers: str
    clicks: str
    out: str
    dead: str
    sent: int = 0

    def send(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for _ in range(count):
            producer.produce(self.clicks, json.dumps({"id": self.sent, "user": "ann"}), partition=0)
            self.sent += 1
        assert producer.flush(30) == 0

    def spoil(self) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        producer.produce(self.clicks, "no json", key="k", partition=0)
        assert producer.flush(30) == 0

    def came(self) -> list[int]:
        return [json.loads(value)["id"] for value in stored(self.servers, self.out, 1)[0]]

    def read(self, spark: SparkSession, name: str = "clicks", **settings: Any) -> DataFrame:
        return kafka.read(spark, self.clicks, servers=self.servers, schema=SCHEMA, name=name, **settings)

    def users(self, spark: SparkSession) -> Table:
        return kafka.read_table(spark, self.clicks, key="id", servers=self.servers, schema=SCHEMA, name="users")

    def good(self, spark: SparkSession) -> DataFrame:
        return self.read(spark).where("problem IS NULL").select(F.to_json(F.struct("id", "user")).alias("value"))

    def to_topic(self, frame: DataFrame) -> Query:
        return ps.write(frame, kafka.sink(self.out, servers=self.servers))

    def pipeline(self, build: Build) -> Pipeline:
        return ps.pipeline(every="real-time", name="early")(build)

    def copied(self) -> Pipeline:
        return self.pipeline(lambda spark: self.to_topic(self.good(spark)))


@pytest.fixture
def topics(services: Services) -> Iterator[Topics]:
    with (
        new_topic(services.kafka, "clicks", 1) as clicks,
        new_topic(services.kafka, "out", 1) as out,
        new_topic(services.kafka, "dead", 1) as dead,
    ):
        yield Topics(services.kafka, clicks, out, dead)


@dataclass
class Run:
    """A running pipeline, and what it said."""

    stop: StopRequests
    thread: threading.Thread
    said: list[str] = field(default_factory=list)


@contextmanager
def running(spark: SparkSession, pipeline: Pipeline, checkpoint: Path) -> Iterator[Run]:
    """The pipeline runs inside; at the end it stops as on SIGTERM."""
    run = Run(StopRequests(threading.Event(), threading.Event()), threading.Thread())
    supervised = PipelineRun(pipeline, spark, checkpoint, run.stop, Said(run.said))
    failed: list[BaseException] = []

    def supervise() -> None:
        try:
            supervised.supervise()
        except PenstockError as error:
            failed.append(error)

    run.thread = threading.Thread(target=supervise)
    run.thread.start()
    try:
        yield run
    finally:
        run.stop.gently.set()
        run.thread.join(PATIENCE)
        assert not run.thread.is_alive() and not failed, failed


def end_while_rows_come(run: Run, send: Callable[[], None]) -> None:
    """Stop it at the end of a batch, however long that takes: a task ends its batch at a record."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(real_time, "END_PATIENCE", PATIENCE)
        run.stop.gently.set()
        while run.thread.is_alive():
            send()


def batches(checkpoint: Path) -> int:
    return len(list((checkpoint / "commits").glob("[0-9]*")))


@pytest.mark.slow
def test_rows_come_before_the_batch_ends_and_a_stop_repeats_none(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    for _ in range(2):
        with running(spark, topics.copied(), tmp_path) as run:
            for _ in range(3):
                topics.send(10)
                until(lambda: len(topics.came()) >= topics.sent, "rows")
            before = batches(tmp_path)
            end_while_rows_come(run, lambda: topics.send(1))
        assert batches(tmp_path) == before + 1
        assert run.said == []
    with running(spark, topics.copied(), tmp_path):
        until(lambda: len(topics.came()) >= topics.sent, "rows")
    assert topics.came() == list(range(topics.sent))


@pytest.mark.slow
def test_a_stop_of_an_idle_topic_says_that_rows_come_again(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    for round in (1, 2):
        with running(spark, topics.copied(), tmp_path) as run:
            topics.send(5 if round == 1 else 0)
            until(lambda count=5 * round: len(topics.came()) >= count, "rows")  # type: ignore[misc]
        assert run.said == [f"early: {CUT}"]
    assert topics.came() == [*range(5), *range(5)]


@pytest.mark.slow
def test_a_checkpoint_goes_from_batches_to_real_time_and_back(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    in_batches = ps.pipeline(every="100 milliseconds", name="early")(topics.copied().build)
    for pipeline in (in_batches, topics.copied(), in_batches, topics.copied()):
        with running(spark, pipeline, tmp_path) as run:
            topics.send(10)
            until(lambda: len(topics.came()) >= topics.sent, "rows")
            end_while_rows_come(run, lambda: topics.send(1))
    PipelineRun(
        in_batches, spark, tmp_path, StopRequests(threading.Event(), threading.Event()), Observer(), True
    ).supervise()
    assert topics.came() == list(range(topics.sent))


@pytest.mark.slow
def test_a_bad_record_is_a_dead_letter_at_once(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    pipeline = topics.pipeline(
        lambda spark: ps.write(topics.read(spark), kafka.dead_letters(topics.dead, servers=topics.servers))
    )
    with running(spark, pipeline, tmp_path):
        topics.send(3)
        topics.spoil()
        until(lambda: stored(topics.servers, topics.dead, 1)[0], "dead letter")
        assert batches(tmp_path) == 0
    assert set(stored(topics.servers, topics.dead, 1)[0]) == {b"no json"}


@pytest.mark.slow
def test_a_frame_of_columns_leaves_with_its_key_at_once(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    def build(spark: SparkSession) -> Query:
        rows = topics.read(spark).where("problem IS NULL").select("id", "user")
        return ps.write(rows, kafka.sink(topics.out, servers=topics.servers, key="id"))

    with running(spark, topics.pipeline(build), tmp_path):
        topics.send(12)
        until(lambda: len(topics.came()) >= topics.sent, "rows")
        assert batches(tmp_path) == 0
    sent = list(messages(topics.servers, topics.out, 1))
    assert [one.key() for one in sent] == [b"%d" % json.loads(one.value())["id"] for one in sent]
    assert set(json.loads(sent[0].value())) == {"id", "user"}


def shout(text: str) -> str:
    return text.upper()


REFUSED: dict[str, tuple[Callable[[SparkSession, Topics], Query], str]] = {
    "python function": (
        lambda spark, topics: topics.to_topic(
            topics.good(spark).select(F.udf(shout, "string", useArrow=False)("value").alias("value"))
        ),
        r"the Python function shout: its rows would wait .*docs/real-time.md",
    ),
    "mapInArrow": (
        lambda spark, topics: topics.to_topic(topics.good(spark).mapInArrow(lambda batches: batches, "value string")),
        r"a Python function \(MapInArrow\)",
    ),
    "state": (
        lambda spark, topics: topics.to_topic(
            table.count(topics.users(spark), by="user", name="n").df.selectExpr("string(count) AS value")
        ),
        r"a function of penstock.window, table, join or segment \(TransformWithStateInPySpark\)",
    ),
    "our client": (
        lambda spark, topics: topics.to_topic(topics.read(spark, client="penstock").select(F.lit("x").alias("value"))),
        r'the source penstock-kafka-topic.*Next: read a topic with kafka.read, without client= or with client="spark"',
    ),
    "other source": (
        lambda spark, topics: topics.to_topic(
            spark.readStream.format("rate").load().selectExpr("string(value) AS value")
        ),
        r"the source rate",
    ),
    "exactly once": (
        lambda spark, topics: ps.write(
            topics.good(spark), kafka.sink(topics.out, servers=topics.servers, delivery="exactly-once")
        ),
        r"the delivery exactly-once.*Next: leave delivery= out",
    ),
    "our client writes": (
        lambda spark, topics: ps.write(
            topics.good(spark), kafka.sink(topics.out, servers=topics.servers, client="penstock")
        ),
        r"the client 'penstock'.*Next: leave client= out of kafka.sink",
    ),
    "table": (
        lambda spark, topics: ps.write(topics.users(spark), kafka.sink(topics.out, servers=topics.servers)),
        r"a table to the sink kafka",
    ),
    "files": (
        lambda spark, topics: ps.write(topics.good(spark), files.sink("/tmp/never")),
        r"the sink files .*Next: write to a topic with kafka.sink",
    ),
    "two sinks": (
        lambda spark, topics: ps.write(
            topics.good(spark), *(kafka.sink(name, servers=topics.servers) for name in (topics.out, topics.dead))
        ),
        r"several sinks",
    ),
    "two streams": (
        lambda spark, topics: topics.to_topic(
            topics.good(spark).join(topics.read(spark, name="more").selectExpr("string(id) AS value"), "value")
        ),
        r"a join of two streams",
    ),
}


UNFIT: dict[str, tuple[Callable[[SparkSession, Topics], DataFrame], str]] = {
    "session": (
        lambda spark, topics: window.session(
            topics.read(spark, at="ts", late="1 minute"), "1 minute", at="ts", key="user", name="s", n="count(*)"
        ),
        r"session windows do not run in real-time mode .*Next: give the pipeline an interval",
    ),
    "final": (
        lambda spark, topics: window.tumbling(
            topics.read(spark, at="ts", late="1 minute"), "1 minute", at="ts", key="user", name="s", n="count(*)"
        ),
        r"sends its result with each row.*window s.*Next: give emit='changes'",
    ),
    "no arrival": (
        lambda spark, topics: window.tumbling(
            topics.read(spark, at="ts", late="1 minute").drop("timestamp"),
            "1 minute",
            at="ts",
            key="user",
            name="s",
            emit="changes",
            n="count(*)",
        ),
        r"needs the column timestamp.*Next: keep this column",
    ),
    "batch": (lambda spark, topics: topics.read(spark, batch=5), r"batch= limits micro-batches.*leave batch= out"),
}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", UNFIT)
def test_functions_say_what_they_need(spark: SparkSession, topics: Topics, name: str) -> None:
    make, said = UNFIT[name]
    with pytest.raises(PenstockError, match=said):
        topics.pipeline(lambda spark: topics.to_topic(make(spark, topics))).queries(spark)


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_when_the_pipeline_is_built(
    spark: SparkSession, topics: Topics, name: str
) -> None:
    make, said = REFUSED[name]
    with pytest.raises(PenstockError, match=f"real-time mode does not take {said}"):
        topics.pipeline(lambda spark: make(spark, topics)).queries(spark)


@pytest.mark.slow
def test_the_slots_are_counted_before_the_start(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    slots = spark.sparkContext.defaultParallelism
    with new_topic(topics.servers, "wide", slots) as wide:

        def both(spark: SparkSession) -> list[Query]:
            frames = [topics.good(spark), replace(topics, clicks=wide).good(spark)]
            sink = kafka.sink(topics.out, servers=topics.servers)
            return [ps.write(frame, sink, name=name) for frame, name in zip(frames, ("one", "many"), strict=True)]

        stop = StopRequests(threading.Event(), threading.Event())
        with pytest.raises(PenstockError, match=f"needs {slots + 1} slots, one for.*has {slots} .*early"):
            PipelineRun(topics.pipeline(both), spark, tmp_path, stop, Observer()).supervise()
    assert not list(tmp_path.glob("*/offsets"))


@pytest.mark.slow
def test_brokers_that_do_not_answer_are_tried_again(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    absent = replace(topics, servers="127.0.0.1:1")
    with running(spark, absent.copied(), tmp_path) as run:
        said = until(lambda: run.said, "line about the brokers")
    assert re.match(r"early: the topics cannot be described: .*127\.0\.0\.1:1.*starting again in 1 s", said[0])


@pytest.mark.slow
def test_a_topic_that_is_not_there_is_named(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    absent = replace(topics, clicks="never-made")
    with running(spark, absent.copied(), tmp_path) as run:
        said = until(lambda: run.said, "line about the topic")
    assert re.match(r"early: the topics cannot be described: .*starting again", said[0])


@pytest.mark.slow
@pytest.mark.kill
def test_a_killed_run_loses_nothing(topics: Topics, tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        names = {"KAFKA": topics.servers, "CLICKS": topics.clicks, "TOPIC": topics.out}
        command = ["run", f"{FILE}:early", "--checkpoints", str(tmp_path)]
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "penstock", *command], env=os.environ | names, start_new_session=True
            )
        )
        return started[-1]

    try:
        for round in range(3):
            run = start()
            topics.send(100)
            until(lambda: set(topics.came()) >= set(range(topics.sent)), "rows", patience(120))
            topics.send(100)
            if round < 2:
                run.kill()
                run.wait()
        until(lambda: set(topics.came()) >= set(range(topics.sent)), "rows", patience(120))
    finally:
        for run in started:
            if run.poll() is None:
                run.send_signal(signal.SIGTERM)
                run.wait(PATIENCE)
    came = topics.came()
    assert set(came) == set(range(topics.sent))
    # A repeated row comes after those before it: the newest row of a key stays the newest.
    assert came[-1] == topics.sent - 1
    first = list(dict.fromkeys(came))
    assert first == sorted(first)


@pytest.mark.kill
def test_a_broker_that_is_killed_costs_no_row(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "services"
    try:
        first = up(root, only=["kafka"])
        with new_topic(first.kafka, "clicks", 1) as clicks, new_topic(first.kafka, "out", 1) as out:
            topics = Topics(first.kafka, clicks, out, "")
            with running(spark, topics.copied(), tmp_path / "checkpoint"):
                topics.send(100)
                until(lambda: len(topics.came()) >= topics.sent, "rows")
                os.kill(first.pids["kafka"], signal.SIGKILL)
                up(root, only=["kafka"])
                topics.send(100)
                until(lambda: set(topics.came()) >= set(range(topics.sent)), "rows", patience(180))
            assert set(topics.came()) == set(range(topics.sent))
    finally:
        down(root)


HOUR, MINUTE = 3600, 60
WINDOWED = {
    "n": "count(*)",
    "total": "sum(id)",
    "least": "min(id)",
    "most": "max(id)",
    "mean": "avg(id)",
    "last": "max(user)",
}


def windowed(topics: Topics, wide: str, step: str | None, **aggregates: str) -> Pipeline:
    def build(spark: SparkSession) -> Query:
        rows = topics.read(spark, at="ts", late="10 minutes")
        size: dict[str, Any] = dict(at="ts", key="user", name="windows", emit="changes", **aggregates)
        made = window.hopping(rows, wide, every=step, **size) if step else window.tumbling(rows, wide, **size)
        return topics.to_topic(made.select(F.to_json(F.struct("*")).alias("value")))

    return topics.pipeline(build)


def totals(events: list[tuple[int, str, float]], wide: int, step: int) -> dict[tuple[str, int], list[int]]:
    """The ids of each user's windows, by the window's start in seconds."""
    found = defaultdict(list)
    for number, user, at in events:
        newest = int(at // step) * step
        for start in range(newest, newest - wide, -step):
            found[user, start].append(number)
    return dict(found)


@pytest.mark.slow
@pytest.mark.parametrize(("wide", "step"), [(MINUTE, MINUTE), (2 * MINUTE, MINUTE)])
def test_windows_send_each_change_and_keep_late_rows(
    spark: SparkSession, topics: Topics, tmp_path: Path, wide: int, step: int
) -> None:
    drawn, now = random.Random(7), time.time()
    events: list[tuple[int, str, float]] = []

    def send(count: int) -> None:
        producer = Producer({"bootstrap.servers": topics.servers})
        for _ in range(count):
            late = drawn.random() < 0.1
            at = now - drawn.uniform(0, 3 * MINUTE) - (2 * HOUR if late else 0)
            events.append((len(events), drawn.choice(["ann", "bob", "cid"]), at))
            number, user, _ = events[-1]
            row = {"id": number, "user": user, "ts": datetime.fromtimestamp(at, UTC).isoformat()}
            producer.produce(topics.clicks, json.dumps(row), partition=0)
        assert producer.flush(30) == 0

    def results() -> list[dict[str, Any]]:
        return [json.loads(value) for value in stored(topics.servers, topics.out, 1)[0]]

    pipeline = windowed(topics, f"{wide} seconds", f"{step} seconds" if wide > step else None, **WINDOWED)
    with one_partition(spark):
        for _ in range(2):
            with running(spark, pipeline, tmp_path) as run:
                send(100)
                until(lambda: len(results()) >= len(events) * wide // step, "results")
                end_while_rows_come(run, lambda: send(1))
            assert run.said == []
        with running(spark, pipeline, tmp_path):
            until(lambda: len(results()) >= len(events) * wide // step, "results")
    assert len(results()) == len(events) * wide // step
    in_time: dict[tuple[str, int], dict[str, Any]] = {}
    late = defaultdict(list)
    for row in results():
        key = row["user"], int(datetime.fromisoformat(row["window_start"]).timestamp())
        assert datetime.fromisoformat(row["window_end"]).timestamp() - key[1] == wide
        assert not row["final"]
        if row["late"]:
            assert (row["n"], row["least"], row["total"]) == (1, row["most"], row["most"])
            late[key].append(row["total"])
        else:
            in_time[key] = row
    wanted = totals(events, wide, step)
    assert {key: sorted(ids) for key, ids in late.items()} == {
        key: sorted(ids) for key, ids in wanted.items() if key[1] < now - HOUR
    }
    seen = {key: [row[name] for name in WINDOWED] for key, row in in_time.items()}
    assert seen == {
        key: [len(ids), sum(ids), min(ids), max(ids), pytest.approx(sum(ids) / len(ids)), key[0]]
        for key, ids in wanted.items()
        if key[1] >= now - HOUR
    }


@pytest.mark.slow
def test_duplicates_and_totals_of_spark_itself(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    def build(spark: SparkSession) -> Query:
        counted = topics.read(spark).groupBy("user").agg(F.count("*").alias("n"), F.max("id").alias("id"))
        return topics.to_topic(counted.select(F.to_json(F.struct("*")).alias("value")))

    with one_partition(spark), running(spark, topics.pipeline(build), tmp_path):
        topics.send(20)
        until(lambda: len(topics.came()) >= topics.sent, "rows")
    assert topics.came() == list(range(20))


@pytest.mark.slow
def test_a_join_with_a_frame_that_is_not_a_stream(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    names = spark.range(10).select(F.col("id").cast("int"), F.concat(F.lit("n"), "id").alias("name"))
    names.write.parquet(str(tmp_path / "names"))

    def build(spark: SparkSession) -> Query:
        named = topics.read(spark).join(F.broadcast(spark.read.parquet(str(tmp_path / "names"))), "id", "left")
        return topics.to_topic(named.select(F.to_json(F.struct("id", "name")).alias("value")))

    with running(spark, topics.pipeline(build), tmp_path / "checkpoint"):
        topics.send(12)
        until(lambda: len(topics.came()) >= topics.sent, "rows")
    found = [json.loads(value) for value in stored(topics.servers, topics.out, 1)[0]]
    assert found == [{"id": n, "name": f"n{n}"} if n < 10 else {"id": n} for n in range(12)]


@pytest.mark.slow
def test_what_spark_alone_refuses_ends_the_run_with_its_words(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    pipeline = topics.pipeline(
        lambda spark: topics.to_topic(
            topics.read(spark)
            .hint("merge")
            .join(spark.range(10).select(F.col("id").cast("int")), "id")
            .selectExpr("string(id) AS value")
        )
    )
    topics.send(1)
    supervised = PipelineRun(pipeline, spark, tmp_path, StopRequests(threading.Event(), threading.Event()), Observer())
    with one_partition(spark), pytest.raises(PenstockError, match=r"REAL_TIME_MODE\.OPERATOR_OR_SINK_NOT"):
        supervised.supervise()
