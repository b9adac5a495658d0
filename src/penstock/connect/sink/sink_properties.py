"""The properties of ScyllaDB's sink connector, and what a valid configuration of a sink connector says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any, TypeAlias

from penstock.connect.definition import Check, Property, at_least, of_file
from penstock.connect.java.date_time_formatter import zone_of
from penstock.connect.keystores import pem_files
from penstock.connect.properties import CHECKS, SINK_CLASS
from penstock.connect.records.sink_converters import converter_check, header_converter_check
from penstock.connect.sink.destinations import Tolerance
from penstock.connect.sink.mapping import Source, WrongMapping, mapping
from penstock.connect.sink.topic_codecs import TopicCodec
from penstock.connect.transforms.topic_routing import regex_check
from penstock.cql.cql_writer import MAX_TTL
from penstock.database.access import Access
from penstock.database.requests import RequestLimits
from penstock.extras import install
from penstock.process.paths import is_file

CLASS = SINK_CLASS
FREE = ("consumer.override.", "topic.", "header.converter.", "errors.deadletterqueue.")
"""Prefixes of properties whose names continue with the user's or Kafka's names."""
COMPILED = "Protobuf"
"""In the names of converters whose schemas are compiled."""
CLASS_NAMES = (CLASS, "ScyllaDbSinkConnector", "ScyllaDbSink")
UNITS = {
    "NANOSECONDS": Decimal("1e-9"),
    "MICROSECONDS": Decimal("1e-6"),
    "MILLISECONDS": Decimal("1e-3"),
    "SECONDS": Decimal(1),
    "MINUTES": Decimal(60),
    "HOURS": Decimal(3600),
    "DAYS": Decimal(86400),
}
"""Java's units of time, in seconds."""
TOPIC = re.compile(r"topic\.(.+)\.([^.]+)\.([^.]+)\.([A-Za-z]+)")
OF_TABLE = "topic.<topic>.<keyspace>.<table>."
Problems = Iterator[tuple[str, str]]


_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:,\[\]]+)(?::(\d{1,5}))?")
MOST_NODES = 1000
"""The most nodes whose addresses are translated."""


def _contact_points(text: str) -> str | None:
    try:
        points = [each for pair in translated(text) for each in pair] or text.split(",")
    except ValueError as error:
        return str(error)
    for point in points:
        found = _ADDRESS.fullmatch(point.strip())
        if not found or (found[1] and not 0 < int(found[1]) < 65536):
            return f"{point.strip() or 'an empty entry'} is not a host, or host:port"
    return None


def translated(text: str) -> tuple[tuple[str, str], ...]:
    """The nodes' own addresses and those where they are reached, of contact points that are a JSON object.

    Empty for other contact points; raises ValueError if it is no such object.
    """
    if not text.lstrip().startswith("{"):
        return ()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not found or len(found) > MOST_NODES or not all(isinstance(point, str) for point in found.values()):
        example = '{"10.0.0.1:9042": "db1.example.com:9042"}'
        raise ValueError(f"it must have the public address of 1 to {MOST_NODES} nodes by their own, as in {example}")
    return tuple((own.strip(), reached.strip()) for own, reached in found.items())


def _topics(values: list[str]) -> str | None:
    wrong = [name for name in values if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name)]
    return f"{wrong[0]!r} is not the name of a topic" if wrong else None


def _mapping(text: str) -> str | None:
    try:
        mapping(text)
    except WrongMapping as error:
        return str(error)
    return None


def _zone(text: str) -> str | None:
    try:
        zone_of(text)
    except ValueError as error:
        return str(error)
    return None


SINK_CHECKS: dict[str, Check] = {
    **CHECKS,
    "converter": converter_check,
    "header_converter": header_converter_check,
    "zone": _zone,
    "contact_points": _contact_points,
    "topics": _topics,
    "regex": regex_check,
    "from_minus_1": at_least(-1),
    "port": lambda value: None if 0 < value < 65536 else "it must be a port number from 1 to 65535",
    "mapping": _mapping,
}
"""The checks of all classes of sinks."""
_OWN_CHECKS: dict[str, Check] = {
    **SINK_CHECKS,
    "connector_class": lambda value: None if value in CLASS_NAMES else f"this is not {CLASS}",
    "ttl": lambda value: None if 0 <= value <= MAX_TTL else f"it must be from 0 to {MAX_TTL} seconds (20 years)",
    "file": lambda value: None if is_file(value) else f"there is no file {value} on the worker's machine",
}
Table: TypeAlias = tuple[str, str, str]
"""A topic, and the keyspace and the table as they stand in names of properties."""


