"""The server's description in OpenAPI 3.1, which has the topics' JSON schemas unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from penstock import __version__
from penstock.ingest.events import LINES, TopicFormat
from penstock.ingest.ingest_settings import IngestSettings
from penstock.ingest.kafka_store import EventStore

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
h1{margin-bottom:0}
h2{margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}code,pre{font:14px/1.45 ui-monospace,monospace}
pre{background:#f4f4f2;padding:.8rem;overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem .3rem 0;border-bottom:1px solid #e5e5e5}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e8e8e8}pre{background:#222}th,td{border-color:#333}}
"""
ALWAYS = ("408", "413", "415", "429", "500", "503")
ANY = {"type": "object", "description": "Any JSON object: this topic has no schema."}


def document(settings: IngestSettings, readings: Mapping[str, TopicFormat], store: EventStore) -> dict[str, Any]:
    paths = {f"/events/{name}": {"post": _post(name, settings, store.status)} for name in readings}
    images = [name for name, topic in settings.topics.items() if topic.pixel]
    paths |= {f"/pixel/{name}": {"get": _pixel(name, settings, store.status)} for name in images}
    api: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock ingest",
            "version": __version__,
            "description": "Takes events for Kafka topics. A 2xx answer means that they are safe.",
        },
        "paths": paths | _pages(),
        "components": {"schemas": _schemas(readings), "responses": _responses()},
    }
    if settings.keys:
        api["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
            "publishableKey": {"type": "apiKey", "in": "query", "name": "api_key"},
        }
    return api


def _post(topic: str, settings: IngestSettings, status: int) -> dict[str, Any]:
    event = {"$ref": f"#/components/schemas/{topic}"}
    many = {"type": "array", "items": event, "minItems": 1, "maxItems": settings.limits.events}
    kinds: dict[str, Any] = {"application/json": {"schema": {"anyOf": [event, many]}}}
    kinds |= {kind: {"schema": {"type": "string", "description": "An event on each line."}} for kind in sorted(LINES)}
    where = "Kafka has all events." if status == 200 else "All events are on disk, and are sent to Kafka in order."
    answers = {str(status): {"description": where, "content": _json("Accepted")}}
    refused = ["400", "401", "403"] if settings.keys else ["400", "403"]
    answers |= {code: {"$ref": f"#/components/responses/{code}"} for code in [*refused, *ALWAYS]}
    return {
        "operationId": f"send-{topic}",
        "summary": f"Send events to {topic}",
        "tags": ["events"],
        "parameters": [
            _parameter("key", "query", {"type": "string"}, "The key of all events: it decides their partition."),
            _parameter("X-Event-Key", "header", {"type": "string"}, "The same as `key`, which overrides it."),
            _parameter(
                "partial",
                "query",
                {"type": "boolean", "default": False},
                "Keep the good events of a request with bad ones.",
            ),
        ],
        "requestBody": {"required": True, "content": kinds},
        "responses": answers,
        **_security(settings),
    }


def _pixel(topic: str, settings: IngestSettings, status: int) -> dict[str, Any]:
    image: dict[str, Any] = {"content": {"image/gif": {}}}
    texts = {str(status): "The event is safe.", "default": "It is not; the header X-Penstock-Problem says why."}
    fields = {"type": "object", "additionalProperties": {"type": "string"}}
    event = {"name": "fields", "in": "query", "style": "form", "explode": True, "schema": fields}
    return {
        "operationId": f"pixel-{topic}",
        "summary": f"Send an event to {topic} as the parameters of an image",
        "tags": ["events"],
        "parameters": [
            event | {"description": "The fields of the event."},
            _parameter("key", "query", {"type": "string"}, "The key of the event: it decides its partition."),
        ],
        "responses": {code: {"description": text, **image} for code, text in texts.items()},
        **_security(settings),
    }


def _security(settings: IngestSettings) -> dict[str, Any]:
    return {"security": [{"bearer": []}, {"apiKey": []}, {"publishableKey": []}]} if settings.keys else {}


