"""Where records go, as both sink connectors of CQL say it: `topic.<topic>.<keyspace>.<table>.<option>`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeAlias

from penstock.connect.definition import Property
from penstock.connect.sinks.cql.mapping import ColumnSource
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
Table: TypeAlias = tuple[str, str, str]
"""A topic, and the keyspace and the table as they stand in names of properties."""


@dataclass(frozen=True)
class Route:
    """A table that a topic's records are written to, and how."""

    topic: str
    keyspace: str
    table: str
    consistency: str
    ttl: int | None
    deletes: bool
    mapping: Mapping[str, ColumnSource] | None = None
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
class CqlSettings:
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


def of_query(prefix: str, values: Mapping[str, Any], deletes_by_default: bool) -> Problems:
    """Errors of the statement of a table."""
    if not values.get(f"{prefix}query"):
        return
    deletes = values.get(f"{prefix}deletesEnabled")
    if deletes_by_default if deletes is None else deletes:
        yield f"{prefix}query", f"it excludes deletes: set {prefix}deletesEnabled=false"
    if not values.get(f"{prefix}mapping"):
        yield f"{prefix}query", f"it needs {prefix}mapping for its markers"
