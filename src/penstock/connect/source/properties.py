"""The properties of the connector, from properties.toml, and the checks of their values."""

from __future__ import annotations

import re
from functools import cache

from penstock.codec.debezium import OPERATIONS, PLACES
from penstock.connect.definition import Check, Property, aliases, at_least, full_name, of_file
from penstock.connect.records.converters import CONVERTERS
from penstock.database.table_catalog import split_name
from penstock.errors import PenstockError
from penstock.wire.topic_names import LONGEST, is_topic_name, only_allowed

CLASS = "com.scylladb.cdc.debezium.connector.ScyllaConnector"
CLASS_NAMES = (CLASS, "ScyllaConnector", "Scylla")
SINK_CLASS = "io.connect.scylladb.ScyllaDbSinkConnector"
DATASTAX_CLASS = "com.datastax.oss.kafka.sink.CassandraSinkConnector"
JDBC_CLASS = "io.confluent.connect.jdbc.JdbcSinkConnector"
REPLICATION_CLASS = "io.penstock.connect.ReplicationSinkConnector"
FILE_STREAM_CLASS = "org.apache.kafka.connect.file.FileStreamSinkConnector"
FILES_CLASS = "io.penstock.connect.FilesSinkConnector"
CLASSES = (CLASS, SINK_CLASS, DATASTAX_CLASS, JDBC_CLASS, FILE_STREAM_CLASS, FILES_CLASS, REPLICATION_CLASS)
"""The classes of connectors that a worker runs."""
FREE = ("producer.override.", "topic.creation.", "header.converter.", "snapshot.", "signal.", "notification.")
"""Prefixes of properties whose names continue with the user's or Kafka's names, or are Debezium's without effect."""

_NAME = r'(?:[\w*?]{1,48}|"(?:[^"]|"")+")'
TABLE = re.compile(rf"{_NAME}\.{_NAME}")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):(\d{1,5})")


def _hosts(values: list[str]) -> str | None:
    for host in values:
        match = _HOST.fullmatch(host)
        if not match:
            return f"Expected a comma-separated list of pairs <host>:<port>, but got invalid: {host}"
        if not 0 < int(match[1]) < 65536:
            return f"Expected a port number from 1 to 65535, but got invalid: {host}"
    return None if values else "Host specification is required"


def _tables(values: list[str]) -> str | None:
    for name in values:
        if not TABLE.fullmatch(name):
            return (
                "Expected a comma-separated list of pairs <keyspace name>.<table name>, each a name, "
                f"a name in double quotes, or a pattern with * and ?, but got invalid: {name}"
            )
    return None if values else "A table specification with at least one table is required"


def _table(name: str) -> str | None:
    try:
        split_name(name)
    except PenstockError:
        return "Expected keyspace.table, each a name or a name in double quotes"
    return None


def _some_of(allowed: tuple[str, ...]) -> Check:
    def check(values: list[str]) -> str | None:
        unknown = [value for value in values if value not in allowed]
        return f"unknown {', '.join(unknown)}; use some of {', '.join(allowed)}" if unknown else None

    return check


def _converter(name: str) -> str | None:
    return None if full_name(name, CONVERTERS) in CONVERTERS else f"it must be one of {', '.join(CONVERTERS)}"


def _plain(value: str) -> str | None:
    if not value.isprintable():
        return "it may not contain control characters"
    if "/" in value or value in (".", ".."):
        return "no path of the REST API reaches it; it may not be . or .. or contain a slash"
    return None if value else "String must be non-empty"


def _prefix(value: str) -> str | None:
    if value and only_allowed(value):
        return None
    return "it may contain only letters, digits, dots, hyphens and underscores, because names of topics begin with it"


def _topic(name: str) -> str | None:
    if not name or is_topic_name(name):
        return None
    return f"a topic's name has 1 to {LONGEST} letters, digits, dots, hyphens and underscores, and is not . or .."


CHECKS: dict[str, Check] = {
    "aliases": aliases,
    "name": _plain,
    "text": lambda value: None if value else "String must be non-empty",
    "connector_class": lambda value: None if value in CLASS_NAMES else f"this worker runs {', '.join(CLASSES)}",
    "converter": _converter,
    "from_0": at_least(0),
    "from_1": at_least(1),
    "hosts": _hosts,
    "tables": _tables,
    "prefix": _prefix,
    "topic": _topic,
    "delimiter": lambda value: None if value in (".", "-", "_") else "it must be one of . - _",
    "places": _some_of(PLACES),
    "channels": _some_of(("source", "kafka", "file", "jmx", "in-process")),
    "table": _table,
    "operations": _some_of((*OPERATIONS, "t", "none")),
}


@cache
def properties() -> tuple[Property, ...]:
    """All properties with fixed names, in the order of the file."""
    return of_file("penstock.connect.source", "properties.toml", CHECKS)
