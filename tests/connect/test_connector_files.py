"""Connectors of a standalone worker: their files, and the worker as a process."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from connect_memory import JSON, RIGHT
from kafka_connect import KafkaConnect
from kafka_topics import messages
from waiting import PATIENCE, until
from worker_process import group_properties, worker

from penstock.connect.worker.connector_files import LARGEST, read
from penstock.connect.worker.providers import Provided
from penstock.errors import PenstockError
from penstock.local.services import Services

PROVIDED = Provided({}, {"key.converter": JSON, "value.converter": JSON})


def lines(config: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in config.items())


@pytest.mark.parametrize(
    "text",
    [
        lines(RIGHT | {"name": "a"}),
        json.dumps(RIGHT | {"name": "a"}),
        json.dumps({"name": "a", "config": RIGHT}),
        json.dumps({"config": RIGHT | {"name": "a"}}),
    ],
    ids=["properties", "flat JSON", "a request", "a configuration"],
)
def test_files_of_both_kinds_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    (tmp_path / "b").write_text(lines(RIGHT | {"name": "b", "tasks.max": "2"}))
    found = read([tmp_path / "a", tmp_path / "b"], PROVIDED)
    assert found == {"a": RIGHT | {"name": "a"}, "b": RIGHT | {"name": "b", "tasks.max": "2"}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (lines(RIGHT), "the connector has no name"),
        (lines(RIGHT | {"name": "a"}), "two files have the connector a"),
        (lines(RIGHT | {"name": "b", "tasks.max": "0"}), "tasks.max"),
        (lines(RIGHT | {"name": "b", "connector.class": "org.example.Other"}), "this worker runs"),
        ("{", "neither a Java properties file nor JSON"),
        ("broken=\\u00g", "neither a Java properties file nor JSON"),
        ('{"name": "b", "config": {"tasks.max": null}}', "tasks.max"),
        ('{"a": ' + "[" * 100_000, "neither a Java properties file nor JSON"),
        ("x" * (LARGEST + 1), f"a connector has at most {LARGEST}"),
    ],
)
def test_what_is_no_connector_is_named_with_its_file(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "first").write_text(lines(RIGHT | {"name": "a"}))
    (tmp_path / "wrong").write_text(text)
    with pytest.raises(PenstockError, match=rf"{why}.*wrong"):
        read([tmp_path / "first", tmp_path / "wrong"], PROVIDED)
    with pytest.raises(PenstockError, match=r"there is no file .*none"):
        read([tmp_path / "none"], PROVIDED)


@pytest.mark.kill
def test_a_standalone_worker_runs_a_configuration_of_the_connector_s_version_1(
    services: Services, cql: Any, tables: Any, config: dict[str, str], tmp_path: Path
) -> None:
    table = tables("standalone")
    prefix = config["topic.prefix"]
    old = {
        "name": "orders",
        "connector.class": "com.scylladb.cdc.debezium.connector.ScyllaConnector",
        "scylla.name": prefix,
        "scylla.cluster.ip.addresses": services.cql,
        "scylla.table.names": table,
        "scylla.query.time.window.size": "2000",
        "scylla.confidence.window.size": "1000",
        "tasks.max": "1",
        "auto.create.topics.enable": "true",
    }
    files = tmp_path / "worker.properties", tmp_path / "connector.properties"
    # A group has no meaning for it: the file may be that of a distributed worker.
    files[0].write_text(group_properties(services.kafka))
    files[1].write_text(lines(old))

    def is_there(count: int) -> bool:
        try:
            return sum(1 for _ in messages(services.kafka, f"{prefix}.{table}", 4)) == count
        except KafkaException:
            return False

    cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (1, 1, 'a')")
    for number in (1, 2):
        came = partial(is_there, number)
        with worker(files[0], tmp_path / "data", connectors=[files[1]]) as (process, url):
            assert KafkaConnect(url).get_connector_config("orders") == old
            until(came, "event")
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
        cql.execute(f"INSERT INTO {table} (id, at, v) VALUES (2, 1, 'a')")
