"""Workers that share connectors: tasks are divided, move when workers come and go, and go on where others ended."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests
from confluent_kafka import KafkaException
from console_process import console
from kafka_topics import messages, new_topic
from pyspark.sql import SparkSession
from requests.exceptions import HTTPError
from waiting import PATIENCE, until
from worker_group import DEFAULTS, Member, cut_off, member_of, new_group, without_positions

from penstock.connect.worker.connector import Connector
from penstock.connect.worker.connector_store import StoredConnector
from penstock.connect.worker.context import WorkerContext
from penstock.connect.worker.providers import Provided
from penstock.errors import PenstockError
from penstock.local.services import Services

PARTITIONS = 4  # the broker's default


class Group:
    """A group, whose workers are made and ended by a test."""

    def __init__(self, spark: SparkSession, services: Services, folder: Path) -> None:
        self._about = new_group(), spark, services.kafka, folder, Provided({}, DEFAULTS)
        self._stacks: dict[str, ExitStack] = {}
        self.folder = folder

    def join(self, before: Path | None = None) -> Member:
        stack = ExitStack()
        made = stack.enter_context(member_of(*self._about, before))
        self._stacks[made.worker.address] = stack
        return made

    def leave(self, member: Member) -> None:
        self._stacks.pop(member.worker.address).close()

    def close(self) -> None:
        for stack in self._stacks.values():
            stack.close()


@pytest.fixture
def group(spark: SparkSession, services: Services, tmp_path: Path) -> Iterator[Group]:
    made = Group(spark, services, tmp_path)
    yield made
    made.close()


def states(member: Member, name: str) -> list[str]:
    return [task["state"] for task in member.connect.get_connector_status(name)["tasks"]]


def workers(member: Member, name: str) -> list[str]:
    return [task["worker_id"] for task in member.connect.get_connector_status(name)["tasks"]]


def one_runs(group: Group, name: str, config: dict[str, str]) -> tuple[Member, Member]:
    """A worker that runs the only task of a connector, and one that has joined after it."""
    first = group.join()
    first.connect.create_connector({"name": name, "config": config})
    until(lambda: states(first, name) == ["RUNNING"], "running task")
    second = group.join()
    until(lambda: first.worker.work.workers == second.worker.work.workers, "second worker")
    return first, second


def arrived(services: Services, topic: str) -> int:
    """The number of events in a topic, which may not exist yet."""
    try:
        return sum(1 for _ in messages(services.kafka, topic, PARTITIONS))
    except KafkaException:
        return 0


def test_tasks_are_divided_and_move_without_a_change_lost_or_repeated(
    group: Group, services: Services, cql: Any, tables: Any, config: dict[str, str]
) -> None:
    names = [tables(f"moving_{letter}") for letter in "abc"]
    topics = [f"{config['topic.prefix']}.{name}" for name in names]

    def insert(*ids: int) -> None:
        for name in names:
            for id in ids:
                cql.execute(f"INSERT INTO {name} (id, at, v) VALUES ({id}, 1, 'a')")

    def events() -> list[Counter[int]]:
        return [
            Counter(
                int(re.findall(rb'"id":(\d+)', message.key())[0])
                for message in messages(services.kafka, topic, PARTITIONS)
            )
            for topic in topics
        ]

    def once(*ids: int) -> bool:
        return events() == [Counter(ids)] * len(names)

    first = group.join()
    insert(1)
    config |= {"scylla.table.names": ",".join(names), "tasks.max": "3"}
    first.connect.create_connector({"name": "moving", "config": config})
    until(lambda: states(first, "moving") == ["RUNNING"] * 3, "running tasks")
    until(lambda: all(events()), "events")

    second = group.join()
    until(lambda: len(second.running) == 1 and len(first.running) == 2, "moved task")
    until(lambda: states(second, "moving") == ["RUNNING"] * 3, "running tasks")
    assert set(workers(second, "moving")) == {first.worker.address, second.worker.address}
    assert not first.running & second.running
    insert(2)
    until(lambda: once(1, 2), "each event once")

    # The worker that made the connector goes; the other one has its positions.
    group.leave(first)
    insert(3)
    until(lambda: len(second.running) == 3, "tasks of the worker that left")
    until(lambda: once(1, 2, 3), "each event once")
    assert workers(second, "moving") == [second.worker.address] * 3
    offsets = requests.get(f"{second.connect.url}/connectors/moving/offsets", timeout=PATIENCE).json()["offsets"]
    assert [f"{one['partition']['keyspace_name']}.{one['partition']['table_name']}" for one in offsets] == names
    second.connect.delete_connector("moving")
    until(lambda: not second.running, "end of the deleted connector's tasks")


@pytest.mark.slow
def test_a_task_waits_until_its_positions_are_read(
    group: Group, services: Services, cql: Any, tables: Any, config: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    name = tables("handed_over")
    topic = f"{config['topic.prefix']}.{name}"
    first, second = one_runs(group, "over", config | {"scylla.table.names": name})
    with without_positions(second):
        cql.execute(f"INSERT INTO {name} (id, at, v) VALUES (1, 1, 'a')")
        until(lambda: arrived(services, topic) == 1, "the first event")
        group.leave(first)
        until(lambda: "tasks wait for their positions" in caplog.text, "word of it")
        assert not second.running
    until(lambda: states(second, "over") == ["RUNNING"], "running task")
    cql.execute(f"INSERT INTO {name} (id, at, v) VALUES (2, 1, 'a')")
    until(lambda: arrived(services, topic) >= 2, "the second event")
    assert arrived(services, topic) == 2
    second.connect.delete_connector("over")
    until(lambda: not second.running, "end of the task")


@pytest.mark.slow
def test_each_worker_answers_for_the_whole_group(
    group: Group, services: Services, cql: Any, tables: Any, config: dict[str, str]
) -> None:
    one, other = group.join(), group.join()
    name = tables("answers")
    topic = f"{config['topic.prefix']}.{name}"
    config |= {"scylla.table.names": name}
    cql.execute(f"INSERT INTO {name} (id, at, v) VALUES (1, 1, 'a')")
    one.connect.create_connector({"name": "answers", "config": config})
    with pytest.raises(HTTPError, match="409"):
        other.connect.create_connector({"name": "answers", "config": config})
    until(lambda: states(other, "answers") == ["RUNNING"], "running task")
    until(lambda: topics(other, "answers") == [topic], "topic that is used")

    other.connect.pause_connector("answers")
    until(lambda: not one.running | other.running, "end of the paused task")
    assert states(one, "answers") == ["PAUSED"]
    cql.execute(f"INSERT INTO {name} (id, at, v) VALUES (2, 1, 'a')")
    one.connect.resume_connector("answers")
    until(lambda: arrived(services, topic) == 2, "event that was written while it was paused")

    # A position is set while no worker runs the connector.
    place = f"{other.connect.url}/connectors/answers/offsets"
    (position,) = requests.get(place, timeout=PATIENCE).json()["offsets"]
    assert requests.delete(place, timeout=PATIENCE).status_code == 400
    assert requests.put(f"{one.connect.url}/connectors/answers/stop", timeout=PATIENCE).status_code == 204
    start = {"offsets": [{**position, "offset": {"time": "2020-01-01T00:00:00Z"}}]}
    assert requests.patch(place, json=start, timeout=PATIENCE).status_code == 200
    assert states(one, "answers") == [] and not one.running | other.running
    other.connect.resume_connector("answers")
    until(lambda: arrived(services, topic) == 4, "both events again")

    # A restart and a new configuration reach the worker that runs the task.
    before = {id for each in (one, other) for id in each.worker.work.running}
    one.connect.restart_connector("answers", include_tasks=True)
    until(lambda: ran_anew(before, one, other), "restarted task")
    before = {id for each in (one, other) for id in each.worker.work.running}
    other.connect.update_connector("answers", config | {"poll.interval.ms": "100"})
    until(lambda: ran_anew(before, one, other), "task with the new configuration")
    until(lambda: states(one, "answers") == ["RUNNING"], "running task")

    once = config | {"exactly.once.support": "required"}
    refused = requests.put(f"{one.connect.url}/connectors/once/config", json=once, timeout=PATIENCE)
    assert (refused.status_code, "without group.id" in refused.json()["message"]) == (400, True)
    one.connect.delete_connector("answers")
    with pytest.raises(HTTPError, match="404"):
        other.connect.get_connector_status("answers")
    until(lambda: not one.running | other.running, "end of the deleted task")


def tasks_of(*members: Member) -> set[Any]:
    """What runs at these workers; a restarted task is another one."""
    return {one.task for each in members for one in [*each.worker.work.running.values()] if one.task}


def kc(member: Member, *words: str) -> Any:
    """What the command kc of kafka-connect-py prints."""
    command = [str(Path(sys.executable).with_name("kc")), "--url", member.connect.url, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


@pytest.mark.slow
def test_somebody_else_s_command_and_the_console_lead_a_group(
    group: Group, services: Services, cql: Any, tables: Any, config: dict[str, str], tmp_path: Path
) -> None:
    one, other = group.join(), group.join()
    names = [tables(f"led_{letter}") for letter in "ab"]
    topics = [f"{config['topic.prefix']}.{name}" for name in names]
    config |= {"scylla.table.names": ",".join(names), "tasks.max": "2"}
    # By the library: its command sends the configuration as one string.
    checked = one.connect.validate_connector_config("ScyllaConnector", config | {"name": "led"})
    assert checked["error_count"] == 0
    kc(one, "create", "-d", json.dumps({"name": "led", "config": config}))
    assert kc(other, "list") == ["led"]

    def task_states() -> set[tuple[str, str]]:
        return {(task["state"], task["worker_id"]) for task in kc(other, "status", "led")["tasks"]}

    running = {("RUNNING", member.worker.address) for member in (one, other)}
    until(lambda: task_states() == running, "a running task at each worker")
    for name in names:
        cql.execute(f"INSERT INTO {name} (id, at, v) VALUES (1, 1, 'a')")
    until(lambda: [arrived(services, topic) for topic in topics] == [1, 1], "events of both tasks")
    before = tasks_of(one, other)
    kc(other, "restart-task", "led", "0")
    until(lambda: len(before & (now := tasks_of(one, other))) == 1 and len(now) == 2, "one restarted task")
    until(lambda: task_states() == running, "both tasks")

    with console(tmp_path, "--connect", one.connect.url, "--connect", other.connect.url, "--allow-actions") as page:
        shown = {(task["state"], task["worker"]) for task in page.get("/api/connectors/1/led")["tasks"]}
        assert shown == running
        assert page.post("/api/connectors/1/led/pause")["done"]
        assert {state for state, _ in task_states()} == {"PAUSED"}
        assert page.post("/api/connectors/0/led/resume")["done"]
    until(lambda: task_states() == running, "both tasks after the pause")

    kc(one, "update", "led", "-d", json.dumps(config | {"tasks.max": "1"}))
    until(lambda: len(task_states()) == 1, "one task")
    kc(other, "delete", "led")
    assert kc(one, "list") == []
    assert [arrived(services, topic) for topic in topics] == [1, 1]


def topics(member: Member, name: str) -> list[str]:
    found = requests.get(f"{member.connect.url}/connectors/{name}/topics", timeout=PATIENCE).json()
    return list(found[name]["topics"])


def ran_anew(before: set[Any], *members: Member) -> bool:
    """Whether a task runs that did not before, and none that did."""
    now = {id for each in members for id, one in each.worker.work.running.items() if one.task}
    return bool(now) and not now & before


@pytest.mark.kill
def test_a_worker_that_the_group_has_lost_stops_its_tasks(
    group: Group, services: Services, cql: Any, tables: Any, config: dict[str, str]
) -> None:
    name = tables("lost")
    topic = f"{config['topic.prefix']}.{name}"
    alone, other = one_runs(group, "lost", config | {"scylla.table.names": name})
    assert alone.running and not other.running
    work = alone.worker.work
    assert work._loop and work._member
    work._loop.call_soon_threadsafe(cut_off, work._member)
    until(lambda: not alone.running, "end of the task")
    until(lambda: states(other, "lost") == ["RUNNING"], "task elsewhere")
    assert other.running == {("lost", 0)}
    cql.execute(f"INSERT INTO {name} (id, at, v) VALUES (1, 1, 'a')")
    until(lambda: arrived(services, topic) == 1, "event")


def test_positions_of_a_worker_on_its_own_are_taken_over(
    group: Group, services: Services, spark: SparkSession, cql: Any, tables: Any, config: dict[str, str]
) -> None:
    name = tables("before")
    topic = f"{config['topic.prefix']}.{name}"
    config |= {"scylla.table.names": name, "name": "before"}
    cql.execute(f"INSERT INTO {name} (id, at, v) VALUES (1, 1, 'a')")
    own = WorkerContext(spark, services.kafka, group.folder / "own", Provided({}, DEFAULTS))
    connector = Connector("before", StoredConnector(config), own)
    connector.start()
    until(lambda: arrived(services, topic) == 1, "event")
    until(lambda: connector.offsets.read(), "position")
    connector.halt()

    cql.execute(f"INSERT INTO {name} (id, at, v) VALUES (2, 1, 'a')")
    first = group.join()
    first.connect.create_connector({"name": "before", "config": config, "initial_state": "STOPPED"})
    group.leave(first)
    second = group.join(group.folder / "own")
    second.connect.resume_connector("before")
    until(lambda: arrived(services, topic) == 2, "only the later event")
    until(lambda: states(second, "before") == ["RUNNING"], "running task")
    assert arrived(services, topic) == 2


def test_configurations_without_an_order_are_refused(services: Services) -> None:
    with new_topic(services.kafka, "configs", 2) as topic:
        made = new_group(configs=topic).topics(services.kafka, {})
        with pytest.raises(PenstockError, match=r"several partitions.*set config.storage.topic to another topic"):
            made.configs.start()
