"""Admin requests on a real broker, checked with librdkafka's admin client and consumers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from hypothesis import given, strategies as st
from kafka_topics import new_topic
from waiting import PATIENCE, until

from penstock.local.services import Services
from penstock.wire import errors
from penstock.wire.admin import Admin, ConfigEntry
from penstock.wire.groups import GroupHasMembers, _assigned

T = TypeVar("T")


@pytest.fixture
def theirs(services: Services) -> AdminClient:
    return AdminClient({"bootstrap.servers": services.kafka})


@pytest.fixture
def topic(services: Services) -> Iterator[str]:
    with new_topic(services.kafka, "admin", 2) as name:
        yield name


def unique(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:8]}"


def ask(services: Services, act: Callable[[Admin], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Admin(services.kafka, patience="10 seconds") as admin:
            return await act(admin)

    return asyncio.run(run())


def test_a_topic_is_made_described_and_deleted(services: Services, theirs: AdminClient) -> None:
    name = unique("made")

    async def act(admin: Admin) -> None:
        configs = {"cleanup.policy": "compact", "retention.ms": "1000"}
        assert await admin.create_topic(name, partitions=3, replication=1, configs=configs)
        assert not await admin.create_topic(name, partitions=5)
        info = await admin.topic(name)
        assert (info.name, info.internal, [p.partition for p in info.partitions]) == (name, False, [0, 1, 2])
        assert all(p.leader in p.replicas == p.in_sync and not p.offline for p in info.partitions)
        assert (await admin.topics())[name] == info
        of_topic = [entry for entry in await admin.configs(name) if entry.source == "topic"]
        assert of_topic == [ConfigEntry(key, value, "topic", False) for key, value in sorted(configs.items())]
        assert len(await admin.configs(name)) > 20
        described = theirs.list_topics(name, timeout=PATIENCE).topics[name].partitions
        assert {p.partition: p.leader for p in info.partitions} == {n: p.leader for n, p in described.items()}
        await admin.delete_topic(name)
        with pytest.raises(errors.UnknownTopicOrPartition, match=name):
            await admin.topic(name)

    ask(services, act)
    assert name not in theirs.list_topics(timeout=PATIENCE).topics


def test_partitions_are_added_and_never_taken_away(services: Services, topic: str, theirs: AdminClient) -> None:
    ask(services, lambda admin: admin.create_partitions(topic, 5))
    # The controller's answer comes before the other brokers' look at it.
    until(lambda: len(theirs.list_topics(topic, timeout=PATIENCE).topics[topic].partitions) == 5, "partitions")
    with pytest.raises(errors.InvalidPartitions, match=f"{topic}.* 5"):
        ask(services, lambda admin: admin.create_partitions(topic, 4))


def test_configurations_are_set_and_given_back(services: Services, topic: str, theirs: AdminClient) -> None:
    def value(name: str) -> tuple[str, bool]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entry = theirs.describe_configs([resource])[resource].result()[name]
        return entry.value, entry.is_default

    ask(services, lambda admin: admin.alter_configs(topic, {"retention.ms": "12345", "cleanup.policy": "compact"}))
    assert value("retention.ms")[0] == "12345"
    ask(services, lambda admin: admin.alter_configs(topic, {"retention.ms": None}))
    assert value("retention.ms")[0] != "12345"
    assert value("cleanup.policy")[0] == "compact"
    with pytest.raises(errors.KafkaError, match=r"retention\.ms"):
        ask(services, lambda admin: admin.alter_configs(topic, {"retention.ms": "soon"}))


def test_sizes_are_those_of_the_records(services: Services, topic: str) -> None:
    producer = Producer({"bootstrap.servers": services.kafka, "compression.type": "none"})
    producer.produce(topic, bytes(100_000), partition=1)
    assert producer.flush(PATIENCE) == 0

    async def act(admin: Admin) -> dict[int, int]:
        return await admin.sizes(await admin.topic(topic))

    # A broker makes the log of a new partition a moment after it leads it.
    until(lambda: len(ask(services, act)) == 2, "sizes of both partitions", PATIENCE)
    sizes = ask(services, act)
    assert sizes[0] == 0 and 100_000 < sizes[1] < 110_000


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda admin: admin.topic("nowhere"), errors.UnknownTopicOrPartition),
        (lambda admin: admin.configs("nowhere"), errors.UnknownTopicOrPartition),
        (lambda admin: admin.delete_topic("nowhere"), errors.UnknownTopicOrPartition),
        (lambda admin: admin.create_partitions("nowhere", 3), errors.UnknownTopicOrPartition),
        (lambda admin: admin.alter_configs("nowhere", {"retention.ms": "1"}), errors.UnknownTopicOrPartition),
        (lambda admin: admin.create_topic("not a name"), errors.InvalidTopic),
        (lambda admin: admin.create_topic("many", replication=7), errors.InvalidReplicationFactor),
        (lambda admin: admin.create_topic("wrong", configs={"no.such": "1"}), errors.InvalidConfig),
        (lambda admin: admin.groups.describe("nobody"), errors.GroupIdNotFound),
        (lambda admin: admin.groups.delete("nobody"), errors.GroupIdNotFound),
        (lambda admin: admin.groups.commit("nobody", {("nowhere", 0): 1}), errors.UnknownTopicOrPartition),
    ],
)
def test_what_cannot_be_done_has_an_error_of_its_own(
    services: Services, act: Callable[[Admin], Awaitable[object]], error: type[errors.KafkaError]
) -> None:
    with pytest.raises(error):
        ask(services, act)


def committed(services: Services, theirs: AdminClient, group: str) -> dict[tuple[str, int], int]:
    asked = theirs.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result()
    return {(one.topic, one.partition): one.offset for one in found.topic_partitions}


def test_offsets_are_committed_without_a_member(services: Services, topic: str, theirs: AdminClient) -> None:
    group = unique("outside")

    async def act(admin: Admin) -> None:
        assert await admin.groups.offsets(group) == {}
        await admin.groups.commit(group, {(topic, 0): 7, (topic, 1): 9})
        await admin.groups.commit(group, {(topic, 1): 10})
        assert await admin.groups.offsets(group) == {(topic, 0): (7, ""), (topic, 1): (10, "")}
        info = await admin.groups.describe(group)
        assert (info.name, info.state, info.members) == (group, "Empty", ())
        assert group in [one.name for one in await admin.groups.list()]
        assert committed(services, theirs, group) == {(topic, 0): 7, (topic, 1): 10}
        await admin.groups.delete(group)
        assert group not in [one.name for one in await admin.groups.list()]

    ask(services, act)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members(services: Services, topic: str, protocol: str) -> None:
    group = unique(protocol)
    consumer = Consumer(
        {"bootstrap.servers": services.kafka, "group.id": group, "group.protocol": protocol, "client.id": "reader"}
    )
    try:
        consumer.subscribe([topic])

        def assigned() -> bool:
            consumer.poll(0.1)
            return len(consumer.assignment()) == 2

        until(assigned, "an assignment", PATIENCE)
        consumer.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)

        async def act(admin: Admin) -> None:
            info = await admin.groups.describe(group)
            (member,) = info.members
            assert (info.state, info.kind) == ("Stable", protocol)
            assert (member.client, {name: sorted(p) for name, p in member.partitions.items()}) == (
                "reader",
                {topic: [0, 1]},
            )
            (listed,) = [one for one in await admin.groups.list() if one.name == group]
            assert (listed.state, listed.kind, listed.protocol) == ("Stable", protocol, "consumer")
            with pytest.raises(GroupHasMembers, match=group):
                await admin.groups.commit(group, {(topic, 0): 1})
            with pytest.raises(errors.NonEmptyGroup, match=group):
                await admin.groups.delete(group)
            assert await admin.groups.offsets(group) == {(topic, 0): (5, "")}

        ask(services, act)
    finally:
        consumer.close()
    ask(services, lambda admin: admin.groups.delete(group))


@given(st.binary(max_size=60))
def test_any_bytes_of_a_member_are_an_assignment_or_none(data: bytes) -> None:
    for partitions in _assigned(data).values():
        assert all(isinstance(partition, int) for partition in partitions)
