"""The page's example of the JDBC sink connector through the REST API: rows, deletes, dead letters, checks."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import requests
from confluent_kafka import Producer
from kafka_connect import KafkaConnect
from kafka_topics import messages, new_topic
from postgres_server import execute, query
from waiting import PATIENCE, until

from penstock.local.services import Services

PAGE = Path(__file__).parents[2] / "docs/sink-connectors.md"
KEY = {"type": "struct", "optional": False, "fields": [{"field": "id", "type": "int64", "optional": False}]}
VALUE = [{"field": "item", "type": "string", "optional": True}]
MORE = [*VALUE, {"field": "n", "type": "int32", "optional": True}]


def example() -> dict[str, Any]:
    """The configuration on the page."""
    (found,) = re.findall(r"-d '(\{\s*\"name\": \"orders-to-postgres\".*?\})'", PAGE.read_text(), re.DOTALL)
    config: dict[str, Any] = json.loads(found)["config"]
    return config


def enveloped(schema: dict[str, Any], payload: Any) -> str:
    return json.dumps({"schema": schema, "payload": payload})


def test_the_example_upserts_deletes_and_keeps_bad_records(
    connect: KafkaConnect, services: Services, postgres: str
) -> None:
    login, _, place = postgres.removeprefix("postgresql://").rpartition("@")
    user, _, password = login.partition(":")
    name = f"jdbc_{uuid.uuid4().hex[:8]}"
    producer = Producer({"bootstrap.servers": services.kafka})
    with new_topic(services.kafka, name, 1) as topic, new_topic(services.kafka, f"{name}_bad", 1) as bad:

        def send(id: int, value: dict[str, Any] | None, fields: list[dict[str, Any]] = VALUE) -> None:
            schema = {"type": "struct", "optional": False, "fields": fields}
            data = None if value is None else enveloped(schema, value)
            producer.produce(topic, data, key=enveloped(KEY, {"id": id}))

        config = example() | {
            "topics": topic,
            "connection.url": f"jdbc:postgresql://{place}",
            "connection.user": user,
            "connection.password": password,
            "table.name.format": name,
            "errors.deadletterqueue.topic.name": bad,
        }
        away = config | {"name": "x", "connection.url": "jdbc:postgresql://127.0.0.1:1/shop"}
        answer = requests.put(
            f"{connect.url}/connector-plugins/JdbcSinkConnector/config/validate", json=away, timeout=PATIENCE
        ).json()
        (error,) = [one["value"] for one in answer["configs"] if one["value"]["errors"]]
        assert error["name"] == "connection.url" and "PostgreSQL is unavailable" in error["errors"][0]
        assert password not in json.dumps(answer)

        def rows(columns: str = "id, item") -> list[tuple[Any, ...]]:
            there = query(postgres, f"SELECT to_regclass('{name}') IS NOT NULL")[0][0]
            return query(postgres, f"SELECT {columns} FROM {name} ORDER BY id") if there else []

        send(1, {"item": "a"})
        send(2, {"item": "b"})
        send(3, {"item": "\0"})
        producer.flush()
        connect.create_connector({"name": name, "config": config})
        try:
            until(lambda: rows() == [(1, "a"), (2, "b")], "rows")
            send(1, None)
            send(2, {"item": "c", "n": 7}, MORE)
            producer.flush()
            until(lambda: rows() == [(2, "c")], "changed rows")
            assert rows("id, n") == [(2, 7)]
            assert [json.loads(one.key() or b"")["payload"] for one in messages(services.kafka, bad, 1)] == [{"id": 3}]
        finally:
            connect.delete_connector(name)
            execute(postgres, f"DROP TABLE IF EXISTS {name}")
