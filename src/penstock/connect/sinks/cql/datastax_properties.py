"""The properties of DataStax's sink connector (Cassandra, DSE, Astra), and what a valid configuration says.

Its tables exist already, and are named with all their columns in mappings. Settings of its Java driver count where they
say the same as one of its own, which overrides them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from penstock.connect.definition import INERT, Check, Property, of_file, settings_of
from penstock.connect.java.date_patterns import WrongPattern
from penstock.connect.java.date_time_formatter import DatePattern, date_pattern
from penstock.connect.sinks.cql import contact_points
from penstock.connect.sinks.cql.mapping import plain
from penstock.connect.sinks.cql.properties import TABLE_CHECKS
from penstock.connect.sinks.cql.routes import (
    OF_TABLE,
    UNITS,
    CqlSettings,
    PropertyNames,
    Route,
    Table,
    of_query,
    of_tables,
    option_values,
    options,
    tables,
)
from penstock.connect.sinks.cql.topic_codecs import SEPARATORS, UNITS_SINCE_EPOCH, TopicCodec, is_english
from penstock.connect.sinks.destination import Tolerance
from penstock.connect.sinks.properties import FREE as OF_SINKS, Problems, of_any_sink, of_connect
from penstock.connect.source.properties import DATASTAX_CLASS
from penstock.connect.worker.keystores import pem_files
from penstock.cql.cql_writer import MAX_TTL
from penstock.database.access import Access
from penstock.process.paths import is_file

CLASS = DATASTAX_CLASS
CLASS_NAMES = (
    CLASS,
    "CassandraSinkConnector",
    "CassandraSink",
    "com.datastax.kafkaconnector.DseSinkConnector",
    "DseSinkConnector",
    "DseSink",
)
FREE = OF_SINKS
"""Prefixes of properties whose names continue with the user's or Kafka's names."""
DRIVER = "datastax-java-driver."
_SAME = {
    "contactPoints": "basic.contact-points",
    "loadBalancing.localDc": "basic.load-balancing-policy.local-datacenter",
    "cloud.secureConnectBundle": "basic.cloud.secure-connect-bundle",
    "auth.username": "advanced.auth-provider.username",
    "auth.password": "advanced.auth-provider.password",
    "ssl.hostnameValidation": "advanced.ssl-engine-factory.hostname-validation",
    "ssl.truststore.path": "advanced.ssl-engine-factory.truststore-path",
    "ssl.truststore.password": "advanced.ssl-engine-factory.truststore-password",
    "ssl.keystore.path": "advanced.ssl-engine-factory.keystore-path",
    "ssl.keystore.password": "advanced.ssl-engine-factory.keystore-password",
}
"""Properties of the connector, and the settings of its driver that say the same."""
_TLS_CLASS, _TIMEOUT = f"{DRIVER}advanced.ssl-engine-factory.class", f"{DRIVER}basic.request.timeout"
_OF_TOPIC = "topic.<topic>."
_CODEC = re.compile(r"topic\.(.+)\.(codec\.[A-Za-z]+)")
_MILLIS = {
    "ns|nano(s|seconds?)?": 1e-6,
    "us|micro(s|seconds?)?": 1e-3,
    "|ms|milli(s|seconds?)?": 1,
    "s|seconds?": 1e3,
    "m|minutes?": 60e3,
    "h|hours?": 3600e3,
    "d|days?": 86400e3,
}
"""Units of durations in the driver's files, in milliseconds."""
NAMES = PropertyNames(hosts="contactPoints", user="auth.username", tls="ssl.provider", ttl="ttl")
CONNECTION = NAMES.tls
"""The property at which errors of the connection are reported."""


