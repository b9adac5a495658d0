"""Where a sink connector without a checkpoint begins to read a topic, and its consumer group.

The group is `connect-<name>`, as in Kafka Connect: a connector that ran there goes on where it was. A start that a user
has set for a partition comes first; partitions without either begin as `auto.offset.reset` says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress

from penstock.connect import topics
from penstock.errors import PenstockError
from penstock.wire.errors import GroupIdNotFound, KafkaError, UnknownTopicOrPartition

RESET = "auto.offset.reset"
ENDS = {"earliest": -2, "latest": -1}
"""The values of `auto.offset.reset`, and the offsets of Spark's JSON that mean the same."""


def group_of(connector: str) -> str:
    return f"connect-{connector}"


def starts(
    servers: str,
    settings: Mapping[str, str],
    connector: str,
    names: Sequence[str],
    chosen: Mapping[str, str],
    reset: str,
) -> dict[str, str]:
    """The start of each topic in Spark's form; `chosen` has those that a user has set, perhaps of some partitions only.

    `settings` are a consumer's, for security. Raises PenstockError if Kafka does not answer.
    """
    try:
        partitions, committed = asyncio.run(_ask(servers, settings, connector, names))
    except KafkaError as error:
        raise _failure("the group's offsets cannot be read", error, connector, servers) from error
    starts_by_topic = {}
    for topic in names:
        own = json.loads(chosen[topic])[topic] if topic in chosen else {}
        places = {
            str(partition): own.get(str(partition), committed.get((topic, partition), ENDS[reset]))
            for partition in partitions.get(topic, ())
        }
        starts_by_topic[topic] = json.dumps({topic: places}) if places else reset
    return starts_by_topic


def forget(servers: str, settings: Mapping[str, str], connector: str) -> None:
    """Remove the offsets of the connector's group; raises PenstockError if Kafka does not."""
    try:
        asyncio.run(_forget(servers, settings, connector))
    except KafkaError as error:
        raise _failure("the group's offsets cannot be removed", error, connector, servers) from error


def _failure(what: str, error: KafkaError, connector: str, servers: str) -> PenstockError:
    kind = topics.TopicsUnknown if error.retriable else PenstockError
    return kind(
        f"{what}: {error}",
        where=f"group {group_of(connector)} at {servers}",
        next="check that Kafka runs, and the user's rights",
    )


async def _ask(
    servers: str, settings: Mapping[str, str], connector: str, names: Sequence[str]
) -> tuple[dict[str, list[int]], dict[tuple[str, int], int]]:
    """The partitions of those topics that there are, and the group's offsets by topic and partition."""
    partitions = {}
    async with topics.admin(servers, settings, patience=topics.PATIENCE) as admin:
        for topic in names:
            with suppress(UnknownTopicOrPartition):
                partitions[topic] = [one.partition for one in (await admin.topic(topic)).partitions]
        offsets = await admin.groups.offsets(group_of(connector))
    return partitions, {place: one.offset for place, one in offsets.items()}


async def _forget(servers: str, settings: Mapping[str, str], connector: str) -> None:
    async with topics.admin(servers, settings, patience=topics.PATIENCE) as admin:
        with suppress(GroupIdNotFound):
            await admin.groups.delete(group_of(connector))
