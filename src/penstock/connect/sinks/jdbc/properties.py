"""The properties of Confluent's and Aiven's JDBC sink connectors, and what a valid configuration says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import tzinfo
from functools import cache
from importlib.util import find_spec
from typing import Any

from penstock.connect.definition import Check, Property, of_file, of_property, settings_of
from penstock.connect.java.date_time_formatter import zone_of
from penstock.connect.sinks.destination import Tolerance, tolerance_of
from penstock.connect.sinks.jdbc.url import libpq_url, parsed, settings as libpq_settings
from penstock.connect.sinks.properties import FREE as OF_SINKS, SINK_CHECKS, Problems, of_any_sink, of_connect
from penstock.connect.source.properties import JDBC_CLASS
from penstock.extras import install

CLASS = JDBC_CLASS
CLASS_NAMES = (CLASS, "JdbcSinkConnector", "JdbcSink", "io.aiven.connect.jdbc.JdbcSinkConnector")
FREE = OF_SINKS
PARAMETERS = "connection."
"""Before the names of the driver's own parameters."""
CONNECTION = "connection.url"
"""The property at which errors of the connection are reported."""
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
    "url": _url,
    "table_types": _kinds,
    "tables_of_topics": _tables_of_topics,
    "dialect": lambda value: None if value in ("", _DIALECT) else f"only {_DIALECT} is supported",
    "credentials": lambda value: None if value == _CREDENTIALS else f"only {_CREDENTIALS} is supported",
}


@cache
def _own() -> tuple[Property, ...]:
    return of_file("penstock.connect.sinks.jdbc", "properties.toml", _CHECKS)


@cache
def properties() -> tuple[Property, ...]:
    """The properties with fixed names: Kafka Connect's, and the connector's."""
    return (*of_connect(CLASS_NAMES), *_own())


def _parameters(config: Mapping[str, str | None]) -> list[str]:
    """The names of the driver's parameters in a configuration."""
    own = {each.name for each in _own()}
    return [name for name in config if name.startswith(PARAMETERS) and name not in own]


def definitions(config: Mapping[str, str | None]) -> list[Property]:
    """The driver's parameters in a configuration: connection.<parameter>."""
    return [
        Property(
            name,
            "PASSWORD" if "password" in name.lower() else "STRING",
            None,
            "A parameter of PostgreSQL's JDBC driver.",
            _parameter_check(name.removeprefix(PARAMETERS)),
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


def _seconds(millis: int) -> float:
    return millis / 1000


def _kinds_of(types: Sequence[str]) -> tuple[str, ...]:
    return tuple(KINDS[name.upper()] for name in types)


def _tables(pairs: Sequence[str]) -> dict[str, str]:
    return {topic: table for topic, _, table in (pair.partition(":") for pair in pairs)}


@dataclass(frozen=True)
class JdbcSettings:
    """What a valid configuration says."""

    url: str = field(repr=False)
    """libpq's, perhaps with a password."""
    place: str
    """The database in messages."""
    key_fields: tuple[str, ...]
    folds: bool
    """Whether names are in lower case."""
    attempts: int = field(metadata=of_property("connection.attempts"))
    attempt_pause: float = field(metadata=of_property("connection.backoff.ms", convert=_seconds))
    """Seconds between attempts to connect."""
    mode: str = field(metadata=of_property("insert.mode", convert=lambda mode: "insert" if mode == "multi" else mode))
    """insert, upsert or update."""
    rows: int = field(metadata=of_property("batch.size", convert=lambda rows: max(rows, 1)))
    """The most rows of a statement."""
    deletes: bool = field(metadata=of_property("delete.enabled"))
    kinds: tuple[str, ...] = field(metadata=of_property("table.types", convert=_kinds_of))
    null_is_default: bool = field(metadata=of_property("replace.null.with.default"))
    table_format: str = field(metadata=of_property("table.name.format"))
    normalize: bool = field(metadata=of_property("table.name.normalize"))
    tables: Mapping[str, str] = field(metadata=of_property("topics.to.tables.mapping", convert=_tables))
    """Tables by topic, besides those of the format."""
    key: str = field(metadata=of_property("pk.mode"))
    """none, kafka, record_key or record_value."""
    fields: frozenset[str] = field(metadata=of_property("fields.whitelist", convert=frozenset))
    """The value's fields to write; empty for all."""
    zone: tzinfo = field(metadata=of_property("db.timezone", convert=zone_of))
    times: frozenset[str] = field(metadata=of_property("timestamp.fields.list", convert=frozenset))
    """Fields that count time."""
    nanoseconds: bool = field(
        metadata=of_property("timestamp.precision.mode", convert=lambda mode: mode == "nanoseconds")
    )
    text_column: str = field(metadata=of_property("string.output.value.column.name"))
    create: bool = field(metadata=of_property("auto.create"))
    evolve: bool = field(metadata=of_property("auto.evolve"))
    retries: int = field(metadata=of_property("max.retries"))
    retry_pause: float = field(metadata=of_property("retry.backoff.ms", convert=_seconds))
    """Seconds before a transaction is tried again."""
    tolerance: Tolerance = field(metadata=of_property("errors.tolerance", convert=tolerance_of))

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
    more = {name.removeprefix(PARAMETERS): values[name] for name in _parameters(config)}
    parameters = {name: text for name, text in {**more, **login}.items() if text is not None}
    key_fields = tuple(values["pk.fields"]) or (COORDINATES if values["pk.mode"] == "kafka" else ())
    folds = values["quote.sql.identifiers"] == "never" or not values["sql.quote.identifiers"]
    place = f"{','.join(url.hosts)}/{url.database}"
    return settings_of(
        JdbcSettings, values, url=libpq_url(url, parameters), place=place, key_fields=key_fields, folds=folds
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
