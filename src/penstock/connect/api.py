"""Kafka Connect's REST API as an ASGI application, with the paths, bodies and answers of Connect 4.3."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.connect import plugin_routes, routes
from penstock.connect.routes import Call, RestRequest
from penstock.connect.worker import ConnectWorker
from penstock.errors import PenstockError
from penstock.rest import RestError

log = logging.getLogger(__name__)

MOST = 1 << 20
"""The largest body of a request in bytes."""
DEEPEST = 20
"""The deepest nesting of a request's body; configurations have two levels."""

Endpoint = Callable[[Request], Awaitable[Response]]


def application(worker: ConnectWorker) -> Starlette:
    """The application of a worker."""
    hide = worker.world.secrets.hide

    def failed(request: Request, error: Exception) -> Response:
        status, message = (error.status, error.what) if isinstance(error, RestError) else (500, str(error))
        return _error(status, hide(message))

    def broken(request: Request, error: Exception) -> Response:
        log.error("%s %s: %s", request.method, request.url.path, hide("".join(traceback.format_exception(error))))
        return _error(500, hide(f"{type(error).__name__}: {error}"))

    by_path = {**routes.ROUTES, **plugin_routes.ROUTES}
    return Starlette(
        # Many examples have a slash at the end, and curl does not follow redirects.
        routes=[
            Route(each, _endpoint(worker, calls), methods=list(calls))
            for path, calls in by_path.items()
            for each in dict.fromkeys((path, path.rstrip("/") + "/"))
        ],
        exception_handlers={HTTPException: _refused, PenstockError: failed, Exception: broken},
    )


def _endpoint(worker: ConnectWorker, calls: Mapping[str, Call]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        # Starlette also routes HEAD to a path with GET.
        call = calls["GET" if request.method == "HEAD" else request.method]
        query = {name: request.query_params.getlist(name) for name in request.query_params}
        ask = RestRequest(request.path_params, query, await _body(request))
        status, answer = await run_in_threadpool(call, worker, ask)
        return Response(status_code=status) if answer is None else JSONResponse(answer, status)

    return endpoint


async def _body(request: Request) -> Any:
    data = await _received(request)
    if not data:
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise RestError(
            415, 'HTTP 415 Unsupported Media Type: send JSON with the header "Content-Type: application/json"'
        )
    return decoded(data)


async def _received(request: Request) -> bytes:
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > MOST:
            raise RestError(413, f"HTTP 413 Content Too Large: a request may have {MOST} bytes")
    return bytes(found)


def decoded(data: bytes) -> Any:
    """The JSON of a body. Raises RestError if it is not JSON, or is nested more than `DEEPEST` levels."""
    try:
        found = json.loads(data, parse_constant=_no_number)
        if _is_deeper(found, DEEPEST):
            raise RecursionError
        # Refuse half a surrogate pair: no answer could contain it.
        json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError:
        raise RestError(400, f"The request's body is nested more than {DEEPEST} levels") from None
    except ValueError as error:
        raise RestError(400, f"The request's body is not JSON: {error}") from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def _is_deeper(found: Any, levels: int) -> bool:
    level = [found] if isinstance(found, (dict, list)) else []
    for _ in range(levels):
        items = (item for each in level for item in (each.values() if isinstance(each, dict) else each))
        level = [item for item in items if isinstance(item, (dict, list))]
    return bool(level)


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error_code": status, "message": message}, status)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = _error(error.status_code, f"HTTP {error.status_code} {error.detail}")
    answer.headers.update(error.headers or {})
    return answer
