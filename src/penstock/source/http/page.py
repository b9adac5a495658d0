"""The description as one page of HTML, which needs nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
h1{margin-bottom:0}
h2{margin-top:2.5rem;border-top:1px solid #ccc;padding-top:1rem}code,pre{font:14px/1.45 ui-monospace,monospace}
pre{background:#f4f4f2;padding:.8rem;overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .6rem .3rem 0;border-bottom:1px solid #e5e5e5}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e8e8e8}pre{background:#222}th,td{border-color:#333}}
"""


def page(document: Mapping[str, Any]) -> str:
    """A page of an OpenAPI document as `openapi.document` makes it."""
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
    texts = {code: (answers[code] if "$ref" in one else one)["description"] for code, one in post["responses"].items()}
    return "\n".join(
        [
            f"<h2><code>POST {escape(path)}</code></h2>",
            f"<p>{escape(post['summary'])}: one event, an array of events, or an event on each line.</p>",
            f"<pre>{escape(example)}</pre><h3>Parameters</h3><table>",
            *(_row(f"<code>{one['name']}</code> ({one['in']})", one["description"]) for one in post["parameters"]),
            f"</table><h3>An event</h3><pre>{escape(json.dumps(schema, indent=2))}</pre><h3>Answers</h3><table>",
            *(_row(f"<code>{code}</code>", text) for code, text in texts.items()),
            "</table>",
        ]
    )


def _row(head: str, text: str) -> str:
    return f"<tr><td>{head}<td>{escape(text)}"
