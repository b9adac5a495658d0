"""Deliveries over HTTP: `POST /segments/{name}/deliveries` begins one; its receipt is read where the answer says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.errors import PenstockError
from penstock.rest import told
from penstock.segments.deliveries import Busy, Deliveries
from penstock.segments.sync import MODES
from penstock.source.http.access import Access
from penstock.source.http.answers import Refused
from penstock.source.http.settings import TOPIC

MOST = 10_000
"""Bytes of a request."""


def app(deliveries: Deliveries, access: Access) -> Starlette:
    """The application; `access` tells whose keys may deliver to which topics."""

    async def begin(request: Request) -> Response:
        name = request.path_params["name"]
        wanted = _wanted(await _body(request))
        _require(access, request, wanted["to"])
        made = await run_in_threadpool(deliveries.begin, name, wanted["to"], wanted["mode"])
        return JSONResponse(made, 202, {"location": f"/segments/{name}/deliveries/{wanted['to']}/{made['run']}"})

    async def receipt(request: Request) -> Response:
        name, to, run = (request.path_params[part] for part in ("name", "to", "run"))
        _require(access, request, to)
        found = await run_in_threadpool(deliveries.find, name, to, run)
        if found is None:
            return told(PenstockError("there was no such delivery", where=f"{name} to {to}, {run}"), 404)
        return Response(json.dumps(found, default=lambda time: time.isoformat()), media_type="application/json")

    routes = [
        Route("/segments/{name}/deliveries", _answered(begin), methods=["POST"]),
        Route("/segments/{name}/deliveries/{to}/{run:uuid}", _answered(receipt)),
    ]
    return Starlette(routes=routes)


def _answered(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        try:
            response: Response = await answer(request)
        except Refused as why:
            return told(PenstockError(why.detail, where=request.url.path), why.status)
        except PenstockError as error:
            return told(error, 409 if isinstance(error, Busy) else None)
        return response

    return endpoint


def _require(access: Access, request: Request, topic: str) -> None:
    shown = (request.headers.get(name) for name in ("authorization", "x-api-key"))
    access.require(topic, *(text.encode() if text is not None else None for text in shown))


async def _body(request: Request) -> bytes:
    found = b""
    async for some in request.stream():
        found += some
        if len(found) > MOST:
            raise Refused(413, f"the request is larger than {MOST} bytes")
    return found


def _wanted(body: bytes) -> dict[str, str]:
    next = 'send {"to": TOPIC, "mode": "full"}, or "changes" for what changed since the last delivery'
    try:
        found = json.loads(body)
    except ValueError as error:
        raise PenstockError(f"the request is no JSON: {error}", next=next) from None
    if not isinstance(found, dict) or found.keys() != {"to", "mode"} or found["mode"] not in MODES:
        raise PenstockError("the request does not say what to deliver", where=str(found)[:100], next=next)
    if not isinstance(found["to"], str) or not TOPIC.fullmatch(found["to"]):
        raise PenstockError(f"{found['to']!r} is no name of a topic", where="to", next="use letters, digits, . _ and -")
    return found
