"""No answer, trace or log line shows a secret or the value of a reference, and no secret is lost by hiding it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from connect_memory import RIGHT, VALIDATE, memory_worker
from starlette.testclient import TestClient

from penstock.connect.source import database
from penstock.connect.worker import settings as worker_settings
from penstock.connect.worker.api import application
from penstock.connect.worker.checks import check
from penstock.connect.worker.connector_store import STARTED, STOPPED
from penstock.connect.worker.plugin_routes import validation
from penstock.connect.worker.plugins import PLUGINS, ConnectorPlugin
from penstock.connect.worker.providers import LARGEST, Provided, Provider
from penstock.connect.worker.secrets import Hiding, HidingFormatter, Secrets, is_secret, masked, restored
from penstock.connect.worker.standalone import StandaloneHerder
from penstock.process.secret_settings import HIDDEN as HIDDEN_WORD
from penstock.serve.access.hosts import Hosts, guarded
from penstock.serve.json_bodies import DEEPEST, MOST

AVRO = "io.confluent.connect.avro.AvroConverter"
FILE = "org.apache.kafka.common.config.provider.FileConfigProvider"
SHOWN = "topsecret-of-a-file"
HIDDEN = {
    "scylla.user": "ann",
    "scylla.password": "hush-1",
    "scylla.ssl.truststore.password": "hush-2",
    "producer.override.sasl.jaas.config": 'x.PlainLoginModule required username="u" password="hush-3";',
    "producer.override.ssl.truststore.password": "hush-4",
    "producer.override.ssl.keystore.key": "hush-5",
    "value.converter": AVRO,
    "value.converter.schema.registry.url": "http://ann:hush-6@r1:8081,https://hush-7@r2:8081,http://r3?token=hush-8&a=b",
    "value.converter.basic.auth.user.info": "ann:hush-9",
    "value.converter.bearer.auth.token": "hush-10",
    "transforms.enc.passphrase": "hush-11",
    "predicates.p.credential": "hush-12",
    "some.api.key": "hush-13",
    "jdbc.url": "jdbc:postgresql://u:hu@sh/14@h/db?user=a&password=hush-15",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tok").write_text(SHOWN)
    (tmp_path / "tables").write_text("ks.first_table,ks.second_table")
    (tmp_path / "short").write_text("7")
    return tmp_path


@pytest.fixture
def worker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> StandaloneHerder:
    monkeypatch.setattr(database, "problems", lambda values: [])
    return memory_worker(folder)


@pytest.fixture
def client(worker: StandaloneHerder) -> Iterator[TestClient]:
    app = guarded(application(worker), Hosts(), allow_with="--allow-host NAME")
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as made:
        yield made


def created(client: TestClient, config: Mapping[str, str]) -> Any:
    body = {"name": "c", "config": {**RIGHT, **config}, "initial_state": "STOPPED"}
    answer = client.post("/connectors", json=body)
    assert answer.status_code == 201, answer.text
    return answer


def errors(answer: Any) -> dict[str, list[str]]:
    return {one["value"]["name"]: one["value"]["errors"] for one in answer.json()["configs"] if one["value"]["errors"]}


NAMED = {"scylla.user", "value.converter", "value.converter.schema.registry.url", "jdbc.url"}
"""Hidden for other reasons than their names."""


@pytest.mark.parametrize("name", sorted(HIDDEN.keys() - NAMED))
def test_a_property_is_secret_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "key.converter",
        "scylla.ssl.openssl.privateKey",
        "transforms.secret.type",
        "value.converter.basic.auth.credentials.source",
        "cdc.include.primary-key.payload-key-name",
        "topic.creation.default.partitions",
        "value.converter.key.subject.name.strategy",
    ],
)
def test_a_property_that_only_sounds_secret_is_shown(name: str) -> None:
    assert not is_secret(name)


def test_secrets_are_shown_nowhere(client: TestClient) -> None:
    answers = [client.put(VALIDATE, json={**RIGHT, **HIDDEN, "name": "c", "tasks.max": "0"}), created(client, HIDDEN)]
    paths = ("", "/config", "/tasks", "/status", "/offsets", "/topics")
    answers += [client.get(f"/connectors/c{path}") for path in paths]
    answers += [client.get("/connectors?expand=info&expand=status"), client.put(VALIDATE, json={**RIGHT, "name": "c"})]
    for answer in answers:
        assert answer.is_success and "hush" not in answer.text and "hu@sh" not in answer.text, answer.text
    shown = client.get("/connectors/c/config").json()
    assert shown["value.converter.schema.registry.url"] == (
        "http://ann:[hidden]@r1:8081,https://[hidden]@r2:8081,http://r3?token=[hidden]&a=b"
    )
    assert shown["jdbc.url"] == "jdbc:postgresql://u:[hidden]@h/db?user=a&password=[hidden]"
    assert shown["scylla.user"] == "ann" and shown["scylla.password"] == "[hidden]"


def test_what_was_shown_may_be_sent_back(client: TestClient, worker: StandaloneHerder) -> None:
    created(client, HIDDEN)
    shown = client.get("/connectors/c/config").json()
    assert client.put(VALIDATE, json=shown).json()["error_count"] == 0
    answer = client.put("/connectors/c/config", json={**shown, "tasks.max": "3"})
    assert answer.status_code == 200, answer.text
    assert worker.get("c").stored.config == {**RIGHT, **HIDDEN, "name": "c", "tasks.max": "3"}
    assert client.patch("/connectors/c/config", json={"tasks.max": 2}).status_code == 200
    assert worker.get("c").stored.config["scylla.password"] == "hush-1"


@pytest.mark.parametrize(
    "hidden",
    [
        {"scylla.user": "ann", "scylla.password": "[hidden]"},
        {"transforms.enc.password": "[hidden]"},
        {"some.url": "http://ann:[hidden]@other:8081"},
    ],
    ids=str,
)
def test_a_hidden_value_that_stands_for_none_is_refused(
    client: TestClient, worker: StandaloneHerder, hidden: dict[str, str]
) -> None:
    name = [*hidden][-1]
    created(client, {"some.url": "http://ann:hush@one:8081"})
    for answer in (
        client.put("/connectors/c/config", json={**RIGHT, **hidden}),
        client.patch("/connectors/c/config", json=hidden),
        client.put("/connectors/new/config", json={**RIGHT, **hidden}),
        client.post("/connectors", json={"name": "new", "config": {**RIGHT, **hidden}}),
    ):
        assert answer.status_code == 400
        assert f"for configuration {name}: [hidden] is shown instead of a secret" in answer.json()["message"]
    assert list(errors(client.put(VALIDATE, json={**RIGHT, **hidden, "name": "new"}))) == [name]
    assert worker.names() == ["c"] and worker.get("c").stored.config["some.url"] == "http://ann:hush@one:8081"


def test_a_value_that_only_looks_hidden_is_one(client: TestClient) -> None:
    created(client, {"transforms.mask.replacement": "[hidden]"})


def test_references_are_never_resolved_in_answers(client: TestClient, folder: Path) -> None:
    reference = f"${{dir:{folder}:tok}}"
    fields = ["my.note", "tasks.max", "scylla.table.names", "scylla.cluster.ip.addresses", "cdc.output.format"]
    fields += ["scylla.ssl.truststore.path", "producer.override.acks", "value.converter", "connector.class"]
    fields += [
        "topic.prefix",
        "transforms",
        "predicates",
        "topic.creation.groups",
        "tombstones.on.delete",
        "scylla.password",
    ]
    for name in fields:
        config = {**RIGHT, "name": "c", name: f"{reference} " if name == "topic.prefix" else reference}
        answer = client.put(VALIDATE, json=config)
        assert answer.status_code in (200, 400) and "topsecret" not in answer.text, (name, answer.text)
        if answer.status_code == 200:
            values = {one["value"]["name"]: one["value"]["value"] for one in answer.json()["configs"]}
            assert values[name] == config[name]
        body = {"name": "c", "config": config, "initial_state": "STOPPED"}
        refused = client.post("/connectors", json=body)
        assert "topsecret" not in refused.text, (name, refused.text)
        client.delete("/connectors/c")
    found = errors(client.put(VALIDATE, json={**RIGHT, "name": "c", "tasks.max": reference}))
    assert found == {
        "tasks.max": [
            f"Invalid value {reference} for configuration tasks.max: the value behind it is not valid; "
            "it must be of type INT"
        ]
    }


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.name.rpartition(".")[2])
def test_no_property_of_a_plugin_shows_what_a_reference_gives(plugin: ConnectorPlugin, folder: Path) -> None:
    """Neither as its value nor in an error, also where only a part of the value is a reference."""
    reference = f"${{dir:{folder}:tok}}"
    provided = Provided({"dir": Provider("dir")}, {})
    named = {each.name for each in plugin.properties()} | {"value.converter.schema.registry.url", "topic.t.k.u.mapping"}
    for name in sorted(named):
        for text in (reference, f"a{reference}b"):
            config = {"name": "c", "connector.class": plugin.name, "topics": "t", "value.converter": AVRO, name: text}
            answer = validation(plugin.name, check(config, provided, ask=False, plugin=plugin))
            assert "topsecret" not in json.dumps(answer), name
            values = {one["value"]["name"]: one["value"]["value"] for one in answer["configs"]}
            shown = HIDDEN_WORD if is_secret(name) and text != reference else text
            assert values.get(name, shown) == shown, name


def test_names_of_properties_may_not_stand_elsewhere(client: TestClient, folder: Path) -> None:
    found = errors(client.put(VALIDATE, json={**RIGHT, "name": "c", "transforms": f"${{dir:{folder}:tok}}"}))
    assert "it must be a value, not a reference" in found["transforms"][0]


def test_messages_of_others_show_no_secret(
    client: TestClient, worker: StandaloneHerder, folder: Path, monkeypatch: Any
) -> None:
    def problems(values: Mapping[str, Any]) -> list[tuple[str, str]]:
        return [("scylla.user", f"no {values['scylla.password']!r} in {values['scylla.table.names']}")]

    monkeypatch.setattr(database, "problems", problems)
    config = {**RIGHT, "name": "c", "scylla.user": "ann", "scylla.password": "it's hush"}
    reference = f"${{dir:{folder}:tables}}"
    found = errors(client.put(VALIDATE, json={**config, "scylla.table.names": reference}))["scylla.user"][0]
    assert found.endswith(f"no \"[hidden]\" in ['{reference}', '{reference}']")


def test_traces_and_logs_show_no_secret(
    client: TestClient,
    worker: StandaloneHerder,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def tables(values: Mapping[str, Any]) -> list[str]:
        secrets = [values["scylla.password"], values["scylla.local.dc"], "hush@x", "http://a:hush-6@b"]
        raise KeyError(*secrets)

    monkeypatch.setattr(database, "tables", tables)
    config = {"scylla.user": "ann", "scylla.password": "hush@x", "scylla.local.dc": f"${{dir:{folder}:tok}}"}
    worker.create("c", {**RIGHT, **config, "name": "c"}, STARTED)
    connector = worker.get("c")
    assert connector._starter
    connector._starter.join()
    status = client.get("/connectors/c/status").json()
    assert status["connector"]["state"] == "FAILED"
    for text in (status["connector"]["trace"], caplog.text):
        assert "KeyError: ('[hidden]'" in text and f"${{dir:{folder}:tok}}" in text
        assert "hush" not in text and "topsecret" not in text
    worker.set_state("c", STOPPED)
    # The worker's secrets are also hidden in its own errors, and in lines of other loggers.
    monkeypatch.setattr(worker, "get", tables)
    monkeypatch.setattr(worker, "status", lambda name: tables({"scylla.password": "hush@x", "scylla.local.dc": SHOWN}))
    answer = client.get("/connectors/c/status")
    assert answer.status_code == 500 and "hush" not in answer.text and "topsecret" not in answer.text
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "%s failed", ({"key": "hush@x"},), None)
    assert HidingFormatter("%(message)s", worker.context.secrets).format(record) == "{'key': '[hidden]'} failed"


def test_a_worker_s_own_file_is_not_shown_either(tmp_path: Path) -> None:
    (tmp_path / "login").write_text("url=http://ann:hush@registry:8081\nword=hush-too")
    file = tmp_path / "worker.properties"
    file.write_text(
        f"bootstrap.servers=localhost:9092\nconfig.providers=f\nconfig.providers.f.class={FILE}\n"
        f"value.converter={AVRO}\nvalue.converter.schema.registry.url=${{f:{tmp_path}/login:url}}\n"
        "producer.security.protocol=SASL_SSL\nproducer.sasl.mechanism=PLAIN\nproducer.sasl.username=ann\n"
        f"producer.sasl.password=${{f:{tmp_path}/login:word}}\n"
        f"consumer.sasl.jaas.config=x required password='hush-3';\n"
    )
    made = worker_settings.read(file, None, None)
    assert made.provided.converters["value.converter.schema.registry.url"] == f"${{f:{tmp_path}/login:url}}"
    assert made.provided.resolved({}).config["value.converter.schema.registry.url"] == "http://ann:hush@registry:8081"
    assert made.producer["sasl.password"] == "hush-too"
    hidden = Secrets(made.secrets).hide("http://ann:hush@registry:8081 hush-too hush-3")
    assert "hush" not in hidden, hidden
    assert "hush" not in repr(made)


def test_short_secrets_are_looked_for_as_words() -> None:
    hide = Hiding([{"x": "[hidden]", "": "[hidden]", "a.b": "[hidden]"}])
    assert hide("x is next to x, max, aXb and a.b") == "[hidden] is next to [hidden], max, aXb and [hidden]"


def test_what_is_shown_restores_what_is_kept() -> None:
    assert restored(masked(HIDDEN), HIDDEN) == HIDDEN
    assert masked(masked(HIDDEN)) == masked(HIDDEN)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, client: TestClient) -> None:
    (tmp_path / "large").write_bytes(b"a" * (LARGEST + 1))
    (tmp_path / "broken").write_bytes(b"topsecret=\\u00g\n")
    for reference, why in (
        ("dir:%s:large", "has more than 1048576 bytes"),
        ("file:%s/broken:k", "is not in its provider's format"),
    ):
        found = errors(client.put(VALIDATE, json={**RIGHT, "name": "c", "a": "${" + reference % tmp_path + "}"}))["a"][
            0
        ]
        assert why in found and "00g" not in found


def test_bodies_are_bounded(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    for body, status, said in (
        (b'{"a": "' + b"b" * MOST + b'"}', 413, f"{MOST} bytes"),
        (b"[" * 100_000, 400, "nested more than"),
        (b'{"a":' * (DEEPEST + 1) + b"{}" + b"}" * (DEEPEST + 1), 400, f"nested more than {DEEPEST} levels"),
        (b'{"a": NaN}', 400, "NaN is not a number"),
        (b'{"a": 1' + b"0" * 5000 + b"}", 400, "not JSON"),
        (b'{"a": "\\ud800"}', 400, "not JSON"),
        (b"\xff", 400, "not JSON"),
    ):
        answer = client.put(VALIDATE, content=body, headers=headers)
        assert answer.status_code == status and said in answer.json()["message"], answer.text
    # The content type that web pages may send to any server without a preflight request.
    answer = client.put(VALIDATE, content=json.dumps(RIGHT), headers={"content-type": "text/plain; x=application/json"})
    assert answer.status_code == 415
    answer = client.put(VALIDATE, json={"scylla.password": ["hush"]})
    assert answer.status_code == 400 and "hush" not in answer.text
