"""Where records go, as both sink connectors of CQL say it: `topic.<topic>.<keyspace>.<table>.<option>`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeAlias

from penstock.connect.definition import Property, of_property
from penstock.connect.sinks.cql.mapping import ColumnSource, mapping as parse_mapping
from penstock.connect.sinks.cql.topic_codecs import TopicCodec
from penstock.connect.sinks.destination import Tolerance
from penstock.connect.sinks.properties import Problems
from penstock.database.access import Access
from penstock.database.requests import RequestLimits

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
MOST_AT_ONCE = 1000
"""Requests of a task of Spark at the same time."""
Table: TypeAlias = tuple[str, str, str]
"""A topic, and the keyspace and the table as they stand in names of properties."""


def _mapping(text: str | None) -> dict[str, ColumnSource] | None:
    return parse_mapping(text) if text else None


@dataclass(frozen=True)
class Route:
    """A table that a topic's records are written to, and how; fields are of the options of a table."""

    topic: str
    keyspace: str
    table: str
    consistency: str = field(metadata=of_property("consistencyLevel"))
    ttl: int | None = field(metadata=of_property("ttlSeconds"))
    """Seconds that rows live; None as the table says."""
    deletes: bool = field(metadata=of_property("deletesEnabled"))
    mapping: Mapping[str, ColumnSource] | None = field(metadata=of_property("mapping", convert=_mapping))
    null_to_unset: bool = field(metadata=of_property("nullToUnset"))
    ttl_unit: Decimal = field(metadata=of_property("ttlTimeUnit", convert=UNITS.__getitem__))
    time_unit: Decimal = field(metadata=of_property("timestampTimeUnit", convert=UNITS.__getitem__))
    query: str = field(metadata=of_property("query", convert=lambda text: text or ""))
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
class CqlSettings:
    """What a valid configuration says."""

    names: PropertyNames
    access: Access
    named: tuple[Route, ...]
    """The tables that it names."""
    timeout_millis: int = field(metadata=of_property("scylladb.execute.timeout.ms"))
    tolerance: Tolerance
    default: Route | None = None
    """For topics without a table: the table has the topic's name."""
    keyspace: str = field(default="", metadata=of_property("scylladb.keyspace"))
    create_keyspace: bool = field(default=False, metadata=of_property("scylladb.keyspace.create.enabled"))
    replication: int = field(default=1, metadata=of_property("scylladb.keyspace.replication.factor"))
    manage: bool = field(default=False, metadata=of_property("scylladb.table.manage.enabled"))
    compression: str = field(default="none", metadata=of_property("scylladb.table.create.compression.algorithm"))
    offsets: str = ""
    """The table of positions; "" for none."""
    in_flight: int = field(
        default=RequestLimits.in_flight,
        metadata=of_property("maxConcurrentRequests", convert=lambda most: min(most, MOST_AT_ONCE)),
    )

    def routes(self, topic: str) -> list[Route]:
        """Where the records of a topic go."""
        if self.default is None:
            return [route for route in self.named if route.topic == topic]
        table = re.sub("[.-]", "_", topic)
        routes = [route for route in self.named if route.topic in (topic, table)]
        return routes or [replace(self.default, topic=topic, table=table)]


def options(properties: Iterable[Property], prefix: str) -> dict[str, Property]:
    """The properties whose names begin so, by the rest of their names."""
    return {each.name.removeprefix(prefix): each for each in properties if each.name.startswith(prefix)}


def option_values(
    known: Mapping[str, Property], prefix: str, values: Mapping[str, Any], inherited: Mapping[str, Any]
) -> dict[str, Any]:
    """The values of these options of a table or a topic; `inherited` are those of options that it does not have."""
    own = {option: values.get(f"{prefix}{option}", each.default) for option, each in known.items()}
    return own | {option: value for option, value in inherited.items() if own[option] is None}


def of_tables(config: Mapping[str, str | None], known: Mapping[str, Property]) -> list[Property]:
    """The properties of tables in a configuration, of these options."""
    return [
        replace(known[match[4]], name=name) for name in config if (match := TOPIC.fullmatch(name)) and match[4] in known
    ]


def tables(config: Mapping[str, str | None], known: Mapping[str, Property]) -> list[Table]:
    """The tables that a configuration names."""
    names = (TOPIC.fullmatch(name) for name in config)
    return list(dict.fromkeys((match[1], match[2], match[3]) for match in names if match and match[4] in known))


def of_query(prefix: str, values: Mapping[str, Any], deletes_by_default: bool) -> Problems:
    """Errors of the statement of a table."""
    if not values.get(f"{prefix}query"):
        return
    deletes = values.get(f"{prefix}deletesEnabled")
    if deletes_by_default if deletes is None else deletes:
        yield f"{prefix}query", f"it excludes deletes: set {prefix}deletesEnabled=false"
    if not values.get(f"{prefix}mapping"):
        yield f"{prefix}query", f"it needs {prefix}mapping for its markers"
