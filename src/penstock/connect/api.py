"""Kafka Connect's REST API as an ASGI application: the paths, bodies and answers of Connect 4.3."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.connect import plugin_routes, routes
from penstock.connect.errors import RestError
from penstock.connect.routing import Ask, Call
from penstock.connect.worker import Worker
from penstock.errors import PenstockError

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]


def application(worker: Worker) -> Starlette:
    """The application over one worker."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for (method, path), call in {**routes.ROUTES, **plugin_routes.ROUTES}.items():
        by_path.setdefault(path, {})[method] = _endpoint(worker, call)
    return Starlette(
        # Many recipes have a slash at the end, and curl does not follow a redirection.
        routes=[
            Route(place, _by_method(calls), methods=list(calls))
            for path, calls in by_path.items()
            for place in dict.fromkeys((path, path.rstrip("/") + "/"))
        ],
        exception_handlers={HTTPException: _refused, PenstockError: _failed, Exception: _broken},
    )


def _by_method(calls: Mapping[str, Endpoint]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        # Starlette answers HEAD where there is GET.
        return await calls["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


def _endpoint(worker: Worker, call: Call) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        query = {name: request.query_params.getlist(name) for name in request.query_params}
        ask = Ask(request.path_params, query, await _body(request))
        status, answer = await run_in_threadpool(call, worker, ask)
        return Response(status_code=status) if answer is None else JSONResponse(answer, status)

    return endpoint


async def _body(request: Request) -> Any:
    text = await request.body()
    if not text:
        return None
    if "json" not in request.headers.get("content-type", ""):
        raise RestError(
            415, 'HTTP 415 Unsupported Media Type: send JSON with the header "Content-Type: application/json"'
        )
    try:
        found = json.loads(text)
        # Half a surrogate pair is no text: no answer could show it again.
        json.dumps(found, ensure_ascii=False).encode()
        return found
    except ValueError as error:
        raise RestError(400, f"The request's body is no JSON: {error}") from None


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error_code": status, "message": message}, status)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = _error(error.status_code, f"HTTP {error.status_code} {error.detail}")
    answer.headers.update(error.headers or {})
    return answer


def _failed(request: Request, error: Exception) -> Response:
    return _error(error.status, error.what) if isinstance(error, RestError) else _error(500, str(error))


def _broken(request: Request, error: Exception) -> Response:
    log.error("%s %s", request.method, request.url.path, exc_info=error)
    return _error(500, f"{type(error).__name__}: {error}")
