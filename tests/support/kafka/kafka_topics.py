"""Topics of a real broker for the time of one test, and their content."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from waiting import PATIENCE, until

SETTLING = 2.0  # seconds


def prepare(servers: str) -> None:
    """Switch retention off, since by default a broker deletes records with times of long ago; compact at once."""
    settings = {"log.retention.ms": "-1", "log.cleaner.backoff.ms": "200"}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    admin = AdminClient({"bootstrap.servers": servers})
    brokers = map(str, admin.list_topics(timeout=PATIENCE).brokers)
    resources = [ConfigResource(ConfigResource.Type.BROKER, id, incremental_configs=entries) for id in brokers]
    for done in admin.incremental_alter_configs(resources).values():
        done.result()


@contextmanager
def new_topic(servers: str, prefix: str, partitions: int, config: dict[str, str] | None = None) -> Iterator[str]:
    """A new topic, deleted afterwards; its name."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    with new_topics(servers, [name], partitions, config):
        yield name


@contextmanager
def new_topics(servers: str, names: list[str], partitions: int, config: dict[str, str] | None = None) -> Iterator[None]:
    """New topics of these names, deleted afterwards."""
    admin = AdminClient({"bootstrap.servers": servers})
    create_topics(admin, [NewTopic(name, partitions, 1, config=config or {}) for name in names])
    try:
        yield
    finally:
        for done in admin.delete_topics(names).values():
            done.result()


def create_topics(admin: AdminClient, topics: list[NewTopic]) -> None:
    """Make topics; a broker confirms a new topic a moment before it knows the topic itself."""
    for done in admin.create_topics(topics).values():
        done.result()
    names = {topic.topic for topic in topics}
    until(lambda: names <= admin.list_topics(timeout=PATIENCE).topics.keys(), f"topics {', '.join(sorted(names))}")


def messages(
    servers: str, topic: str, partitions: int, isolation: str = "read_committed", settling: float = SETTLING
) -> Iterator[Message]:
    """Each partition's messages in the order of their offsets, to the last stable one or to the end.

    A broker confirms a commit before its marker is in the topic: the last stable offset gets `settling` seconds to
    reach the end, where it stays behind for a transaction that is open.
    """
    options = {"group.id": uuid.uuid4().hex, "log_level": 0, "check.crcs": True, "isolation.level": isolation}
    consumer = Consumer(
        {"bootstrap.servers": servers, "enable.partition.eof": True, "fetch.wait.max.ms": 10, **options}
    )
    try:
        places = [TopicPartition(topic, p, 0) for p in range(partitions)]
        ends = [until(partial(_bounds, consumer, place), "bounds of a partition")[1] for place in places]
        consumer.assign(places)
        count, reached = 0, dict.fromkeys(range(partitions), -1)
        settled = time.monotonic() + settling
        while any(at < end for at, end in zip(reached.values(), ends, strict=True)):
            waiting = min(reached.values()) >= 0
            if waiting and time.monotonic() > settled:
                break
            some = consumer.consume(10_000, timeout=0.05) or ([] if waiting else consumer.consume(1, timeout=PATIENCE))
            assert some or waiting, f"{count} messages came, and no end of the partitions but {reached}"
            for one in some:
                if not one.error():
                    count += 1
                    yield one
                    continue
                assert one.error().code() == KafkaError._PARTITION_EOF, one.error()
                reached[one.partition()] = one.offset()
    finally:
        consumer.close()


def _bounds(consumer: Consumer, place: TopicPartition) -> tuple[int, int] | None:
    """The first and the last offset; None while a partition that was just created has no leader."""
    try:
        bounds: tuple[int, int] = consumer.get_watermark_offsets(place, timeout=PATIENCE)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION:
            return None
        raise
    return bounds


def stored(
    servers: str, topic: str, partitions: int, isolation: str = "read_committed", settling: float = SETTLING
) -> list[list[bytes]]:
    """The values of each partition, in the order of their offsets, to the last stable one or to the end."""
    found: list[list[bytes]] = [[] for _ in range(partitions)]
    for one in messages(servers, topic, partitions, isolation, settling):
        found[one.partition()].append(one.value())
    return found


def assert_same(found: list[list[bytes]], sent: list[list[bytes]]) -> None:
    """Nothing lost, nothing twice, all in order; fails with a short message."""
    for p, (came, went) in enumerate(zip(found, sent, strict=True)):
        if came != went:
            lost, twice = set(went) - set(came), len(came) - len(set(came))
            pytest.fail(f"partition {p}: {len(lost)} lost, {twice} twice of {len(went)}; {len(came)} came")
