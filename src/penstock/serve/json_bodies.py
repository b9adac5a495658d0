"""The JSON bodies of requests: of bounded size and depth, and nothing that no answer could repeat."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import ClientDisconnect, Request

from penstock.durations import whole
from penstock.serve.rest_errors import GONE, RestError

MOST = 1 << 20
"""The largest body of a request in bytes."""
DEEPEST = 20
"""The deepest nesting of a request's body; configurations have two levels."""


async def json_body(request: Request, most: int = MOST) -> Any:
    """The body, None for none. Raises RestError if it has more than `most` bytes, and see `decoded`."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise RestError(413, f"HTTP 413 Content Too Large: a request may have {most} bytes")
    except ClientDisconnect:
        raise RestError(GONE, "the caller has gone, or its request did not come in time") from None
    return decoded(bytes(body)) if body else None


def decoded(data: bytes) -> Any:
    """The JSON of a body. Raises RestError if it is not JSON, or is nested more than `DEEPEST` levels."""
    try:
        document = json.loads(data, parse_constant=_no_number)
        if _is_deeper(document, DEEPEST):
            raise RecursionError
        # Refuse half a surrogate pair: no answer could contain it.
        json.dumps(document, ensure_ascii=False).encode()
        return document
    except RecursionError:
        raise RestError(400, f"The request's body is nested more than {DEEPEST} levels") from None
    except ValueError as error:
        raise RestError(400, f"The request's body is not JSON: {error}") from None


def whole_number(value: Any, least: int = 0, most: int = (1 << 63) - 1, *, as_text: bool = False) -> int | None:
    """A whole number of a body, None for anything else; with `as_text` it may be the digits of one as a string.

    3.0 is not one, and neither is true, which is an int to Python: all bodies are read with this function.
    """
    if as_text and isinstance(value, str):
        return whole(value, least, most)
    return value if type(value) is int and least <= value <= most else None


def _is_deeper(document: Any, levels: int) -> bool:
    """Whether lists and objects are nested in each other at more levels."""
    level = [document] if isinstance(document, (dict, list)) else []
    for _ in range(levels):
        items = (item for each in level for item in (each.values() if isinstance(each, dict) else each))
        level = [item for item in items if isinstance(item, (dict, list))]
    return bool(level)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
