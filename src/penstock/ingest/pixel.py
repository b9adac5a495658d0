"""Events as images: `GET /pixel/{topic}` for pages and mails that can only load an image.

The query's parameters are the fields of one event. The answer is always an image of one transparent pixel, with the
status that the same event would get by POST: browsers show it whatever the status is, while /metrics, the logs of
proxies and `fetch` show the status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from penstock.ingest.exchange import Headers, RefusedRequest

PATH = "/pixel/"
MOST = 200
"""Most parameters of a query."""
GIF = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\xff\xff\xff!\xf9\x04\x01\x00\x00\x00\x00"
    b",\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02D\x01\x00;"
)
KIND = b"image/gif"
HEADERS: Headers = [
    (b"cache-control", b"no-store"),
    # For pages that load nothing else from elsewhere (Cross-Origin-Embedder-Policy).
    (b"cross-origin-resource-policy", b"cross-origin"),
]
SHOWN = 300
"""Most characters of a problem in a header."""

_PARSED: dict[str, type] = {"integer": int, "number": float, "boolean": bool}


def body(fields: Mapping[str, str], schema: Any) -> bytes:
    """The event in JSON. Values are strings, unless the schema wants a number or a boolean and the value is one."""
    if not fields:
        raise RefusedRequest(400, "the query has no field of an event")
    below = schema.get("properties") if isinstance(schema, dict) else None
    wanted = below if isinstance(below, dict) else {}
    return msgspec.json.encode({name: _value(text, wanted.get(name)) for name, text in fields.items()})


def _value(text: str, schema: Any) -> str | msgspec.Raw:
    kinds = schema.get("type") if isinstance(schema, dict) else None
    kinds = kinds if isinstance(kinds, list) else [kinds]
    for kind in () if "string" in kinds else kinds:
        try:
            msgspec.json.decode(text, type=_PARSED[kind])
            return msgspec.Raw(text.strip().encode())
        except (KeyError, msgspec.DecodeError):
            pass  # the schema's check reports the problem
    return text


def problem(why: RefusedRequest) -> Headers:
    """A header with why the event was refused, as a JSON string, which is ASCII without line ends."""
    first = f": {why.problems[0].path} {why.problems[0].reason}" if why.problems else ""
    return [(b"x-penstock-problem", json.dumps(f"{why.detail}{first}"[:SHOWN]).encode())]


# A URL's query: names and values as HTML forms and `URLSearchParams` write them.


def parameters(query: bytes, most: int) -> dict[str, str]:
    """Each parameter once; raises RefusedRequest if one comes twice, there are more than `most`, or one is not UTF-8.

    Bytes that are not UTF-8 are refused rather than replaced: keys that differ would become the same.
    """
    if query.count(b"&") >= most:
        raise RefusedRequest(400, f"the query has more than {most} parameters")
    value_by_name: dict[str, str] = {}
    for part in query.split(b"&"):
        if not part:
            continue
        name, _, value = part.partition(b"=")
        try:
            text, of = _text(name), _text(value)
        except UnicodeDecodeError:
            shown = part[:100].decode("ascii", "backslashreplace")
            raise RefusedRequest(400, f"the query is not UTF-8 in {shown}") from None
        if text in value_by_name:
            raise RefusedRequest(400, f"the query has {text[:100]!r} twice")
        value_by_name[text] = of
    return value_by_name


def _text(part: bytes) -> str:
    return unquote_to_bytes(part.replace(b"+", b" ")).decode()
