"""Kafka Connect's REST API as an ASGI application, with the paths, bodies and answers of Connect 4.3."""

from __future__ import annotations

import asyncio
import logging
import re
import traceback
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import quote, unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.connect.worker import plugin_routes, routes
from penstock.connect.worker.herder import Herder
from penstock.connect.worker.routes import Answer, Call, RestRequest
from penstock.errors import PenstockError
from penstock.serve.json_bodies import json_body
from penstock.serve.listener import MONITORED
from penstock.serve.rest_errors import RestError

log = logging.getLogger(__name__)

SLASH = "\x00"
"""Stands for an encoded slash while a path is matched; a name has no control characters."""
Endpoint = Callable[[Request], Awaitable[Response]]


def application(worker: Herder) -> Starlette:
    """The application of a worker."""
    hide = worker.context.secrets.hide

    def failed(request: Request, error: Exception) -> Response:
        if isinstance(error, RestError):
            return _error(error.status, hide(error.what))
        retriable = isinstance(error, PenstockError) and error.retriable
        return _error(503 if retriable else 500, hide(str(error)))

    def broken(request: Request, error: Exception) -> Response:
        log.error("%s %s: %s", request.method, request.url.path, hide("".join(traceback.format_exception(error))))
        return _error(500, hide(f"{type(error).__name__}: {error}"))

    by_path = {**routes.ROUTES, **plugin_routes.ROUTES}
    return _Slashes(
        # Many examples have a slash at the end, and curl does not follow redirects.
        routes=[
            Route(each, _endpoint(worker, path, calls), methods=list(calls))
            for path, calls in by_path.items()
            for each in dict.fromkeys((path, path.rstrip("/") + "/"))
        ],
        exception_handlers={HTTPException: _refused, PenstockError: failed, Exception: broken},
    )


class _Slashes(Starlette):
    """Takes `%2F` for a part of a name: connectors that have one were created by earlier versions."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        raw = scope.get("raw_path") or b""
        if b"%2f" in raw.lower():
            path = re.sub("%2f", quote(SLASH), raw.decode("latin-1"), flags=re.IGNORECASE)
            scope = {**scope, "path": unquote(path)}
        await super().__call__(scope, receive, send)


def _endpoint(worker: Herder, path: str, calls: Mapping[str, Call]) -> Endpoint:
    # The application's threads may all wait for a database: the event loop's own are for what monitors ask.
    in_thread: Callable[..., Awaitable[Answer]] = asyncio.to_thread if path in MONITORED else run_in_threadpool

    async def endpoint(request: Request) -> Response:
        # Starlette also routes HEAD to a path with GET.
        call = calls["GET" if request.method == "HEAD" else request.method]
        query = {name: request.query_params.getlist(name) for name in request.query_params}
        path = {name: text.replace(SLASH, "/") for name, text in request.path_params.items()}
        ask = RestRequest(path, query, await json_body(request))
        status, answer = await in_thread(call, worker, ask)
        return Response(status_code=status) if answer is None else JSONResponse(answer, status)

    return endpoint


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error_code": status, "message": message}, status)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = _error(error.status_code, f"HTTP {error.status_code} {error.detail}")
    answer.headers.update(error.headers or {})
    return answer