def _parameter(name: str, place: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": False, "schema": schema, "description": text}


def _pages() -> dict[str, Any]:
    def get(text: str, kind: str) -> dict[str, Any]:
        return {
            "get": {
                "summary": text,
                "tags": ["server"],
                "responses": {"200": {"description": text, "content": {kind: {}}}},
            }
        }

    health = get("The health of the server and of Kafka", "application/json")
    health["get"]["responses"]["503"] = {
        "description": "Events are not taken now.",
        "content": {"application/json": {}},
    }
    ready = get("Whether events are taken now", "application/json")
    ready["get"]["responses"]["503"] = health["get"]["responses"]["503"]
    return {
        "/health": health,
        "/ready": ready,
        "/status": get("The state, the graph and the counts of the server", "application/json"),
        "/metrics": get("Metrics for Prometheus", "text/plain"),
        "/openapi.json": get("This document", "application/json"),
        "/docs": get("This document as a page", "text/html"),
    }


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/penstock.{schema}"}}}


def _schemas(readings: Mapping[str, TopicFormat]) -> dict[str, Any]:
    errors = {
        "type": "array",
        "description": "The first 100 problems.",
        "items": {
            "type": "object",
            "required": ["index", "path", "reason"],
            "properties": {
                "index": {"type": "integer", "minimum": 0, "description": "The event's index in the request."},
                "path": {"type": "string", "description": "The path in the event, as a JSON pointer."},
                "reason": {"type": "string"},
            },
        },
    }
    bad = {"type": "integer", "description": "How many events are bad."}
    accepted = {"type": "integer", "description": "How many events were stored."}
    problem = {"title": {"type": "string"}, "status": {"type": "integer"}, "detail": {"type": "string"}}
    parts = {"accepted": accepted, "bad": bad, "errors": errors}
    return {
        "penstock.Accepted": {"type": "object", "required": ["accepted"], "properties": parts},
        "penstock.Problem": {"type": "object", "required": list(problem), "properties": problem | parts},
    } | {name: _schema(name, topic_format) for name, topic_format in readings.items()}


def _schema(topic: str, reading: TopicFormat) -> Any:
    """A topic's schema, with an `$id` of its own, so that references in it stay within it."""
    if not reading.schema or not isinstance(reading.schema.document, dict):
        return reading.schema.document if reading.schema else ANY
    return {"$id": f"urn:penstock:{topic}"} | reading.schema.document


def _responses() -> dict[str, Any]:
    texts = {
        "400": "The body or some events are not valid, or the topic does not take them.",
        "401": "There is no API key, or it is not known.",
        "403": "The API key is not for this topic, or the web page may not send events.",
        "408": "The body did not come in time.",
        "413": "The request or an event is too large.",
        "415": "The content type or encoding is not known.",
        "429": "Too much is under way; try again after the seconds in Retry-After.",
        "500": "An error of the server, which may lack the right to write to the topic.",
        "503": "Kafka did not confirm the events; try again after the seconds in Retry-After.",
    }
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/penstock.Problem"}}}
    retry = {"Retry-After": {"schema": {"type": "integer"}, "description": "Seconds."}}
    return {
        code: {"description": text, "content": content, **({"headers": retry} if code in ("429", "503") else {})}
        for code, text in texts.items()
    }


# The description as one HTML page, which loads nothing from elsewhere.


def page(document: Mapping[str, Any]) -> str:
    """The HTML page of an OpenAPI document made by `document`."""
    info, schemas = document["info"], document["components"]["schemas"]
    posts = {path: item["post"] for path, item in document["paths"].items() if "post" in item}
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>",
        f"<style>{STYLE}</style>",
        "<meta name=viewport content='width=device-width'>",
        f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])} <a href=openapi.json>openapi.json</a></p>",
        *(_topic(path, post, schemas, document) for path, post in posts.items()),
        "<h2>The server</h2><table>",
        *(
            _row(f"<code>GET {path}</code>", item["get"]["summary"])
            for path, item in document["paths"].items()
            if "get" in item
        ),
        "</table></html>",
    ]
    return "\n".join(parts)


def _topic(path: str, post: Mapping[str, Any], schemas: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    schema = schemas[path.removeprefix("/events/")]
    key = "  -H 'Authorization: Bearer KEY' \\\n" if "security" in post else ""
    example = (
        f"curl -X POST \\\n{key}  -H 'Content-Type: application/json' \\\n  --data-binary @events.json \\\n  HOST{path}"
    )
    answers = document["components"]["responses"]
    texts = {
        code: (answers[code] if "$ref" in answer else answer)["description"]
        for code, answer in post["responses"].items()
    }
    return "\n".join(
        [
            f"<h2><code>POST {escape(path)}</code></h2>",
            f"<p>{escape(post['summary'])}: one event, an array of events, or an event on each line.</p>",
            f"<pre>{escape(example)}</pre><h3>Parameters</h3><table>",
            *(
                _row(f"<code>{parameter['name']}</code> ({parameter['in']})", parameter["description"])
                for parameter in post["parameters"]
            ),
            f"</table><h3>An event</h3><pre>{escape(json.dumps(schema, indent=2))}</pre><h3>Answers</h3><table>",
            *(_row(f"<code>{code}</code>", text) for code, text in texts.items()),
            "</table>",
        ]
    )


def _row(head: str, text: str) -> str:
    return f"<tr><td>{head}<td>{escape(text)}"
