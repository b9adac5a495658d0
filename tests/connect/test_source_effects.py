"""The CDC connector without servers: what each of its properties does, and why the others do nothing."""

from __future__ import annotations

import re
import subprocess
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from connect_memory import JSON, RIGHT
from secure_kafka import certificate
from waiting import PATIENCE

from penstock.codec.text_formats import Json, Text
from penstock.connect.definition import INERT
from penstock.connect.source import heartbeat, task
from penstock.connect.source.properties import FREE, properties
from penstock.connect.source.signal_watch import channels
from penstock.connect.worker.checks import check
from penstock.connect.worker.connector_tasks import TaskMaker
from penstock.connect.worker.keystores import as_pem
from penstock.connect.worker.plugins import plugin_of
from penstock.connect.worker.providers import Provided

PROVIDED = Provided({}, {"key.converter": JSON, "value.converter": JSON})
ADVANCED = {"cdc.output.format": "advanced"}
TLS = {"scylla.ssl.enabled": "true"}
USER = {"scylla.user": "ann", "scylla.password": "hush"}
PEM = {"scylla.ssl.openssl.keyCertChain": __file__, "scylla.ssl.openssl.privateKey": __file__}
GROUP = {"topic.creation.groups": "g", "topic.creation.g.include": "p.*", "topic.creation.g.partitions": "7"}
GROUP |= {"topic.creation.default.partitions": "1", "topic.creation.default.replication.factor": "1"}
SIGNALS = {"signal.enabled.channels": "kafka"}

