"""Members in their table and at a destination: full, changes, repeated, and after a kill."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cassandra.cluster import Session
from kafka_topics import new_topic, stored
from pyspark.sql import SparkSession
from waiting import until

from penstock import segment
from penstock.errors import PenstockError
from penstock.local.services import Services
from penstock.query.query import Batch
from penstock.segment.member_tables.delivery_sync import Mode
from penstock.segment.member_tables.member_schema import BUCKETS

SCHEMA = "person string, segment string, event string, at timestamp, until timestamp, ttl int, `to` string"


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "members", 2) as name:
        yield name


def change(person: str, event: str, life: int = 3600) -> tuple[object, ...]:
    ttl = life if event in ("enter", "prolong") else 0
    at = datetime.now(UTC).replace(microsecond=0)
    return person, "back", event, at, at + timedelta(seconds=life), ttl, "t"


def delivered(services: Services, topic: str) -> list[dict[str, Any]]:
    return [json.loads(value) for some in stored(services.kafka, topic, 2) for value in some]


def test_members_reach_a_destination_whole_and_then_as_changes(
    spark: SparkSession, services: Services, cql: Session, keyspace: str, topic: str
) -> None:
    sink = segment.sink(keyspace, hosts=services.cql)
    places: dict[str, Any] = {"to": topic, "keyspace": keyspace, "hosts": services.cql, "servers": services.kafka}

    def write(number: int, *changes: tuple[object, ...]) -> None:
        sink.save(spark.createDataFrame(list(changes), SCHEMA), Batch("test", number))

    write(0, *(change(f"p{i}", "enter") for i in range(100)))
    receipt = segment.sync("back", mode="full", **places)
    assert (receipt.added, receipt.removed) == (100, 0)
    records = delivered(services, topic)
    assert {record["person"] for record in records} == {f"p{i}" for i in range(100)}
    values = [json.dumps(record).encode() for record in records]
    digest = sum(int.from_bytes(hashlib.sha256(value).digest()[:8], "big") for value in values) % (1 << 64)
    assert receipt.digest == f"{digest:016x}"
    write(1, change("p1", "leave"), change("p2", "expire"), change("p3", "prolong", 7200), change("new", "enter"))
    assert cql.execute(f"SELECT count(*) FROM {keyspace}.members").one()[0] == 100
    changed = segment.sync("back", mode="changes", **places)
    assert (changed.added, changed.removed) == (2, 1)
    news = delivered(services, topic)[100:]
    told = {(record["person"], record["event"]) for record in delivered(services, topic)} - {
        (f"p{i}", "add") for i in range(100)
    }
    assert told == {("new", "add"), ("p1", "remove")} and len(news) == 3
    again = segment.sync("back", mode="changes", **places)
    assert (again.added, again.removed) == (0, 0)
    for table in ("members", "delivered", "syncs", "sync_steps", "counts"):
        columns = {
            "members": "until",
            "delivered": "until",
            "syncs": "began",
            "sync_steps": "added",
            "counts": "members",
        }
        kept = cql.execute(f"SELECT ttl({columns[table]}) FROM {keyspace}.{table}").all()
        assert kept and all(row[0] for row in kept), f"{table} has rows without a time to live"


@pytest.mark.slow
def test_a_segment_that_nobody_is_in_is_refused_with_the_names_that_are_near(
    services: Services, cql: Session, keyspace: str, topic: str
) -> None:
    places: dict[str, Any] = {"to": topic, "keyspace": keyspace, "hosts": services.cql, "servers": services.kafka}
    for table in ("members", "counts"):
        cql.execute(f"TRUNCATE {keyspace}.{table}")
    with pytest.raises(PenstockError, match=r"no segment 'retuning' has members.*no segment has any yet"):
        segment.sync("retuning", mode="full", **places)
    end = datetime.now(UTC) + timedelta(hours=1)
    insert = f"INSERT INTO {keyspace}.members (segment, bucket, person, until) VALUES (%s, 200, 'p', %s) USING TTL 3600"
    for name in ("returning", "other"):
        cql.execute(insert, (name, end))
    with pytest.raises(PenstockError, match=r"no segment 'retuning' has members.*did you mean returning\?"):
        segment.sync("retuning", mode="full", **places)
    with pytest.raises(PenstockError, match="check the name; known segments: other, returning"):
        segment.sync("zzz", mode="full", **places)
    runs = f"SELECT run FROM {keyspace}.syncs WHERE destination = %s AND segment = 'retuning'"
    assert cql.execute(runs, (topic,)).all() == []
    assert segment.sync("returning", mode="full", **places).added == 1
    cql.execute(f"DELETE FROM {keyspace}.members WHERE segment = 'returning' AND bucket = 200")
    assert segment.sync("returning", mode="changes", **places).removed == 1, "a known segment may become empty"


def test_a_segment_whose_members_are_gone_before_its_first_delivery_is_known_by_its_counts(
    services: Services, cql: Session, keyspace: str, topic: str
) -> None:
    count = f"INSERT INTO {keyspace}.counts (segment, level, span, at, members) VALUES ('gone', 'day', '2026', 0, 0x)"
    cql.execute(f"{count} USING TTL 3600")
    places: dict[str, Any] = {"to": topic, "keyspace": keyspace, "hosts": services.cql, "servers": services.kafka}
    assert segment.sync("gone", mode="full", **places).added == 0
    with pytest.raises(PenstockError, match=r"no segment 'gome' has members.*did you mean gone\?"):
        segment.sync("gome", mode="full", **places)


@pytest.mark.slow
def test_a_member_whose_time_is_over_is_none_though_its_row_is_there(
    services: Services, cql: Session, keyspace: str, topic: str
) -> None:
    began = datetime.now(UTC)
    lives = {"over": -1, "soon": 6, "late": 3600}
    ends = {person: began + timedelta(seconds=life) for person, life in lives.items()}
    for row in ends.items():
        insert = f"INSERT INTO {keyspace}.members (segment, bucket, person, until) VALUES ('timed', 0, %s, %s)"
        cql.execute(f"{insert} USING TTL 7200", row)
    places: dict[str, Any] = {"to": topic, "keyspace": keyspace, "hosts": services.cql, "servers": services.kafka}

    def sync(mode: Mode) -> tuple[int, int]:
        receipt = segment.sync("timed", mode=mode, **places)
        return receipt.added, receipt.removed

    assert sync("full") == (2, 0)
    assert until(lambda: (counts := sync("changes")) != (0, 0) and counts, "the end of one") == (0, 1)
    assert datetime.now(UTC) >= ends["soon"]
    assert sync("full") == (1, 0)
    told = sorted((record["person"], record["event"]) for record in delivered(services, topic))
    assert told == [("late", "add"), ("late", "add"), ("soon", "add"), ("soon", "remove")]


@pytest.mark.kill
def test_a_killed_delivery_goes_on_where_it_was(services: Services, cql: Session, keyspace: str, topic: str) -> None:
    insert = cql.prepare(
        f"INSERT INTO {keyspace}.members (segment, bucket, person, until) VALUES ('killed', ?, ?, ?) USING TTL 3600"
    )
    people = [f"p{i}" for i in range(512)]
    later = datetime.now(UTC) + timedelta(hours=1)
    for i, person in enumerate(people):
        cql.execute_async(insert, (i % BUCKETS, person, later)).result()
    command = [sys.executable, "-m", "penstock", "segment", "sync", "killed", "--to", topic, "--full"]
    command += ["--keyspace", keyspace, "--hosts", services.cql, "--servers", services.kafka]
    running = subprocess.Popen(command, env=os.environ, stdout=subprocess.DEVNULL)

    def steps() -> int:
        return int(
            cql.execute(f"SELECT count(*) FROM {keyspace}.sync_steps WHERE segment = 'killed' ALLOW FILTERING").one()[0]
        )

    until(lambda: steps() > 5, "steps of the delivery")
    running.send_signal(signal.SIGKILL)
    running.wait()
    before = steps()
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    receipt = json.loads(finished.stdout)
    assert 5 < before < BUCKETS, "it was killed in the middle"
    assert (receipt["added"], receipt["removed"]) == (512, 0) and steps() == BUCKETS
    records = delivered(services, topic)
    assert {record["person"] for record in records} == set(people)
    assert len(records) - 512 <= 2 * 8, "only buckets that were under way are sent again"


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(PenstockError, match=r"unknown mode 'half'.*use full or changes"):
        segment.sync("a", to="t", mode="half", keyspace="k", hosts="h:1", servers="h:1")  # type: ignore[arg-type]
