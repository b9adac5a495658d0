"""Admin requests on three brokers: each knows only its own groups and replicas, and one of them may be away."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from kafka_cluster import KafkaCluster
from waiting import PATIENCE, until

from penstock.wire.admin import Admin, TopicInfo

pytestmark = pytest.mark.kill

T = TypeVar("T")


def ask(cluster: KafkaCluster, act: Callable[[Admin], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Admin(cluster.servers, patience="30 seconds") as admin:
            return await act(admin)

    return asyncio.run(run())


@pytest.mark.slow
def test_all_brokers_answer_and_a_dead_one_is_seen(cluster: KafkaCluster) -> None:
    topic, prefix = f"admin-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    names = [f"{prefix}-{number}" for number in range(8)]

    async def make(admin: Admin) -> TopicInfo:
        assert await admin.create_topic(topic, partitions=6, replication=3)
        info = await admin.topic(topic, is_new=True)
        # Groups have two coordinators here, by the hash of their names.
        for number, name in enumerate(names):
            await admin.groups.commit(name, {(topic, 0): number})
        return info

    def described() -> TopicInfo:
        return ask(cluster, lambda admin: admin.topic(topic))

    def listed() -> list[str]:
        groups = ask(cluster, lambda admin: admin.groups.list())
        return [one.name for one in groups if one.name.startswith(prefix)]

    async def offsets(admin: Admin) -> list[int | None]:
        found = [await admin.groups.offsets(name) for name in names]
        return [one[topic, 0].offset if one else None for one in found]

    info = ask(cluster, make)
    assert {one.leader for one in info.partitions} == {1, 2, 3}
    assert all(sorted(one.replicas) == [1, 2, 3] for one in info.partitions)
    assert listed() == names
    # A broker makes the log of a new partition a moment after it leads it.
    until(lambda: len(ask(cluster, lambda admin: admin.sizes(info))) == 6, "sizes of all partitions", PATIENCE)
    until(lambda: all(len(one.in_sync) == 3 for one in described().partitions), "all replicas in sync", PATIENCE)
    cluster.kill(3)
    until(lambda: all(len(one.in_sync) == 2 for one in described().partitions), "a broker out of sync", PATIENCE)
    after = described().partitions
    assert all(one.offline == (3,) and 3 not in one.in_sync for one in after)
    assert {one.leader for one in after} == {1, 2}
    # The groups of the dead broker move to another one, which shows an offset when its copies have confirmed it.
    until(lambda: ask(cluster, offsets) == list(range(8)), "all offsets", PATIENCE)
    assert listed() == names
    ask(cluster, lambda admin: admin.delete_topic(topic))