def _millis(text: str) -> float | None:
    """Milliseconds of a duration as the driver's files have it; None if it is none."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([a-z]*)", text.strip())
    units = (millis for names, millis in _MILLIS.items() if match and re.fullmatch(names, match[2]))
    return next((float(match[1]) * millis for millis in units if match), None)


def _file(path: str) -> str | None:
    if path.startswith("base64:"):
        return "files are not read from the configuration: give a path on the worker's machine"
    return None if not path or is_file(path) else f"there is no file {path} on the worker's machine"


def _pattern(text: str) -> DatePattern | str:
    """The pattern, or what is wrong with it; names of months depend on the locale, which is checked together."""
    try:
        return date_pattern(text, names=True)
    except WrongPattern as error:
        return str(error)


def _pattern_of(part: str) -> Check:
    def check(text: str) -> str | None:
        pattern = None if text == UNITS_SINCE_EPOCH else _pattern(text)
        if pattern is None or isinstance(pattern, str):
            return pattern
        if part == "day" and not pattern.has_day:
            return "it needs a year, a month and a day"
        return "it needs an hour" if part == "time" and not pattern.has_time else None

    return check


_CHECKS: dict[str, Check] = {
    **TABLE_CHECKS,
    "contact_points": lambda value: contact_points.problem(value) if value else None,
    "duration": lambda value: None if not value or _millis(value) else "it must be a duration, such as 30 seconds",
    "file": _file,
    "locale": lambda value: None if value in SEPARATORS else f"it must be one of {', '.join(sorted(SEPARATORS))}",
    "timestamp_pattern": _pattern_of("day"),
    "date_pattern": _pattern_of("day"),
    "time_pattern": _pattern_of("time"),
}


@cache
def _all() -> tuple[Property, ...]:
    return of_file("penstock.connect.sinks.cql", "datastax_properties.toml", _CHECKS)


@cache
def properties() -> tuple[Property, ...]:
    """The properties with fixed names: Kafka Connect's, and the connector's."""
    return (*of_connect(CLASS_NAMES), *(each for each in _all() if "<" not in each.name))


@cache
def _of_table() -> dict[str, Property]:
    return options(_all(), OF_TABLE)


@cache
def _of_topic() -> dict[str, Property]:
    return {name: each for name, each in options(_all(), _OF_TOPIC).items() if "<" not in name}


def _codecs(config: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Name, topic and option of the properties of codecs."""
    for name in config:
        if (match := _CODEC.fullmatch(name)) and match[2] in _of_topic():
            yield name, match[1], match[2]


def definitions(config: Mapping[str, str | None]) -> list[Property]:
    """The properties of topics, of their tables, and of the Java driver in a configuration."""
    own = {each.name for each in _all()}
    driver = [name for name in config if name.startswith(DRIVER) and name not in own]
    return [
        *(replace(_of_topic()[option], name=name) for name, _, option in _codecs(config)),
        *of_tables(config, _of_table()),
        *(Property(name, "STRING", None, INERT, group="Java driver") for name in driver),
    ]


def _merged(values: Mapping[str, Any], config: Mapping[str, str]) -> dict[str, Any]:
    """The values, with the driver's settings where the connector's own are not given."""
    merged = dict(values)
    for name, same in _SAME.items():
        if not config.get(name) and config.get(f"{DRIVER}{same}"):
            merged[name] = values[f"{DRIVER}{same}"]
    if values["ssl.provider"] == "None" and values[_TLS_CLASS]:
        merged["ssl.provider"] = "JDK"
    return merged


def settings(values: Mapping[str, Any], config: Mapping[str, str]) -> CqlSettings:
    """What these valid values say; raises NoTls for a keystore that cannot be opened."""
    values = _merged(values, config)
    timeout = values["queryExecutionTimeout"] * 1000
    if not config.get("queryExecutionTimeout") and values[_TIMEOUT]:
        timeout = max(round(_millis(values[_TIMEOUT]) or 0), 1)
    return settings_of(
        CqlSettings,
        values,
        names=NAMES,
        access=_access(values),
        named=tuple(_route(table, values) for table in tables(config, _of_table())),
        timeout_millis=timeout,
        tolerance=_tolerance(values),
    )


def _access(values: Mapping[str, Any]) -> Access:
    files = {}
    if values["ssl.provider"] == "OpenSSL":
        files = pem_files({**values, "ssl.keystore.path": ""}, "ssl.")
        files |= {"certificate": values["ssl.openssl.keyCertChain"], "key": values["ssl.openssl.privateKey"]}
    elif values["ssl.provider"] == "JDK":
        files = pem_files(values, "ssl.")
    tls = values["ssl.provider"] != "None"
    return settings_of(contact_points.ConnectionSettings, values, tls=tls, files=files).access()


def _tolerance(values: Mapping[str, Any]) -> Tolerance:
    if values["errors.tolerance"] == "all" or values["ignoreErrors"] == "All":
        return "log"
    return "driver" if values["ignoreErrors"] in ("Driver", "true") else "fail"


