"""DataStax's sink connector without servers: what its properties become, and which statements its records are."""

from __future__ import annotations

import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from cassandra.query import UNSET_VALUE
from hypothesis import given, strategies as st
from secure_kafka import certificate
from waiting import PATIENCE

from penstock.connect.definition import INERT
from penstock.connect.records.record import NOTHING, ConnectRecord, Part, Timestamp
from penstock.connect.records.semantic_types import NanoTimestamp
from penstock.connect.sinks.cql import datastax_properties
from penstock.connect.sinks.cql.datastax_properties import CLASS, CLASS_NAMES, DRIVER, settings
from penstock.connect.sinks.cql.routes import CqlSettings, Route
from penstock.connect.sinks.cql.values import cell
from penstock.connect.sinks.cql.writer import RecordWriter, Write
from penstock.connect.sinks.properties import of_connect
from penstock.connect.worker import plugins
from penstock.connect.worker.checks import CheckedConfig, check
from penstock.connect.worker.keystores import as_pem
from penstock.connect.worker.providers import Provided
from penstock.database.cql_types import Column, CqlTable, parse_type
from penstock.database.requests import RequestLimits

JSON = "org.apache.kafka.connect.json.JsonConverter"
TABLE, TOPIC = "topic.t.ks.t.", "topic.t."
BASE = {
    "name": "x",
    "connector.class": CLASS,
    "topics": "t",
    "key.converter": JSON,
    "value.converter": JSON,
    f"{TABLE}mapping": "id=key.id, a=value.a, b=value.b",
}
TLS = {"ssl.provider": "OpenSSL", "ssl.openssl.keyCertChain": __file__, "ssl.openssl.privateKey": __file__}
FACTORY = f"{DRIVER}advanced.ssl-engine-factory."
ADMIN = {"auth.username": "admin", "auth.password": "hush"}


def checked(more: dict[str, str]) -> CheckedConfig:
    return check(BASE | more, Provided(), ask=False)


def made(more: dict[str, str]) -> CqlSettings:
    found = checked(more)
    assert not found.messages, found.messages
    assert not found.unknown
    return settings(found.values, BASE | more)


def route(more: dict[str, str]) -> Route:
    (found,) = made(more).routes("t")
    return found


STORE_PARTS = {
    "ssl.": ("truststore.path", "truststore.password", "keystore.path", "keystore.password"),
    FACTORY: ("truststore-path", "truststore-password", "keystore-path", "keystore-password"),
}

