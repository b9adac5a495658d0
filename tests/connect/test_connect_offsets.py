"""A group goes on where Kafka Connect's worker has stopped: by the records that ScyllaDB's connector left there."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
import requests
from cassandra.util import min_uuid_from_time
from confluent_kafka import KafkaException, Producer
from kafka_topics import messages, new_topic
from pyspark.sql import SparkSession
from waiting import PATIENCE, until
from worker_group import DEFAULTS, member_of, new_group

from penstock.cdc.generations import vnode_of
from penstock.connect.group.connect_offsets import StoppedAt, Vnode, VnodeOffsets, sent_before, stop_of
from penstock.connect.worker.providers import Provided
from penstock.local.services import Services

PARTITIONS = 4  # the broker's default
MOVED = "moved"
OF_ANOTHER = '["others",{"server":"mysql"}]'

A, B = 1_795_000_000_000, 1_795_100_000_000
"""Starts of generations, in milliseconds."""


def times(**of: Mapping[int, int]) -> dict[Vnode, int]:
    """Times by the vnodes of the generations a and b."""
    start = {"a": A, "b": B}
    return {Vnode("ks", "t", start[name], vnode): at for name, found in of.items() for vnode, at in found.items()}


@pytest.mark.parametrize(
    ("found", "vnodes", "stop"),
    [
        pytest.param(times(a={0: 30, 1: 20, 2: 40}), {0, 1, 2}, StoppedAt(20, 20, 3, 0), id="the slowest vnode"),
        pytest.param(
            times(a={0: 30, 1: 20}, b={0: 50, 1: 60}), {0, 1}, StoppedAt(50, 50, 2, 0), id="the newest generation"
        ),
        pytest.param(
            times(a={0: 30, 1: 20}, b={1: 60}), {0, 1, 2}, StoppedAt(B * 1000, 60, 3, 2), id="vnodes not begun"
        ),
        pytest.param(times(a={0: 30}), None, StoppedAt(30, 30, 1, 0), id="an unknown generation"),
        pytest.param({}, {0}, None, id="no record"),
    ],
)
def test_where_the_connector_has_stopped(
    found: dict[Vnode, int], vnodes: set[int] | None, stop: StoppedAt | None
) -> None:
    assert stop_of(found, lambda generation: vnodes) == stop


def test_the_records_of_a_table() -> None:
    known = VnodeOffsets()
    place = {"keyspace_name": "ks", "table_name": "Mixed", "vnode_id": "7", "generation_start": str(A)}
    vnode = Vnode.of(place)
    window = {
        "window_start": "04c29680-833b-11ee-8080-808080808080",
        "window_end": "16a43a00-833b-11ee-7f7f-7f7f7f7f7f7f",
    }
    known.put(vnode, "the key", sent_before(window))
    assert known.of('ks."Mixed"') == {Vnode("ks", "Mixed", A, 7): 1_700_000_000_123_456}
    assert known.of("ks.mixed") == {} and known.keys('ks."Mixed"') == known.keys() == ["the key"]
    known.put(vnode, "the key", None)
    assert known.keys() == []
    for wrong in ({**window, "window_start": "x"}, {"window_start": "12345678-1234-4234-8234-123456789abc"}):
        with pytest.raises(ValueError):
            sent_before(wrong)


def key(table: str, vnode: int, generation: int) -> str:
    keyspace, name = table.split(".")
    place = {"generation_start": str(generation), "keyspace_name": keyspace, "table_name": name, "vnode_id": str(vnode)}
    return json.dumps([MOVED, place], separators=(",", ":"))


def left_behind(services: Services, topic: str, table: str, cql: Any, window: float) -> set[str]:
    """Write what ScyllaDB's connector leaves for a table that it has read up to `window`; returns the keys."""
    generation = max(
        time
        for (time,) in cql.execute(
            "SELECT time FROM system_distributed.cdc_generation_timestamps WHERE key = 'timestamps'"
        )
    ).replace(tzinfo=UTC)
    start = round(generation.timestamp() * 1000)
    rows = cql.execute(f"SELECT streams FROM system_distributed.cdc_streams_descriptions_v2 WHERE time = {start}")
    vnodes = {vnode_of(stream) for (streams,) in rows for stream in streams}
    producer = Producer({"bootstrap.servers": services.kafka, "partitioner": "murmur2_random"})
    keys = {key(table, vnode, start) for vnode in vnodes}
    for each in keys:
        value = {"window_start": str(min_uuid_from_time(window)), "window_end": str(min_uuid_from_time(window + 30))}
        producer.produce(topic, json.dumps(value), each)
    # A generation that it has finished, and what is not of its form.
    old = {"window_start": str(min_uuid_from_time(window - 9000)), "window_end": str(min_uuid_from_time(window - 8970))}
    producer.produce(topic, json.dumps(old), key(table, 0, start - 86_400_000))
    producer.produce(topic, '{"file":"binlog.1","pos":4}', OF_ANOTHER)
    for place, damaged in (
        (key(table, 99_999, start), '{"window_start":"x"}'),
        (key(table, 0, start).replace('"0"', "Infinity"), json.dumps(old)),
        (json.dumps([MOVED, {"reads": table}]), "[]"),
    ):
        producer.produce(topic, damaged, place)
    assert producer.flush(PATIENCE) == 0
    return keys | {key(table, 0, start - 86_400_000)}