def _of_table_in(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table's options."""
    inherited = {"consistencyLevel": values[f"{DRIVER}basic.request.consistency"]}
    return option_values(_of_table(), f"topic.{'.'.join(table)}.", values, inherited)


def _route(table: Table, values: Mapping[str, Any]) -> Route:
    own = _of_table_in(table, values)
    return settings_of(
        Route,
        own,
        topic=table[0],
        keyspace=plain(table[1]),
        table=plain(table[2]),
        ttl=_seconds(own),
        prefix=f"topic.{'.'.join(table)}.",
        nulls_delete=True,
        endless_ttl=True,
        codec=_codec(table[0], values),
    )


def _seconds(own: Mapping[str, Any]) -> int | None:
    """The time to live, rounded up: it never ends at once what should live for a moment."""
    return None if own["ttl"] == -1 else -(-own["ttl"] * _nanos(own["ttlTimeUnit"]) // 1_000_000_000)


def _nanos(unit: str) -> int:
    return round(UNITS[unit] * 1_000_000_000)


def _codec(topic: str, values: Mapping[str, Any]) -> TopicCodec:
    own = option_values(_of_topic(), f"topic.{topic}.", values, {})
    return settings_of(TopicCodec, own, unit=_nanos(own["codec.unit"]))


# Errors between properties that are each valid.


def together(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    """Errors between properties that are each valid."""
    merged = _merged(values, config)
    yield from of_any_sink(values, config)
    yield from _of_connection(merged)
    yield from _of_topics(values, config)
    for table in tables(config, _of_table()):
        yield from _of_route(table, values)


def _of_connection(values: Mapping[str, Any]) -> Problems:
    if values["cloud.secureConnectBundle"]:
        hint = "give contactPoints, loadBalancing.localDc and ssl.*"
        yield "cloud.secureConnectBundle", f"bundles of Astra are not supported; {hint}"
    if values["contactPoints"] and not values["loadBalancing.localDc"]:
        yield "loadBalancing.localDc", "contactPoints are given: name their data centre"
    if values["auth.provider"] == "GSSAPI":
        yield "auth.provider", "Kerberos is not supported; use PLAIN, with auth.username and auth.password"
    if values["auth.password"] and not values["auth.username"]:
        yield "auth.username", "auth.password is given, and the user is not"
    elif values["auth.provider"] == "PLAIN" and not values["auth.username"]:
        yield "auth.username", "auth.provider=PLAIN needs the user"
    chain, key = values["ssl.openssl.keyCertChain"], values["ssl.openssl.privateKey"]
    if values["ssl.provider"] == "OpenSSL" and bool(chain) != bool(key):
        missing = "privateKey" if chain else "keyCertChain"
        # Not at the key, whose errors are not shown, as its name is that of a secret.
        yield "ssl.openssl.keyCertChain", f"certificate and key need each other: ssl.openssl.{missing} is missing"


def _of_topics(values: Mapping[str, Any], config: Mapping[str, str]) -> Problems:
    codecs, named = list(_codecs(config)), tables(config, _of_table())
    known = {each.name for each in of_tables(config, _of_table())} | {name for name, _, _ in codecs}
    for name in config:
        if name.startswith("topic.") and name not in known:
            known_options = f"{OF_TABLE} ({', '.join(_of_table())}) and {_OF_TOPIC} ({', '.join(_of_topic())})"
            yield name, f"there is no such property; names are those of {known_options}"
    for topic in values["topics"] or ():
        if topic not in {table[0] for table in named}:
            yield "topics", f"the topic {topic} has no table: give topic.{topic}.<keyspace>.<table>.mapping"
    for name, topic, option in codecs:
        pattern, locale = values[name], values.get(f"topic.{topic}.codec.locale", "en_US")
        if option in ("codec.timestamp", "codec.date", "codec.time") and pattern != UNITS_SINCE_EPOCH:
            try:
                date_pattern(pattern, names=is_english(locale))
            except WrongPattern as error:
                yield name, str(error)


def _of_route(table: Table, values: Mapping[str, Any]) -> Problems:
    prefix = f"topic.{'.'.join(table)}."
    yield from of_query(prefix, values, True)
    if not values.get(f"{prefix}mapping"):
        yield f"{prefix}mapping", "a table needs its mapping"
    own = _of_table_in(table, values)
    if (_seconds(own) or 0) > MAX_TTL:
        yield f"{prefix}ttl", f"it is {_seconds(own)} seconds; the most are {MAX_TTL} (20 years)"
