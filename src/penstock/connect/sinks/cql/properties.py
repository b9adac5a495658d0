"""The properties of ScyllaDB's sink connector, and what a valid configuration says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from penstock.connect.definition import Check, Property, of_file, settings_of
from penstock.connect.sinks.cql import contact_points
from penstock.connect.sinks.cql.mapping import WrongMapping, mapping
from penstock.connect.sinks.cql.routes import (
    OF_TABLE,
    CqlSettings,
    PropertyNames,
    Route,
    of_query,
    of_tables,
    option_values,
    options,
    tables,
)
from penstock.connect.sinks.destination import Tolerance
from penstock.connect.sinks.properties import FREE as OF_SINKS, SINK_CHECKS, Problems, of_any_sink, of_connect
from penstock.connect.source.properties import SINK_CLASS
from penstock.connect.worker.keystores import pem_files
from penstock.cql.cql_writer import MAX_TTL
from penstock.database.access import Access
from penstock.process.paths import is_file

CLASS = SINK_CLASS
CLASS_NAMES = (CLASS, "ScyllaDbSinkConnector", "ScyllaDbSink")
FREE = (*OF_SINKS, "topic.")
"""Prefixes of properties whose names continue with the user's or Kafka's names."""


def _mapping(text: str) -> str | None:
    try:
        mapping(text)
    except WrongMapping as error:
        return str(error)
    return None


TABLE_CHECKS: dict[str, Check] = {
    **SINK_CHECKS,
    "contact_points": contact_points.problem,
    "mapping": _mapping,
}
"""The checks of both classes."""
_CHECKS: dict[str, Check] = {
    **TABLE_CHECKS,
    "ttl": lambda value: None if 0 <= value <= MAX_TTL else f"it must be from 0 to {MAX_TTL} seconds (20 years)",
    "file": lambda value: None if is_file(value) else f"there is no file {value} on the worker's machine",
}


@cache
def _all() -> tuple[Property, ...]:
    return (*of_connect(CLASS_NAMES), *of_file("penstock.connect.sinks.cql", "properties.toml", _CHECKS))


@cache
def properties() -> tuple[Property, ...]:
    """The properties with fixed names: Kafka Connect's, and the connector's."""
    return tuple(each for each in _all() if "<" not in each.name)


@cache
def _options() -> dict[str, Property]:
    return options(_all(), OF_TABLE)


def definitions(config: Mapping[str, str | None]) -> list[Property]:
    """The properties of the topics' tables in a configuration: topic.<topic>.<keyspace>.<table>.<option>."""
    return of_tables(config, _options())


NAMES = PropertyNames(
    hosts="scylladb.contact.points",
    user="scylladb.username",
    tls="scylladb.ssl.enabled",
    ttl="ttlSeconds",
    keyspace="scylladb.keyspace",
    create_keyspace="scylladb.keyspace.create.enabled",
    manage="scylladb.table.manage.enabled",
)
CONNECTION = NAMES.tls
"""The property at which errors of the connection are reported."""
_INHERITED = {
    "consistencyLevel": "scylladb.consistency.level",
    "ttlSeconds": "scylladb.ttl",
    "deletesEnabled": "scylladb.deletes.enabled",
}
"""Options of a table, and the properties that count where it does not have them."""


def settings(values: Mapping[str, Any], config: Mapping[str, str]) -> CqlSettings:
    """What these valid values say; raises NoTls for a keystore that cannot be opened."""
    default = _route("", values["scylladb.keyspace"], "", values)
    return settings_of(
        CqlSettings,
        values,
        names=NAMES,
        access=access(values),
        named=tuple(_route(*table, values) for table in tables(config, _options())),
        tolerance=_tolerance(values),
        default=default,
        offsets=values["scylladb.offset.storage.table"] if values["scylladb.offset.storage.table.enable"] else "",
    )


def _tolerance(values: Mapping[str, Any]) -> Tolerance:
    """Both of Connect's and of the connector's settings allow to leave a record out."""
    if values["behavior.on.error"] == "FAIL" and values["errors.tolerance"] == "none":
        return "fail"
    quiet = values["behavior.on.error"] == "IGNORE" and not values["errors.log.enable"]
    return "ignore" if quiet else "log"


def _route(topic: str, keyspace: str, table: str, values: Mapping[str, Any]) -> Route:
    """The route of a table; without a topic that of all topics that no table is given for."""
    prefix = f"topic.{topic}.{keyspace}.{table}." if topic else ""
    inherited = {option: values[name] for option, name in _INHERITED.items()}
    own = option_values(_options(), prefix, values if topic else {}, inherited)
    return settings_of(Route, own, topic=topic, keyspace=keyspace, table=table, prefix=prefix)


def access(values: Mapping[str, Any]) -> Access:
    """How to connect to a configuration's database."""
    nobody = {} if values["scylladb.security.enabled"] else {"user": "", "password": ""}
    files = pem_files(values, "scylladb.ssl.") if values["scylladb.ssl.enabled"] else {}
    return settings_of(contact_points.ConnectionSettings, values, files=files, **nobody).access()


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
