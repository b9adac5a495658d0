"""The state of a task: what it says before its first batch, while it works, after a fault and at its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as F
from waiting import until

from penstock import files, write
from penstock.connect.source.task import Setup, Task
from penstock.connect.worker import running_task
from penstock.connect.worker.running_task import RunningTask
from penstock.errors import PenstockError
from penstock.query.query import Query
from penstock.run.life_signs import Observer
from penstock.run.supervise import StopRequests
from penstock.watch.meters import Meters, PipelineMeter
from penstock.watch.query_meter import QueryMeter

A, B = "c.ks.a", "c.ks.b"
ASKS = {"isTriggerActive": True, "isDataAvailable": False, "message": "Getting offsets from the log"}
RESTS = {"isTriggerActive": False, "isDataAvailable": False, "message": "Waiting for data to arrive"}
STARTS = {"isTriggerActive": False, "isDataAvailable": False, "message": "Initializing sources"}
BATCH = {
    "id": "1",
    "batchId": 0,
    "numInputRows": 1,
    "timestamp": "2026-01-01T00:00:00Z",
    "sources": [],
    "stateOperators": [],
    "durationMs": {"addBatch": 1},
    "batchDuration": 1,
}


class Scripted:
    """In place of a run of Spark's queries: ends when it is asked to, or with the error that the test gives."""

    def __init__(
        self, task: Task, spark: Any, checkpoints: Path, stop: StopRequests, observer: RunningTask, tries: float
    ) -> None:
        self._stop, self.error = stop, None

    def supervise(self) -> None:
        self._stop.gently.wait()
        if self.error:
            raise self.error


class Known(PipelineMeter):
    """A meter that needs no frames to know a query."""

    def begins(self, name: str, query: Any, checkpoint: object) -> None:
        with self._changes() as now:
            self.waits_for = ""
            self._query(name).enters("starting", now)


@pytest.fixture
def meters() -> Meters:
    made = Meters()
    made.pipelines["c/1"] = Known(made, "c")
    return made


def hidden(text: str) -> str:
    return text.replace("secret", "[hidden]")


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, meters: Meters) -> Iterator[RunningTask]:
    monkeypatch.setattr(running_task, "PipelineRun", Scripted)
    spark: Any = None
    given = Task(Setup("c", "localhost:9", {"poll.interval.ms": 200}, {}), 1, ("ks.a", "ks.b"))
    wrote: list[str] = []
    made = RunningTask(given, spark, tmp_path, wrote.append, hidden, meters, Observer())
    yield made
    made.ask_to_stop()
    made.wait()


def begin(task: RunningTask) -> None:
    query: Any = None
    for name in (A, B):
        task.begins(name, query, Path())


def told(task: RunningTask) -> tuple[str, str, str]:
    return task.state, task.waits_for, task.trace


def of(meters: Meters, name: str) -> QueryMeter:
    return meters.pipelines["c/1"].queries[name]


def test_a_task_runs_once_each_query_has_finished_a_batch(task: RunningTask) -> None:
    assert told(task) == ("UNASSIGNED", "its queries to start", "")
    begin(task)
    assert told(task) == ("UNASSIGNED", "the first batch of ks.a, ks.b", "")
    task.progress(A, BATCH)
    assert told(task) == ("UNASSIGNED", "the first batch of ks.b", "")
    task.progress(B, BATCH)
    assert told(task) == ("RUNNING", "", "")


def test_a_query_without_data_works_as_soon_as_it_has_asked_for_it(task: RunningTask) -> None:
    begin(task)
    task.progress(A, BATCH)
    for status in (STARTS, ASKS):
        task.looked(B, status)
        assert task.state == "UNASSIGNED"
    task.looked(B, RESTS)
    assert told(task) == ("RUNNING", "", "")


def test_a_fault_is_the_trace_until_the_queries_work_again(task: RunningTask) -> None:
    begin(task)
    task.progress(A, BATCH)
    task.progress(B, BATCH)
    task.fault("a worker died, secret", query=A, pause=2.0, trace="  at line 1, secret\n=== Streaming Query ===\nplan")
    state, waits_for, trace = told(task)
    assert (state, trace) == ("RESTARTING", "a worker died, [hidden]\n  at line 1, [hidden]")
    assert waits_for.startswith("its queries to start: its next start after a fault for ")
    begin(task)
    assert told(task)[:2] == ("RESTARTING", "the first batch of ks.a, ks.b")
    task.progress(A, BATCH)
    task.looked(B, RESTS)
    assert told(task) == ("RUNNING", "", "")


