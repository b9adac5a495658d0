"""States of connectors and tasks: what starts, stops, fails and starts again, with tasks that read nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from connect_memory import RIGHT, Memory, memory_worker
from waiting import PATIENCE, until

from penstock.connect import topics
from penstock.connect.sinks.cql.destination import CqlDestination
from penstock.connect.source import database
from penstock.connect.source.task import Task
from penstock.connect.worker import connector as connectors, connector_tasks
from penstock.connect.worker.connector_store import PAUSED, STARTED, STOPPED, StoredConnector
from penstock.connect.worker.running_task import ENDED, FAILED, RUNNING, UNASSIGNED, key_of
from penstock.connect.worker.standalone import StandaloneHerder
from penstock.connect.worker.status import TaskMetrics, status_of, unready
from penstock.database.retrying import DatabaseUnavailable
from penstock.errors import PenstockError
from penstock.run.life_signs import Observer
from penstock.serve.rest_errors import RestError
from penstock.watch.meters import Meters
from penstock.watch.program import Program

TABLES = ["ks.a", "ks.b", "ks.c"]


class IdleTask:
    """A task without Spark: it runs until it is asked to stop, or until a test makes it fail."""

    started: list[IdleTask]

    def __init__(
        self,
        task: Task,
        spark: Any,
        checkpoints: Path,
        progress: Callable[[str], None],
        hide: Any,
        meters: Meters,
        observer: Observer,
    ) -> None:
        self.task, self.progress = task, progress
        self.state, self.trace, self.waits_for, self.asked = RUNNING, "", "", False
        self.started.append(self)

    def ask_to_stop(self) -> None:
        self.asked = True

    def wait(self) -> None:
        assert self.asked, "a task ends only after it was asked to"
        self.state = FAILED if self.trace else ENDED

    def fail(self) -> None:
        self.state, self.trace = FAILED, "why"


class Beats:
    """Heartbeats that only say whether they run."""

    running = 0

    def __init__(self, spark: Any, setup: Any, read_to: Callable[[], int | None]) -> None:
        Beats.running += 1

    def stop(self) -> None:
        Beats.running -= 1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[IdleTask]:
    """All tasks that were started, the oldest first."""
    found: list[IdleTask] = []
    monkeypatch.setattr(IdleTask, "started", found, raising=False)
    monkeypatch.setattr(Beats, "running", 0)
    monkeypatch.setattr(connectors, "RunningTask", IdleTask)
    monkeypatch.setattr(connectors, "Heartbeats", Beats)
    monkeypatch.setattr(database, "problems", lambda values: [])
    monkeypatch.setattr(database, "tables", lambda values: list(TABLES))
    return found


@pytest.fixture
def worker(tmp_path: Path, started: list[IdleTask]) -> Iterator[StandaloneHerder]:
    made = memory_worker(tmp_path)
    yield made
    made.close()


def create(worker: StandaloneHerder, state: str = STARTED, **changes: str) -> connectors.Connector:
    worker.create("c", RIGHT | {name.replace("_", "."): text for name, text in changes.items()}, state)
    return settled(worker)


def settled(worker: StandaloneHerder) -> connectors.Connector:
    """The connector after its start."""
    made = worker.get("c")
    if made._starter:
        made._starter.join()
    return made


def states(worker: StandaloneHerder) -> tuple[str, list[str]]:
    status = worker.status("c")
    return status["connector"]["state"], [task["state"] for task in status["tasks"]]


@pytest.mark.parametrize(
    ("most", "shares"),
    [
        ("1", [("ks.a", "ks.b", "ks.c")]),
        ("2", [("ks.a", "ks.c"), ("ks.b",)]),
        ("3", [("ks.a",), ("ks.b",), ("ks.c",)]),
        ("9", [("ks.a",), ("ks.b",), ("ks.c",)]),
    ],
)
def test_tables_are_shared_among_tasks(worker: StandaloneHerder, most: str, shares: list[tuple[str, ...]]) -> None:
    made = create(worker, tasks_max=most)
    assert [task.task.parts for task in made.tasks] == shares
    assert [task["id"] for task in worker.status("c")["tasks"]] == list(range(len(shares)))
    assert states(worker) == ("RUNNING", ["RUNNING"] * len(shares))


def test_a_paused_connector_keeps_its_tasks_and_a_stopped_one_does_not(worker: StandaloneHerder) -> None:
    create(worker, tasks_max="2")
    assert Beats.running == 1
    worker.set_state("c", PAUSED)
    assert states(worker) == ("PAUSED", ["PAUSED", "PAUSED"]) and Beats.running == 0
    worker.set_state("c", STARTED)
    settled(worker)
    assert states(worker) == ("RUNNING", ["RUNNING", "RUNNING"]) and Beats.running == 1
    worker.set_state("c", STOPPED)
    assert states(worker) == ("STOPPED", []) and Beats.running == 0


def test_stored_connectors_start_with_the_worker_unless_they_are_paused_or_stopped(
    tmp_path: Path, started: list[IdleTask]
) -> None:
    stored = {state: StoredConnector(RIGHT | {"name": state}, state) for state in (STARTED, PAUSED, STOPPED)}
    worker = memory_worker(tmp_path, Memory(stored))
    worker.start()
    worker.get(STARTED)._starter.join()  # type: ignore[union-attr]
    assert [task.task.name for task in started] == [STARTED]
    assert {name: worker.status(name)["connector"]["state"] for name in worker.names()} == {
        PAUSED: "PAUSED",
        STARTED: "RUNNING",
        STOPPED: "STOPPED",
    }
    assert worker.status(PAUSED)["tasks"] == []
    worker.close()
    assert all(task.state == ENDED for task in started)


def test_a_stored_connector_with_errors_fails_alone(tmp_path: Path, started: list[IdleTask]) -> None:
    stored = {"bad": StoredConnector({"topic.prefix": "p q"}), "c": StoredConnector(RIGHT | {"name": "c"})}
    worker = memory_worker(tmp_path, Memory(stored))
    worker.start()
    settled(worker)
    worker.get("bad")._starter.join()  # type: ignore[union-attr]
    status = worker.status("bad")["connector"]
    assert status["state"] == "FAILED" and states(worker)[0] == "RUNNING"
    assert 'Missing required configuration "name"' in status["trace"] and "p q" in status["trace"]
    worker.close()


def test_a_restart_of_failed_tasks_leaves_the_others_running(worker: StandaloneHerder, started: list[IdleTask]) -> None:
    create(worker, tasks_max="3")
    started[1].fail()
    assert states(worker) == ("RUNNING", ["RUNNING", "FAILED", "RUNNING"])
    assert worker.task("c", 1) == {"id": 1, "state": "FAILED", "worker_id": "here:1", "trace": "why"}
    # Without its tasks only the connector itself would be restarted, and it did not fail.
    worker.restart("c", tasks=False, only_failed=True)
    worker.restart("c", tasks=False, only_failed=False)
    assert len(started) == 3
    worker.restart("c", tasks=True, only_failed=True)
    assert states(worker) == ("RUNNING", ["RUNNING"] * 3)
    assert [task.asked for task in started] == [False, True, False, False]
    assert started[3].task == started[1].task


def test_a_restart_with_tasks_starts_all_again(worker: StandaloneHerder, started: list[IdleTask]) -> None:
    create(worker, tasks_max="2")
    worker.restart("c", tasks=True, only_failed=False)
    settled(worker)
    assert [task.asked for task in started] == [True, True, False, False]
    worker.restart_task("c", 1)
    assert [task.asked for task in started] == [True, True, False, True, False]
    assert states(worker) == ("RUNNING", ["RUNNING", "RUNNING"]) and Beats.running == 1


@pytest.mark.parametrize("state", [PAUSED, STOPPED])
def test_a_restart_starts_nothing_that_shall_not_run(
    worker: StandaloneHerder, started: list[IdleTask], state: str
) -> None:
    create(worker)
    worker.set_state("c", state)
    worker.restart("c", tasks=True, only_failed=False)
    if state == PAUSED:
        worker.restart_task("c", 0)
    assert len(started) == 1 and states(worker)[0] == state


def test_a_connector_that_failed_starts_again_by_a_restart_or_by_resuming(
    worker: StandaloneHerder, started: list[IdleTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(values: Any) -> list[str]:
        raise PenstockError("wrong password")

    ways: list[Callable[[], None]] = [
        lambda: worker.restart("c", tasks=False, only_failed=True),
        lambda: worker.restart("c", tasks=False, only_failed=False),
        lambda: worker.set_state("c", STARTED),
    ]
    for again in ways:
        monkeypatch.setattr(database, "tables", refused)
        create(worker)
        assert states(worker) == ("FAILED", [])
        assert worker.status("c")["connector"]["trace"] == "wrong password"
        monkeypatch.setattr(database, "tables", lambda values: list(TABLES))
        again()
        settled(worker)
        assert states(worker) == ("RUNNING", ["RUNNING"])
        assert "trace" not in worker.status("c")["connector"]
        worker.delete("c")


def test_an_error_that_nobody_expected_is_shown_with_its_trace(
    worker: StandaloneHerder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "tables", lambda values: 1 // 0)
    create(worker)
    trace = worker.status("c")["connector"]["trace"]
    assert trace.startswith("Traceback") and "ZeroDivisionError" in trace


def test_a_new_configuration_replaces_the_tasks(worker: StandaloneHerder, started: list[IdleTask]) -> None:
    create(worker, tasks_max="1")
    assert worker.configure("c", RIGHT | {"tasks.max": "2"}) is False
    settled(worker)
    assert [task.state for task in started] == [ENDED, RUNNING, RUNNING]
    assert started[1].task.setup.values["tasks.max"] == 2
    with pytest.raises(RestError, match="Invalid value 0"):
        worker.configure("c", RIGHT | {"tasks.max": "0"})
    # A wrong configuration changes nothing.
    assert [task.state for task in started] == [ENDED, RUNNING, RUNNING]
    assert worker.get("c").stored.config["tasks.max"] == "2"


def test_a_database_that_does_not_answer_is_waited_for(
    worker: StandaloneHerder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = iter([DatabaseUnavailable("no answer"), DatabaseUnavailable("no answer"), None])

    def tables(values: Any) -> list[str]:
        if error := next(asked):
            raise error
        return list(TABLES)

    monkeypatch.setattr(connector_tasks, "PAUSE", 0.0)
    monkeypatch.setattr(database, "tables", tables)
    create(worker)
    assert states(worker) == ("RUNNING", ["RUNNING"])
    assert caplog.text.count("connector c waits for its database: no answer") == 2


def test_a_connector_that_waits_for_its_database_can_be_stopped(
    worker: StandaloneHerder, started: list[IdleTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def tables(values: Any) -> list[str]:
        asked.set()
        raise DatabaseUnavailable("no answer")

    monkeypatch.setattr(connector_tasks, "PAUSE", 600.0)
    monkeypatch.setattr(database, "tables", tables)
    worker.create("c", RIGHT)
    assert asked.wait(PATIENCE)
    until(lambda: "waits_for" in worker.status("c")["connector"], "reason of the wait")
    assert worker.status("c")["connector"] == {
        "state": "UNASSIGNED",
        "worker_id": "here:1",
        "waits_for": "its database: no answer",
    }
    worker.set_state("c", STOPPED)
    assert states(worker) == ("STOPPED", []) and started == [] and Beats.running == 0


def test_a_connector_without_tables_has_no_tasks_and_no_heartbeats(
    worker: StandaloneHerder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "tables", lambda values: [])
    create(worker)
    assert states(worker) == ("RUNNING", []) and Beats.running == 0


def test_topics_that_match_later_are_given_to_tasks_and_others_keep_theirs(
    worker: StandaloneHerder, started: list[IdleTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    there, refused = ["b", "a-dead", "d"], threading.Event()

    def matching(servers: str, settings: Any, pattern: str) -> list[str]:
        if refused.is_set():
            raise PenstockError("not allowed")
        return list(there)

    monkeypatch.setattr(topics, "matching", matching)
    monkeypatch.setattr(CqlDestination, "problems", lambda self: [])
    sink = {"connector.class": "ScyllaDbSinkConnector", "topics.regex": ".*", "scylladb.keyspace": "ks"}
    strings = {f"{side}.converter": "org.apache.kafka.connect.storage.StringConverter" for side in ("key", "value")}
    sink |= {"tasks.max": "2", "errors.deadletterqueue.topic.name": "a-dead", **strings}
    worker.create("s", sink | {"consumer.override.metadata.max.age.ms": "1"})
    made = worker.get("s")

    def shares() -> list[tuple[str, ...]]:
        return [task.task.parts for task in made.tasks]

    until(lambda: shares() == [("b",), ("d",)], "tasks")
    there.append("a")
    until(lambda: shares() == [("b", "a"), ("d",)], "a task with the new topic")
    assert [one.state for one in started] == [ENDED, RUNNING, RUNNING]
    there.append("c")
    until(lambda: shares() == [("b", "a"), ("d", "c")], "another task with the new topic")
    there.remove("b")
    until(lambda: shares() == [("d", "c"), ("a",)], "tasks without the topic that is gone")
    there.clear()
    until(lambda: made.waits_for == "a topic that matches .*", "reason")
    assert shares() == [] and made.state == UNASSIGNED
    there.append("e")
    until(lambda: shares() == [("e",)], "a task")
    until(lambda: made.state == "RUNNING", "state")
    refused.set()
    until(lambda: made.state == FAILED, "state")
    assert "not allowed" in made.trace and made.tasks[0].state == RUNNING
    worker.set_state("s", STOPPED)
    assert made.tasks == [] and started[-1].state == ENDED


def test_topics_become_active_with_the_first_batch(worker: StandaloneHerder, started: list[IdleTask]) -> None:
    made = create(worker)
    started[0].progress("c.ks.a")
    assert made.active == {"p.ks.a"}
    # A transform sends the table's records to another topic.
    started[0].task.setup.routed["ks.b"] = "other"
    started[0].progress("c.ks.b")
    assert made.active == {"p.ks.a", "other"}


def test_positions_that_users_set_are_given_to_tasks(worker: StandaloneHerder, started: list[IdleTask]) -> None:
    made = create(worker, STOPPED)
    place = {"keyspace_name": "ks", "table_name": "a"}
    entries = [{"partition": place, "offset": {"time": 0}}]
    worker.with_stopped("c", lambda one: one.offsets.alter(entries, one.sources()))
    worker.set_state("c", STARTED)
    settled(worker)
    assert made.tasks[0].task.starts == {"ks.a": "1970-01-01T00:00:00+00:00"}


def test_the_worker_counts_its_tasks_by_state(worker: StandaloneHerder, started: list[IdleTask]) -> None:
    assert list(TaskMetrics(worker).collect()) == []
    create(worker, tasks_max="3")
    started[1].fail()
    (family,) = TaskMetrics(worker).collect()
    counts = {sample.labels["state"]: sample.value for sample in family.samples}
    assert counts == {"RUNNING": 2, "FAILED": 1, "UNASSIGNED": 0, "PAUSED": 0, "RESTARTING": 0}
    assert {(sample.name, sample.labels["connector"]) for sample in family.samples} == {
        ("penstock_connector_tasks", "c")
    }


def test_the_status_of_the_worker_says_what_does_not_run(worker: StandaloneHerder, started: list[IdleTask]) -> None:
    def told() -> tuple[str, str, list[str]]:
        status = status_of(Program("connect", "here:1"), worker.context.meters, worker)
        return status["state"], status["waits_for"], unready(worker)

    assert told() == ("running", "", [])
    create(worker, tasks_max="2")
    assert told() == ("running", "", [])
    started[0].state, started[0].waits_for = UNASSIGNED, "the first batch of ks.a"
    waits = "task c-0: the first batch of ks.a"
    assert told() == ("waiting", waits, [f"UNASSIGNED: {waits}"])
    started[1].fail()
    assert told() == ("failed", "", [f"UNASSIGNED: {waits}", "FAILED: task c-1: why"])
    status = status_of(Program("connect", "here:1"), worker.context.meters, worker)
    none = {"records_total": 0, "dead_letters_total": 0}
    assert status["kind"] == "connect" and status["connectors"] == [
        {
            "name": "c",
            "state": "RUNNING",
            "waits_for": "",
            "trace": "",
            "tasks": [
                {"id": 0, "state": "UNASSIGNED", "waits_for": "the first batch of ks.a", "trace": "", **none},
                {"id": 1, "state": "FAILED", "waits_for": "", "trace": "why", **none},
            ],
        }
    ]
    # What shall not run is no problem.
    worker.set_state("c", PAUSED)
    assert told() == ("running", "", [])


def test_meters_of_tables_that_moved_are_shown_once_and_those_of_a_deleted_connector_are_gone(
    worker: StandaloneHerder, started: list[IdleTask]
) -> None:
    meters = worker.context.meters

    def measure() -> None:
        for task in worker.get("c").tasks:
            meter = meters.pipeline("c", task.task.every, key=key_of("c", task.task.number))
            for table in task.task.parts:
                meter._query(f"c.{table}")

    create(worker, tasks_max="3")
    measure()
    for most in ("1", "2", "3"):
        worker.configure("c", RIGHT | {"tasks.max": most})
        settled(worker)
        measure()
        assert sorted(one.name for one in meters.queries()) == ["c.ks.a", "c.ks.b", "c.ks.c"]
    worker.delete("c")
    assert meters.queries() == []


def test_a_connector_is_deleted_after_its_tasks_have_ended(worker: StandaloneHerder, started: list[IdleTask]) -> None:
    create(worker, tasks_max="3")
    worker.delete("c")
    assert [task.state for task in started] == [ENDED] * 3 and Beats.running == 0
    with pytest.raises(RestError, match="Connector c not found"):
        worker.get("c")


def test_callers_at_the_same_time_create_one_connector(worker: StandaloneHerder, started: list[IdleTask]) -> None:
    together, found = threading.Barrier(8), []

    def call() -> None:
        together.wait()
        try:
            worker.create("c", RIGHT)
            found.append(201)
        except RestError as error:
            found.append(error.status)

    callers = [threading.Thread(target=call) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(found) == [201] + [409] * 7
    until(lambda: len(started) == 1, "task")
    settled(worker)
    assert len(started) == 1