@cache
def _all() -> tuple[Property, ...]:
    return of_file("penstock.connect.sink", "sink_properties.toml", _OWN_CHECKS)


@cache
def properties() -> tuple[Property, ...]:
    """The properties with fixed names, in the order of the file."""
    return tuple(each for each in _all() if "<" not in each.name)


def of_connect(of_class: Check = _OWN_CHECKS["connector_class"]) -> tuple[Property, ...]:
    """Those that every sink of Kafka Connect has; `of_class` checks the connector's class."""
    groups = ("Common", "Error Handling")
    found = (each for each in properties() if each.group in groups and each.name != "behavior.on.error")
    return tuple(replace(each, check=of_class) if each.name == "connector.class" else each for each in found)


@cache
def _options() -> dict[str, Property]:
    return options(_all(), OF_TABLE)


def options(found: Iterable[Property], prefix: str) -> dict[str, Property]:
    """The properties whose names begin so, by the rest of their names."""
    return {each.name.removeprefix(prefix): each for each in found if each.name.startswith(prefix)}


def of_tables(config: Mapping[str, str | None], known: Mapping[str, Property]) -> list[Property]:
    """The properties of tables in a configuration, of these options."""
    return [
        replace(known[found[4]], name=name) for name in config if (found := TOPIC.fullmatch(name)) and found[4] in known
    ]


def tables(config: Mapping[str, str | None], known: Mapping[str, Property]) -> list[Table]:
    """The tables that a configuration names."""
    names = (TOPIC.fullmatch(name) for name in config)
    return list(dict.fromkeys((found[1], found[2], found[3]) for found in names if found and found[4] in known))


def definitions(config: Mapping[str, str | None]) -> list[Property]:
    """The properties of the topics' tables in a configuration: topic.<topic>.<keyspace>.<table>.<option>."""
    return of_tables(config, _options())


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
    ttl_unit: Decimal = UNITS["SECONDS"]
    time_unit: Decimal = UNITS["MICROSECONDS"]
    query: str = ""
    prefix: str = ""
    """Of the names of its properties."""
    nulls_delete: bool = False
    """Whether null for all columns outside the key deletes, as no value does; with deletes off, both are written."""
    endless_ttl: bool = False
    """Whether a negative time to live is none."""
    codec: TopicCodec | None = None

    @cached_property
    def name(self) -> str:
        return f"{self.keyspace}.{self.table}"


@dataclass(frozen=True)
class PropertyNames:
    """What a class calls the properties that errors of the database name; "" for those that it does not have."""

    hosts: str
    user: str
    tls: str
    ttl: str
    """Of a table."""
    keyspace: str = ""
    create_keyspace: str = ""
    manage: str = ""


@dataclass(frozen=True)
class SinkSettings:
    """What a valid configuration says."""

    names: PropertyNames
    access: Access
    given: tuple[Route, ...]
    """The tables that it names."""
    timeout_millis: int
    tolerance: Tolerance
    default: Route | None = None
    """For topics without a table: the table has the topic's name."""
    keyspace: str = ""
    create_keyspace: bool = False
    replication: int = 1
    manage: bool = False
    compression: str = "none"
    offsets: str = ""
    in_flight: int = RequestLimits.in_flight

    def routes(self, topic: str) -> list[Route]:
        """Where the records of a topic go."""
        if self.default is None:
            return [route for route in self.given if route.topic == topic]
        table = re.sub("[.-]", "_", topic)
        named = [route for route in self.given if route.topic in (topic, table)]
        return named or [replace(self.default, topic=topic, table=table)]


NAMES = PropertyNames(
    hosts="scylladb.contact.points",
    user="scylladb.username",
    tls="scylladb.ssl.enabled",
    ttl="ttlSeconds",
    keyspace="scylladb.keyspace",
    create_keyspace="scylladb.keyspace.create.enabled",
    manage="scylladb.table.manage.enabled",
)


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
        NAMES,
        access(values),
        tuple(_route(default, *name, values) for name in tables(config, _options())),
        values["scylladb.execute.timeout.ms"],
        _tolerance(values),
        default,
        values["scylladb.keyspace"],
        values["scylladb.keyspace.create.enabled"],
        values["scylladb.keyspace.replication.factor"],
        values["scylladb.table.manage.enabled"],
        values["scylladb.table.create.compression.algorithm"],
        values["scylladb.offset.storage.table"] if values["scylladb.offset.storage.table.enable"] else "",
    )


