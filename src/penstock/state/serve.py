"""State over HTTP: `GET /state`, `GET /state/<name>` and `GET /state/<name>?key=<key>`, all with `limit`.

SQL conditions are not accepted: they could call any function of the database or of Spark.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from penstock.codec import exact_json
from penstock.durations import whole
from penstock.errors import PenstockError
from penstock.serve.rest_errors import error_response
from penstock.state.stores import LIMIT, NoSuchState, States


def app(states: States) -> Starlette:
    """The application; it answers in threads, because Spark and databases block."""
    routes = [
        Route("/state", partial(_answered, partial(_list, states))),
        Route("/state/{name:path}", partial(_answered, partial(_rows, states))),
    ]
    return Starlette(routes=routes)


class ExactResponse(JSONResponse):
    """JSON whose decimals have all their digits."""

    def render(self, content: Any) -> bytes:
        return exact_json.dumps(content, compact=True).encode()


def _answered(answer: Any, request: Request) -> JSONResponse:
    try:
        return ExactResponse(answer(request))
    except PenstockError as error:
        return error_response(error, 404 if isinstance(error, NoSuchState) else None)


def _list(states: States, request: Request) -> list[dict[str, Any]]:
    return states.overview()


def _rows(states: States, request: Request) -> dict[str, Any]:
    name, key, text = request.path_params["name"], request.query_params.get("key"), request.query_params.get("limit")
    limit = LIMIT if text is None else whole(text, 1)
    if limit is None:
        raise PenstockError(f"limit is not a number of rows: {repr(text)[:80]}", next="give 1 or more")
    answer = states.scan(name, None, limit) if key is None else states.get(name, key, limit)
    return answer.to_json()