# By property: a configuration with it, where its effect is, and the effect.
EFFECTS: dict[str, list[tuple[dict[str, str], str, Any]]] = {
    "ignoreErrors": [
        ({}, "tolerance", "fail"),
        ({"ignoreErrors": "all"}, "tolerance", "log"),
        ({"ignoreErrors": "Driver"}, "tolerance", "driver"),
        ({"ignoreErrors": "true"}, "tolerance", "driver"),
        ({"ignoreErrors": "false"}, "tolerance", "fail"),
        ({"ignoreErrors": "Driver", "errors.tolerance": "all"}, "tolerance", "log"),
    ],
    "contactPoints": [
        ({"contactPoints": ""}, "access.hosts", "127.0.0.1:9042"),
        ({"contactPoints": "a, b", "loadBalancing.localDc": "dc"}, "access.hosts", "a:9042,b:9042"),
    ],
    "port": [
        ({"contactPoints": "a,b:1", "port": "9", "loadBalancing.localDc": "dc"}, "access.hosts", "a:9,b:1"),
    ],
    "loadBalancing.localDc": [({"loadBalancing.localDc": "dc1"}, "access.local_dc", "dc1")],
    "queryExecutionTimeout": [({}, "timeout_millis", 30_000), ({"queryExecutionTimeout": "5"}, "timeout_millis", 5000)],
    "maxConcurrentRequests": [
        ({}, "in_flight", 500),
        ({"maxConcurrentRequests": "7"}, "in_flight", 7),
        ({"maxConcurrentRequests": "2000000000"}, "in_flight", 1000),
    ],
    "auth.provider": [({"auth.provider": "PLAIN", **ADMIN}, "access.user", "admin")],
    "auth.username": [(ADMIN, "access.user", "admin"), ({}, "access.user", "")],
    "auth.password": [(ADMIN, "access.password", "hush")],
    "ssl.provider": [
        ({}, "access.tls", False),
        (TLS, "access.tls", True),
        ({"ssl.provider": "jdk"}, "access.tls", True),
    ],
    "ssl.hostnameValidation": [
        (TLS, "access.verify_hostname", True),
        (TLS | {"ssl.hostnameValidation": "false"}, "access.verify_hostname", False),
    ],
    "ssl.openssl.keyCertChain": [
        (TLS, "access.certificate", __file__),
        (TLS | {"ssl.provider": "None"}, "access.key", ""),
    ],
    "ssl.openssl.privateKey": [(TLS, "access.key", __file__)],
    f"{DRIVER}basic.contact-points": [
        (
            {f"{DRIVER}basic.contact-points": "a:1, b:2", f"{DRIVER}basic.load-balancing-policy.local-datacenter": "d"},
            "access.hosts",
            "a:1,b:2",
        ),
    ],
    f"{DRIVER}basic.load-balancing-policy.local-datacenter": [
        ({f"{DRIVER}basic.load-balancing-policy.local-datacenter": "d"}, "access.local_dc", "d"),
        (
            {f"{DRIVER}basic.load-balancing-policy.local-datacenter": "d", "loadBalancing.localDc": "own"},
            "access.local_dc",
            "own",
        ),
    ],
    f"{DRIVER}basic.request.timeout": [
        ({f"{DRIVER}basic.request.timeout": "2 seconds"}, "timeout_millis", 2000),
        ({f"{DRIVER}basic.request.timeout": "500"}, "timeout_millis", 500),
        ({f"{DRIVER}basic.request.timeout": "2 s", "queryExecutionTimeout": "3"}, "timeout_millis", 3000),
    ],
    f"{DRIVER}basic.request.consistency": [
        ({f"{DRIVER}basic.request.consistency": "QUORUM"}, "route.consistency", "QUORUM"),
        ({f"{DRIVER}basic.request.consistency": "QUORUM"}, "access.consistency", "QUORUM"),
    ],
    f"{DRIVER}advanced.auth-provider.username": [
        ({f"{DRIVER}advanced.auth-provider.username": "admin"}, "access.user", "admin"),
    ],
    f"{DRIVER}advanced.auth-provider.password": [
        (
            {f"{DRIVER}advanced.auth-provider.{name}": "hush" for name in ("username", "password")},
            "access.password",
            "hush",
        ),
    ],
    f"{FACTORY}class": [({f"{FACTORY}class": "DefaultSslEngineFactory"}, "access.tls", True)],
    f"{FACTORY}hostname-validation": [({f"{FACTORY}hostname-validation": "false"}, "access.verify_hostname", False)],
    "codec.locale": [
        ({}, "route.codec.locale", "en_US"),
        ({f"{TOPIC}codec.locale": "de_DE"}, "route.codec.locale", "de_DE"),
    ],
    "codec.timeZone": [
        ({}, "route.codec.zone", "UTC"),
        ({f"{TOPIC}codec.timeZone": "+01:00"}, "route.codec.zone", "+01:00"),
    ],
    "codec.timestamp": [
        ({}, "route.codec.timestamp", "CQL_TIMESTAMP"),
        ({f"{TOPIC}codec.timestamp": "UNITS_SINCE_EPOCH"}, "route.codec.timestamp", "UNITS_SINCE_EPOCH"),
    ],
    "codec.date": [
        ({}, "route.codec.date", "ISO_LOCAL_DATE"),
        ({f"{TOPIC}codec.date": "d MMM y"}, "route.codec.date", "d MMM y"),
    ],
    "codec.time": [
        ({}, "route.codec.time", "ISO_LOCAL_TIME"),
        ({f"{TOPIC}codec.time": "HHmm"}, "route.codec.time", "HHmm"),
    ],
    "codec.unit": [({}, "route.codec.unit", 10**6), ({f"{TOPIC}codec.unit": "NANOSECONDS"}, "route.codec.unit", 1)],
    "mapping": [({f"{TABLE}mapping": '"Id"=key'}, "route.mapping.Id.side", "key")],
    "consistencyLevel": [
        ({}, "route.consistency", "LOCAL_ONE"),
        ({f"{TABLE}consistencyLevel": "local_quorum"}, "route.consistency", "LOCAL_QUORUM"),
    ],
    "ttl": [({}, "route.ttl", None), ({f"{TABLE}ttl": "0"}, "route.ttl", 0), ({f"{TABLE}ttl": "60"}, "route.ttl", 60)],
    "ttlTimeUnit": [
        ({f"{TABLE}ttl": "2", f"{TABLE}ttlTimeUnit": "HOURS"}, "route.ttl", 7200),
        ({f"{TABLE}ttl": "1001", f"{TABLE}ttlTimeUnit": "MILLISECONDS"}, "route.ttl", 2),
        ({f"{TABLE}ttlTimeUnit": "DAYS"}, "route.ttl_unit", 86400),
    ],
    "timestampTimeUnit": [
        ({}, "route.time_unit", Decimal("1e-6")),
        ({f"{TABLE}timestampTimeUnit": "SECONDS"}, "route.time_unit", 1),
    ],
    "nullToUnset": [
        ({}, "route.null_to_unset", True),
        ({f"{TABLE}nullToUnset": "false"}, "route.null_to_unset", False),
    ],
    "deletesEnabled": [({}, "route.deletes", True), ({f"{TABLE}deletesEnabled": "false"}, "route.deletes", False)],
    "query": [({f"{TABLE}deletesEnabled": "false", f"{TABLE}query": "UPDATE"}, "route.query", "UPDATE")],
}
STORES = {f"{prefix}{part}" for prefix, parts in STORE_PARTS.items() for part in parts}
"""Their effect needs a keystore, in a test below."""
REFUSED = {"cloud.secureConnectBundle", f"{DRIVER}basic.cloud.secure-connect-bundle"}


