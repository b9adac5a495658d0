"""The description of the console's API as an OpenAPI document, made of its routes."""

from __future__ import annotations

import re
from typing import Any

from penstock import __version__
from penstock.console.reading.connect_clusters import ACTIONS
from penstock.console.routes import ROUTES, ApiRoute, Parameter
from penstock.serve.access.page import TOKEN

Json = dict[str, Any]

PART = re.compile(r"{(\w+)(?::(\w+))?}")
TEXT: Json = {"type": "string"}
NUMBER: Json = {"type": "number"}
WHOLE: Json = {"type": "integer"}
FLAG: Json = {"type": "boolean"}
NULL_OR_TEXT: Json = {"type": ["string", "null"]}
FREE: Json = {"type": "object"}
COUNTS: Json = {"type": "object", "additionalProperties": WHOLE}


def _record(**fields: Json) -> Json:
    return {"type": "object", "properties": fields}


def _list(of: Json) -> Json:
    return {"type": "array", "items": of}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


_message = {
    "partition": WHOLE,
    "offset": WHOLE,
    "timestamp": NULL_OR_TEXT,
    "key": NULL_OR_TEXT,
    "value": NULL_OR_TEXT,
    "key_format": TEXT,
    "value_format": TEXT,
    "key_problem": TEXT,
    "value_problem": TEXT,
    "headers": _list({"type": "array", "items": NULL_OR_TEXT, "minItems": 2, "maxItems": 2}),
    "size": WHOLE,
    "truncated": FLAG,
}
_failed = _record(partition=WHOLE, offset=WHOLE, why=TEXT)
_between = {"from": TEXT, "until": TEXT}
_task = _record(
    **{"id": NUMBER, "state": TEXT, "worker": TEXT, "trace": TEXT},
    **{"records_total": WHOLE, "dead_letters_total": WHOLE, "mostly_bad": FLAG},
)
_connector = {
    "cluster": WHOLE,
    "url": TEXT,
    "name": NULL_OR_TEXT,
    "type": TEXT,
    "state": TEXT,
    "worker": TEXT,
    "trace": TEXT,
    "tasks": _list(_task),
}
SCHEMAS: dict[str, Json] = {
    "Error": _record(error=TEXT, where=TEXT, next=TEXT) | {"required": ["error", "where", "next"]},
    "Problem": _record(
        **dict.fromkeys(("severity", "what", "where", "next", "run"), TEXT),
        query=NULL_OR_TEXT,
        cluster={"type": ["integer", "null"]},
    ),
    "Graph": _record(nodes=_list(FREE), edges=_list(_record(source=TEXT, target=TEXT, rate=NUMBER))),
    "Run": _record(
        id=TEXT,
        name=TEXT,
        kind=TEXT,
        url=NULL_OR_TEXT,
        state=TEXT,
        reachable=FLAG,
        problem=TEXT,
        queries=_list(FREE),
        errors=_list(FREE),
        graph=_ref("Graph"),
    ),
    "Overview": _record(
        now=TEXT,
        version=TEXT,
        read_only=FLAG,
        messages=FLAG,
        history=FLAG,
        kafkas=_list(TEXT),
        kafka=NULL_OR_TEXT,
        targets=_list(FREE),
        runs=_list(_ref("Run")),
        graph=_ref("Graph"),
        problems=_list(_ref("Problem")),
    ),
    "History": _record(range=TEXT, step=WHOLE, series={"type": "object", "additionalProperties": _list(_list(NUMBER))}),
    "Topics": _list(
        _record(
            name=NULL_OR_TEXT,
            partitions=WHOLE,
            records=WHOLE,
            rate={"type": ["number", "null"]},
            writers=_list(TEXT),
            readers=_list(TEXT),
            internal=FLAG,
            listed=WHOLE,
            topics=WHOLE,
        )
    ),
    "Record": _record(**_message),
    "Records": _record(
        records=_list(_ref("Record")), more=FLAG, newer=TEXT, older=TEXT, skipped_batches=WHOLE, searched=WHOLE
    ),
    "DeadLetterTopics": _list(
        _record(topic=NULL_OR_TEXT, records=WHOLE, reasons=COUNTS, looked_at=WHOLE, topics=WHOLE)
    ),
    "DeadLetters": _record(
        topic=TEXT,
        reasons=_list(_record(reason=TEXT, count=WHOLE, first=TEXT, last=TEXT)),
        records=_list(_record(**_message, reason=TEXT, origin=FREE)),
        more=FLAG,
        looked_at_all=FLAG,
    ),
    "Letters": {
        "oneOf": [
            _record(letters=_list({"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 2}))
            | {"required": ["letters"]},
            _record(reason=TEXT, **_between) | {"required": ["reason"]},
            _record(all={"const": True}, **_between) | {"required": ["all"]},
        ]
    },
    "Sent": _record(
        sent=WHOLE,
        topics=COUNTS,
        failed=_list(_failed),
        left=WHOLE,
        next={"oneOf": [_ref("Letters"), {"type": "null"}]},
        error=NULL_OR_TEXT,
    ),
    "Connectors": _list(_record(**_connector, letters=NULL_OR_TEXT, kafka=NULL_OR_TEXT, error=TEXT, problem=TEXT)),
    "Connector": _record(**_connector, config=FREE, offsets={}, problem=TEXT),
    "Acted": _record(action=TEXT, done=FLAG, waited_seconds=NUMBER, connector=_record(**_connector)),
    "States": _list(_record(run=TEXT, name=TEXT, operator=TEXT, batch=WHOLE, committed=TEXT, age_seconds=NUMBER)),
    "StateRows": _record(name=TEXT, batch=WHOLE, committed=TEXT, age_seconds=NUMBER, rows=_list({}), more=FLAG),
    "Ingest": _list(_record(run=TEXT, url=TEXT, state=TEXT, reachable=FLAG, problem=TEXT)),
}
OTHERS: dict[str, Json] = {"events": {"text/event-stream": {}}, "file": {"application/x-ndjson": {}, "text/csv": {}}}
"""What is not JSON."""
PAGES = {
    "/metrics": ("The console's own metrics", "text/plain"),
    "/health": ("Whether the console runs", "application/json"),
    "/openapi.json": ("This document", "application/json"),
}


def description() -> Json:
    """The document of all routes."""
    paths: dict[str, Json] = {}
    for route in ROUTES:
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
        "components": {"schemas": SCHEMAS, "securitySchemes": {"token": token}},
    }


def _operation(route: ApiRoute) -> Json:
    content = OTHERS.get(route.returns) or {"application/json": {"schema": _ref(route.returns)}}
    error = {"application/json": {"schema": _ref("Error")}}
    words = PART.sub(r"by-\1", route.path).strip("/").replace("/", "-")
    made: Json = {
        "summary": route.summary,
        "operationId": f"{route.method.lower()}-{words}",
        "parameters": [*_of_path(route), *map(_of_query, route.parameters)],
        "responses": {
            "200": {"description": route.summary, "content": content},
            "default": {"description": "What went wrong, where, and what to do next", "content": error},
        },
    }
    if route.body:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.body)}}}
    if route.method == "POST":
        made["security"] = [{"token": []}]
    return made


def _of_path(route: ApiRoute) -> list[Json]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _schema_of_part(name, kind)}
        for name, kind in PART.findall(route.path)
    ]


def _schema_of_part(name: str, kind: str) -> Json:
    if name == "action":
        return {"type": "string", "enum": list(ACTIONS)}
    return WHOLE if kind == "int" else TEXT


def _of_query(parameter: Parameter) -> Json:
    schema: Json = dict(WHOLE if parameter.whole else TEXT)
    if parameter.choices:
        schema["enum"] = list(parameter.choices)
    return {"name": parameter.name, "in": "query", "required": False, "schema": schema, "description": parameter.text}