def test_a_server_that_does_not_answer_is_named(task: RunningTask, meters: Meters) -> None:
    begin(task)
    now = meters.clock()
    of(meters, B).waits("the database at 127.0.0.1:9042", now - 12)
    assert told(task)[:2] == ("UNASSIGNED", "the first batch of ks.a, ks.b: the database at 127.0.0.1:9042 for 12 s")
    task.progress(A, BATCH)
    task.progress(B, BATCH)
    of(meters, B).waits("the database at 127.0.0.1:9042", now - 70)
    # It goes on by itself, and has not failed: the state that tools know stays.
    assert told(task)[:2] == ("RUNNING", "the database at 127.0.0.1:9042 for 1 min 10 s")


def test_a_final_failure_has_what_spark_said_of_it(task: RunningTask) -> None:
    begin(task)
    task.fault("table ks.a is gone", query=A, trace="  at line 7")
    run: Any = task._run
    run.error = PenstockError("table ks.a is gone", where="pipeline c", next="make it")
    task.ask_to_stop()
    task.wait()
    assert told(task) == ("FAILED", "", "table ks.a is gone (pipeline c). Next: make it\n  at line 7")


def test_an_error_that_nobody_expected_has_its_traceback_and_no_older_fault(task: RunningTask) -> None:
    task.fault("a worker died", pause=1.0, trace="old")
    run: Any = task._run
    run.error = ZeroDivisionError("secret")
    task.ask_to_stop()
    task.wait()
    assert task.state == "FAILED" and "old" not in task.trace
    assert task.trace.startswith("Traceback") and "ZeroDivisionError: [hidden]" in task.trace


def test_an_error_that_nobody_expected_is_in_the_meter_too(task: RunningTask, meters: Meters) -> None:
    begin(task)
    run: Any = task._run
    run.error = ZeroDivisionError("secret")
    task.ask_to_stop()
    task.wait()
    assert [of(meters, name).state for name in (A, B)] == ["failed", "failed"]
    (error,) = meters.errors
    assert error.what == "ZeroDivisionError: [hidden]" and error.trace == task.trace


def test_a_failed_query_is_told_while_the_others_finish_their_batches(task: RunningTask, meters: Meters) -> None:
    begin(task)
    task.progress(A, BATCH)
    task.progress(B, BATCH)
    task.query_failed(A, "a worker died, secret. Next: look at its memory")
    task.progress(B, BATCH)
    state, waits_for, trace = told(task)
    assert (state, trace) == ("RESTARTING", "a worker died, [hidden]. Next: look at its memory")
    assert waits_for.startswith("the first batch of ks.a: the end of the batches of the other queries for ")
    assert of(meters, A).state == "waiting" and of(meters, B).state == "running"
    assert (of(meters, A).problem, of(meters, A).next) == ("a worker died, [hidden]", "look at its memory")


def test_a_task_that_was_stopped_waits_for_nothing(task: RunningTask) -> None:
    task.ask_to_stop()
    task.wait()
    assert told(task) == ("ENDED", "", "")


def test_states_can_be_asked_while_they_change(task: RunningTask) -> None:
    """Requests come from other threads than the task's: no state is one that the task was never in."""
    seen, ended = set(), threading.Event()

    def ask() -> None:
        while not ended.is_set():
            seen.add((task.state, bool(task.trace)))
            assert isinstance(task.waits_for, str)

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(2000):
        begin(task)
        task.progress(A, BATCH)
        task.progress(B, BATCH)
        task.fault("a fault", pause=1.0)
    until(lambda: ("RESTARTING", True) in seen, "state after a fault")
    ended.set()
    asking.join()
    assert seen <= {("UNASSIGNED", False), ("RUNNING", False), ("RUNNING", True), ("RESTARTING", True)}


@dataclass
class Overflows:
    """A task of one query, whose batches die of an error of the JVM while they are planned, in the query's thread."""

    folder: Path
    name: str = "c"
    number: int = 0
    every: timedelta = timedelta(milliseconds=100)

    def queries(self, spark: SparkSession) -> dict[str, Query]:
        (self.folder / "in").mkdir()
        (self.folder / "in" / "rows.txt").write_text("a\n")
        # Java's matcher needs a frame of its stack for each letter.
        overflows = F.repeat(F.lit("ab"), F.lit(200_000)).rlike("^(a|b)*$")
        rows = spark.readStream.text(str(self.folder / "in")).select(overflows.alias("x"))
        return {"a": write(rows, files.sink(self.folder / "out"))}


def test_a_query_that_dies_of_an_error_of_the_jvm_fails_its_task(spark: SparkSession, tmp_path: Path) -> None:
    overflows: Any = Overflows(tmp_path)
    task = RunningTask(overflows, spark, tmp_path / "checkpoints", lambda name: None, hidden, Meters(), Observer())
    until(lambda: task.is_over, "the end of the task")
    state, waits_for, trace = told(task)
    assert (state, waits_for) == ("FAILED", "") and "java.lang.StackOverflowError" in trace
    assert "java.util.regex.Pattern" in trace and len(trace) < 50_000
