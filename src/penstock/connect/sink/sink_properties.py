"""The properties of the sink connector, and what a valid configuration says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from penstock.connect.definition import Check, Property, of_file
from penstock.connect.keystores import pem_files
from penstock.connect.properties import CHECKS, SINK_CLASS
from penstock.connect.sink.mapping import Source, WrongMapping, mapping
from penstock.cql.cql_writer import MAX_TTL
from penstock.database.access import Access
from penstock.paths import is_file

CLASS = SINK_CLASS
FREE = ("consumer.override.", "topic.", "header.converter.", "errors.deadletterqueue.")
"""Prefixes of properties whose names continue with the user's or Kafka's names."""
UNREADABLE = "ProtobufConverter"
CLASS_NAMES = (CLASS, "ScyllaDbSinkConnector", "ScyllaDbSink")
UNITS = {
    "NANOSECONDS": 1e-9,
    "MICROSECONDS": 1e-6,
    "MILLISECONDS": 1e-3,
    "SECONDS": 1,
    "MINUTES": 60,
    "HOURS": 3600,
    "DAYS": 86400,
}
"""Java's units of time, in seconds."""
TOPIC = re.compile(r"topic\.(.+)\.([^.]+)\.([^.]+)\.([A-Za-z]+)")
Problems = Iterator[tuple[str, str]]


def _contact_points(text: str) -> str | None:
    if text.lstrip().startswith("{"):
        return "addresses of nodes are not translated here: give hosts that the worker can reach"
    for host in text.split(","):
        found = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(?::(\d{1,5}))?", host.strip())
        if not found or (found[1] and not 0 < int(found[1]) < 65536):
            return f"{host.strip() or 'an empty entry'} is not a host, or host:port"
    return None


def _topics(values: list[str]) -> str | None:
    wrong = [name for name in values if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name)]
    return f"{wrong[0]!r} is not the name of a topic" if wrong else None if values else "a topic is required"


_OWN_CHECKS: dict[str, Check] = {
    **CHECKS,
    "connector_class": lambda value: None if value in CLASS_NAMES else f"this is not {CLASS}",
    "contact_points": _contact_points,
    "topics": _topics,
    "port": lambda value: None if 0 < value < 65536 else "it must be a port number from 1 to 65535",
    "ttl": lambda value: None if 0 <= value <= MAX_TTL else f"it must be from 0 to {MAX_TTL} seconds (20 years)",
    "file": lambda value: None if is_file(value) else f"there is no file {value} on the worker's machine",
}
_LEVELS = ("ANY", "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE")


@cache
def properties() -> tuple[Property, ...]:
    """The properties with fixed names, in the order of the file."""
    return of_file("penstock.connect.sink", "sink_properties.toml", _OWN_CHECKS)


def _mapping(text: str) -> str | None:
    try:
        mapping(text)
    except WrongMapping as error:
        return str(error)
    return None


_OF_TABLES = (
    Property(
        "mapping",
        "STRING",
        None,
        "Columns and the fields that they get: column = value.field, ...",
        _mapping,
        group="Topics",
    ),
    Property(
        "consistencyLevel", "STRING", None, "Consistency of writes to the table.", group="Topics", allowed=_LEVELS
    ),
    Property("ttlSeconds", "INT", None, "Seconds that rows live.", _OWN_CHECKS["ttl"], group="Topics"),
    Property("deletesEnabled", "BOOLEAN", None, "Whether a record without a value deletes a row.", group="Topics"),
    Property(
        "nullToUnset",
        "BOOLEAN",
        False,
        "Whether null leaves a column as it is, instead of deleting its value.",
        group="Topics",
    ),
    Property("ttlTimeUnit", "STRING", "SECONDS", "The unit of __ttl.", group="Topics", allowed=tuple(UNITS)),
    Property(
        "timestampTimeUnit", "STRING", "MICROSECONDS", "The unit of __timestamp.", group="Topics", allowed=tuple(UNITS)
    ),
    Property(
        "query",
        "STRING",
        None,
        "A statement to execute instead, with named markers for the mapped columns.",
        group="Topics",
    ),
)


def definitions(config: Mapping[str, str | None]) -> list[Property]:
    """The properties of the topics' tables in a configuration: topic.<topic>.<keyspace>.<table>.<option>."""
    options = {each.name: each for each in _OF_TABLES}
    return [
        replace(options[found[4]], name=name)
        for name in config
        if (found := TOPIC.fullmatch(name)) and found[4] in options
    ]


@dataclass(frozen=True)
class Route:
    """A table that a topic's records are written to, and how."""

    topic: str
    keyspace: str
    table: str
    consistency: str
    ttl: int | None
    deletes: bool
    mapping: Mapping[str, Source] | None = None
    null_to_unset: bool = False
    ttl_unit: float = 1
    time_unit: float = 1e-6
    query: str = ""

    @property
    def name(self) -> str:
        return f"{self.keyspace}.{self.table}"