def test_each_property_has_an_effect_is_refused_or_is_listed_as_without_effect() -> None:
    own = [each for each in datastax_properties.properties() if each.name not in {one.name for one in of_connect(())}]
    inert = {each.name for each in own if each.doc.startswith(INERT)}
    options = {*datastax_properties._of_table(), *datastax_properties._of_topic()}
    assert {each.name for each in own} | options == inert | set(EFFECTS) | STORES | REFUSED
    assert inert == {
        *("maxNumberOfRecordsInBatch", "connectionPoolLocalSize", "compression", "metricsHighestLatency"),
        *("jmx", "jmxConnectorDomain", "ssl.cipherSuites"),
        *(f"auth.gssapi.{name}" for name in ("keyTab", "principal", "service")),
    }


@pytest.mark.parametrize(("more", "place", "wanted"), [case for cases in EFFECTS.values() for case in cases], ids=str)
def test_effects_of_properties(more: dict[str, str], place: str, wanted: Any) -> None:
    found: Any = {"route": route(more)} if place.startswith("route.") else made(more)
    for name in place.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == wanted


@pytest.mark.parametrize("prefix", STORE_PARTS)
def test_keystores_become_files_for_tls(spark: Any, tmp_path: Path, prefix: str) -> None:
    _, both = certificate(tmp_path)
    store = tmp_path / "own.p12"
    words = ["openssl", "pkcs12", "-export", "-in", str(both), "-out", str(store), "-passout", "pass:hush"]
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE)
    given = {f"{prefix}{part}": str(store) if "path" in part else "hush" for part in STORE_PARTS[prefix]}
    access = made(given | {"ssl.provider": "JDK"}).access
    assert access.ca == access.certificate == as_pem(str(store), "hush") and not access.key
    if prefix == "ssl.":
        # OpenSSL's own certificate is a PEM file, and Java's keystore does not count.
        access = made(given | TLS).access
        assert (access.ca, access.certificate) == (as_pem(str(store), "hush"), __file__)
    assert not made({name: text for name, text in given.items() if name.startswith("ssl.")}).access.ca


def test_settings_of_the_driver_without_effect_are_listed() -> None:
    name = f"{DRIVER}basic.config-reload-interval"
    found = checked({name: "1 minutes"})
    (listed,) = [each for each in found.definitions if each.name == name]
    assert listed.doc == INERT and not found.messages and not found.unknown


