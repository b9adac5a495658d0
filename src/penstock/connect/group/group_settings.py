"""The settings of a group of workers, from the properties of Kafka Connect's distributed worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from penstock.connect.group.group_configs import GroupConfigs
from penstock.connect.group.group_herder import GroupTopics
from penstock.connect.group.group_work import MemberMaker
from penstock.connect.group.kafka_positions import KafkaPositions
from penstock.connect.group.states import GroupStates
from penstock.connect.worker.connector_store import require_order
from penstock.durations import whole
from penstock.errors import PenstockError
from penstock.kafka.compacted_topic import CompactedTopic, Seen
from penstock.wire.group_member import GroupTimes, GroupWork, Membership

KIND, PROTOCOL = "connect", "penstock-1"
"""The kind is Kafka Connect's, for tools; the protocol is not: its workers must not be in one group with these."""


@dataclass(frozen=True)
class TopicSettings:
    """A topic of the group, and how it is created if it is missing; -1 is what the cluster says."""

    name: str
    partitions: int
    replication: int


@dataclass(frozen=True)
class GroupSettings:
    """A group: its name, its topics, and its times."""

    name: str
    configs: TopicSettings
    positions: TopicSettings
    states: TopicSettings
    times: GroupTimes
    max_decompressed: int | None = None

    def topics(self, servers: str, security: Mapping[str, Any]) -> GroupTopics:
        """What its workers share."""
        make_topic = partial(_topic, servers, security)
        return GroupTopics(
            GroupConfigs(make_topic(self.configs, self.max_decompressed, ordered=True)),
            KafkaPositions(make_topic(self.positions)),
            GroupStates(make_topic(self.states)),
        )

    def member(self, servers: str, security: Mapping[str, Any]) -> MemberMaker:
        """Makes a worker a member."""

        def membership(work: GroupWork) -> Membership:
            return Membership(servers, self.name, kind=KIND, protocol=PROTOCOL, work=work, times=self.times, **security)

        return membership


def group_settings(
    properties: Mapping[str, str], configs: str, max_decompressed: int | None, where: str
) -> GroupSettings | None:
    """The group that a worker's file names, `configs` being its topic of configurations; None if it names none.

    Raises PenstockError for wrong values.
    """
    name = properties.get("group.id", "").strip()
    if not name:
        return None

    def number(key: str, default: int, least: int = 1) -> int:
        text = properties.get(key, str(default)).strip()
        value = default if text == str(default) else whole(text, least)
        if value is None:
            raise PenstockError(
                f"{key} cannot be {text!r}", where=where, next=f"give a whole number of at least {least}"
            )
        return value

    def topic(kind: str, default: str, partitions: int) -> TopicSettings:
        prefix = f"{kind}.storage"
        replication = number(f"{prefix}.replication.factor", -1)
        return TopicSettings(
            properties.get(f"{prefix}.topic", "").strip() or default,
            number(f"{prefix}.partitions", partitions),
            replication,
        )

    session = number("session.timeout.ms", 10_000) / 1000
    beat = number("heartbeat.interval.ms", 3_000) / 1000
    if beat >= session:
        raise PenstockError(
            f"heartbeat.interval.ms is not below session.timeout.ms: {beat:g} s and {session:g} s",
            where=where,
            next="set it to a third of session.timeout.ms",
        )
    return GroupSettings(
        name,
        TopicSettings(configs, 1, number("config.storage.replication.factor", -1)),
        topic("offset", "connect-offsets", 25),
        topic("status", "connect-status", 5),
        GroupTimes(session, beat, number("rebalance.timeout.ms", 60_000) / 1000),
        max_decompressed,
    )


def _topic(
    servers: str,
    security: Mapping[str, Any],
    settings: TopicSettings,
    max_decompressed: int | None = None,
    *,
    ordered: bool = False,
) -> Callable[[Seen], CompactedTopic]:
    """Makes the topic; with `ordered` it must have one partition."""
    make = partial(
        CompactedTopic,
        servers,
        settings.name,
        security=security,
        partitions=settings.partitions,
        replication=settings.replication,
        max_decompressed=max_decompressed,
    )
    if not ordered:
        return make
    return partial(make, require=partial(require_order, where=f"topic {settings.name} at {servers}"))
