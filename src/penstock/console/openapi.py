"""The words of a schema, and the description of the console's API as an OpenAPI document, made of its panels."""

from __future__ import annotations

import re
from collections.abc import Sequence

from penstock import __version__
from penstock.console.calls import Parameter
from penstock.console.panels import ApiRoute, ConsolePanel, Schema
from penstock.serve.access.page import TOKEN

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
FLAG: Schema = {"type": "boolean"}
NULL_OR_TEXT: Schema = {"type": ["string", "null"]}
FREE: Schema = {"type": "object"}
COUNTS: Schema = {"type": "object", "additionalProperties": WHOLE}

PART = re.compile(r"{(\w+)(?::(\w+))?}")
OTHERS: dict[str, Schema] = {"events": {"text/event-stream": {}}, "file": {"application/x-ndjson": {}, "text/csv": {}}}
"""What is not JSON."""
PAGES = {
    "/metrics": ("The console's own metrics", "text/plain"),
    "/health": ("Whether the console runs", "application/json"),
    "/openapi.json": ("This document", "application/json"),
}


def record(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields}


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def ref(name: str) -> Schema:
    """The schema of this name, which any panel may have."""
    return {"$ref": f"#/components/schemas/{name}"}


ERROR = record(error=TEXT, where=TEXT, next=TEXT) | {"required": ["error", "where", "next"]}


def description(panels: Sequence[ConsolePanel]) -> Schema:
    """The document of all routes."""
    schemas = {"Error": ERROR}
    paths: dict[str, Schema] = {}
    for panel in panels:
        schemas |= panel.schemas
        for route in panel.routes:
            paths.setdefault(PART.sub(r"{\1}", route.path), {})[route.method.lower()] = _operation(route)
    for path, (text, kind) in PAGES.items():
        answer = {"description": text, "content": {kind: {}}}
        paths[path] = {"get": {"summary": text, "operationId": path.strip("/"), "responses": {"200": answer}}}
    token = {
        "type": "apiKey",
        "in": "header",
        "name": TOKEN,
        "description": "The token in the address that `penstock console --allow-actions` prints.",
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Penstock console", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": token}},
    }


def _operation(route: ApiRoute) -> Schema:
    content = OTHERS.get(route.returns) or {"application/json": {"schema": ref(route.returns)}}
    error = {"application/json": {"schema": ref("Error")}}
    words = PART.sub(r"by-\1", route.path).strip("/").replace("/", "-")
    operation: Schema = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}-{words}",
        "parameters": [*_of_path(route), *map(_of_query, route.parameters)],
        "responses": {
            "200": {"description": route.summary, "content": content},
            "default": {"description": "What went wrong, where, and what to do next", "content": error},
        },
    }
    if route.body:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": ref(route.body)}}}
    if route.method == "POST":
        operation["security"] = [{"token": []}]
    return operation


def _of_path(route: ApiRoute) -> list[Schema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _schema_of_part(kind, route.choices.get(name))}
        for name, kind in PART.findall(route.path)
    ]


def _schema_of_part(kind: str, choices: tuple[str, ...] | None) -> Schema:
    if choices:
        return {"type": "string", "enum": list(choices)}
    return WHOLE if kind == "int" else TEXT


def _of_query(parameter: Parameter) -> Schema:
    schema: Schema = dict(WHOLE if parameter.whole else TEXT)
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    return {"name": parameter.name, "in": "query", "required": False, "schema": schema, "description": parameter.text}