@pytest.mark.parametrize(
    ("more", "name", "why"),
    [
        ({"topics": "t,u"}, "topics", "the topic u has no table: give topic.u.<keyspace>.<table>.mapping"),
        ({"topics": ""}, "topics", "give the topics to read"),
        ({"contactPoints": "a"}, "loadBalancing.localDc", "name their data centre"),
        ({"contactPoints": "a:b:c"}, "contactPoints", "is not a host"),
        ({"port": "0"}, "port", "port number"),
        ({"cloud.secureConnectBundle": "/x.zip"}, "cloud.secureConnectBundle", "bundles of Astra are not supported"),
        (
            {f"{DRIVER}basic.cloud.secure-connect-bundle": "/x.zip"},
            "cloud.secureConnectBundle",
            "bundles of Astra are not supported",
        ),
        ({"auth.provider": "GSSAPI"}, "auth.provider", "Kerberos is not supported"),
        ({"auth.provider": "PLAIN"}, "auth.username", "needs the user"),
        ({"auth.password": "hush"}, "auth.username", "auth.password is given"),
        ({"ssl.provider": "BoringSSL"}, "ssl.provider", "must be one of None, JDK, OpenSSL"),
        ({"ssl.keystore.path": "/none"}, "ssl.keystore.path", "there is no file /none"),
        ({"ssl.truststore.path": "base64:AAAA"}, "ssl.truststore.path", "give a path"),
        (TLS | {"ssl.openssl.privateKey": ""}, "ssl.openssl.keyCertChain", "openssl.privateKey is missing"),
        (TLS | {"ssl.openssl.keyCertChain": ""}, "ssl.openssl.keyCertChain", "openssl.keyCertChain is missing"),
        ({"queryExecutionTimeout": "0"}, "queryExecutionTimeout", "at least 1"),
        ({"ignoreErrors": "some"}, "ignoreErrors", "must be one of None, All, Driver"),
        ({f"{DRIVER}basic.request.timeout": "soon"}, f"{DRIVER}basic.request.timeout", "must be a duration"),
        ({f"{TABLE}mapping": "id=id"}, f"{TABLE}mapping", "id is none of key, value"),
        ({"topic.t.ks.other.ttl": "1"}, "topic.t.ks.other.mapping", "a table needs its mapping"),
        ({f"{TABLE}ttl": "-2"}, f"{TABLE}ttl", "at least -1"),
        ({f"{TABLE}ttl": "9999", f"{TABLE}ttlTimeUnit": "DAYS"}, f"{TABLE}ttl", "863913600 seconds; the most are"),
        ({f"{TABLE}ttlTimeUnit": "WEEKS"}, f"{TABLE}ttlTimeUnit", "must be one of"),
        ({f"{TABLE}consistencyLevel": "SERIAL"}, f"{TABLE}consistencyLevel", "must be one of"),
        ({f"{TABLE}query": "UPDATE"}, f"{TABLE}query", f"it excludes deletes: set {TABLE}deletesEnabled=false"),
        ({f"{TABLE}mappings": "id=key"}, f"{TABLE}mappings", "there is no such property"),
        ({f"{TOPIC}codec.zone": "UTC"}, f"{TOPIC}codec.zone", "there is no such property"),
        ({f"{TOPIC}codec.locale": "xx_YY"}, f"{TOPIC}codec.locale", "must be one of de, de_DE"),
        ({f"{TOPIC}codec.timeZone": "Mars"}, f"{TOPIC}codec.timeZone", "is not a time zone"),
        ({f"{TOPIC}codec.timestamp": "yyyy EEE"}, f"{TOPIC}codec.timestamp", "EEE is not supported"),
        ({f"{TOPIC}codec.timestamp": "HH:mm"}, f"{TOPIC}codec.timestamp", "needs a year, a month and a day"),
        ({f"{TOPIC}codec.date": "yyyy-MM"}, f"{TOPIC}codec.date", "needs a year, a month and a day"),
        ({f"{TOPIC}codec.time": "mm:ss"}, f"{TOPIC}codec.time", "needs an hour"),
        ({f"{TOPIC}codec.unit": "WEEKS"}, f"{TOPIC}codec.unit", "must be one of"),
        (
            {f"{TOPIC}codec.date": "d MMMM y", f"{TOPIC}codec.locale": "fr_FR"},
            f"{TOPIC}codec.date",
            "read in English only",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_configurations_name_their_property(more: dict[str, str], name: str, why: str) -> None:
    errors = checked(more).errors
    assert set(errors) == {name} and why in errors[name][0], errors


def test_the_class_has_its_own_plugin_by_each_of_its_names() -> None:
    for name in CLASS_NAMES:
        assert plugins.plugin_named(name) is plugins.DATASTAX_SINK
        assert not checked({"connector.class": name}).messages


def test_topics_with_dots_have_tables_and_codecs_and_names_may_be_in_quotes() -> None:
    dotted = {
        "topics": "a.b.c",
        'topic.a.b.c."Ks"."T".mapping': "id=key",
        "topic.a.b.c.codec.unit": "SECONDS",
        "topic.a.b.c.ks.codec.mapping": "id=key",
    }
    found = made(dotted)
    assert [(one.topic, one.name) for one in found.routes("a.b.c")] == [("a.b.c", "Ks.T"), ("a.b.c", "ks.codec")]
    assert [one.codec.unit for one in found.routes("a.b.c") if one.codec] == [10**9, 10**9]
    assert found.routes("a_b_c") == []


# Records as statements.


def table(**columns: str) -> CqlTable:
    """A table of the keyspace ks; `id` and `at` are its key."""
    kinds = {"id": "partition_key", "at": "clustering"}
    made = [Column(name, parse_type(kind, {}), kinds.get(name, "regular")) for name, kind in columns.items()]
    return CqlTable("ks", "t", tuple(made))


PLAIN = table(id="int", a="int", b="text")


def writes(record: ConnectRecord, more: dict[str, str] | None = None, of: CqlTable = PLAIN) -> list[Write]:
    """What a record becomes; the writer knows the table already, so it asks no node."""
    writer = RecordWriter(made(more or {}), RequestLimits())
    writer.tables.known["ks.t"] = of
    return list(writer.writes(record))


def record(key: Any, value: Any, **more: Any) -> ConnectRecord:
    return ConnectRecord("t", 0, 0, 1234, Part(None, key), NOTHING if value is None else Part(None, value), **more)


def statement(*args: Any, **options: Any) -> tuple[str, list[Any]]:
    (one,) = writes(*args, **options)
    text, values = one.statement
    return text, list(values)


def of(kind: str, value: Any) -> bytes | None:
    return cell(parse_type(kind, {}), value)


TIME = (1_234_000).to_bytes(8, "big")
DELETE = ('DELETE FROM "ks"."t" USING TIMESTAMP ? WHERE "id" = ?', [TIME, of("int", 1)])
VALUES = st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.none() | st.text(max_size=3)})


@given(VALUES, st.booleans(), st.booleans())
def test_null_for_all_columns_deletes_and_other_nulls_are_unset_or_written(
    value: dict[str, Any], deletes: bool, unset: bool
) -> None:
    flags = {f"{TABLE}deletesEnabled": str(deletes).lower(), f"{TABLE}nullToUnset": str(unset).lower()}
    found = statement(record({"id": 1}, value), flags)
    if deletes and value == {"a": None, "b": None}:
        assert found == DELETE
        return
    text, bound = found
    columns = [name for name in ("id", "a", "b") if name == "id" or value[name] is not None or not unset]
    assert text.startswith(f'INSERT INTO "ks"."t" ({", ".join(f"{chr(34)}{name}{chr(34)}" for name in columns)})')
    kinds = {"id": "int", "a": "int", "b": "text"}
    assert bound == [*(of(kinds[name], (value | {"id": 1})[name]) for name in columns), TIME]


@pytest.mark.parametrize(("more", "deleted"), [({}, True), ({f"{TABLE}deletesEnabled": "false"}, False)])
def test_no_value_deletes_or_is_null_for_its_columns(more: dict[str, str], deleted: bool) -> None:
    text, bound = statement(record({"id": 1}, None), more)
    if deleted:
        assert (text, bound) == DELETE
    else:
        assert text.startswith('INSERT INTO "ks"."t" ("id") VALUES (?)') and bound == [of("int", 1), TIME]
    # So it is for a mapping of some columns, too.
    some = {f"{TABLE}mapping": "id=key.id, a=value.a"}
    assert statement(record({"id": 1}, None), some | more)[0].startswith("DELETE" if deleted else "INSERT")


def test_nulls_of_a_mapping_that_lacks_columns_do_not_delete_the_row() -> None:
    some = {f"{TABLE}mapping": "id=key.id, a=value.a", f"{TABLE}nullToUnset": "false"}
    text, bound = statement(record({"id": 1}, {"a": None}), some)
    assert text.startswith('INSERT INTO "ks"."t" ("id", "a")') and bound == [of("int", 1), None, TIME]


def test_a_header_that_a_record_does_not_have_leaves_its_column_alone() -> None:
    mapped = {f"{TABLE}mapping": "id=key.id, a=header.a, b=value.b, __ttl=header.ttl, __timestamp=header.at"}
    text, bound = statement(record({"id": 1}, {"b": 2}), mapped)
    assert text.startswith('INSERT INTO "ks"."t" ("id", "b") VALUES (?, ?)') and bound == [
        of("int", 1),
        b"2",
        TIME,
    ]


@pytest.mark.parametrize(
    ("at", "micros"),
    [
        (Timestamp(1_600_000_000_123), 1_600_000_000_123_000),
        (NanoTimestamp(1_600_000_000_123_456_789), 1_600_000_000_123_456),
        (1_600_000_000.123456, 1_600_000_000_123_456),
        (Decimal("1600000000.1234565"), 1_600_000_000_123_456),
    ],
)
def test_a_write_time_may_be_a_timestamp_or_a_number_with_all_its_digits(at: Any, micros: int) -> None:
    mapped = {f"{TABLE}mapping": "id=key.id, a=value.a, __timestamp=value.at", f"{TABLE}timestampTimeUnit": "SECONDS"}
    assert statement(record({"id": 1}, {"a": 1, "at": at}), mapped)[1][-1] == micros.to_bytes(8, "big")


def test_times_and_times_to_live_are_no_columns_and_a_delete_has_the_mapped_time() -> None:
    timed = {f"{TABLE}mapping": "id=value.id, a=value.a, b=value.b, __ttl=value.ttl, __timestamp=value.at"}
    value = {"id": 1, "a": None, "b": None, "ttl": 60, "at": 77}
    assert statement(record(None, value), timed) == (DELETE[0], [(77).to_bytes(8, "big"), of("int", 1)])
    text, bound = statement(record(None, value | {"a": 5, "ttl": -3}), timed)
    assert text.endswith("USING TIMESTAMP ? AND TTL ?")
    assert bound == [of("int", 1), of("int", 5), (77).to_bytes(8, "big"), bytes(4)]
    static = {f"{TABLE}ttl": "2", f"{TABLE}ttlTimeUnit": "MINUTES"}
    assert statement(record({"id": 1}, {"a": 5, "b": None}), static)[1][-1] == (120).to_bytes(4, "big")


def test_a_table_of_only_key_columns_is_never_deleted_from_but_without_a_value() -> None:
    keys = table(id="int", at="int")
    whole = {f"{TABLE}mapping": "id=key.id, at=key.at"}
    assert statement(record({"id": 1, "at": 2}, {}), whole, keys)[0].startswith("INSERT")
    assert statement(record({"id": 1, "at": 2}, None), whole, keys)[0].startswith("DELETE")


def test_new_timeuuids_neither_keep_nor_delete_a_row() -> None:
    seen = table(id="int", a="int", seen="timeuuid")
    both = {f"{TABLE}mapping": "id=key.id, a=value.a, seen=now()"}
    assert statement(record({"id": 1}, {"a": None}), both, seen)[0].startswith("DELETE")
    only = {f"{TABLE}mapping": "id=key.id, seen=now()"}
    assert statement(record({"id": 1}, {}), only, table(id="int", seen="timeuuid"))[0].startswith("INSERT")
    key = {f"{TABLE}mapping": "id=key.id, at=now(), a=value.a"}
    events = table(id="int", at="timeuuid", a="int")
    assert writes(record({"id": 1}, None), key, events) == []
    assert statement(record({"id": 1}, {"a": 1}), key, events)[0].startswith("INSERT")


def test_counters_are_added_and_their_deletes_have_no_time() -> None:
    counters = table(id="int", c="counter")
    mapped = {f"{TABLE}mapping": "id=key.id, c=value.c"}
    assert statement(record({"id": 1}, {"c": 3}), mapped, counters)[0].startswith('UPDATE "ks"."t" SET "c" = "c" + ?')
    for value in ({"c": None}, None):
        wanted = ('DELETE FROM "ks"."t" WHERE "id" = ?', [of("int", 1)])
        assert statement(record({"id": 1}, value), mapped, counters) == wanted


@pytest.mark.parametrize(
    ("mapping", "key", "value", "why"),
    [
        ("id=key.id, a=value.a", {"id": 1}, {"b": 1}, "the record has no value.a"),
        ("id=key.id, a=value.a", None, {"a": 1}, "the record has no key.id"),
        ("id=header.id, a=value.a", None, {"a": 1}, "no value for id of the primary key"),
        ("id=key.id, a=value.a, __timestamp=value.a", {"id": 1}, {"a": "7"}, "'7' (string), which is not a number"),
        ("id=value.id, a=value.a", {"id": 1}, {"id": None, "a": 1}, "no value for id of the primary key"),
        ("id=value.id, a=value.a", {"id": 1}, {"id": "", "a": 1}, "no value for id of the primary key"),
        ("id=key.id, a=value.a", {"id": 1}, {"a": "one"}, "column a: 'one'"),
        ("id=key.id, a=value", {"id": 1}, [1], "column a"),
    ],
)
def test_records_that_cannot_be_mapped_say_why(mapping: str, key: Any, value: Any, why: str) -> None:
    writer = RecordWriter(made({f"{TABLE}mapping": mapping}), RequestLimits())
    writer.tables.known["ks.t"] = PLAIN
    (bad,) = writer.write([record(key, value)])
    assert why in bad.reason and not bad.refused


def test_a_topic_without_a_table_is_told() -> None:
    (bad,) = RecordWriter(made({}), RequestLimits()).write([ConnectRecord("u", 0, 0, 1, NOTHING, NOTHING)])
    assert bad.reason == "its topic has no table: give topic.u.<keyspace>.<table>.mapping"


def test_fields_with_dots_in_quotes_of_text_and_whole_values() -> None:
    texts = table(id="int", a="text", b="text", c="text")
    mapped = {f"{TABLE}mapping": 'id=key, a="value.full name", b=value.x.y, c=header.trace.id'}
    headers = (("trace.id", Part(None, "t1")),)
    value = {"full name": "one", "x.y": "flat", "x": {"y": "nested"}}
    assert statement(record(1, value, headers=headers), mapped, texts)[1][:-1] == [of("int", 1), b"one", b"flat", b"t1"]
    del value["x.y"]
    assert statement(record(1, value, headers=headers), mapped, texts)[1][2] == b"nested"
    # StringConverter gives text; JSON in it has fields, and the text itself is the whole value.
    mapped = {f"{TABLE}mapping": "id=key.id, a=value.a, b=value, c=value.c"}
    text = '{"a":5,  "c": {"d": 1}}'
    bound = statement(record('{"id": "7"}', text), mapped, texts)[1]
    assert bound == [of("int", 7), b"5", text.encode(), b'{"d":1}', TIME]
    null = '{"id": 1, "a": null, "b": null}'
    from_text = {f"{TABLE}mapping": "id=value.id, a=value.a, b=value.b"}
    assert statement(record(None, null), from_text) == DELETE


def test_an_own_statement_gets_the_mapped_values_and_leaves_out_nulls() -> None:
    own = {f"{TABLE}mapping": "i=key.id, v=value.v", f"{TABLE}query": "Q", f"{TABLE}deletesEnabled": "false"}
    writer = RecordWriter(made(own | {f"{TOPIC}codec.date": "d.M.y"}), RequestLimits())
    writer._queries["Q"] = [("i", parse_type("int", {})), ("v", parse_type("date", {}))]
    written = (({"v": "9.3.2018"}, of("date", "2018-03-09")), ({"v": None}, UNSET_VALUE), (None, UNSET_VALUE))
    for offset, (value, wanted) in enumerate(written):
        (one,) = writer.writes(record({"id": 1}, value)._replace(offset=offset))
        assert one.statement == ("Q", [of("int", 1), wanted])
