"""`penstock groups` on a real broker."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka_topics import new_topic
from waiting import PATIENCE, until

from penstock.cli.groups import Lag, total
from penstock.local.services import Services
from penstock.query.delivery import marker_group
from penstock.wire.admin import Admin

Run = Callable[..., Any]


@pytest.fixture
def groups(penstock: Run, services: Services) -> Run:
    return lambda *words: penstock("groups", *words, "--servers", services.kafka)


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "groups", 2) as name:
        producer = Producer({"bootstrap.servers": services.kafka})
        for partition, count in ((0, 10), (1, 4)):
            for _ in range(count):
                producer.produce(name, b"v", partition=partition)
        assert producer.flush(PATIENCE) == 0
        yield name


@pytest.fixture
def group(services: Services) -> Iterator[str]:
    """A name of a group, which is deleted afterwards if it was made."""
    name = f"shop-{uuid.uuid4().hex[:8]}"
    yield name
    delete(services, name)


def delete(services: Services, name: str) -> None:
    async def act() -> None:
        async with Admin(services.kafka) as admin:
            if name in [one.name for one in await admin.groups.list()]:
                await admin.groups.delete(name)

    asyncio.run(act())


def commit(services: Services, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
    async def act() -> None:
        async with Admin(services.kafka) as admin:
            await admin.groups.commit(group, offsets)

    asyncio.run(act())


def listed(groups: Run, *words: object) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in groups("list", "--json", *words).out.splitlines()]
    return {row["group"]: row for row in rows}


@pytest.mark.slow
def test_the_lag_of_a_group_by_partition_and_in_sum(services: Services, groups: Run, topic: str, group: str) -> None:
    commit(services, group, {(topic, 0): 7, (topic, 1): 4})
    row = listed(groups)[group]
    assert (row["state"], row["markers"], row["topics"], row["lag"]) == ("Empty", False, [topic], 3)
    assert [group, "Empty", "classic", "3", topic] in [line.split() for line in groups("list").out.splitlines()]
    found = json.loads(groups("describe", group, "--json").out)
    assert [(one["partition"], one["offset"], one["end"], one["lag"]) for one in found["partitions"]] == [
        (0, 7, 10, 3),
        (1, 4, 4, 0),
    ]
    assert (found["lag"], found["members"]) == (3, [])
    lines = groups("describe", group).out.splitlines()
    assert lines[:3] == [f"group    {group}", "state    Empty, classic", "lag      3"]
    assert lines[-2].split() == [topic, "0", "7", "10", "3", "-"]


@pytest.mark.slow
def test_a_topic_that_is_gone_has_no_lag(services: Services, groups: Run, group: str) -> None:
    with new_topic(services.kafka, "gone", 1) as gone:
        commit(services, group, {(gone, 0): 0})
    # A broker may delete the offsets of the topic together with it.
    found = json.loads(groups("describe", group, "--json").out) if group in listed(groups) else {"lag": None}
    assert found["lag"] is None


def test_members_are_shown_and_protect_their_group(services: Services, groups: Run, topic: str, group: str) -> None:
    consumer = Consumer({"bootstrap.servers": services.kafka, "group.id": group, "client.id": "till 1"})
    try:
        consumer.subscribe([topic])

        def assigned() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == 2

        until(assigned, "an assignment", PATIENCE)
        consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        found = json.loads(groups("describe", group, "--json").out)
        (member,) = found["members"]
        assert (found["state"], member["client"], member["partitions"]) == ("Stable", "till 1", {topic: [0, 1]})
        assert [(one["offset"], one["member"]) for one in found["partitions"]] == [(5, member["id"])]
        assert "member   till 1 at " in groups("describe", group).out
        refused = groups("delete", group, "--yes")
        assert refused.code == 1 and f"the group {group} has members" in refused.err
        assert f"penstock groups describe {group}" in refused.err
    finally:
        consumer.close()


def test_groups_of_markers_are_left_out_and_not_deleted(services: Services, groups: Run) -> None:
    name = marker_group(str(uuid.uuid4()), 1)
    commit(services, name, {("__consumer_offsets", 3): 8})
    try:
        ran = groups("list")
        assert name not in ran.out and "groups of exactly-once markers are left out; --markers shows them" in ran.err
        row = listed(groups, "--markers")[name]
        assert (row["markers"], row["lag"]) == (True, None)
        told = groups("describe", name).out
        assert "numbers of batches of an exactly-once sink" in told and "task 3: batch 7" in told
        refused = groups("delete", name, "--yes")
        assert refused.code == 1 and "may write its last batch once more" in refused.err
        assert groups("delete", name, "--yes", "--markers").out == f"deleted {name}\n"
        assert name not in listed(groups, "--markers")
    finally:
        delete(services, name)


def test_a_group_is_deleted_after_a_yes(services: Services, groups: Run, topic: str, group: str) -> None:
    commit(services, group, {(topic, 0): 7})
    ran = groups("delete", group)
    assert ran.code == 1 and f"Next: run: penstock groups delete {group} --yes" in ran.err
    assert json.loads(groups("delete", group, "--yes", "--json").out) == {"group": group, "deleted": True}
    assert group not in listed(groups)


def test_names_that_are_near_are_offered(services: Services, groups: Run, topic: str, group: str) -> None:
    commit(services, group, {(topic, 0): 7})
    for action in (("describe",), ("delete", "--yes")):
        ran = groups(action[0], f"{group}s", *action[1:])
        assert ran.code == 1 and f"there is no group {group}s. Next: did you mean {group}" in ran.err


def test_no_kafka(penstock: Run) -> None:
    ran = penstock("groups", "list", "--servers", "127.0.0.1:1")
    assert ran.code == 1 and "cannot be reached" in ran.err


@pytest.mark.parametrize(
    ("lags", "expected"),
    [
        ([], None),
        ([Lag("t", 0, 5, 9), Lag("t", 1, 5, None)], 4),
        ([Lag("t", 1, 5, None)], None),
        ([Lag("t", 0, 9, 5)], 0),
    ],
)
def test_a_lag_is_what_is_known(lags: list[Lag], expected: int | None) -> None:
    assert total(lags, "shop") == expected