# By property: a configuration with it, where its effect is, and the effect.
EFFECTS: dict[str, list[tuple[dict[str, str], str, Any]]] = {
    "name": [({}, "read.name", "c.ks.t")],
    "connector.class": [({"connector.class": "Scylla"}, "plugin.type", "source")],
    "tasks.max": [
        ({}, "shares", [("ks.t", "ks.u", "ks.v")]),
        ({"tasks.max": "2"}, "shares", [("ks.t", "ks.v"), ("ks.u",)]),
    ],
    "key.converter": [
        ({}, "events.key", Json(True)),
        ({"key.converter": "org.apache.kafka.connect.storage.StringConverter"}, "events.key", Text()),
    ],
    "value.converter": [
        ({"value.converter": JSON, "value.converter.schemas.enable": "false"}, "events.value", Json(False)),
    ],
    "errors.tolerance": [({}, "read.bad_values", "stop"), ({"errors.tolerance": "all"}, "read.bad_values", "problem")],
    "exactly.once.support": [
        ({}, "sink.delivery", "at-least-once"),
        ({"exactly.once.support": "required"}, "sink.delivery", "exactly-once"),
    ],
    "topic.creation.groups": [
        ({}, "values.topic.creation.g.partitions", None),
        (GROUP, "values.topic.creation.g.partitions", 7),
    ],
    "scylla.cluster.ip.addresses": [({"scylla.cluster.ip.addresses": "a:1, b:2"}, "read.hosts", "a:1,b:2")],
    "scylla.table.names": [({"scylla.table.names": "a.*,b.c"}, "values.scylla.table.names", ["a.*", "b.c"])],
    "scylla.user": [({}, "read.user", None), (USER, "read.user", "ann")],
    "scylla.password": [(USER, "read.password", "hush")],
    "scylla.consistency.level": [
        ({}, "read.consistency", "QUORUM"),
        ({"scylla.consistency.level": "local_one"}, "read.consistency", "LOCAL_ONE"),
    ],
    "scylla.query.options.fetch.size": [
        ({}, "read.page_size", 5000),
        ({"scylla.query.options.fetch.size": "9"}, "read.page_size", 9),
    ],
    "scylla.local.dc": [({"scylla.local.dc": "dc1"}, "read.local_dc", "dc1")],
    "scylla.ssl.enabled": [
        (PEM, "read.tls", False),
        (TLS, "read.tls", True),
        (TLS, "read.verify_hostname", False),
    ],
    "scylla.ssl.openssl.keyCertChain": [(TLS | PEM, "read.certificate", __file__)],
    "scylla.ssl.openssl.privateKey": [(TLS | PEM, "read.key", __file__)],
    "scylla.confidence.window.size": [
        ({}, "read.confidence", timedelta(seconds=30)),
        ({"scylla.confidence.window.size": "5"}, "read.confidence", timedelta(milliseconds=5)),
    ],
    "scylla.initial.lookback.ms": [
        ({}, "read.start", "earliest"),
        ({"scylla.initial.lookback.ms": "5"}, "read.start", re.compile(r"\d{4}-\d\d-\d\dT.*\+00:00")),
    ],
    "topic.prefix": [({"topic.prefix": "x"}, "events.prefix", "x"), ({"topic.prefix": "x"}, "events.topic", "x.ks.t")],
    "topic.delimiter": [({"topic.delimiter": "_"}, "events.topic", "p_ks_t")],
    "cdc.output.format": [({}, "events.format", "legacy"), (ADVANCED, "events.format", "advanced")],
    "experimental.preimages.enabled": [
        ({}, "read.images", ("none", "none")),
        ({"experimental.preimages.enabled": "true"}, "read.images", ("full", "none")),
    ],
    "cdc.include.before": [
        (ADVANCED | {"cdc.include.before": "full"}, "read.images", ("full", "none")),
        (ADVANCED | {"cdc.include.before": "only-updated"}, "events.images", ("only-updated", "none")),
    ],
    "cdc.include.after": [
        (ADVANCED | {"cdc.include.after": "full"}, "read.images", ("none", "full")),
        (ADVANCED | {"cdc.include.after": "full"}, "events.images", ("none", "full")),
    ],
    "cdc.include.primary-key.placement": [
        (ADVANCED | {"cdc.include.primary-key.placement": "payload-key"}, "events.placement", ["payload-key"]),
    ],
    "cdc.include.primary-key.payload-key-name": [
        (ADVANCED, "events.payload_key_name", "key"),
        (ADVANCED | {"cdc.include.primary-key.payload-key-name": "pk"}, "events.payload_key_name", "pk"),
    ],
    "tombstones.on.delete": [
        ({}, "events.tombstones", True),
        ({"tombstones.on.delete": "false"}, "events.tombstones", False),
    ],
    "skipped.operations": [({}, "events.skipped", []), ({"skipped.operations": "d,t"}, "events.skipped", ["d"])],
    "heartbeat.interval.ms": [({"heartbeat.interval.ms": "70"}, "pause", 0.07)],
    "heartbeat.topics.prefix": [
        ({}, "beats", "__debezium-heartbeat.p"),
        ({"heartbeat.topics.prefix": "x"}, "beats", "x.p"),
    ],
    "poll.interval.ms": [({}, "every", timedelta(milliseconds=500)), ({"poll.interval.ms": "0"}, "every", timedelta())],
    "penstock.snapshot": [({"penstock.snapshot": "initial"}, "read.start", "snapshot")],
    "penstock.latency": [({}, "read.latency", "safe"), ({"penstock.latency": "low"}, "read.latency", "low")],
    "penstock.write.times": [
        ({}, "read.write_times", False),
        ({"cdc.output.format": "extended", "penstock.write.times": "true"}, "read.write_times", True),
    ],
    "signal.enabled.channels": [
        ({"signal.data.collection": "ks.s"}, "signals", {"source": "table ks.s"}),
        (SIGNALS, "signals", {"kafka": "topic p-signal at localhost:9092"}),
    ],
    "signal.data.collection": [({}, "signals", {})],
    "signal.kafka.topic": [
        (SIGNALS | {"signal.kafka.topic": "x"}, "signals", {"kafka": "topic x at localhost:9092"}),
    ],
    "signal.kafka.bootstrap.servers": [
        (SIGNALS | {"signal.kafka.bootstrap.servers": "b:1"}, "signals", {"kafka": "topic p-signal at b:1"}),
    ],
    "signal.poll.interval.ms": [({"signal.poll.interval.ms": "7"}, "values.signal.poll.interval.ms", 7)],
    "incremental.snapshot.chunk.size": [
        ({}, "read.chunk_rows", 20_000),
        ({"incremental.snapshot.chunk.size": "9"}, "read.chunk_rows", 9),
    ],
}
STORES = {f"scylla.ssl.{store}.{part}" for store in ("truststore", "keystore") for part in ("path", "password")}
"""Their effect needs a keystore, in a test below."""


