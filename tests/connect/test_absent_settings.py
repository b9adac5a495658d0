"""What comes from the worker may be absent, as may properties: the answer names it, or has Connect's default."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from connect_memory import JSON, SMALLEST, Memory, memory_worker
from hypothesis import HealthCheck, given, settings, strategies as st
from starlette.testclient import TestClient

from penstock.connect.records.converters import AVRO, TEXT
from penstock.connect.records.sink_converters import CLASSES, OF_HEADERS
from penstock.connect.worker import herder
from penstock.connect.worker.api import application
from penstock.connect.worker.checks import check
from penstock.connect.worker.plugins import PLUGINS, ConnectorPlugin
from penstock.connect.worker.providers import PLUGIN_PATH, Provided, Provider

every_plugin = pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.names[-1])
OF_WORKER = st.fixed_dictionaries(
    {},
    optional={
        "key.converter": st.sampled_from([*CLASSES, "${env:NO_SUCH}", "org.example.C", ""]),
        "value.converter": st.sampled_from([*CLASSES, "${env:NO_SUCH}", "org.example.C", ""]),
        "header.converter": st.sampled_from([*OF_HEADERS, "${env:NO_SUCH}", "org.example.C", ""]),
        "value.converter.schema.registry.url": st.sampled_from(["http://127.0.0.1:1", "${env:NO_SUCH}", ""]),
        "key.converter.schemas.enable": st.sampled_from(["false", "maybe"]),
    },
)
"""What a worker's file says of converters, or does not."""


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases are not asked."""
    monkeypatch.setattr(herder, "check", partial(check, ask=False))


def worker_with(folder: Path, provided: Provided) -> TestClient:
    worker = memory_worker(folder, Memory(), provided)
    return TestClient(application(worker), raise_server_exceptions=False)


def validated(client: TestClient, plugin: ConnectorPlugin, config: dict[str, str]) -> dict[str, list[str]]:
    """The errors of a configuration by property."""
    answer = client.put(f"/connector-plugins/{plugin.name}/config/validate", json=config)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return {each["value"]["name"]: each["value"]["errors"] for each in said["configs"] if each["value"]["errors"]}


def created(client: TestClient, config: dict[str, str]) -> int:
    answer = client.post("/connectors", json={"name": config["name"], "config": config, "initial_state": "STOPPED"})
    status: int = answer.status_code
    return status


@every_plugin
@pytest.mark.usefixtures("unasked")
def test_a_worker_without_settings_of_its_own_has_kafka_connect_s_defaults(
    plugin: ConnectorPlugin, tmp_path: Path
) -> None:
    config = {"name": "c", **SMALLEST[plugin.name], "connector.class": plugin.name}
    client = worker_with(tmp_path, Provided())
    assert validated(client, plugin, config) == {}
    assert created(client, config) == 201
    resolved = check(config, Provided(), ask=False).config
    assert (resolved["key.converter"], resolved["value.converter"]) == (JSON, JSON)
    assert "header.converter" not in resolved and PLUGIN_PATH not in resolved


ABSENT = [(plugin, name) for plugin in PLUGINS for name in {"connector.class": "", **SMALLEST[plugin.name]}]


@pytest.mark.parametrize(("plugin", "name"), ABSENT, ids=lambda case: getattr(case, "names", (case,))[-1])
@pytest.mark.usefixtures("unasked")
def test_a_property_that_is_absent_is_named(plugin: ConnectorPlugin, name: str, tmp_path: Path) -> None:
    config = {"name": "c", **SMALLEST[plugin.name], "connector.class": plugin.name}
    del config[name]
    client = worker_with(tmp_path, Provided())
    errors = validated(client, plugin, config)
    assert errors, "the smallest configuration has no property that may be absent"
    assert created(client, config) == 400


@every_plugin
@pytest.mark.usefixtures("unasked")
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(of_worker=OF_WORKER, absent=st.sets(st.sampled_from([*range(6)])), own=st.sampled_from([None, AVRO, TEXT, JSON]))
def test_whatever_a_worker_says_a_configuration_is_answered(
    plugin: ConnectorPlugin, tmp_path: Path, of_worker: dict[str, str], absent: set[int], own: str | None
) -> None:
    """`absent` are places of properties that the configuration lacks."""
    left = {name: text for n, (name, text) in enumerate(SMALLEST[plugin.name].items()) if n not in absent}
    config = {"name": "c", "connector.class": plugin.name, **left, **({} if own is None else {"value.converter": own})}
    client = worker_with(tmp_path, Provided({"env": Provider("env")}, of_worker))
    errors = validated(client, plugin, config)
    assert created(client, config) == (400 if errors else 201)
