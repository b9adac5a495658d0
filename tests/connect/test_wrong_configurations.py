"""Wrong configurations: each gives an error at its property, which says what is wrong and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import requests
from waiting import PATIENCE

from penstock.connect.source.properties import CLASS

HOSTS, TABLES = "scylla.cluster.ip.addresses", "scylla.table.names"
Wrong = tuple[dict[str, str | None], str, str]

# The change of a valid configuration, the property that gets the error, and a pattern of the message.
CASES: dict[str, Wrong] = {
    "no hosts": ({HOSTS: None}, HOSTS, "Missing required configuration"),
    "no port": ({HOSTS: "10.0.0.1"}, HOSTS, "10.0.0.1.*<host>:<port>"),
    "port 0": ({HOSTS: "h:0"}, HOSTS, "h:0.*from 1 to 65535"),
    "bare IPv6": ({HOSTS: "::1:9042"}, HOSTS, "::1:9042.*<host>:<port>"),
    "no tables": ({TABLES: None}, TABLES, "Missing required configuration"),
    "no keyspace": ({TABLES: "orders"}, TABLES, "orders.*<keyspace name>.<table name>"),
    "three parts": ({TABLES: "a.b.c"}, TABLES, "a.b.c.*<keyspace name>.<table name>"),
    "a dash": ({TABLES: "my-ks.t"}, TABLES, "my-ks.t.*in double quotes"),
    "no prefix": ({"topic.prefix": None}, "topic.prefix", "Missing required configuration"),
    "prefix": ({"topic.prefix": "a b"}, "topic.prefix", "a b.*letters, digits"),
    "topic of signals": ({"signal.kafka.topic": "a b"}, "signal.kafka.topic", "a b.*letters, digits"),
    "delimiter": ({"topic.delimiter": "/"}, "topic.delimiter", "/.*one of"),
    "another class": ({"connector.class": "org.example.X"}, "connector.class", f"org.example.X.*{CLASS}"),
    "no tasks": ({"tasks.max": "0"}, "tasks.max", "0.*at least 1"),
    "tasks in words": ({"tasks.max": "two"}, "tasks.max", "two.*whole number"),
    "too large a number": ({"poll.interval.ms": str(2**63)}, "poll.interval.ms", "whole number from"),
    "a fraction": ({"heartbeat.interval.ms": "1.5"}, "heartbeat.interval.ms", "1.5.*whole number"),
    "no heartbeats": ({"heartbeat.interval.ms": "0"}, "heartbeat.interval.ms", "0.*at least 1"),
    "negative window": ({"scylla.confidence.window.size": "-1"}, "scylla.confidence.window.size", "-1.*at least 0"),
    "negative lookback": ({"scylla.initial.lookback.ms": "-5"}, "scylla.initial.lookback.ms", "-5.*at least 0"),
    "format": ({"cdc.output.format": "modern"}, "cdc.output.format", "modern.*legacy, advanced, extended"),
    "before": ({"cdc.include.before": "all"}, "cdc.include.before", "all.*none, full, only-updated"),
    "after": ({"cdc.include.after": "yes"}, "cdc.include.after", "yes.*none, full, only-updated"),
    "legacy images": ({"cdc.output.format": "legacy"}, "cdc.include.before", "full.*cdc.output.format=advanced"),
    "legacy place": (
        {"cdc.output.format": "legacy", "cdc.include.primary-key.placement": "kafka-key"},
        "cdc.include.primary-key.placement",
        "kafka-key.*legacy.*omit it",
    ),
    "times": ({"penstock.write.times": "true"}, "penstock.write.times", "true.*set cdc.output.format=extended"),
    "key of times": (
        {
            "penstock.write.times": "true",
            "cdc.output.format": "extended",
            "cdc.include.primary-key.payload-key-name": "id",
        },
        "cdc.include.primary-key.payload-key-name",
        "id.*it is row_key.*omit it",
    ),
    "advanced preimages": (
        {"experimental.preimages.enabled": "true"},
        "experimental.preimages.enabled",
        "true.*cdc.include.before=full",
    ),
    "place": (
        {"cdc.include.primary-key.placement": "kafka-key,header"},
        "cdc.include.primary-key.placement",
        "unknown header; use some of kafka-key, kafka-headers",
    ),
    "a truth value": ({"tombstones.on.delete": "maybe"}, "tombstones.on.delete", "maybe.*true or false"),
    "operations": ({"skipped.operations": "x"}, "skipped.operations", "unknown x; use some of c, u, d"),
    "consistency": ({"scylla.consistency.level": "MOST"}, "scylla.consistency.level", "MOST.*QUORUM"),
    "user alone": ({"scylla.user": "ann"}, "scylla.password", "Password is not set while username was set"),
    "password alone": ({"scylla.password": "x"}, "scylla.user", "Username is not set while password was set"),
    "converter": ({"value.converter": "org.example.C"}, "value.converter", "org.example.C.*JsonConverter"),
    "converter option": (
        {"key.converter": "JsonConverter", "key.converter.schemas.enable": "on"},
        "key.converter.schemas.enable",
        "on.*true or false",
    ),
    "producer": ({"producer.override.acks": "1"}, "producer.override.acks", "1.*it is always all"),
    "delivery": ({"exactly.once.support": "maybe"}, "exactly.once.support", "maybe.*requested, required"),
    "latency": ({"penstock.latency": "none"}, "penstock.latency", "none.*safe, low"),
    "truststore": ({"scylla.ssl.truststore.path": "/none"}, "scylla.ssl.truststore.path", "/none.*there is no file"),
    "a broken truststore": (
        {"scylla.ssl.enabled": "true", "scylla.ssl.truststore.path": __file__},
        "scylla.ssl.enabled",
        "the keystore cannot be opened.*JKS or PKCS 12",
    ),
    "a key alone": (
        {"scylla.ssl.openssl.privateKey": __file__},
        "scylla.ssl.openssl.keyCertChain",
        "scylla.ssl.openssl.privateKey requires its certificate",
    ),
    "topics of no size": (
        {"topic.creation.default.replication.factor": "1"},
        "topic.creation.default.partitions",
        "Missing required configuration",
    ),
    "no partitions": (
        {"topic.creation.default.replication.factor": "1", "topic.creation.default.partitions": "0"},
        "topic.creation.default.partitions",
        "0.*-1 or at least 1",
    ),
    "a group of nothing": (
        {
            "topic.creation.groups": "big",
            "topic.creation.default.replication.factor": "1",
            "topic.creation.default.partitions": "1",
        },
        "topic.creation.big.include",
        "Missing required configuration",
    ),
    "a secret that is not there": ({"scylla.local.dc": "${env:NO_SUCH}"}, "scylla.local.dc", "does not exist"),
    "nobody listens": ({HOSTS: "127.0.0.1:1"}, HOSTS, "Unable to connect"),
    "no such table": ({TABLES: "none.such"}, TABLES, "there is no table none.such"),
    "no match": ({TABLES: "none.*"}, TABLES, r"no table with a change log matches none\.\*"),
}  # fmt: skip


@pytest.fixture(scope="module")
def logged(tables: Callable[..., str]) -> dict[str, str]:
    """Tables with different images in their logs; one has no log."""
    return {
        "none": tables("no_images", "{'enabled': true}"),
        "pre": tables("pre", "{'enabled': true, 'preimage': true}"),
        "post": tables("post", "{'enabled': true, 'postimage': true}"),
        "both": tables("both", "{'enabled': true, 'preimage': 'full', 'postimage': true}"),
        "plain": tables("plain", None),
    }


def validate(url: str, config: dict[str, str | None]) -> dict[str, Any]:
    """The answer to a request to validate a configuration."""
    given = {name: text for name, text in config.items() if text is not None}
    answer = requests.put(f"{url}/connector-plugins/ScyllaConnector/config/validate", json=given, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def errors(found: dict[str, Any]) -> dict[str, list[str]]:
    return {one["value"]["name"]: one["value"]["errors"] for one in found["configs"] if one["value"]["errors"]}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_property_is_blamed(case: str, url: str, config: dict[str, str], logged: dict[str, str]) -> None:
    changes, name, message = CASES[case]
    whole: dict[str, str | None] = {**config, "name": "wrong", TABLES: logged["both"], **changes}
    if changes.get("connector.class"):
        # Connect itself looks for the class before it validates.
        answer = requests.post(f"{url}/connectors", json={"name": "wrong", "config": whole}, timeout=PATIENCE)
        assert answer.status_code == 400
        found = {name: answer.json()["message"].splitlines()[1:2]}
    else:
        answered = validate(url, whole)
        found = errors(answered)
        assert answered["error_count"] == sum(map(len, found.values()))
    assert name in found, found
    assert len(found[name]) == 1, found[name]
    assert name in found[name][0]
    assert re.search(message, found[name][0]), found[name][0]


@pytest.mark.parametrize(
    ("before", "after", "table", "blamed"),
    [
        ("none", "none", "none", {}),
        ("full", "none", "none", {"cdc.include.before": "preimage"}),
        ("full", "none", "pre", {}),
        ("none", "full", "none", {"cdc.include.after": "postimage"}),
        ("none", "full", "post", {}),
        ("full", "full", "both", {}),
        ("full", "full", "pre", {"cdc.include.after": "postimage"}),
        ("full", "none", "plain", {TABLES: "has no change log"}),
        ("full", "none", "pre,none", {"cdc.include.before": "no_images has no preimage"}),
    ],
)
def test_images_that_a_log_does_not_hold_are_refused(
    url: str,
    config: dict[str, str],
    logged: dict[str, str],
    before: str,
    after: str,
    table: str,
    blamed: dict[str, str],
) -> None:
    names = ",".join(logged[name] for name in table.split(","))
    images: dict[str, str | None] = {"cdc.include.before": before, "cdc.include.after": after}
    found = errors(validate(url, {**config, "name": "images", TABLES: names, **images}))
    assert list(found) == list(blamed)
    for name, message in blamed.items():
        assert len(found[name]) == 1
        assert message in found[name][0]


def test_preimages_of_the_legacy_format_must_be_in_the_log(
    url: str, config: dict[str, str], logged: dict[str, str]
) -> None:
    legacy: dict[str, str | None] = {**config, "name": "legacy", "cdc.output.format": "legacy"}
    legacy |= {"cdc.include.before": "none", "cdc.include.after": "none", "experimental.preimages.enabled": "true"}
    assert errors(validate(url, {**legacy, TABLES: logged["pre"]})) == {}
    found = errors(validate(url, {**legacy, TABLES: logged["post"]}))
    assert list(found) == ["experimental.preimages.enabled"]
    assert "has no preimage" in found["experimental.preimages.enabled"][0]


def test_an_unknown_property_is_reported_and_does_no_harm(
    url: str, config: dict[str, str], logged: dict[str, str]
) -> None:
    given: dict[str, str | None] = {**config, "name": "typo", TABLES: logged["both"], "scylla.usr": "ann"}
    found = validate(url, given)
    assert found["error_count"] == 0
    about = {one["value"]["name"]: one["definition"] for one in found["configs"]}
    assert about["scylla.usr"]["documentation"] == "Unknown property, without effect. Did you mean scylla.user?"


def test_no_secret_is_shown(url: str, config: dict[str, str], logged: dict[str, str]) -> None:
    secrets: dict[str, str | None] = {
        "scylla.user": "ann",
        "scylla.password": "hush",
        "producer.override.sasl.jaas.config": "x required password='hush';",
    }
    answer = validate(url, {**config, "name": "secret", TABLES: logged["both"], **secrets})
    assert "hush" not in str(answer)