def test_each_property_has_an_effect_or_says_why_it_has_none() -> None:
    inert = {each.name: each.doc.removeprefix(INERT).strip() for each in properties() if each.doc.startswith(INERT)}
    assert {each.name for each in properties()} == inert.keys() | EFFECTS.keys() | STORES
    assert not inert.keys() & (EFFECTS.keys() | STORES)
    assert {name for name, why in inert.items() if not why.endswith(".")} == set()


@pytest.mark.parametrize(
    ("more", "place", "wanted"), [case for cases in EFFECTS.values() for case in cases], ids=count()
)
def test_effects_of_properties(monkeypatch: pytest.MonkeyPatch, more: dict[str, str], place: str, wanted: Any) -> None:
    found: Any = effects(monkeypatch, more)
    first, _, rest = place.partition(".")
    found = found[first]
    if rest:
        found = found.get(rest) if isinstance(found, dict) else getattr(found, rest)
    assert wanted.fullmatch(found) if isinstance(wanted, re.Pattern) else found == wanted


def effects(monkeypatch: pytest.MonkeyPatch, more: dict[str, str]) -> dict[str, Any]:
    """What a configuration gives to the source, to the events, to the sink, and to what is around them."""
    given: dict[str, Any] = {}
    monkeypatch.setattr("penstock.connect.source.task.cdc.read", lambda spark, table, **read: given.update(read=read))
    monkeypatch.setattr(
        "penstock.connect.source.task.cdc.events", lambda changes, **events: given.update(events=events)
    )
    checked = check({**RIGHT, "name": "c", **more}, PROVIDED, ask=False)
    assert not checked.messages and not checked.unknown, checked
    maker = TaskMaker("c", "localhost:9092", checked)
    setup = maker.setup
    assert setup is not None
    made = task.Task(setup, 0, ("ks.t",))
    made._events(SimpleNamespace(), "ks.t")  # type: ignore[arg-type]
    beats = heartbeat.Heartbeats(SimpleNamespace(), setup, lambda: None)  # type: ignore[arg-type]
    beats.stop()
    return given | {
        "plugin": plugin_of(checked.config),
        "shares": maker.shares(["ks.t", "ks.u", "ks.v"]),
        "sink": setup.sink(),
        "values": checked.values,
        "pause": beats._pause,
        "beats": heartbeat.topic(checked.values),
        "signals": {one.name: one.where for one in channels(setup)},
        "every": made.every,
    }


def test_keystores_become_files_for_tls(spark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _, both = certificate(tmp_path)
    store = str(tmp_path / "own.p12")
    words = ["openssl", "pkcs12", "-export", "-in", str(both), "-out", store, "-passout", "pass:hush"]
    subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE)
    found = effects(monkeypatch, TLS | {name: store if name.endswith("path") else "hush" for name in STORES})["read"]
    assert (found["ca"], found["certificate"]) == (as_pem(store, "hush"),) * 2


@pytest.mark.parametrize("prefix", FREE)
def test_names_that_others_continue_are_not_unknown(prefix: str) -> None:
    assert f"{prefix}x" not in check({**RIGHT, "name": "c", f"{prefix}x": "y"}, PROVIDED, ask=False).unknown
