"""The properties of Confluent's and Aiven's JDBC sink connectors, and what a valid configuration says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from functools import cache
from importlib.util import find_spec
from typing import Any

from penstock.connect.definition import Check, Property, of_file
from penstock.connect.java.date_time_formatter import zone_of
from penstock.connect.jdbc_sink.jdbc_url import libpq_url, parsed, settings as libpq_settings
from penstock.connect.properties import JDBC_CLASS
from penstock.connect.sink.destinations import Tolerance
from penstock.connect.sink.sink_properties import (
    FREE as OF_CONNECT,
    SINK_CHECKS,
    Problems,
    of_any_sink,
    of_connect,
)
from penstock.extras import install

CLASS = JDBC_CLASS
CLASS_NAMES = (CLASS, "JdbcSinkConnector", "JdbcSink", "io.aiven.connect.jdbc.JdbcSinkConnector")
FREE = tuple(prefix for prefix in OF_CONNECT if prefix != "topic.")
CONNECTION = "connection."
"""Before the names of the driver's own parameters."""
COORDINATES = ("__connect_topic", "__connect_partition", "__connect_offset")
"""The columns of pk.mode=kafka, unless pk.fields has others."""
KINDS = {"TABLE": "r", "PARTITIONED TABLE": "p", "VIEW": "v"}
"""The values of table.types, and what PostgreSQL's catalog has for them."""
_DIALECT = "PostgreSqlDatabaseDialect"
_CREDENTIALS = "io.confluent.connect.jdbc.util.DefaultJdbcCredentialsProvider"


def _url(text: str) -> str | None:
    try:
        libpq_url(parsed(text), {})
    except ValueError as error:
        return str(error)
    return None


def _kinds(values: list[str]) -> str | None:
    unknown = [value for value in values if value.upper() not in KINDS]
    return None if values and not unknown else f"it must have some of {', '.join(KINDS)}"


def _tables_of_topics(values: list[str]) -> str | None:
    wrong = [pair for pair in values if not re.fullmatch(r"[^:]+:[^:]+", pair)]
    return f"{wrong[0]!r} is not topic:table" if wrong else None


_CHECKS: dict[str, Check] = {
    **SINK_CHECKS,
    "connector_class": lambda value: None if value in CLASS_NAMES else f"this is not {CLASS}",
    "url": _url,
    "table_types": _kinds,
    "tables_of_topics": _tables_of_topics,
    "dialect": lambda value: None if value in ("", _DIALECT) else f"only {_DIALECT} is supported",
    "credentials": lambda value: None if value == _CREDENTIALS else f"only {_CREDENTIALS} is supported",
}


@cache
def _own() -> tuple[Property, ...]:
    return of_file("penstock.connect.jdbc_sink", "jdbc_properties.toml", _CHECKS)


@cache
def properties() -> tuple[Property, ...]:
    """The properties with fixed names: Kafka Connect's, and the connector's."""
    return (*of_connect(_CHECKS["connector_class"]), *_own())


def _parameters(config: Mapping[str, str | None]) -> list[str]:
    """The names of the driver's parameters in a configuration."""
    own = {each.name for each in _own()}
    return [name for name in config if name.startswith(CONNECTION) and name not in own]


def definitions(config: Mapping[str, str | None]) -> list[Property]:
    """The driver's parameters in a configuration: connection.<parameter>."""
    return [
        Property(
            name,
            "PASSWORD" if "password" in name.lower() else "STRING",
            None,
            "A parameter of PostgreSQL's JDBC driver.",
            _parameter_check(name.removeprefix(CONNECTION)),
            importance="LOW",
            group="Connection",
        )
        for name in _parameters(config)
    ]


def _parameter_check(name: str) -> Check:
    def check(text: str) -> str | None:
        try:
            libpq_settings({name: text})
        except ValueError as error:
            return str(error)
        return None

    return check


