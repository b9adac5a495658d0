"""DataStax's own example configuration through the REST API, on a real node: two tables of a topic, deletes, errors."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests
from confluent_kafka import Producer
from kafka_connect import KafkaConnect
from kafka_topics import new_topic
from keyspaces import new_keyspace
from waiting import PATIENCE, until

from penstock.connect.sinks.cql.datastax_properties import CLASS
from penstock.local.services import Services

Send = Callable[..., None]
STRINGS = "org.apache.kafka.connect.storage.StringConverter"
EXAMPLE: dict[str, Any] = {
    "connector.class": CLASS,
    "tasks.max": "1",
    "cloud.secureConnectBundle": "",
    "ignoreErrors": "None",
    "maxConcurrentRequests": 500,
    "maxNumberOfRecordsInBatch": 32,
    "queryExecutionTimeout": 30,
    "connectionPoolLocalSize": 4,
    "jmx": True,
    "compression": "None",
    "auth.provider": "None",
    "auth.username": "",
    "auth.password": "",
    "auth.gssapi.keyTab": "",
    "auth.gssapi.principal": "",
    "auth.gssapi.service": "dse",
    "ssl.provider": "None",
    "ssl.hostnameValidation": True,
    "ssl.keystore.password": "",
    "ssl.keystore.path": "",
    "ssl.openssl.keyCertChain": "",
    "ssl.openssl.privateKey": "",
    "ssl.truststore.password": "",
    "ssl.truststore.path": "",
    "ssl.cipherSuites": "",
}
"""What the file cassandra-sink-distributed.json.sample of the connector has for all topics."""
OF_TABLE: dict[str, Any] = {
    "consistencyLevel": "LOCAL_ONE",
    "ttlTimeUnit": "SECONDS",
    "timestampTimeUnit": "MICROSECONDS",
    "nullToUnset": "true",
    "deletesEnabled": "true",
}
CODEC = {
    "codec.locale": "en_US",
    "codec.timeZone": "UTC",
    "codec.timestamp": "CQL_TIMESTAMP",
    "codec.date": "ISO_LOCAL_DATE",
    "codec.time": "ISO_LOCAL_TIME",
    "codec.unit": "MILLISECONDS",
}
TABLES = (
    "CREATE TYPE {0}.address (street text, zip int)",
    "CREATE TABLE {0}.people (id int PRIMARY KEY, name text, home frozen<address>, seen timeuuid)",
    "CREATE TABLE {0}.logins (id int, source text, day date, PRIMARY KEY (id, source))",
    "CREATE TABLE {0}.clicks (id int PRIMARY KEY, n counter)",
    "CREATE INDEX ON {0}.people (name)",
)


@pytest.fixture(scope="module")
def keyspace(cql: Any) -> Iterator[str]:
    with new_keyspace(cql, "datastax") as name:
        for statement in TABLES:
            cql.execute(statement.format(name))
        yield name


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "people", 1) as name:
        yield name


@pytest.fixture
def send(services: Services, topic: str) -> Send:
    producer = Producer({"bootstrap.servers": services.kafka})

    def send(id: int, value: dict[str, Any] | None) -> None:
        text = None if value is None else json.dumps(value)
        producer.produce(topic, text, key=json.dumps({"id": id}), headers={"source": b"web"})
        producer.flush()

    return send


@pytest.fixture
def config(services: Services, keyspace: str, topic: str) -> dict[str, Any]:
    host, port = services.cql.split(":")
    people, logins = (f"topic.{topic}.{keyspace}.{table}." for table in ("people", "logins"))
    return {
        **EXAMPLE,
        "topics": topic,
        "contactPoints": host,
        "port": int(port),
        "loadBalancing.localDc": "datacenter1",
        "key.converter": STRINGS,
        "value.converter": STRINGS,
        f"{people}mapping": "id=key.id, name=value.name, home=value.home, seen=now(), __timestamp=value.at",
        f"{people}ttl": 86400,
        f"{logins}mapping": "id=key.id, source=header.source, day=value.day",
        f"{logins}ttl": -1,
        **{f"{table}{name}": text for table in (people, logins) for name, text in OF_TABLE.items()},
        **{f"topic.{topic}.{name}": text for name, text in CODEC.items()},
        f"topic.{topic}.codec.date": "d MMM yyyy",
    }


@pytest.fixture
def named(connect: KafkaConnect) -> Iterator[str]:
    name = f"datastax-{uuid.uuid4().hex[:8]}"
    yield name
    if name in connect.list_connectors():
        connect.delete_connector(name)


def person(name: str | None, at: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "home": name and {"street": f"{name}'s", "zip": 10115}, "at": at, "day": None, **more}


def test_the_example_writes_two_tables_and_deletes(
    connect: KafkaConnect, cql: Any, config: dict[str, Any], keyspace: str, named: str, send: Send
) -> None:
    for table in ("people", "logins"):
        cql.execute(f"TRUNCATE {keyspace}.{table}")
    send(1, person("Ada", 100, day="9 Mar 2018"))
    send(2, person("Bob", 100, day="10 Mar 2018"))
    send(3, person("Cy", 100, day="11 Mar 2018"))
    connect.create_connector({"name": named, "config": config})

    def rows(columns: str, table: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in cql.execute(f"SELECT {columns} FROM {keyspace}.{table}"))

    until(lambda: len(rows("id", "people")) == len(rows("id", "logins")) == 3, "rows of both tables")
    assert rows("id, name, home.street, home.zip, writetime(name)", "people") == [
        (1, "Ada", "Ada's", 10115, 100),
        (2, "Bob", "Bob's", 10115, 100),
        (3, "Cy", "Cy's", 10115, 100),
    ]
    assert [(id, source, str(day)) for id, source, day in rows("id, source, day", "logins")] == [
        (1, "web", "2018-03-09"),
        (2, "web", "2018-03-10"),
        (3, "web", "2018-03-11"),
    ]
    assert all(seen.version == 1 and 0 < left <= 86400 for seen, left in rows("seen, ttl(name)", "people"))
    assert rows("ttl(day)", "logins") == [(None,)] * 3
    # Null is no change, for some columns; null for all deletes the row, and so does no value.
    send(1, person("Ada L.", 200, home=None, day="12 Mar 2018"))
    send(2, person(None, 200))
    send(3, None)
    until(lambda: rows("id, name, home.street", "people") == [(1, "Ada L.", "Ada's")], "deleted rows")
    until(lambda: [(id, str(day)) for id, day in rows("id, day", "logins")] == [(1, "2018-03-12")], "deleted logins")
    # A delete has the time of its record: later values stay.
    send(1, person(None, 150))
    send(4, person("Di", 300, day="13 Mar 2018"))
    wanted = [(1, "Ada L.", None), (4, "Di", "Di's")]
    until(lambda: rows("id, name, home.street", "people") == wanted, "rows after an old delete")


def test_what_the_database_refuses_is_left_out_with_driver_and_what_cannot_be_mapped_is_not(
    connect: KafkaConnect, cql: Any, config: dict[str, Any], keyspace: str, named: str, send: Send, topic: str
) -> None:
    cql.execute(f"TRUNCATE {keyspace}.people")
    own = {name: text for name, text in config.items() if ".logins." not in name} | {"ignoreErrors": "Driver"}
    send(1, person("x" * 70_000, 100))
    send(2, person("Bob", 100))
    connect.create_connector({"name": named, "config": own})
    until(lambda: [*cql.execute(f"SELECT id FROM {keyspace}.people")] == [(2,)], "row after the bad one")
    send(3, {"name": "Cy"})

    def trace() -> str:
        tasks = connect.get_connector_status(named)["tasks"]
        return str(tasks[0].get("trace", "")) if tasks and tasks[0]["state"] == "FAILED" else ""

    said = until(trace, "failed task")
    assert f"topic {topic}, partition 0, offset 2" in said and "the record has no value.home" in said


def test_configurations_are_checked_against_the_tables(
    connect: KafkaConnect, config: dict[str, Any], keyspace: str, topic: str
) -> None:
    place = f"topic.{topic}.{keyspace}"
    base = {name: text for name, text in config.items() if not name.startswith(place)} | {"name": "x"}
    url = f"{connect.url}/connector-plugins/{CLASS}/config/validate"
    wrong: list[tuple[str, dict[str, Any], str, str]] = [
        (
            f"topic.{topic}.{keyspace}x.people",
            {"mapping": "id=key"},
            "mapping",
            f"did you mean {keyspace}? Else create",
        ),
        (f"{place}.peeple", {"mapping": "id=key"}, "mapping", f"did you mean {keyspace}.people?"),
        (f"{place}.nothing_like_it", {"mapping": "id=key"}, "mapping", "Create it"),
        (f"{place}.people", {"mapping": "ID=key"}, "mapping", "it does not map id, of the primary key"),
        (f"{place}.people", {"mapping": "id=key, nome=value.n"}, "mapping", "has no column nome; it has home, id"),
        (f"{place}.clicks", {"mapping": "id=key, n=value.n", "ttl": 5}, "ttl", "has counters, which have no time"),
        (f"{place}.clicks", {"mapping": "id=key, n=value.n, __ttl=value.t"}, "mapping", "has counters"),
        (
            f"{place}.people",
            {"mapping": "i=key", "query": f"DELETE FROM {keyspace}.people WHERE id = :j", "deletesEnabled": False},
            "query",
            "its markers j are not in the mapping",
        ),
    ]
    for prefix, options, option, why in wrong:
        given = base | {f"{prefix}.{name}": value for name, value in options.items()}
        found = requests.put(url, json=given, timeout=PATIENCE).json()
        errors = {one["value"]["name"]: one["value"]["errors"] for one in found["configs"] if one["value"]["errors"]}
        assert set(errors) == {f"{prefix}.{option}"} and why in errors[f"{prefix}.{option}"][0], errors
    away = config | {"name": "x", "port": 1}
    found = requests.put(url, json=away, timeout=PATIENCE).json()
    (error,) = [one["value"] for one in found["configs"] if one["value"]["errors"]]
    assert error["name"] == "contactPoints" and "Unable to connect" in error["errors"][0]
