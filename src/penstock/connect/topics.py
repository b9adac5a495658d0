"""Topics that a connector creates before it first writes to them: Kafka Connect's `topic.creation.*` (KIP-158).

A group has patterns of topics, regular expressions of Java; the first group that matches is used, else the group
`default`. Without these properties the broker creates topics. Besides, the topics that sinks read by a pattern.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from penstock.connect.definition import REQUIRED, Property, listed, read_all
from penstock.connect.java.regex_check import fits_whole, fitting, regex_problem
from penstock.errors import PenstockError
from penstock.kafka.security import SETTINGS, Security
from penstock.wire.admin import Admin
from penstock.wire.errors import KafkaError

PREFIX = "topic.creation."
GROUPS = f"{PREFIX}groups"
DEFAULT = "default"
INTERNAL = "__"
PATIENCE = timedelta(seconds=5)
"""Who stops a connector waits during this time."""
_OWN = ("include", "exclude", "partitions", "replication.factor")

Config = Mapping[str, str]


@dataclass(frozen=True)
class TopicCreation:
    """How a topic is created: -1 is the broker's default; `configs` are topic configurations."""

    partitions: int
    replication: int
    configs: Mapping[str, str]


def definitions(config: Mapping[str, str | None]) -> list[Property]:
    """The properties of the groups in a configuration."""
    if not any(name.startswith(PREFIX) for name in config):
        return []
    properties = [*_sizes(DEFAULT, REQUIRED)]
    for group in _groups(config):
        include = Property(f"{PREFIX}{group}.include", "LIST", REQUIRED, "Patterns of the group's topics.", _patterns)
        exclude = Property(f"{PREFIX}{group}.exclude", "LIST", [], "Patterns of topics not in the group.", _patterns)
        properties += [include, exclude, *_sizes(group, None)]
    return properties


def rule(config: Config, topic: str) -> TopicCreation | None:
    """How a valid configuration creates this topic; None if it leaves that to the broker."""
    values, _ = read_all(definitions(config), config)
    if not values:
        return None

    def fits(group: str, side: str) -> bool:
        return any(fits_whole(pattern, topic) for pattern in values[f"{PREFIX}{group}.{side}"])

    own = (group for group in _groups(config) if fits(group, "include") and not fits(group, "exclude"))
    group = next(own, DEFAULT)
    sizes = [
        values[f"{PREFIX}{group}.{size}"] or values[f"{PREFIX}{DEFAULT}.{size}"]
        for size in ("partitions", "replication.factor")
    ]
    prefix = f"{PREFIX}{group}."
    settings = {name.removeprefix(prefix): text for name, text in config.items() if name.startswith(prefix)}
    return TopicCreation(sizes[0], sizes[1], {name: text for name, text in settings.items() if name not in _OWN})


def create(servers: str, settings: Mapping[str, str], topic: str, how: TopicCreation, *, what: str, next: str) -> None:
    """Create the topic if it is missing; `settings` are a producer's, for security.

    Raises PenstockError if Kafka refuses it or does not answer; `what` names its use, and `next` its properties.
    """
    try:
        asyncio.run(_create(servers, settings, topic, how))
    except KafkaError as error:
        raise PenstockError(
            f"{what} cannot be created: {error}",
            where=f"{topic} at {servers}, {how.partitions} partitions, {how.replication} replicas",
            next=next,
        ) from error


class TopicsUnknown(PenstockError):
    """Kafka did not say which topics there are; trying again can help."""

    retriable = True


def matching(servers: str, settings: Mapping[str, str], pattern: str) -> list[str]:
    """The topics whose names a Java regular expression matches whole, without Kafka's own, which begin with __.

    Raises PenstockError if Kafka refuses it, and TopicsUnavailable if it does not answer.
    """
    try:
        names = asyncio.run(_names(servers, settings))
    except KafkaError as error:
        kind = TopicsUnknown if error.retriable else PenstockError
        raise kind(
            f"topics cannot be listed: {error}", where=servers, next="check that Kafka runs, and the user's rights"
        ) from error
    return fitting(pattern, sorted(name for name in names if not name.startswith(INTERNAL)))


async def _names(servers: str, settings: Mapping[str, str]) -> Iterable[str]:
    async with admin(servers, settings, patience=PATIENCE) as asked:
        return await asked.topics()


def admin(servers: str, settings: Mapping[str, str], **patience: timedelta) -> Admin:
    """The client of admin requests; `settings` are a client's, for security."""
    security = Security.of({name: text for name, text in settings.items() if name in SETTINGS})
    return Admin(servers, tls=security.tls(), authenticate=security.authenticate(), **patience)


async def _create(servers: str, settings: Mapping[str, str], topic: str, how: TopicCreation) -> None:
    async with admin(servers, settings) as asked:
        await asked.create_topic(topic, partitions=how.partitions, replication=how.replication, configs=how.configs)


def _groups(config: Mapping[str, str | None]) -> list[str]:
    return [name for name in listed(config.get(GROUPS)) if name != DEFAULT]


def _sizes(group: str, default: object) -> list[Property]:
    doc = "of the group's topics; -1: the broker's default."
    return [
        Property(f"{PREFIX}{group}.partitions", "INT", default, f"Partitions {doc}", _size),
        Property(f"{PREFIX}{group}.replication.factor", "INT", default, f"Replicas {doc}", _size),
    ]


def _size(value: int) -> str | None:
    return None if value == -1 or value >= 1 else "Value must be -1 or at least 1"


def _patterns(values: list[str]) -> str | None:
    wrong = ((pattern, problem) for pattern in values if (problem := regex_problem(pattern)))
    return next((f"{pattern} is not a regular expression of Java: {problem}" for pattern, problem in wrong), None)
