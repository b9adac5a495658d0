"""What a request to `penstock connect` may cost: work that grows as the request, and answers of bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from connect_memory import RIGHT, VALIDATE, memory_worker
from growth import assert_linear
from http_attacks import Pulse, asked, put
from starlette.testclient import TestClient
from waiting import patience, until

from penstock.connect.definition import LONGEST_ALIAS, MOST_ALIASES
from penstock.connect.source import database
from penstock.connect.source.properties import CLASS, properties
from penstock.connect.transforms.definitions import CLASSES, options
from penstock.connect.worker.api import application
from penstock.connect.worker.checks import LONGEST_NAME, MOST_PROPERTIES, check
from penstock.connect.worker.plugin_routes import validation
from penstock.connect.worker.providers import MOST, Provided, Provider, is_reference, references
from penstock.process.secret_settings import HIDDEN, without_logins
from penstock.serve.json_bodies import DEEPEST, MOST as MOST_BYTES
from penstock.serve.rest_server import RestServer, bind

PIECES = (
    *(
        "a",
        "A.",
        "1",
        " ",
        "\n",
        ",",
        ", ",
        "=",
        "a=",
        "$",
        "${",
        "${a",
        ":",
        "${a:",
        "${:}",
        "}",
        "`",
        "`.",
        "\\",
        "'",
    ),
    *(
        '"',
        '""',
        "(",
        "()",
        "[",
        "{",
        "*",
        ".",
        "-",
        "?",
        ";",
        "/",
        "@",
        "a://b:1@h ",
        "a://b:1@h,",
        "://",
        "%",
        "\U0001f600",
    ),
    *("token", "token=", "password='", "x required a=b ", "a:b,", "[a", "yyyy", "é"),
)
"""Repeated, each is a text that a careless parser reads again and again."""
ALIASES = {each["class"]: f"t{number}" for number, each in enumerate(CLASSES)}


def whole(text: str) -> dict[str, str]:
    """A configuration with this value in each property that a connector can have."""
    chains: dict[str, list[str]] = {"transforms": [], "predicates": []}
    config = {each.name: text for each in properties()} | {f"producer.override.{name}": text for name in OVERRIDES}
    for each in CLASSES:
        chain = "transforms" if each["type"] == "transformation" else "predicates"
        alias = ALIASES[each["class"]]
        chains[chain].append(alias)
        config |= {f"{chain}.{alias}.{option.name}": text for option in options(each["class"]) or ()}
        config[f"{chain}.{alias}.type"] = each["class"]
    return config | {chain: ",".join(aliases) for chain, aliases in chains.items()}


OVERRIDES = (
    "sasl.jaas.config",
    "sasl.mechanism",
    "linger.ms",
    "compression.type",
    "ssl.ca.location",
    text := "unknown",
)


@pytest.mark.slow_after(15)
@pytest.mark.parametrize("piece", PIECES)
def test_a_check_costs_as_much_as_its_configuration_is_long(piece: str) -> None:
    configs = {size: whole(piece * (size // len(piece))) for size in (1_000, 4_000)}
    assert_linear(lambda size: validation(CLASS, check(configs[size], Provided(), ask=False)), 1_000)


@pytest.mark.slow_after(15)
@pytest.mark.parametrize("piece", PIECES)
def test_secrets_are_hidden_at_the_cost_of_the_text(piece: str) -> None:
    assert_linear(lambda size: without_logins(piece * (size // len(piece))), 40_000)
    assert_linear(lambda size: list(references(piece * (size // len(piece)))), 100_000)


def test_many_different_logins_are_hidden_at_the_cost_of_the_text() -> None:
    texts = {size: " ".join(f"a://u:{n}@h" for n in range(size)) for size in (2_000, 8_000)}
    assert without_logins(texts[2_000]).count(f"a://u:{HIDDEN}@h") == 2_000
    assert_linear(lambda size: without_logins(texts[size]), 2_000)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("${env:A}", [("env", None, "A")]),
        ("x${file:/a/b:c.d}y${env:B}", [("file", "/a/b", "c.d"), ("env", None, "B")]),
        ("${dir:/a:b:c}", [("dir", "/a", "b:c")]),
        ("${${env:A}", [("${env", None, "A")]),
        ("${a}${:}${", [("", None, "")]),
        ("}${a:\nb}", [("a", None, "\nb")]),
        ("$ {a:b} ${a b}", []),
    ],
)
def test_references_are_those_of_kafka(text: str, found: list[tuple[str, str | None, str]]) -> None:
    assert [(one.name, one.path, one.key) for one in references(text)] == found
    assert all(text[one.start :].startswith(one.text) for one in references(text))
    assert is_reference(text) == (len(found) == 1 and text[0] == "$" and text.index("}") == len(text) - 1)


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setattr(database, "problems", lambda values: [])
    with TestClient(application(memory_worker(tmp_path)), "http://localhost", raise_server_exceptions=False) as made:
        yield made


def validated(client: TestClient, more: dict[str, str]) -> Any:
    return client.put(VALIDATE, json=RIGHT | more)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({f"p{n}": "" for n in range(MOST_PROPERTIES)}, f"at most {MOST_PROPERTIES} properties, not 1004"),
        ({"x" * (LONGEST_NAME + 1): ""}, f"at most {LONGEST_NAME} characters: x"),
        ({"topic.prefix": "x" * (MOST + 1)}, f"topic.prefix has {MOST + 1} characters; the most are {MOST}"),
    ],
)
def test_more_than_a_connector_needs_is_refused(client: TestClient, more: dict[str, str], said: str) -> None:
    for answer in (
        validated(client, more),
        client.put("/connectors/c/config", json=RIGHT | more),
        client.post("/connectors", json={"name": "c", "config": RIGHT | more}),
    ):
        assert answer.status_code == 400 and said in answer.json()["message"]
    assert client.get("/connectors").json() == []


def test_patches_do_not_add_up_to_more(client: TestClient) -> None:
    assert (
        client.post("/connectors", json={"name": "c", "config": RIGHT, "initial_state": "STOPPED"}).status_code == 201
    )
    patch = {f"producer.override.x{n}": "" for n in range(MOST_PROPERTIES - 1)}
    answer = client.patch("/connectors/c/config", json=patch)
    assert answer.status_code == 400 and "at most 1000 properties, not 1004" in answer.json()["message"]


@pytest.mark.parametrize("chain", ["transforms", "predicates", "topic.creation.groups"])
def test_each_alias_adds_to_the_answer_so_there_are_not_many(client: TestClient, chain: str) -> None:
    many = validated(client, {chain: ",".join(f"a{n}" for n in range(10_000))})
    assert f"10000 aliases, of which a configuration has at most {MOST_ALIASES}" in many.text
    assert len(many.content) < MOST_BYTES
    long = validated(client, {chain: "a" * (LONGEST_ALIAS + 1)})
    assert f"an alias has at most {LONGEST_ALIAS} characters, not {LONGEST_ALIAS + 1}" in long.text


def test_the_largest_answer_is_a_few_times_the_largest_request(client: TestClient) -> None:
    kinds = [each["class"] for each in CLASSES if each["type"] == "transformation"]
    most = max(kinds, key=lambda name: len(options(name) or ()))
    names = [f"{n:0{LONGEST_ALIAS}}" for n in range(MOST_ALIASES)]
    chain = {f"transforms.{name}.type": most for name in names} | {
        f"transforms.{name}.predicate": "x" for name in names
    }
    answer = validated(client, chain | {"transforms": ",".join(names), "predicates": ",".join(names)})
    assert answer.status_code == 200 and len(answer.content) < 4 * MOST_BYTES


def test_a_short_value_that_names_a_large_one_many_times_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("x" * 1000)
    provided = Provided({"dir": Provider("dir")})
    config = RIGHT | {"topic.prefix": f"${{dir:{tmp_path}:large}}" * (MOST // 1000 + 1)}
    checked = check(config, provided, ask=False)
    assert f"its value has more than {MOST} characters" in str(checked.messages)


SLOWEST = patience(5)
"""Seconds until /health answers, at most; 0.1 on an idle machine."""
LOGINS = "a://b:1@h " * 20_000


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(database, "problems", lambda values: [])
    with bind("127.0.0.1", 0) as bound:
        server = RestServer(application(memory_worker(tmp_path)), bound)
        yield server.url
        server.close()


@pytest.mark.parametrize(
    ("attack", "status"),
    [
        (json.dumps(RIGHT | {"topic.prefix": "${" + ":" * 20_000}), 200),
        (json.dumps(RIGHT | {"scylla.password": "a" * 20_000}), 200),
        (json.dumps(RIGHT | {"scylla.cluster.ip.addresses": LOGINS[:MOST]}), 200),
        (json.dumps(RIGHT | {f"p{n}": LOGINS[:900] for n in range(900)}), 200),
        (json.dumps(RIGHT | {"transforms": ",".join(f"a{n}" for n in range(10_000))}), 200),
        (json.dumps(whole("a://b:1@h,${a:" * 250) | RIGHT), 200),
        ("[" * MOST_BYTES, 400),
        ('{"a":' * (DEEPEST + 1), 400),
        (json.dumps(RIGHT | {"topic.prefix": "x" * MOST_BYTES}), 413),
    ],
    ids=["reference", "secret", "logins", "many logins", "aliases", "whole", "arrays", "objects", "large"],
)
def test_health_is_answered_while_a_costly_request_is(served: str, attack: str, status: int) -> None:
    with Pulse(served) as pulse:
        assert asked(served, put(VALIDATE, attack.encode()))[0] == status
        until(lambda: len(pulse.seconds) > 3, "some answers")
    assert pulse.slowest() < SLOWEST
