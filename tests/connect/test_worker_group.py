"""Workers that share connectors: tasks are divided, move when workers come and go, and go on where others ended."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import requests
from kafka_topics import messages
from pyspark.sql import SparkSession
from waiting import PATIENCE, until
from worker_group import DEFAULTS, Member, member_of, new_group

from penstock.connect.providers import Provided
from penstock.local.services import Services

PARTITIONS = 4  # the broker's default


class Group:
    """A group, whose workers are made and ended by a test."""

    def __init__(self, spark: SparkSession, services: Services, folder: Path) -> None:
        self._about = new_group(), spark, services.kafka, folder, Provided({}, DEFAULTS)
        self._stacks: dict[str, ExitStack] = {}
        self.folder, self.before = folder, None

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


def test_tasks_are_divided_and_move_without_a_change_lost_or_repeated(
    group: Group, services: Services, cql: Any, tables: Any, config: dict[str, str]
) -> None:
    names = [tables(f"moving_{letter}") for letter in "abc"]
    topics = [f"{config['topic.prefix']}.{name}" for name in names]

    def insert(*ids: int) -> None:
        for name in names:
            for id in ids:
                cql.execute(f"INSERT INTO {name} (id, at, v) VALUES ({id}, 1, 'a')")

    def arrived() -> list[Counter[int]]:
        return [
            Counter(
                int(re.findall(rb'"id":(\d+)', message.key())[0])
                for message in messages(services.kafka, topic, PARTITIONS)
            )
            for topic in topics
        ]

    def once(*ids: int) -> bool:
        return arrived() == [Counter(ids)] * len(names)

    first = group.join()
    insert(1)
    config |= {"scylla.table.names": ",".join(names), "tasks.max": "3"}
    first.connect.create_connector({"name": "moving", "config": config})
    until(lambda: states(first, "moving") == ["RUNNING"] * 3, "running tasks")
    until(lambda: all(arrived()), "events")

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