@dataclass(frozen=True)
class SinkSettings:
    """What a valid configuration says."""

    access: Access
    keyspace: str
    given: tuple[Route, ...]
    """The tables that it names; another topic's table has the topic's name."""
    default: Route
    create_keyspace: bool
    replication: int
    manage: bool
    compression: str
    offsets: str
    timeout_millis: int

    def routes(self, topic: str) -> list[Route]:
        """Where the records of a topic go."""
        table = re.sub("[.-]", "_", topic)
        named = [route for route in self.given if route.topic in (topic, table)]
        return named or [replace(self.default, topic=topic, table=table)]


def settings(values: Mapping[str, Any], config: Mapping[str, str]) -> SinkSettings:
    """What these valid values say; raises NoTls for a keystore that cannot be opened."""
    default = Route(
        "",
        values["scylladb.keyspace"],
        "",
        values["scylladb.consistency.level"],
        values["scylladb.ttl"],
        values["scylladb.deletes.enabled"],
    )
    return SinkSettings(
        access(values),
        values["scylladb.keyspace"],
        tuple(_route(default, *name, values) for name in _tables(config)),
        default,
        values["scylladb.keyspace.create.enabled"],
        values["scylladb.keyspace.replication.factor"],
        values["scylladb.table.manage.enabled"],
        values["scylladb.table.create.compression.algorithm"],
        values["scylladb.offset.storage.table"] if values["scylladb.offset.storage.table.enable"] else "",
        values["scylladb.execute.timeout.ms"],
    )


def _tables(config: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Topic, keyspace and table of the properties for tables."""
    options = {each.name for each in _OF_TABLES}
    names = (TOPIC.fullmatch(name) for name in config)
    return list(dict.fromkeys((found[1], found[2], found[3]) for found in names if found and found[4] in options))


def _route(default: Route, topic: str, keyspace: str, table: str, values: Mapping[str, Any]) -> Route:
    own = {each.name: values.get(f"topic.{topic}.{keyspace}.{table}.{each.name}") for each in _OF_TABLES}
    return Route(
        topic,
        keyspace,
        table,
        own["consistencyLevel"] or default.consistency,
        default.ttl if own["ttlSeconds"] is None else own["ttlSeconds"],
        default.deletes if own["deletesEnabled"] is None else own["deletesEnabled"],
        mapping(own["mapping"]) if own["mapping"] else None,
        bool(own["nullToUnset"]),
        UNITS[own["ttlTimeUnit"] or "SECONDS"],
        UNITS[own["timestampTimeUnit"] or "MICROSECONDS"],
        own["query"] or "",
    )


def access(values: Mapping[str, Any]) -> Access:
    """How to connect to a configuration's database."""
    points = [point.strip() for point in values["scylladb.contact.points"].split(",")]
    has_port = re.compile(r"(?:\[.*\]|[^:]+):\d+")
    hosts = ",".join(one if has_port.fullmatch(one) else f"{one}:{values['scylladb.port']}" for one in points)
    login = values["scylladb.security.enabled"]
    return Access(
        hosts,
        values["scylladb.username"] if login else "",
        values["scylladb.password"] if login else "",
        values["scylladb.loadbalancing.localdc"],
        values["scylladb.consistency.level"],
        tls=values["scylladb.ssl.enabled"],
        verify_hostname=values["scylladb.ssl.hostname.verification"],
        **(pem_files(values, "scylladb.ssl.") if values["scylladb.ssl.enabled"] else {}),
    )


def together(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    """Errors between properties that are each valid."""
    user, password = values["scylladb.username"], values["scylladb.password"]
    if password is not None and user is None:
        yield "scylladb.username", "scylladb.password is given, and the user is not"
    elif user is not None and password is None:
        name = "scylladb.password" if values["scylladb.security.enabled"] else "scylladb.username"
        yield name, "scylladb.username is given, and the password is not"
    elif values["scylladb.security.enabled"] and user is None:
        yield "scylladb.username", "scylladb.security.enabled needs the user and the password"
    for side in ("key.converter", "value.converter"):
        if (values[side] or "").endswith(UNREADABLE):
            yield side, "a sink does not read Protobuf; it reads JSON, Avro, JSON Schema and strings"
    for topic, keyspace, table in _tables(config):
        yield from _of_query(f"topic.{topic}.{keyspace}.{table}.", values)


def _of_query(prefix: str, values: Mapping[str, Any]) -> Problems:
    if not values.get(f"{prefix}query"):
        return
    deletes = values.get(f"{prefix}deletesEnabled")
    if values["scylladb.deletes.enabled"] if deletes is None else deletes:
        yield f"{prefix}query", f"it excludes deletes: set {prefix}deletesEnabled=false"
    if not values.get(f"{prefix}mapping"):
        yield f"{prefix}query", f"it needs {prefix}mapping for its markers"
