"""The description of the server, as it is configured, and its page."""

from __future__ import annotations

import hashlib
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from ingest_app import Memory
from openapi_spec_validator import OpenAPIV31SpecValidator

from penstock.ingest import ingest_server
from penstock.ingest.ingest_settings import Given, read
from penstock.ingest.openapi import document, page

KEY = f"""
[[keys]]
name = "web"
sha256 = "{hashlib.sha256(b"web").hexdigest()}"
topics = ["*"]
"""
EVIL = "</pre><script>alert(1)</script>"


def described(folder: Path, config: str, schemas: dict[str, object] | None = None, status: int = 200) -> Any:
    """The document of a server with this configuration."""
    for name, schema in (schemas or {}).items():
        (folder / f"{name}.json").write_text(json.dumps(schema))
    (folder / "ingest.toml").write_text(f'servers = "h:1"\nschemas = "."\n{config}')
    settings, store = read(folder / "ingest.toml", Given()), Memory()
    store.status = status
    return json.loads(json.dumps(document(settings, ingest_server.readings(settings), store)))


def test_without_keys_no_operation_asks_for_one(tmp_path: Path) -> None:
    made = described(tmp_path, "[topics.a]\npixel = true\n[topics.b]\n[limits]\nevents = 7")
    OpenAPIV31SpecValidator(made).validate()
    assert set(made["paths"]) == {
        "/events/a", "/events/b", "/pixel/a", "/health", "/ready", "/status", "/metrics", "/openapi.json", "/docs"
    }  # fmt: skip
    post = made["paths"]["/events/b"]["post"]
    assert "security" not in post and "401" not in post["responses"] and "403" in post["responses"]
    assert "securitySchemes" not in made["components"]
    one, many = post["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert (many["items"], many["maxItems"]) == (one, 7)
    assert made["components"]["schemas"]["a"]["type"] == "object"


def test_with_keys_events_and_images_need_one_and_pages_do_not(tmp_path: Path) -> None:
    made = described(tmp_path, f"[topics.a]\npixel = true\n{KEY}")
    OpenAPIV31SpecValidator(made).validate()
    ways: list[dict[str, list[str]]] = [{"bearer": []}, {"apiKey": []}, {"publishableKey": []}]
    assert made["paths"]["/events/a"]["post"]["security"] == ways
    assert made["paths"]["/pixel/a"]["get"]["security"] == ways
    assert set(made["components"]["securitySchemes"]) == {"bearer", "apiKey", "publishableKey"}
    assert made["paths"]["/events/a"]["post"]["responses"]["401"] == {"$ref": "#/components/responses/401"}
    assert all("security" not in made["paths"][path]["get"] for path in ("/health", "/status", "/metrics", "/docs"))
    assert "web" not in json.dumps(made["components"]["securitySchemes"])


@pytest.mark.parametrize(("status", "text"), [(200, "Kafka has all events."), (202, "All events are on disk")])
def test_the_answer_says_where_the_events_are(tmp_path: Path, status: int, text: str) -> None:
    made = described(tmp_path, "[topics.a]\npixel = true", status=status)
    answers = made["paths"]["/events/a"]["post"]["responses"]
    assert [code for code in answers if code.startswith("2")] == [str(status)]
    assert answers[str(status)]["description"].startswith(text)
    assert str(status) in made["paths"]["/pixel/a"]["get"]["responses"]


def test_answers_that_may_pass_say_when(tmp_path: Path) -> None:
    answers = described(tmp_path, "[topics.a]")["components"]["responses"]
    assert {code for code, answer in answers.items() if "headers" in answer} == {"429", "503"}
    assert all(list(answer["content"]) == ["application/problem+json"] for answer in answers.values())


def test_references_of_a_schema_stay_within_it(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "string"}}}
    named = schema | {"$id": "urn:own"}
    made = described(tmp_path, "[topics.none]", {"plain": schema, "named": named, "never": False})
    schemas = made["components"]["schemas"]
    assert schemas["plain"] == {"$id": "urn:penstock:plain", **schema}
    assert schemas["named"] == named
    assert schemas["never"] is False


class Texts(HTMLParser):
    """The names of elements, and all text."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        assert not {name for name, _ in attrs} & {"src", "onclick", "onload"}

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_what_a_schema_says_as_text(tmp_path: Path) -> None:
    schema = {"type": "object", "description": EVIL, "properties": {EVIL: {"const": "&lt;"}}}
    shown = Texts()
    shown.feed(page(described(tmp_path, f"[topics.a]\npixel = true\n{KEY}", {"a": schema})))
    assert "script" not in shown.elements
    assert EVIL in shown.text and '"const": "&lt;"' in shown.text
    assert "POST /events/a" in shown.text and "GET /pixel/a" in shown.text and "GET /health" in shown.text
    assert "-H 'Authorization: Bearer KEY'" in shown.text
    assert "There is no API key, or it is not known." in shown.text


def test_the_example_of_a_server_without_keys_sends_none(tmp_path: Path) -> None:
    shown = page(described(tmp_path, "[topics.a]"))
    assert "Authorization" not in shown and "curl -X POST" in shown
