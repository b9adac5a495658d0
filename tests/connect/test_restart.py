"""`penstock connect` as a process: after a kill it continues with the connectors in Kafka, and loses no change."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from confluent_kafka import KafkaException, Producer
from kafka_connect import KafkaConnect
from kafka_topics import messages, new_topic
from keyspaces import new_keyspace
from waiting import PATIENCE, until
from worker_process import CONVERTER, group_properties, properties, worker

from penstock.local.services import Services

pytestmark = pytest.mark.kill

PARTITIONS = 4  # the broker's default


@pytest.fixture
def file(services: Services, tmp_path: Path) -> Path:
    """The properties of a worker on its own."""
    path = tmp_path / "worker.properties"
    path.write_text(properties(services.kafka))
    return path


@pytest.fixture
def group_file(services: Services, tmp_path: Path) -> Path:
    """The properties of workers that are a group."""
    path = tmp_path / "group.properties"
    path.write_text(group_properties(services.kafka))
    return path


@pytest.mark.slow
def test_connectors_run_on_a_cluster_of_which_an_executor_is_killed(
    group_file: Path, services: Services, cql: Any, tables: Any, config: dict[str, str], tmp_path: Path
) -> None:
    table = tables("on_a_cluster")
    topic = f"{config['topic.prefix']}.{table}"

    def arrived() -> set[int]:
        found = (message.key() for message in messages(services.kafka, topic, PARTITIONS))
        return {int(re.findall(rb'"id":(\d+)', key)[0]) for key in found}

    cluster = ["--master", "local-cluster[1,1,1024]", "--executor-memory", "700m"]
    with worker(group_file, tmp_path / "data", *cluster) as (process, url):
        connect = KafkaConnect(url)
        cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (1, 1, 'a')")
        connect.create_connector({"name": "killed", "config": config | {"scylla.table.names": table}})
        until(lambda: _has_written(connect), "written batch")
        until(lambda: arrived() == {1}, "event")
        below = psutil.Process(process.pid).children(recursive=True)
        (executor,) = [one for one in below if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline())]
        executor.kill()
        cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (2, 1, 'a')")
        until(lambda: arrived() == {1, 2}, "event after the kill")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_killed_worker_loses_neither_connectors_nor_changes(
    file: Path, services: Services, cql: Any, tables: Any, config: dict[str, str], tmp_path: Path
) -> None:
    table = tables("killed")
    topic = f"{config['topic.prefix']}.{table}"
    (tmp_path / "names").write_text(f"tables={table}\n")
    config |= {"scylla.table.names": f"${{file:{tmp_path}/names:tables}}"}

    def arrived() -> list[int]:
        found = (message.key() for message in messages(services.kafka, topic, PARTITIONS))
        return sorted(int(re.findall(rb'"id":(\d+)', key)[0]) for key in found)

    def insert(*ids: int) -> None:
        for id in ids:
            cql.execute(f"INSERT INTO {table} (id, at, v) VALUES ({id}, 1, 'a')")

    insert(*range(10))
    with worker(file, tmp_path / "data") as (process, url):
        connect = KafkaConnect(url)
        connect.create_connector({"name": "left", "config": {**config, "topic.prefix": "left"}})
        connect.delete_connector("left")
        connect.create_connector({"name": "killed", "config": config})
        until(lambda: _has_written(connect), "written batch")
        insert(*range(10, 20))
        os.kill(process.pid, signal.SIGKILL)
    insert(*range(20, 30))
    with worker(file, tmp_path / "data") as (process, url):
        connect = KafkaConnect(url)
        assert connect.list_connectors() == ["killed"]
        assert connect.get_connector_config("killed")["scylla.table.names"].startswith("${file:")
        until(lambda: set(arrived()) == set(range(30)), "complete topic")
        second = subprocess.run(
            [sys.executable, "-m", "penstock", "connect", str(file), "--data", str(tmp_path / "data")],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (second.returncode, f"process {process.pid} already runs" in second.stderr) == (1, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    # A batch that was not recorded before the kill is repeated, complete and in order; all others come once.
    found = arrived()
    assert all(found.count(id) == 1 for id in range(20, 30))


def test_the_tasks_of_a_killed_worker_run_elsewhere(
    group_file: Path, services: Services, cql: Any, tables: Any, config: dict[str, str], tmp_path: Path
) -> None:
    names = [tables(f"taken_{letter}") for letter in "ab"]

    def insert(*ids: int) -> None:
        for name in names:
            for id in ids:
                cql.execute(f"INSERT INTO {name} (id, at, v) VALUES ({id}, 1, 'a')")

    def arrived() -> list[list[int]]:
        found = [messages(services.kafka, f"{config['topic.prefix']}.{name}", PARTITIONS) for name in names]
        return [sorted(int(re.findall(rb'"id":(\d+)', message.key())[0]) for message in of) for of in found]

    def running(connect: KafkaConnect) -> set[str]:
        tasks = connect.get_connector_status("killed")["tasks"]
        return {task["worker_id"] for task in tasks if task["state"] == "RUNNING"} if len(tasks) == 2 else set()

    with worker(group_file, tmp_path) as (one, url), worker(group_file, tmp_path) as (_, other):
        killed, left = KafkaConnect(url), KafkaConnect(other)
        insert(*range(10))
        left.create_connector(
            {"name": "killed", "config": config | {"scylla.table.names": ",".join(names), "tasks.max": "2"}}
        )
        until(lambda: len(running(killed)) == 2, "a task on each worker")
        until(lambda: [set(of) for of in arrived()] == [set(range(10))] * 2, "events")
        insert(*range(10, 20))
        os.kill(one.pid, signal.SIGKILL)
        insert(*range(20, 30))
        until(lambda: running(left) == {other.removeprefix("http://")}, "both tasks on the other worker")
        until(lambda: [set(of) for of in arrived()] == [set(range(30))] * 2, "all events")
        # What came after the kill comes once; what was in flight then may come again.
        assert all(of.count(id) == 1 for of in arrived() for id in range(20, 30))


def test_a_killed_worker_loses_no_record_of_a_sink(
    group_file: Path, services: Services, cql: Any, tmp_path: Path
) -> None:
    """Its list shows a batch that was written twice."""
    producer = Producer({"bootstrap.servers": services.kafka})
    with new_keyspace(cql, "killed") as keyspace, new_topic(services.kafka, "killed", 2) as topic:
        table = f"{keyspace}.{topic.replace('-', '_')}"
        cql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, l list<int>)")
        config = {
            "connector.class": "ScyllaDbSinkConnector",
            "topics": topic,
            "scylladb.contact.points": services.cql,
            "scylladb.keyspace": keyspace,
            "scylladb.consistency.level": "ONE",
            "key.converter": CONVERTER,
            "key.converter.schemas.enable": "false",
        }

        def send(*ids: int) -> None:
            for id in ids:
                producer.produce(topic, json.dumps({"id": id, "l": [id, id]}), key=json.dumps({"id": id}))
            producer.flush()

        def rows() -> dict[int, list[int]]:
            return dict(cql.execute(f"SELECT id, l FROM {table}"))

        send(*range(2000))
        with worker(group_file, tmp_path / "data") as (process, url):
            KafkaConnect(url).create_connector({"name": "killed", "config": config})
            until(rows, "first rows")
            os.kill(process.pid, signal.SIGKILL)
        send(*range(2000, 2010))
        with worker(group_file, tmp_path / "data") as (process, url):
            until(lambda: len(rows()) == 2010, "all rows")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        assert rows() == {id: [id, id] for id in range(2010)}


def _has_written(connect: KafkaConnect) -> bool:
    answer = connect.get_connector_status("killed")
    states = [task["state"] for task in answer["tasks"]]
    return states == ["RUNNING"] and bool(_topics(connect))


def _topics(connect: KafkaConnect) -> list[str]:
    found: list[str] = connect.list_connector_topics("killed")["killed"]["topics"]
    return found


def _row_ids(services: Services, topic: str) -> set[int]:
    """The ids of the rows of incremental snapshots; the topic may not exist yet."""
    try:
        found = [json.loads(one.value()) for one in messages(services.kafka, topic, PARTITIONS)]
    except KafkaException:
        return set()
    return {one["after"]["id"] for one in found if one["op"] == "r" and one["source"]["snapshot"] == "incremental"}


@pytest.mark.slow
@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_ad_hoc_snapshot_goes_on_after_its_worker_was_killed(
    file: Path,
    group_file: Path,
    services: Services,
    cql: Any,
    tables: Any,
    config: dict[str, str],
    tmp_path: Path,
    elsewhere: bool,
) -> None:
    table, rows = tables(f"ad_hoc_{elsewhere:d}", "{'enabled': false}"), 60
    for id in range(rows):
        cql.execute(f"INSERT INTO {table} (id, at, v) VALUES ({id}, 1, 'old')")
    cql.execute(f"ALTER TABLE {table} WITH cdc = {{'enabled': true, 'preimage': true, 'postimage': true}}")
    topic = f"{config['topic.prefix']}.{table}"
    config |= {"scylla.table.names": table, "incremental.snapshot.chunk.size": "5"}
    asked = {"id": "1", "type": "execute-snapshot", "data": {"data-collections": [table]}}
    properties = group_file if elsewhere else file

    def running(connect: KafkaConnect) -> str:
        tasks = connect.get_connector_status("killed")["tasks"]
        return tasks[0]["worker_id"] if tasks and tasks[0]["state"] == "RUNNING" else ""

    def shown(url: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = requests.get(f"{url}/connectors/killed/signals", timeout=PATIENCE).json()[
            "snapshots"
        ]
        return found

    with worker(properties, tmp_path) as (killed, url):
        connect = KafkaConnect(url)
        connect.create_connector({"name": "killed", "config": config})
        until(lambda: running(connect), "running task")
        with worker(group_file, tmp_path) if elsewhere else nullcontext(("", url)) as (_, other):
            # Also a worker that does not run the task takes the signal.
            assert requests.post(f"{other}/connectors/killed/signals", json=asked, timeout=PATIENCE).status_code == 202
            until(lambda: shown(other) and shown(other)[0]["done"] > 0, "first chunk")
            os.kill(killed.pid, signal.SIGKILL)
            assert len(_row_ids(services, topic)) < rows
            with nullcontext(("", other)) if elsewhere else worker(properties, tmp_path) as (_, left):
                until(lambda: _row_ids(services, topic) == set(range(rows)), "all rows")
                until(lambda: shown(left) == [], "end of the snapshot")
