"""The properties of the sink connector of a replication, which applies extended events, and what they say.

Those of the database are the ones of ScyllaDB's sink connector.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import Any

from penstock.connect.definition import INERT, Property, of_property, settings_of
from penstock.connect.records.converters import AVRO, JSON, PROTOBUF, options_of, registry_of
from penstock.connect.sinks.cql import properties as sink_properties
from penstock.connect.sinks.cql.properties import access, of_credentials
from penstock.connect.sinks.properties import FREE as OF_SINKS, Problems, of_any_sink, of_connect
from penstock.connect.source.properties import REPLICATION_CLASS
from penstock.cql.cql_writer import described
from penstock.database.access import Access, NoTls
from penstock.database.requests import RequestLimits
from penstock.database.retrying import DatabaseUnavailable
from penstock.database.table_catalog import quoted
from penstock.errors import PenstockError
from penstock.replicate.change_events import EventFormat

CLASS = REPLICATION_CLASS
CLASS_NAMES = (CLASS, "ReplicationSinkConnector", "ReplicationSink")
FREE = OF_SINKS
"""Prefixes of properties whose names continue with the user's or Kafka's names."""
GROUPS = ("Connection", "TLS")
RETRIES = ("errors.retry.timeout", "errors.retry.delay.max.ms")
"""The properties of ScyllaDB's sink connector that this one has, too."""
KEYSPACE, TOPICS = "scylladb.keyspace", "topics"
OF_TOPIC = re.compile(r"topic\.(.+)\.table")
CODECS = {AVRO: "avro", JSON: "json", PROTOBUF: "protobuf"}
BY_TOPIC = "io.confluent.kafka.serializers.subject.TopicNameStrategy"
PATIENCE = timedelta(seconds=5)
"""Callers of the REST API wait during this time."""
_NAME = r'(?:\w{1,48}|"(?:[^"]|"")+")'


def _table(text: str) -> str | None:
    match = re.fullmatch(rf"{_NAME}\.{_NAME}", text)
    return None if match else "it must be <keyspace>.<table>, each a name or a name in double quotes"


@cache
def properties() -> tuple[Property, ...]:
    """The properties with fixed names."""
    of_database = (each for each in sink_properties.properties() if each.group in GROUPS)
    doc = "The keyspace of the targets; by default that of the source. topic.<topic>.table overrides it."
    of_connector = (
        replace(each, doc=f"{INERT} A batch is repeated after a fault that can pass.") if each.name in RETRIES else each
        for each in of_connect(CLASS_NAMES)
    )
    return (
        *of_connector,
        *of_database,
        Property(KEYSPACE, "STRING", "", doc, group="Write"),
    )


def definitions(config: Mapping[str, str]) -> list[Property]:
    """The properties of topics in a configuration: topic.<topic>.table."""
    doc = "The table that the topic's changes are applied to; by default the one that the topic's name ends with."
    return [Property(name, "STRING", None, doc, _table, group="Topics") for name in config if OF_TOPIC.fullmatch(name)]


@dataclass(frozen=True)
class Target:
    """The table "keyspace.table" of a topic's changes; `source` is the one that the events must be of, if known."""

    table: str
    source: tuple[str, str] | None = None


@dataclass(frozen=True)
class Targets:
    """The tables of a connector's topics."""

    keyspace: str = field(metadata=of_property(KEYSPACE))
    """Of the targets; "" for that of the source."""
    tables: Mapping[str, str]
    """Those that are given, by topic."""

    def target(self, topic: str) -> Target | None:
        """The table that is given, or the one that the topic's name ends with; None without either."""
        if topic in self.tables:
            return Target(self.tables[topic])
        parts = topic.split(".")
        if len(parts) < 3:
            return None
        keyspace, table = parts[-2:]
        return Target(f"{quoted(self.keyspace or keyspace)}.{quoted(table)}", (keyspace, table))


def targets(values: Mapping[str, Any]) -> Targets:
    """The tables of these values, which may not be valid yet."""
    named = {match[1]: values[name] for name in values if (match := OF_TOPIC.fullmatch(name))}
    return settings_of(Targets, values, tables={topic: table for topic, table in named.items() if table})


@dataclass(frozen=True)
class ReplicationSettings:
    """What a valid configuration says."""

    access: Access
    targets: Targets
    timeout_millis: int = field(metadata=of_property("scylladb.execute.timeout.ms"))
    tolerated: bool = field(metadata=of_property("errors.tolerance", convert=lambda errors: errors == "all"))
    """Whether records that cannot be applied are left out."""
    shows: bool = field(metadata=of_property("errors.log.include.messages"))
    """Whether the log has the keys and values of records that are left out."""

    @property
    def limits(self) -> RequestLimits:
        return RequestLimits(timeout=timedelta(milliseconds=max(self.timeout_millis, 1)))


def settings(values: Mapping[str, Any], config: Mapping[str, str]) -> ReplicationSettings:
    """What these valid values say; raises NoTls for a keystore that cannot be opened."""
    return settings_of(ReplicationSettings, values, access=access(values), targets=targets(values))


def event_format(config: Mapping[str, str]) -> EventFormat:
    """How the events are written, by the converter of values of a valid configuration."""
    name, options = options_of("value", config)
    if name == JSON:
        return EventFormat("json", schemas=options["schemas.enable"])
    return EventFormat("avro" if name == AVRO else "protobuf", registry_of(options))


def together(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    """Errors between properties that are each valid."""
    yield from of_credentials(values)
    yield from of_any_sink(values, config)
    yield from _of_converter(config)
    if "transforms" in config:
        yield "transforms", "events are applied as they are. Next: omit it; the source may drop and route events"
    of_topics = targets(values)
    for topic in values[TOPICS]:
        if f"topic.{topic}.table" not in config and of_topics.target(topic) is None:
            yield TOPICS, f"the topic {topic} does not name its table at its end: give topic.{topic}.table"


def _of_converter(config: Mapping[str, str]) -> Problems:
    name, options = options_of("value", config)
    if name not in CODECS:
        yield "value.converter", f"extended events are in Avro, JSON or Protobuf: use one of {', '.join(CODECS)}"
    elif name != JSON and options["value.subject.name.strategy"] != BY_TOPIC:
        yield "value.converter.value.subject.name.strategy", f"schemas are found by their topic: use {BY_TOPIC}"


def problems(values: Mapping[str, Any], config: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """What the database has against them; callers of the REST API wait for it."""
    names = sink_properties.NAMES
    try:
        own = settings(values, config)
        for topic in values[TOPICS]:
            target = own.targets.target(topic)
            assert target, "the configuration was checked"
            try:
                described(own.access, target.table, PATIENCE)
            except (DatabaseUnavailable, NoTls):
                raise
            except PenstockError as error:
                yield f"topic.{topic}.table" if f"topic.{topic}.table" in config else TOPICS, str(error)
    except DatabaseUnavailable as error:
        yield names.hosts, f"Unable to connect to the cluster: {error}"
    except PenstockError as error:
        yield names.tls, str(error)