@dataclass(frozen=True)
class JdbcSettings:
    """What a valid configuration says."""

    url: str = field(repr=False)
    """libpq's, perhaps with a password."""
    place: str
    """The database in messages."""
    attempts: int
    attempt_pause: float
    """Seconds between attempts to connect."""
    mode: str
    """insert, upsert or update."""
    rows: int
    """The most rows of a statement."""
    deletes: bool
    kinds: tuple[str, ...]
    null_is_default: bool
    table_format: str
    normalize: bool
    tables: Mapping[str, str]
    """Tables by topic, besides those of the format."""
    key: str
    """none, kafka, record_key or record_value."""
    key_fields: tuple[str, ...]
    fields: frozenset[str]
    """The value's fields to write; empty for all."""
    zone: tzinfo
    times: frozenset[str]
    """Fields that count time."""
    nanoseconds: bool
    text_column: str
    create: bool
    evolve: bool
    folds: bool
    """Whether names are in lower case."""
    retries: int
    retry_pause: float
    """Seconds before a transaction is tried again."""
    tolerance: Tolerance

    def table(self, topic: str) -> str:
        """The name of a topic's table, as configured."""
        if topic in self.tables:
            return self.tables[topic]
        name = self.table_format.replace("${topic}", topic)
        return re.sub("[^A-Za-z0-9_]", "_", name) if self.normalize else name


def settings(values: Mapping[str, Any], config: Mapping[str, str]) -> JdbcSettings:
    """What these valid values say."""
    url = parsed(values["connection.url"])
    login = {"user": values["connection.user"], "password": values["connection.password"]}
    more = {name.removeprefix(CONNECTION): values[name] for name in _parameters(config)}
    given = {name: text for name, text in {**more, **login}.items() if text is not None}
    mode, key = values["insert.mode"], values["pk.mode"]
    return JdbcSettings(
        libpq_url(url, given),
        f"{','.join(url.hosts)}/{url.database}",
        values["connection.attempts"],
        values["connection.backoff.ms"] / 1000,
        "insert" if mode == "multi" else mode,
        max(values["batch.size"], 1),
        values["delete.enabled"],
        tuple(KINDS[kind.upper()] for kind in values["table.types"]),
        values["replace.null.with.default"],
        values["table.name.format"],
        values["table.name.normalize"],
        {topic: table for topic, _, table in (pair.partition(":") for pair in values["topics.to.tables.mapping"])},
        key,
        tuple(values["pk.fields"]) or (COORDINATES if key == "kafka" else ()),
        frozenset(values["fields.whitelist"]),
        zone_of(values["db.timezone"]),
        frozenset(values["timestamp.fields.list"]),
        values["timestamp.precision.mode"] == "nanoseconds",
        values["string.output.value.column.name"],
        values["auto.create"],
        values["auto.evolve"],
        values["quote.sql.identifiers"] == "never" or not values["sql.quote.identifiers"],
        values["max.retries"],
        values["retry.backoff.ms"] / 1000,
        "log" if values["errors.tolerance"] == "all" else "fail",
    )


def together(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    """Errors between properties that are each valid."""
    yield from of_any_sink(values, config)
    mode, key, fields = values["insert.mode"], values["pk.mode"], values["pk.fields"]
    if values["delete.enabled"] and key != "record_key":
        yield "delete.enabled", "deletes are of the record's key: set pk.mode=record_key"
    if mode in ("upsert", "update") and key == "none":
        yield "insert.mode", f"{mode} needs a key: set pk.mode"
    if key == "kafka" and len(fields) not in (0, 3):
        yield "pk.fields", f"pk.mode=kafka needs three names, or none for {', '.join(COORDINATES)}"
    if len(set(fields)) < len(fields):
        yield "pk.fields", "a name occurs twice"
    if find_spec("adbc_driver_postgresql") is None:
        yield "connector.class", f"it needs PostgreSQL's driver, on the workers too; run: {install('postgres')}"
