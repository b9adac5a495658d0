"""What a worker of a group does when Kafka is away: tasks stop first, and positions are settled after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from waiting import until

from penstock.connect.group.division import Share, TaskId
from penstock.connect.group.group_configs import DividedConnector
from penstock.connect.group.group_work import Running, SharedWork
from penstock.connect.group.kafka_positions import KafkaPositions
from penstock.connect.group.states import ReportedStatus
from penstock.connect.worker.connector_store import StoredConnector
from penstock.connect.worker.running_task import RUNNING, UNASSIGNED
from penstock.kafka.compacted_topic import Seen

TASKS = {name: TaskId(name, 1, 0) for name in "ab"}


class Topic:
    """A topic of a Kafka that is away: nothing that is sent is ever acknowledged, unless a test does it."""

    def __init__(self, seen: Seen) -> None:
        self.sent: list[Future[Any]] = []
        self.wait: Callable[[], None] = lambda: None

    def send(self, key: str, value: bytes | None) -> Future[Any]:
        self.sent.append(Future())
        return self.sent[-1]

    def refresh(self, patience: Any) -> None:
        self.wait()


class Task:
    """A task that runs until it is asked to stop."""

    state, trace, waits_for = RUNNING, "", ""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def ask_to_stop(self, *, now: bool = False) -> None:
        self.asked.append(now)

    @property
    def is_over(self) -> bool:
        return bool(self.asked)


class Owner:
    """A connector that has divided its sources."""

    state, trace, waits_for = RUNNING, "", ""

    def __init__(self, known: DividedConnector, *, redivide: bool) -> None:
        self.known, self.redivide, self.is_over = known, redivide, False
        self.has_divided = not redivide

    def ask_to_stop(self) -> None:
        self.is_over = True


class Member:
    """A place in a group, which is lost when a test says so."""

    holds = True

    def __init__(self, work: Any) -> None:
        self.work = work

    async def run(self) -> None:
        self.work.assigned(Share(1, frozenset(("a",)), frozenset(TASKS.values()), frozenset(("w",))).encoded(), False)
        await asyncio.Event().wait()

    def join_again(self) -> None:
        pass


class States:
    def __init__(self) -> None:
        self.reported: dict[str, ReportedStatus | None] = {}

    def begin(self, worker: str) -> None:
        pass

    def report(self, key: str, status: ReportedStatus) -> None:
        self.reported[key] = status

    def forget(self, key: str) -> None:
        self.reported[key] = None


class Worker(SharedWork):
    """Runs `Task`s."""

    def __init__(self, folder: Path) -> None:
        self.known = {name: DividedConnector(StoredConnector({}), 0, 1, ((f"ks.{name}",),)) for name in TASKS}
        configs = SimpleNamespace(known=lambda: dict(self.known), tasks=lambda: list(TASKS.values()), offset=1)
        context = SimpleNamespace(meters=SimpleNamespace(forget=lambda key: None))
        self.shown, self.folder, self.tasks = States(), folder, dict[str, Task]()
        self.owners: list[Owner] = []
        self.positions = KafkaPositions(cast(Any, Topic))
        some: tuple[Any, Any, Any] = context, configs, self.shown
        super().__init__(some[0], some[1], self.positions, some[2], "w", lambda work: cast(Any, Member(work)))

    @property
    def topic(self) -> Topic:
        return cast(Topic, self.positions._topic)

    def _owner(self, name: str, of: DividedConnector) -> Any:
        self.owners.append(Owner(of, redivide=name in self._to_redivide))
        self._to_redivide.discard(name)
        return self.owners[-1]

    def _begin(self, id: TaskId, of: DividedConnector) -> Running:
        self.tasks[id.connector] = task = Task()
        return Running(id, of.shares[0], self.folder / id.connector, cast(Any, task))


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tmp_path)
    made.start()
    yield made
    for future in made.topic.sent:
        if not future.done():
            future.set_result(None)
    made.close()


def test_tasks_stop_while_positions_of_another_one_cannot_be_written(worker: Worker) -> None:
    until(lambda: len(worker.running) == 2, "running tasks")
    worker.positions.reached(("a", "ks.a"), {"at": 1})
    del worker.known["a"]
    until(lambda: worker.tasks["a"].asked, "end of the deleted task")
    # Nobody else may start it while its last position is on its way.
    assert TASKS["a"] in worker.running and worker.shown.reported.get("task-a-0") != ReportedStatus(UNASSIGNED, "w")
    cast(Any, worker._member).holds = False
    until(lambda: worker.tasks["b"].asked, "end of the other task")
    assert worker.tasks["b"].asked[-1] is True
    assert TASKS["a"] in worker.running
    worker.topic.sent[0].set_result(None)
    until(lambda: not worker.running, "settled positions")


def test_tasks_stop_while_others_wait_for_their_positions(worker: Worker) -> None:
    until(lambda: len(worker.running) == 2, "running tasks")
    waits, goes_on = Future[None](), Future[None]()

    def wait() -> None:
        waits.set_result(None)
        goes_on.result()

    worker.topic.wait = wait
    # It is started again, and its positions are read before.
    worker.known["a"] = DividedConnector(StoredConnector({}), 0, 1, ((),))
    worker.tasks["a"].asked.append(False)
    worker.running[TASKS["a"]].stopping = True
    waits.result()
    cast(Any, worker._member).holds = False
    try:
        until(lambda: worker.tasks["b"].asked, "end of the other task")
    finally:
        worker.topic.wait = lambda: None
        goes_on.set_result(None)
    until(lambda: not worker.running, "end of all tasks")


def test_a_place_that_is_lost_stops_tasks_before_anything_else(worker: Worker) -> None:
    until(lambda: len(worker.running) == 2, "running tasks")
    worker.lost("the network is down")
    assert [task.asked[:1] for task in worker.tasks.values()] == [[True], [True]]


def test_a_connector_whose_division_does_not_count_any_more_is_divided_again(worker: Worker) -> None:
    until(lambda: len(worker.running) == 2 and worker.owners, "running tasks")
    (owner,) = worker.owners
    assert not owner.redivide
    # As with a record of a division that has more than tasks.max tasks.
    worker.known["a"] = DividedConnector(StoredConnector({}), 0)
    until(lambda: len(worker.owners) == 2, "another division")
    assert owner.is_over and worker.owners[1].redivide and TASKS["a"] not in worker.running