def _tolerance(values: Mapping[str, Any]) -> Tolerance:
    """Both of Connect's and of the connector's settings allow to leave a record out."""
    if values["behavior.on.error"] == "FAIL" and values["errors.tolerance"] == "none":
        return "fail"
    quiet = values["behavior.on.error"] == "IGNORE" and not values["errors.log.enable"]
    return "ignore" if quiet else "log"


def _route(default: Route, topic: str, keyspace: str, table: str, values: Mapping[str, Any]) -> Route:
    prefix = f"topic.{topic}.{keyspace}.{table}."
    own = {name: values.get(f"{prefix}{name}") for name in _options()}
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
        prefix,
    )


def access(values: Mapping[str, Any]) -> Access:
    """How to connect to a configuration's database."""
    hosts, nodes = reached(values["scylladb.contact.points"], values["scylladb.port"])
    login = values["scylladb.security.enabled"]
    return Access(
        hosts,
        values["scylladb.username"] if login else "",
        values["scylladb.password"] if login else "",
        values["scylladb.loadbalancing.localdc"],
        values["scylladb.consistency.level"],
        tls=values["scylladb.ssl.enabled"],
        verify_hostname=values["scylladb.ssl.hostname.verification"],
        translated=nodes,
        **(pem_files(values, "scylladb.ssl.") if values["scylladb.ssl.enabled"] else {}),
    )


def reached(points: str, port: int) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Contact points, with this port where they have none; and pairs of addresses, if they are translated."""
    has_port = re.compile(r"(?:\[.*\]|[^:]+):\d+")

    def whole(point: str) -> str:
        return point if has_port.fullmatch(point) else f"{point}:{port}"

    nodes = tuple((whole(own), whole(other)) for own, other in translated(points))
    hosts = [other for _, other in nodes] or [whole(point.strip()) for point in points.split(",")]
    return ",".join(hosts), nodes


def together(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    """Errors between properties that are each valid."""
    yield from of_credentials(values)
    yield from of_any_sink(values, config)
    for table in tables(config, _options()):
        yield from of_query(f"topic.{'.'.join(table)}.", values, values["scylladb.deletes.enabled"])


def of_credentials(values: Mapping[str, Any]) -> Problems:
    """Errors between the properties of the login."""
    user, password = values["scylladb.username"], values["scylladb.password"]
    if password is not None and user is None:
        yield "scylladb.username", "scylladb.password is given, and the user is not"
    elif user is not None and password is None:
        name = "scylladb.password" if values["scylladb.security.enabled"] else "scylladb.username"
        yield name, "scylladb.username is given, and the password is not"
    elif values["scylladb.security.enabled"] and user is None:
        yield "scylladb.username", "scylladb.security.enabled needs the user and the password"


def of_any_sink(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    """Errors between Kafka Connect's properties of sinks."""
    if bool(values["topics"]) == bool(values["topics.regex"]):
        yield "topics", "give the topics to read, or topics.regex" + (", not both" if values["topics"] else "")
    if values["errors.deadletterqueue.topic.name"] in values["topics"]:
        yield "errors.deadletterqueue.topic.name", "it is one of the topics that are read; give another one"
    for side in ("key.converter", "value.converter"):
        if values.get(f"{side}.quote") and values[f"{side}.quote"] == values[f"{side}.delimiter"]:
            yield f"{side}.quote", "it is the delimiter: give another character"
        if COMPILED in (values[side] or "") and find_spec("grpc_tools") is None:
            yield (
                side,
                f"reading Protobuf needs a compiler of its schemas, on the workers too; run: {install('protobuf')}",
            )


def of_query(prefix: str, values: Mapping[str, Any], deletes_by_default: bool) -> Problems:
    """Errors of the statement of a table."""
    if not values.get(f"{prefix}query"):
        return
    deletes = values.get(f"{prefix}deletesEnabled")
    if deletes_by_default if deletes is None else deletes:
        yield f"{prefix}query", f"it excludes deletes: set {prefix}deletesEnabled=false"
    if not values.get(f"{prefix}mapping"):
        yield f"{prefix}query", f"it needs {prefix}mapping for its markers"