def ids(services: Services, topic: str) -> set[int]:
    """The ids of the rows whose events are in a topic, which may not exist yet."""
    try:
        found = [message.key() for message in messages(services.kafka, topic, PARTITIONS)]
    except KafkaException:
        return set()
    return {int(re.findall(rb'"id":(\d+)', one)[0]) for one in found}


def test_a_connector_goes_on_where_kafka_connect_has_stopped(
    spark: SparkSession, services: Services, cql: Any, tables: Any, config: dict[str, str], tmp_path: Path
) -> None:
    name, now = tables("moved"), time.time()

    def insert(id: int, at: float) -> None:
        cql.execute(f"INSERT INTO {name} (id, at, v) VALUES ({id}, 1, 'a') USING TIMESTAMP {round(at * 1e6)}")

    # Not earlier: a node takes writes since a little before its own start.
    insert(1, now - 3)
    insert(2, now - 1)
    topic = f"{config['topic.prefix']}.{name}"
    with new_topic(services.kafka, "offsets", 2, {"cleanup.policy": "compact"}) as offsets:
        keys = left_behind(services, offsets, name, cql, now - 2)
        group = new_group(**{"offset.storage.topic": offsets})
        with member_of(group, spark, services.kafka, tmp_path, Provided({}, DEFAULTS)) as member:
            place = f"{member.connect.url}/connectors/{MOVED}/offsets"
            member.connect.create_connector({"name": MOVED, "config": config | {"scylla.table.names": name}})
            until(lambda: 2 in ids(services, topic), "what was not sent")
            insert(3, time.time())
            until(lambda: 3 in ids(services, topic), "what is written from now on")
            assert ids(services, topic) == {2, 3}
            # A user who removes the positions removes these too.
            assert requests.put(f"{member.connect.url}/connectors/{MOVED}/stop", timeout=PATIENCE).status_code == 204
            assert requests.delete(place, timeout=PATIENCE).status_code == 200
            assert requests.get(place, timeout=PATIENCE).json() == {"offsets": []}
            last = {message.key().decode(): message.value() for message in messages(services.kafka, offsets, 2)}
            assert [last[one] for one in sorted(keys)] == [None] * len(keys) and last[OF_ANOTHER] is not None
            member.connect.resume_connector(MOVED)
            until(lambda: ids(services, topic) == {1, 2, 3}, "all that the log has")
