"""The REST API's answers, as Kafka Connect gives them, from a worker without Kafka and Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from connect_memory import RIGHT, VALIDATE, Memory, memory_worker
from hypothesis import HealthCheck, example, given, settings, strategies as st
from starlette.testclient import TestClient

from penstock import __version__
from penstock.connect.source import database
from penstock.connect.source.properties import CLASS, CLASSES
from penstock.connect.worker.api import application
from penstock.connect.worker.connector import Connector
from penstock.connect.worker.connector_store import STOPPED, StoredConnector
from penstock.connect.worker.routes import RestRequest, as_config
from penstock.connect.worker.standalone import StandaloneHerder
from penstock.errors import PenstockError
from penstock.serve.access.hosts import Hosts, guarded
from penstock.serve.rest_errors import RestError

KEYSPACE, TABLE = "ks", "t"
PLACE = {"keyspace_name": KEYSPACE, "table_name": TABLE}


@pytest.fixture
def store() -> Memory:
    return Memory()


@pytest.fixture
def worker(tmp_path: Path, store: Memory, monkeypatch: pytest.MonkeyPatch) -> StandaloneHerder:
    monkeypatch.setattr(database, "problems", lambda values: [])
    monkeypatch.setattr(database, "tables", lambda values: list(values["scylla.table.names"]))
    return memory_worker(tmp_path, store)


@pytest.fixture
def client(worker: StandaloneHerder) -> Iterator[TestClient]:
    app = guarded(application(worker), Hosts(), allow_with="--allow-host NAME")
    with TestClient(app, "http://localhost", raise_server_exceptions=False) as made:
        yield made


def create(client: TestClient, name: str = "c", state: str = "STOPPED", **changes: str) -> Any:
    named = {key.replace("_", "."): text for key, text in changes.items()}
    return client.post("/connectors", json={"name": name, "config": RIGHT | named, "initial_state": state})


def message(answer: Any, status: int) -> str:
    """The message of an error answer with this status."""
    said = answer.json()
    assert (answer.status_code, said["error_code"], list(said)) == (status, status, ["error_code", "message"]), said
    text: str = said["message"]
    return text


def test_a_new_connector_is_answered_with_its_name_configuration_and_tasks(client: TestClient) -> None:
    answer = create(client)
    assert (answer.status_code, answer.headers["content-type"]) == (201, "application/json")
    assert answer.json() == {"name": "c", "config": {**RIGHT, "name": "c"}, "tasks": [], "type": "source"}
    assert client.get("/connectors/c").json() == answer.json()
    assert client.get("/connectors/c/config").json() == {**RIGHT, "name": "c"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (None, "The body must be an object with `name` .* and `config`"),
        ([], "The body must be an object with `name` .* and `config`"),
        ({"name": "c"}, "The body must be an object with `name` .* and `config`"),
        ({"name": "c", "config": "a=b"}, "The body must be an object with `name` .* and `config`"),
        ({"config": RIGHT}, "Connector name must be given as `name`"),
        ({"name": " ", "config": RIGHT}, "Connector name must be given as `name`"),
        ({"name": "c", "config": RIGHT | {"name": "d"}}, r"\(d\) doesn't match connector name \(c\)"),
        ({"name": "c", "config": RIGHT | {"a": None}}, "Null value can not be supplied as the configuration value: a"),
        ({"name": "c", "config": RIGHT | {"a": {"b": 1}}}, "The value of a must be a string, .* not an object"),
        ({"name": "c", "config": RIGHT | {"a": []}}, "The value of a must be a string, .* not an array"),
        ({"name": "c", "config": RIGHT, "initial_state": "FAILED"}, "Invalid initial state FAILED; .* RUNNING, PAUSED"),
    ],
    ids=str,
)
def test_a_wrong_request_creates_no_connector(client: TestClient, store: Memory, body: Any, said: str) -> None:
    text = message(client.post("/connectors", json=body), 400)
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(text)
    assert client.get("/connectors").json() == [] and store.records == []


def test_the_name_may_be_in_the_configuration_only(client: TestClient) -> None:
    body = {"config": {**RIGHT, "name": "inside"}, "initial_state": "stopped"}
    assert client.post("/connectors", json=body).json()["name"] == "inside"
    assert client.get("/connectors/inside/status").json()["connector"]["state"] == "STOPPED"


def test_scalars_become_strings_as_in_connect(client: TestClient) -> None:
    given = {"tasks.max": 2, "tombstones.on.delete": False, "note": 2.5, "text": "True"}
    answer = client.post("/connectors", json={"name": "c", "config": {**RIGHT, **given}, "initial_state": "STOPPED"})
    config = answer.json()["config"]
    assert {name: config[name] for name in given} == {
        "tasks.max": "2",
        "tombstones.on.delete": "false",
        "note": "2.5",
        "text": "True",
    }


def test_all_errors_of_a_configuration_are_listed_at_once(client: TestClient) -> None:
    text = message(create(client, tasks_max="0", cdc_output_format="modern"), 400)
    first, *errors, last = text.splitlines()
    assert first == "Connector configuration is invalid and contains the following 2 error(s):"
    assert [line.partition(" for configuration ")[0] for line in errors] == [
        "Invalid value 0",
        "Invalid value modern",
    ]
    assert last == (
        "You can also find the above list of errors at the endpoint "
        "`/connector-plugins/{connectorType}/config/validate`"
    )


@pytest.mark.parametrize("name", ["a/b", ".", "..", "/"])
def test_a_name_that_no_path_reaches_is_refused(client: TestClient, store: Memory, name: str) -> None:
    answer = create(client, name)
    assert "no path of the REST API reaches it" in message(answer, 400) and not store.records


def test_a_connector_of_an_earlier_version_with_a_slash_is_reached_and_deleted(
    client: TestClient, worker: StandaloneHerder
) -> None:
    worker._connectors["a/b"] = Connector("a/b", StoredConnector(RIGHT | {"name": "a/b"}, STOPPED), worker.context)
    assert client.get("/connectors/a%2Fb/status").json()["name"] == "a/b"
    assert client.delete("/connectors/a%2fb").status_code == 204
    assert client.get("/connectors").json() == []


def test_a_name_is_given_once(client: TestClient, store: Memory) -> None:
    create(client)
    before = list(store.records)
    assert message(create(client, tasks_max="3"), 409) == "Connector c already exists"
    assert store.records == before
    assert "tasks.max" not in client.get("/connectors/c/config").json()


def test_connectors_are_listed_by_name_and_expanded_on_request(client: TestClient) -> None:
    for name in ("b", "a"):
        create(client, name)
    assert client.get("/connectors").json() == ["a", "b"]
    infos = client.get("/connectors?expand=info").json()
    assert infos["a"] == {"info": client.get("/connectors/a").json()}
    both = client.get("/connectors?expand=status&expand=info").json()
    assert both["b"] == {"status": client.get("/connectors/b/status").json(), **{"info": infos["b"]["info"]}}
    # Connect ignores the name of an expansion that it does not know, and still answers with an object.
    assert client.get("/connectors?expand=other").json() == {"a": {}, "b": {}}


def test_a_configuration_that_no_request_can_write_does_not_hide_the_others(tmp_path: Path) -> None:
    stored = {name: StoredConnector({**RIGHT, "name": name}, STOPPED) for name in "abc"}
    stored["b"].config["description"] = "x" * 19_000_000
    made = memory_worker(tmp_path, Memory(stored))
    made.start()
    with TestClient(application(made), "http://localhost") as client:
        listed = client.get("/connectors?expand=info&expand=status")
        assert len(listed.content) < 10_000
        assert {name: list(one) for name, one in listed.json().items()} == {
            "a": ["info", "status"],
            "b": ["error", "status"],
            "c": ["info", "status"],
        }
        assert "another program wrote it to the topic" in listed.json()["b"]["error"]
    made.close()


def test_a_connector_that_is_deleted_during_a_listing_is_left_out(
    client: TestClient, worker: StandaloneHerder, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(client)
    monkeypatch.setattr(worker, "names", lambda: ["c", "deleted"])
    assert list(client.get("/connectors?expand=status").json()) == ["c"]


def test_a_configuration_is_created_and_then_changed_by_put(client: TestClient) -> None:
    first = client.put("/connectors/c/config", json={**RIGHT, "tasks.max": "0"})
    assert "Invalid value 0" in message(first, 400) and client.get("/connectors").json() == []
    create(client)
    changed = client.put("/connectors/c/config", json={**RIGHT, "tasks.max": 2})
    assert (changed.status_code, changed.json()["config"]["tasks.max"]) == (200, "2")
    # A property that is not sent is removed; the wanted state stays.
    assert "tasks.max" not in client.put("/connectors/c/config", json=RIGHT).json()["config"]
    assert client.get("/connectors/c/status").json()["connector"]["state"] == "STOPPED"
    wrong = client.put("/connectors/c/config", json={**RIGHT, "name": "other"})
    assert message(wrong, 400).startswith("Connector name configuration (other) doesn't match connector name (c)")
    assert message(client.put("/connectors/c/config", json=[RIGHT]), 400) == "The body must be a JSON object"


def test_a_patch_changes_adds_and_removes_properties(client: TestClient) -> None:
    create(client, tasks_max="2", poll_interval_ms="10")
    answer = client.patch("/connectors/c/config", json={"tasks.max": 3, "poll.interval.ms": None, "absent": None})
    assert answer.status_code == 200
    assert answer.json()["config"] == {**RIGHT, "name": "c", "tasks.max": "3"}
    assert client.patch("/connectors/c/config", json={}).json()["config"]["tasks.max"] == "3"
    text = message(client.patch("/connectors/c/config", json={"topic.prefix": None}), 400)
    assert 'Missing required configuration "topic.prefix"' in text
    assert client.get("/connectors/c/config").json()["topic.prefix"] == "p"
    assert message(client.patch("/connectors/c/config", json={"a": [1]}), 400).startswith("The value of a must be")
    assert message(client.patch("/connectors/none/config", json={"a": "b"}), 404) == "Connector none not found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("DELETE", ""),
        ("GET", "/config"),
        ("GET", "/status"),
        ("GET", "/tasks"),
        ("GET", "/topics"),
        ("GET", "/offsets"),
        ("PUT", "/pause"),
        ("PUT", "/resume"),
        ("PUT", "/stop"),
        ("PUT", "/topics/reset"),
        ("POST", "/restart"),
        ("POST", "/tasks/0/restart"),
        ("GET", "/tasks/0/status"),
        ("DELETE", "/offsets"),
    ],
)
def test_a_connector_that_does_not_exist_is_not_found(client: TestClient, method: str, path: str) -> None:
    assert message(client.request(method, f"/connectors/none{path}"), 404) == "Connector none not found"


def test_the_wanted_state_is_stored_once(client: TestClient, store: Memory) -> None:
    create(client)
    store.records.clear()
    for path, status, state in (("pause", 202, "PAUSED"), ("pause", 202, "PAUSED"), ("stop", 204, "STOPPED")):
        answer = client.put(f"/connectors/c/{path}")
        assert (answer.status_code, answer.content) == (status, b"")
        assert client.get("/connectors/c/status").json() == {
            "name": "c",
            "connector": {"state": state, "worker_id": "here:1"},
            "tasks": [],
            "type": "source",
        }
    # Workers before KIP-875 know no STOPPED and pause the connector.
    assert store.records == [
        ("target-state-c", {"state": "PAUSED", "state.v2": "PAUSED"}),
        ("target-state-c", {"state": "PAUSED", "state.v2": "STOPPED"}),
    ]


def test_what_kafka_does_not_store_does_not_happen(client: TestClient, store: Memory) -> None:
    create(client)
    store.down = True
    for answer in (
        create(client, "other"),
        client.put("/connectors/c/config", json={**RIGHT, "tasks.max": "3"}),
        client.put("/connectors/c/pause"),
        client.delete("/connectors/c"),
    ):
        assert "the configuration was not stored" in message(answer, 500)
    assert client.get("/connectors").json() == ["c"]
    assert "tasks.max" not in client.get("/connectors/c/config").json()
    assert client.get("/connectors/c/status").json()["connector"]["state"] == "STOPPED"


def test_a_deleted_connector_leaves_tombstones_and_its_positions(
    client: TestClient, store: Memory, worker: StandaloneHerder
) -> None:
    create(client)
    client.patch("/connectors/c/offsets", json={"offsets": [{"partition": PLACE, "offset": {"time": 0}}]})
    answer = client.delete("/connectors/c")
    assert (answer.status_code, answer.content) == (204, b"")
    assert store.records[-2:] == [("connector-c", None), ("target-state-c", None)]
    assert message(client.get("/connectors/c"), 404) == "Connector c not found"
    create(client)
    (position,) = client.get("/connectors/c/offsets").json()["offsets"]
    assert position == {"partition": PLACE, "offset": {"time": "1970-01-01T00:00:00+00:00"}}


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 204), ("?includeTasks=true", 202), ("?onlyFailed=TRUE", 202), ("?includeTasks=no&onlyFailed=no", 204)],
)
def test_a_restart_answers_with_the_status_if_it_has_options(client: TestClient, query: str, status: int) -> None:
    create(client)
    answer = client.post(f"/connectors/c/restart{query}")
    assert answer.status_code == status
    assert answer.content == b"" if status == 204 else answer.json() == client.get("/connectors/c/status").json()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ("0", "No status found for task c-0"),
        ("9223372036854775807", "No status found for task c-"),
        ("9" * 5000, "is not a task's number"),
        ("-1", "is not a task's number"),
        ("one", "is not a task's number"),
        ("%C2%B2", "is not a task's number"),
    ],
)
def test_a_task_that_does_not_exist_is_not_found(client: TestClient, number: str, said: str) -> None:
    create(client)
    for method, path in (("GET", "status"), ("POST", "restart")):
        assert said in message(client.request(method, f"/connectors/c/tasks/{number}/{path}"), 404)


def test_topics_are_those_of_batches_until_they_are_reset(client: TestClient, worker: StandaloneHerder) -> None:
    create(client)
    worker.get("c").active |= {"p.ks.t", "a"}
    assert client.get("/connectors/c/topics").json() == {"c": {"topics": ["a", "p.ks.t"]}}
    answer = client.put("/connectors/c/topics/reset")
    assert (answer.status_code, answer.content) == (202, b"")
    assert client.get("/connectors/c/topics").json() == {"c": {"topics": []}}


def alter(client: TestClient, *entries: Any) -> Any:
    return client.patch("/connectors/c/offsets", json={"offsets": list(entries)})


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00+00:00"),
        ("2026-01-31T12:00:00+02:00", "2026-01-31T12:00:00+02:00"),
        ("2026-01-31", "2026-01-31T00:00:00"),
        (1_706_702_400_123_457, "2024-01-31T12:00:00.123457+00:00"),
        (-1, "1969-12-31T23:59:59.999999+00:00"),
    ],
)
def test_a_position_is_a_time_as_text_or_in_microseconds(client: TestClient, time: Any, expected: str) -> None:
    create(client)
    answer = alter(client, {"partition": PLACE, "offset": {"time": time}})
    assert answer.json() == {"message": "The offsets for this connector have been altered successfully"}
    assert client.get("/connectors/c/offsets").json() == {
        "offsets": [{"partition": PLACE, "offset": {"time": expected}}]
    }
    assert alter(client, {"partition": PLACE, "offset": None}).status_code == 200
    assert client.get("/connectors/c/offsets").json() == {"offsets": []}


@pytest.mark.parametrize(
    "offset",
    [{}, [], "2026-01-31", {"time": None}, {"time": True}, {"time": "soon"}, {"time": 10**30}, {"time": 1.5}],
    ids=str,
)
def test_what_is_not_a_time_is_not_a_position(client: TestClient, offset: Any) -> None:
    create(client)
    good = {"partition": PLACE, "offset": {"time": 0}}
    assert "is not a position: give a time in ISO 8601" in message(
        alter(client, good, {"partition": PLACE, "offset": offset}), 400
    )
    # Nothing is changed if one of several is wrong.
    assert client.get("/connectors/c/offsets").json() == {"offsets": []}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (7, "do not have the required form"),
        ({"partition": PLACE}, "do not have the required form"),
        ({"offset": {"time": 0}}, "do not have the required form"),
        ({"partition": {"keyspace_name": ["ks"], "table_name": "t"}, "offset": None}, "do not have the required form"),
        ({"partition": PLACE | {"table_name": "u"}, "offset": None}, "does not read the table .*; it reads ks.t, ks.s"),
    ],
    ids=str,
)
def test_a_partition_is_a_table_that_the_connector_reads(client: TestClient, entry: Any, said: str) -> None:
    create(client, scylla_table_names="ks.t,ks.s")
    text = message(alter(client, entry), 400)
    with pytest.raises(AssertionError, match=said):
        raise AssertionError(text)


WRONG_NUMBERS: st.SearchStrategy[Any] = (
    st.integers(max_value=-1)
    | st.integers(1 << 63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.sampled_from(["", "-1", "3.9", "1e3", " 1", "1_0", "٣", "0x1", [], [1], {}, {"a": 1}, None, "9" * 20])
)


def sink(client: TestClient, tmp_path: Path) -> None:
    config = {"connector.class": "FileStreamSink", "topics": "t,u", "file": str(tmp_path / "out")}
    answer = client.post("/connectors", json={"name": "c", "config": config, "initial_state": "STOPPED"})
    assert answer.status_code == 201, answer.text


def at(topic: Any, partition: Any, offset: Any) -> dict[str, Any]:
    return {"partition": {"kafka_topic": topic, "kafka_partition": partition}, "offset": {"kafka_offset": offset}}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wrong=WRONG_NUMBERS, of_partition=st.booleans())
@example(wrong=-1, of_partition=False)
@example(wrong=3.9, of_partition=False)
@example(wrong=True, of_partition=False)
@example(wrong=-3, of_partition=True)
@example(wrong=12.0, of_partition=True)
def test_an_offset_is_a_whole_number_and_nothing_else(
    client: TestClient, tmp_path: Path, wrong: Any, of_partition: bool
) -> None:
    if client.get("/connectors/c").status_code == 404:
        sink(client, tmp_path)
    entry = at("t", wrong, 5) if of_partition else at("t", 0, wrong)
    text = message(alter(client, at("u", 0, 5), entry), 400)
    assert f"Failed to parse the following Kafka {'partition' if of_partition else 'offset'} value" in text
    assert json.dumps(wrong) in text and "need to be whole numbers from 0 to" in text
    assert client.get("/connectors/c/offsets").json() == {"offsets": []}


def test_offsets_of_a_sink_are_read_as_they_were_set(client: TestClient, tmp_path: Path) -> None:
    sink(client, tmp_path)
    assert alter(client, at("t", 0, 5), at("t", "1", "12"), at("u", 0, (1 << 63) - 1)).status_code == 200
    expected = [at("t", 0, 5), at("t", 1, 12), at("u", 0, (1 << 63) - 1)]
    assert client.get("/connectors/c/offsets").json() == {"offsets": expected}
    # One that was reset has no position until it is read again.
    assert alter(client, at("t", 1, 0) | {"offset": None}).status_code == 200
    assert client.get("/connectors/c/offsets").json() == {"offsets": [expected[0], expected[2]]}
    for entry in (at("v", 0, 5), at(["t"], 0, 5), {"partition": {"kafka_topic": "t", "kafka_partition": 0}}, 7):
        message(alter(client, entry), 400)


def test_positions_are_changed_only_while_a_connector_is_stopped(client: TestClient) -> None:
    create(client, state="PAUSED")
    for answer in (alter(client, {"partition": PLACE, "offset": None}), client.delete("/connectors/c/offsets")):
        assert message(answer, 400) == (
            "Connectors must be in the STOPPED state before their offsets can be modified. "
            "This can be done for c with the PUT /connectors/c/stop endpoint"
        )
    client.put("/connectors/c/stop")
    nothing: list[dict[str, Any]] = [{}, {"offsets": None}, {"offsets": []}, {"offsets": {}}]
    for wrong in nothing:
        answer = client.patch("/connectors/c/offsets", json=wrong)
        assert message(answer, 400) == "Partitions / offsets need to be provided for an alter offsets request"
    assert client.delete("/connectors/c/offsets").json() == {
        "message": "The offsets for this connector have been reset successfully"
    }


def test_validation_answers_with_each_definition_its_value_and_its_errors(client: TestClient) -> None:
    given = {**RIGHT, "name": "c", "tasks.max": "0", "scylla.consistency.level": "ONE", "typo": "x", "dropped": None}
    found = client.put(VALIDATE, json=given).json()
    assert (found["name"], found["error_count"]) == (CLASS, 1)
    by_name = {each["value"]["name"]: each for each in found["configs"]}
    assert "dropped" not in by_name and len(by_name) == len(found["configs"])
    assert by_name["tasks.max"] == {
        "definition": {
            "name": "tasks.max",
            "type": "INT",
            "required": False,
            "default_value": "1",
            "importance": "HIGH",
            "documentation": "The largest number of tasks; tables are distributed among them.",
            "group": "Common",
            "order": 3,
            "width": "MEDIUM",
            "display_name": "tasks.max",
            "dependents": [],
        },
        "value": {
            "name": "tasks.max",
            "value": "0",
            "recommended_values": [],
            "errors": ["Invalid value 0 for configuration tasks.max: Value must be at least 1"],
            "visible": True,
        },
    }
    assert by_name["typo"]["definition"]["group"] == "Unknown" and by_name["typo"]["value"]["value"] == "x"
    level = by_name["scylla.consistency.level"]["value"]
    assert level["value"] == "ONE" and {"QUORUM", "LOCAL_QUORUM"} <= set(level["recommended_values"])
    # A property that is not given has its default; one without a default has null.
    assert by_name["poll.interval.ms"]["value"]["value"] == by_name["poll.interval.ms"]["definition"]["default_value"]
    assert by_name["scylla.user"]["value"]["value"] is None
    assert found["groups"] == list(dict.fromkeys(each["definition"]["group"] for each in found["configs"]))
    for group in found["groups"]:
        orders = [each["definition"]["order"] for each in found["configs"] if each["definition"]["group"] == group]
        assert orders == list(range(1, len(orders) + 1))


def test_validation_of_nothing_blames_each_required_property(client: TestClient) -> None:
    found = client.put(VALIDATE, json={}).json()
    missing = {each["value"]["name"]: each["value"] for each in found["configs"] if each["value"]["errors"]}
    required = {each["definition"]["name"] for each in found["configs"] if each["definition"]["required"]}
    assert found["error_count"] == len(missing) and set(missing) == required
    for name, value in missing.items():
        assert value["errors"] == [f'Missing required configuration "{name}" which has no default value.']
        assert value["value"] is None


@pytest.mark.parametrize("named", [CLASS, "ScyllaConnector", "Scylla"])
def test_a_plugin_is_found_by_its_class_and_by_its_short_names(client: TestClient, named: str) -> None:
    path = f"/connector-plugins/{named}/config"
    assert client.put(f"{path}/validate", json={**RIGHT, "name": "c", "connector.class": named}).status_code == 200
    assert client.get(path).json()[0]["name"] == "name"
    other = client.put(f"{path}/validate", json={**RIGHT, "connector.class": "org.example.Other"})
    assert message(other, 400) == f"Included connector type org.example.Other does not match request type {named}"


def test_plugins_are_connectors_unless_others_are_asked_for(client: TestClient) -> None:
    connectors = [
        {"class": name, "type": "source" if name == CLASS else "sink", "version": __version__} for name in CLASSES
    ]
    for query in ("", "?connectorsOnly=true"):
        assert client.get(f"/connector-plugins{query}").json() == connectors
    found = client.get("/connector-plugins?connectorsOnly=false").json()
    assert found[: len(connectors)] == connectors
    kinds = {kind: [each["class"] for each in found if each["type"] == kind] for kind in {e["type"] for e in found}}
    assert {kind: len(classes) == len(set(classes)) for kind, classes in kinds.items()} == {
        "source": True,
        "sink": True,
        "converter": True,
        "transformation": True,
        "predicate": True,
    }
    # Each plugin's options can be asked for by the name that the list has.
    for each in found:
        options = client.get(f"/connector-plugins/{each['class']}/config")
        assert options.status_code == 200, each
        for option in options.json():
            assert option["documentation"] and option["type"] and option["importance"] in ("HIGH", "MEDIUM", "LOW")


@pytest.mark.parametrize("name", ["Other", "org.example.Other", "scyllaconnector"])
def test_a_plugin_that_does_not_exist_is_not_found(client: TestClient, name: str) -> None:
    text = message(client.get(f"/connector-plugins/{name}/config"), 404)
    assert text.startswith(f"Failed to find any class that implements Connector and which name matches {name}")
    assert message(client.put(f"/connector-plugins/{name}/config/validate", json=RIGHT), 404) == text


def test_the_server_says_its_version_and_its_cluster(client: TestClient, store: Memory) -> None:
    store._topic.cluster_id = "abc"
    assert client.get("/").json() == {
        "version": "4.3.1",
        "commit": f"penstock-{__version__}",
        "kafka_cluster_id": "abc",
    }
    assert client.get("/health").json()["status"] == "healthy"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("penstock.a-test-of-levels")
    yield made
    made.setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("level", "number"), [("DEBUG", 10), ("warn", 30), ("Fatal", 50), ("TRACE", 1), ("off", 51), ("ERROR", 40)]
)
def test_levels_of_loggers_are_java_s(client: TestClient, logger: logging.Logger, level: str, number: int) -> None:
    path = f"/admin/loggers/{logger.name}"
    answer = client.put(path, json={"level": level})
    assert (answer.status_code, answer.json()) == (200, [logger.name])
    assert logger.level == number
    assert client.get(path).json() == {"level": level.upper(), "last_modified": None}
    listed = client.get("/admin/loggers").json()
    assert listed[logger.name] == client.get(path).json() and "root" in listed
    assert [name for name in listed if name != "root"] == sorted(set(listed) - {"root"})


def test_levels_that_are_not_java_s_change_nothing(client: TestClient, logger: logging.Logger) -> None:
    path = f"/admin/loggers/{logger.name}"
    assert message(client.put(path, json={"level": "LOUD"}), 404).startswith("invalid log level 'LOUD'; use one of OFF")
    for body in ({}, {"level": None}, {"level": ""}):
        said = message(client.put(path, json=body), 400)
        assert said == "Desired 'level' parameter was not specified in request."
    assert logger.level == logging.NOTSET
    answer = client.put(f"{path}?scope=cluster", json={"level": "INFO"})
    assert (answer.status_code, answer.content, logger.level) == (204, b"", logging.INFO)
    assert message(client.get("/admin/loggers/penstock.no-such"), 404) == "Logger penstock.no-such not found."


def test_paths_methods_and_bodies_of_others_are_refused_as_json(client: TestClient) -> None:
    assert message(client.get("/nowhere"), 404) == "HTTP 404 Not Found"
    wrong = client.delete("/connectors")
    assert message(wrong, 405) == "HTTP 405 Method Not Allowed"
    assert {"GET", "POST"} <= {each.strip() for each in wrong.headers["allow"].split(",")}
    assert client.get("/connectors/").json() == []
    head = client.head("/connectors")
    assert (head.status_code, head.content) == (200, b"")
    for kind, status in (
        ("application/json; charset=utf-8", 201),
        ("application/vnd.api+json", 409),
        ("APPLICATION/JSON", 409),
        ("application/x-www-form-urlencoded", 415),
        ("", 415),
    ):
        body = json.dumps({"name": "c", "config": RIGHT, "initial_state": "STOPPED"})
        answer = client.post("/connectors", content=body, headers={"content-type": kind})
        assert answer.status_code == status, (kind, answer.text)


def test_an_error_that_nobody_expected_is_answered_and_logged(
    client: TestClient, worker: StandaloneHerder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(name: str) -> Any:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(worker, "get", broken)
    assert message(client.get("/connectors/c"), 500) == "ZeroDivisionError: by zero"
    assert "GET /connectors/c: Traceback" in caplog.text and "in broken" in caplog.text

    def down(name: str) -> Any:
        raise PenstockError("no database", where="ks", next="start it")

    monkeypatch.setattr(worker, "get", down)
    assert message(client.get("/connectors/c"), 500) == "no database (ks). Next: start it"


def test_a_flag_is_true_only_if_it_is_written_so() -> None:
    def flag(*given: str, default: str = "false") -> bool:
        return RestRequest({}, {"f": list(given)} if given else {}, None).flag("f", default)

    assert flag("true") and flag("TRUE") and flag("false", "true") and flag(default="true")
    assert not (flag() or flag("1") or flag("") or flag("true", "no"))


def test_numbers_and_booleans_of_a_body_are_written_as_in_json() -> None:
    assert as_config({"a": True, "b": 1, "c": 10**30, "d": "x", "e": ""}) == {
        "a": "true",
        "b": "1",
        "c": str(10**30),
        "d": "x",
        "e": "",
    }
    for body in (None, "text", 1, [["a", "b"]]):
        with pytest.raises(RestError, match="The body must be a JSON object"):
            as_config(body)
