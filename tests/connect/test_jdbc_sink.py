"""The JDBC sink connector without servers: what its properties become, and what is refused."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from penstock.connect.definition import INERT
from penstock.connect.java.date_time_formatter import zone_of
from penstock.connect.sinks.jdbc import properties as jdbc_properties
from penstock.connect.sinks.jdbc.destination import JdbcDestination
from penstock.connect.sinks.jdbc.properties import CLASS, CLASS_NAMES, COORDINATES, JdbcSettings, settings
from penstock.connect.sinks.jdbc.url import EXAMPLE, libpq_url, parsed
from penstock.connect.sinks.properties import of_connect
from penstock.connect.worker import plugins
from penstock.connect.worker.checks import CheckedConfig, check
from penstock.connect.worker.providers import Provided
from penstock.connect.worker.secrets import restored
from penstock.process.secret_settings import HIDDEN

JSON = "org.apache.kafka.connect.json.JsonConverter"
BASE = {
    "name": "x",
    "connector.class": CLASS,
    "topics": "t",
    "key.converter": JSON,
    "value.converter": JSON,
    "connection.url": "jdbc:postgresql://db/shop",
}
BY_KEY = {"pk.mode": "record_key"}


def checked(more: dict[str, str]) -> CheckedConfig:
    return check(BASE | more, Provided(), ask=False)


def made(more: dict[str, str]) -> JdbcSettings:
    found = checked(more)
    assert not found.messages, found.messages
    assert not found.unknown
    return settings(found.values, BASE | more)


# By property: a configuration with it, where its effect is, and the effect.
EFFECTS: dict[str, list[tuple[dict[str, str], str, Any]]] = {
    "connection.url": [({}, "url", "postgresql://db:5432/shop"), ({}, "place", "db:5432/shop")],
    "connection.user": [({"connection.user": "a b"}, "url", "postgresql://db:5432/shop?user=a%20b")],
    "connection.password": [({"connection.password": "p&"}, "url", "postgresql://db:5432/shop?password=p%26")],
    "connection.attempts": [({}, "attempts", 3), ({"connection.attempts": "1"}, "attempts", 1)],
    "connection.backoff.ms": [({}, "attempt_pause", 10), ({"connection.backoff.ms": "5"}, "attempt_pause", 0.005)],
    "insert.mode": [
        ({}, "mode", "insert"),
        ({"insert.mode": "multi"}, "mode", "insert"),
        (BY_KEY | {"insert.mode": "UPSERT"}, "mode", "upsert"),
        (BY_KEY | {"insert.mode": "update"}, "mode", "update"),
    ],
    "batch.size": [({}, "rows", 3000), ({"batch.size": "0"}, "rows", 1)],
    "delete.enabled": [({}, "deletes", False), (BY_KEY | {"delete.enabled": "true"}, "deletes", True)],
    "table.types": [({}, "kinds", ("r",)), ({"table.types": "VIEW, partitioned table"}, "kinds", ("v", "p"))],
    "replace.null.with.default": [
        ({}, "null_is_default", True),
        ({"replace.null.with.default": "false"}, "null_is_default", False),
    ],
    "table.name.format": [({}, "table", "a.b-c"), ({"table.name.format": "k_${topic}_x"}, "table", "k_a.b-c_x")],
    "table.name.normalize": [({"table.name.normalize": "true"}, "table", "a_b_c")],
    "topics.to.tables.mapping": [
        ({"topics.to.tables.mapping": "x:y,a.b-c:s.t", "table.name.normalize": "true"}, "table", "s.t"),
    ],
    "pk.mode": [({}, "key", "none"), ({"pk.mode": "record_value"}, "key", "record_value")],
    "pk.fields": [
        ({}, "key_fields", ()),
        ({"pk.mode": "kafka"}, "key_fields", COORDINATES),
        ({"pk.mode": "kafka", "pk.fields": "a,b,c"}, "key_fields", ("a", "b", "c")),
    ],
    "fields.whitelist": [({"fields.whitelist": "a, b"}, "fields", frozenset("ab"))],
    "db.timezone": [({"db.timezone": "Europe/Paris"}, "zone", zone_of("Europe/Paris"))],
    "timestamp.fields.list": [({"timestamp.fields.list": "a"}, "times", frozenset("a"))],
    "timestamp.precision.mode": [
        ({}, "nanoseconds", False),
        ({"timestamp.precision.mode": "NANOSECONDS"}, "nanoseconds", True),
    ],
    "string.output.value.column.name": [
        ({}, "text_column", "record_value"),
        ({"string.output.value.column.name": "v"}, "text_column", "v"),
    ],
    "auto.create": [({}, "create", False), ({"auto.create": "true"}, "create", True)],
    "auto.evolve": [({}, "evolve", False), ({"auto.evolve": "true"}, "evolve", True)],
    "quote.sql.identifiers": [({}, "folds", False), ({"quote.sql.identifiers": "NEVER"}, "folds", True)],
    "sql.quote.identifiers": [({"sql.quote.identifiers": "false"}, "folds", True)],
    "max.retries": [({}, "retries", 10), ({"max.retries": "0"}, "retries", 0)],
    "retry.backoff.ms": [({}, "retry_pause", 3), ({"retry.backoff.ms": "10"}, "retry_pause", 0.01)],
    "errors.tolerance": [({}, "tolerance", "fail"), ({"errors.tolerance": "all"}, "tolerance", "log")],
}
REFUSED = {"dialect.name", "jdbc.credentials.provider.class"}
"""Other values than the one that has no effect are refused."""


def test_each_property_has_an_effect_is_refused_or_is_listed_as_without_effect() -> None:
    own = [each for each in jdbc_properties.properties() if each.name not in {one.name for one in of_connect(())}]
    inert = {each.name for each in own if each.doc.startswith(INERT)}
    assert {each.name for each in own} == inert | (set(EFFECTS) - {"errors.tolerance"}) | REFUSED
    assert inert == {"date.timezone", "date.calendar.system", "mssql.use.merge.holdlock", "trim.sensitive.log"}


@pytest.mark.parametrize(
    ("more", "name", "wanted"), [case for cases in EFFECTS.values() for case in cases], ids=count()
)
def test_effects_of_properties(more: dict[str, str], name: str, wanted: Any) -> None:
    found = made(more)
    assert (found.table("a.b-c") if name == "table" else getattr(found, name)) == wanted


@pytest.mark.parametrize(
    ("more", "name", "why"),
    [
        ({"connection.url": "jdbc:mysql://db/shop"}, "connection.url", "mysql is not supported: only PostgreSQL is"),
        ({"connection.url": "jdbc:sqlserver://db;x=1"}, "connection.url", "sqlserver is not supported"),
        ({"connection.url": "postgresql://db/shop"}, "connection.url", f"as in {EXAMPLE}"),
        ({"connection.url": "jdbc:postgresql://u:p@db/shop"}, "connection.url", "connection.user and connection.pass"),
        ({"connection.url": "jdbc:postgresql://db:0/shop"}, "connection.url", "'db:0' is not host or host:port"),
        ({"connection.url": "jdbc:postgresql://db/a/b"}, "connection.url", "is not the name of a database"),
        ({"connection.url": "jdbc:postgresql://db/a?sslfactory=x"}, "connection.url", "sslfactory is not supported"),
        ({"connection.connectTimeout": "x"}, "connection.connectTimeout", "is not a number of seconds"),
        ({"connection.socketFactory": "x"}, "connection.socketFactory", "socketFactory is not supported; these are"),
        ({"connection.attempts": "0"}, "connection.attempts", "at least 1"),
        ({"dialect.name": "MySqlDatabaseDialect"}, "dialect.name", "only PostgreSqlDatabaseDialect"),
        ({"jdbc.credentials.provider.class": "x.Y"}, "jdbc.credentials.provider.class", "only io.confluent"),
        ({"insert.mode": "merge"}, "insert.mode", "one of insert, multi, upsert, update"),
        ({"insert.mode": "upsert"}, "insert.mode", "upsert needs a key: set pk.mode"),
        ({"insert.mode": "update"}, "insert.mode", "update needs a key: set pk.mode"),
        ({"delete.enabled": "true", "pk.mode": "kafka"}, "delete.enabled", "set pk.mode=record_key"),
        ({"pk.mode": "kafka", "pk.fields": "a,b"}, "pk.fields", "needs three names"),
        ({"pk.mode": "record_key", "pk.fields": "a,a"}, "pk.fields", "a name occurs twice"),
        ({"table.types": "SYNONYM"}, "table.types", "some of TABLE, PARTITIONED TABLE, VIEW"),
        ({"topics.to.tables.mapping": "a"}, "topics.to.tables.mapping", "'a' is not topic:table"),
        ({"db.timezone": "Mars"}, "db.timezone", "is not a time zone"),
        ({"topics": ""}, "topics", "give the topics to read"),
    ],
    ids=str,
)
def test_wrong_configurations_name_their_property(more: dict[str, str], name: str, why: str) -> None:
    errors = checked(more).errors
    assert set(errors) == {name} and why in errors[name][0], errors


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("jdbc:postgresql:", "localhost:5432/"),
        ("jdbc:postgresql:shop", "localhost:5432/shop"),
        ("jdbc:postgresql://a/", "a:5432/"),
        ("jdbc:postgresql://a:1,[::1]:2,b/x%20y", "a:1,[::1]:2,b:5432/x%20y"),
        ("jdbc:postgresql://a/d?ssl=true&ApplicationName=a+b", "a:5432/d?sslmode=verify-full&application_name=a%20b"),
        ("jdbc:postgresql://a/d?ssl=false&connectTimeout=0&loginTimeout=1", "a:5432/d?connect_timeout=2"),
        ("jdbc:postgresql://a/d?currentSchema=x,y&options=-c", "a:5432/d?options=-csearch_path%3Dx%2Cy%20-c"),
        ("jdbc:postgresql://a/d?targetServerType=preferSecondary", "a:5432/d?target_session_attrs=prefer-standby"),
        ("jdbc:postgresql://a/d?tcpKeepAlive=true&gssEncMode=DISABLE", "a:5432/d?keepalives=1&gssencmode=disable"),
        ("jdbc:postgresql://a/d?reWriteBatchedInserts=true&stringtype=unspecified", "a:5432/d"),
    ],
)  # fmt: skip
def test_urls_of_the_java_driver_are_those_of_libpq(url: str, wanted: str) -> None:
    assert libpq_url(parsed(url), {}) == f"postgresql://{wanted}"


def test_parameters_of_the_driver_may_be_properties() -> None:
    found = made({"connection.url": f"{BASE['connection.url']}?user=a", "connection.sslmode": "require"})
    assert found.url == "postgresql://db:5432/shop?user=a&sslmode=require"
    found = made({"connection.user": "b", "connection.url": f"{BASE['connection.url']}?user=a&password=hush"})
    assert found.url == "postgresql://db:5432/shop?user=b&password=hush" and "hush" not in repr(found)


def test_a_hidden_password_is_not_kept_for_another_server() -> None:
    kept = BASE | {"connection.password": "hush", "connection.user": "a"}
    shown = kept | {"connection.password": HIDDEN}
    assert restored(shown | {"batch.size": "1"}, kept)["connection.password"] == "hush"
    for other in ({"connection.url": "jdbc:postgresql://evil/shop"}, {"connection.user": "b"}):
        assert restored(shown | other, kept)["connection.password"] == HIDDEN


def test_the_class_has_its_own_plugin_by_each_of_its_names() -> None:
    for name in CLASS_NAMES:
        assert plugins.plugin_named(name) is plugins.JDBC_SINK
        assert not checked({"connector.class": name}).messages
    destination = JdbcDestination(made({"table.name.format": "k_${topic}"}))
    assert destination.address == "db:5432/shop"
    assert destination.identity("t", any_topic=False) == ("postgres", "k_t")
    assert destination.identity("t", any_topic=True) == ("postgres", "k_${topic}")
