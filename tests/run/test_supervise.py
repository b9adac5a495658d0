"""Starts a pipeline while its database does not answer, and stops it meanwhile, without Spark."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cassandra.cluster import NoHostAvailable
from observing import Said
from pyspark.sql import SparkSession
from waiting import PATIENCE, until

from penstock.database.retrying import DatabaseUnavailable, retrying
from penstock.errors import PenstockError
from penstock.process.signals import ENDING, listen
from penstock.query.query import Query
from penstock.run import faults, supervise
from penstock.run.faults import Fault
from penstock.run.life_signs import Observer
from penstock.run.supervise import PipelineRun, StopRequests, Watched
from penstock.spark_runtime import running_query

LONG = timedelta(hours=1)


@dataclass
class Waiting:
    """A pipeline that waits while its queries are made."""

    wait: Callable[[], None]
    name: str = "orders"
    every: timedelta = timedelta(seconds=1)

    def queries(self, spark: SparkSession) -> dict[str, Query]:
        self.wait()
        return {}


@dataclass
class Running:
    """A run of the pipeline, and its messages."""

    wait: Callable[[], None]
    stop: StopRequests = field(default_factory=lambda: StopRequests(threading.Event(), threading.Event()))
    said: list[str] = field(default_factory=list)
    faults: list[tuple[str, float | None]] = field(default_factory=list)

    def supervise(self) -> None:
        no_spark, nowhere = cast(SparkSession, None), Path("nowhere")
        PipelineRun(Waiting(self.wait), no_spark, nowhere, self.stop, Said(self.said, self.faults)).supervise()


def for_the_database(begun: Callable[[], None]) -> None:
    def call() -> None:
        begun()
        raise NoHostAvailable("all are away", {})

    retrying(call, what="describing the table", where="shop.orders", patience=LONG)


def for_something_else(begun: Callable[[], None]) -> None:
    begun()
    pytest.fail("the wait goes on")


@pytest.mark.parametrize("wait", [for_the_database, for_something_else])
@pytest.mark.parametrize("number", ENDING)
def test_a_signal_ends_a_pipeline_that_waits(
    wait: Callable[[Callable[[], None]], None], number: signal.Signals
) -> None:
    sent: list[int] = []

    def once() -> None:
        if not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    # Where the tests were started by `nohup`, SIGHUP is ignored.
    signal.signal(number, signal.SIG_DFL)
    run = Running(lambda: wait(once))
    listen(run.stop.gently, run.stop.now)
    run.supervise()
    assert run.stop.gently.wait(PATIENCE) and not run.stop.now.is_set() and run.said == []


def test_a_pipeline_in_a_thread_that_waits_for_its_database_is_stopped() -> None:
    waits = threading.Event()
    run = Running(lambda: for_the_database(waits.set))
    thread = threading.Thread(target=run.supervise, daemon=True)
    thread.start()
    assert waits.wait(PATIENCE) and thread.is_alive()
    run.stop.gently.set()
    thread.join(PATIENCE)
    assert not thread.is_alive() and run.said == []


def test_a_first_start_without_its_database_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "FIRST_PAUSE", timedelta(milliseconds=1))
    failures = [DatabaseUnavailable("no node answers", where="shop.orders"), DatabaseUnavailable("still none"), None]

    def fail() -> None:
        if failure := failures.pop(0):
            raise failure

    run = Running(fail)
    run.supervise()
    assert failures == [] and run.said == [
        "orders: no node answers (shop.orders); starting again in 0.001 s",
        "orders: still none; starting again in 0.002 s",
    ]


def test_a_first_start_is_given_up_after_some_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "FIRST_PAUSE", timedelta(0))

    def fail() -> None:
        raise DatabaseUnavailable("no node answers")

    run = Running(fail)
    with pytest.raises(PenstockError, match="gave up after 10 tries without a finished batch: no node answers"):
        run.supervise()
    assert len(run.said) == supervise.TRIES - 1
    assert run.faults == [*[("no node answers", 0.0)] * (supervise.TRIES - 1), ("no node answers", None)]


def test_a_first_start_that_waiting_does_not_heal_ends_the_run() -> None:
    def fail() -> None:
        raise PenstockError("no such table", next="make it")

    run = Running(fail)
    with pytest.raises(PenstockError, match=r"^no such table\. Next: make it$"):
        run.supervise()
    assert run.faults == [("no such table. Next: make it", None)]


class Told(Observer):
    """Keeps which events came, in their order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, ...]] = []

    def query_failed(self, name: str, text: str) -> None:
        self.events.append(("failed", name, text))

    def stopped(self, name: str) -> None:
        self.events.append(("stopped", name))

    def fault(self, text: str, *, query: str = "", pause: float | None = None, trace: str = "") -> None:
        self.events.append(("fault", query, text))


def query(name: str, *, active: bool) -> Any:
    """A query of Spark's without progress; one that is active is in a batch."""
    java = SimpleNamespace(lastProgress=lambda: None, status=lambda: SimpleNamespace(json=lambda: "{}"))
    status = {"isTriggerActive": active, "isDataAvailable": active, "message": ""}
    told = {"name": name, "id": name, "isActive": active, "status": status, "lastProgress": None}
    return SimpleNamespace(**told, _jsq=java, stop=lambda: None)


def test_a_failure_is_told_before_the_batches_of_the_other_queries_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, busy = query("shop.a", active=False), query("shop.b", active=True)
    fault = Fault("a worker died", False, query="shop.a")
    monkeypatch.setattr(faults, "of_query", lambda one, stopped: fault if one is broken else None)
    monkeypatch.setattr(running_query, "end_after_batch", lambda spark, query: None)
    monkeypatch.setattr(PipelineRun, "_start", lambda run: [Watched(broken), Watched(busy)])
    observer, stop = Told(), StopRequests(threading.Event(), threading.Event())
    run = PipelineRun(Waiting(lambda: None), cast(SparkSession, None), Path("nowhere"), stop, observer)
    ended: list[BaseException] = []

    def supervised() -> None:
        try:
            run.supervise()
        except PenstockError as error:
            ended.append(error)

    thread = threading.Thread(target=supervised, daemon=True)
    thread.start()
    until(lambda: observer.events, "the failure")
    assert observer.events == [("failed", "shop.a", "a worker died")] and thread.is_alive()
    busy.status["isTriggerActive"] = False
    thread.join(PATIENCE)
    assert observer.events[1:] == [("stopped", "shop.a"), ("stopped", "shop.b"), ("fault", "shop.a", "a worker died")]
    assert "a worker died" in str(*ended)
