"""A call of the API: a request whose parameters are known ones, its body, and work that ends when the page goes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from penstock.errors import PenstockError
from penstock.serve.json_bodies import json_body
from penstock.serve.rest_errors import GONE, RestError

Json = dict[str, Any]

LONGEST = 2000
"""The longest value of a parameter in characters."""


class NotFound(PenstockError):
    """What the address names does not exist."""


class PageGone(PenstockError):
    """The page does not wait for the answer any more."""


class TooLarge(PenstockError):
    """The request's body is larger than the console takes."""


_BODY_ERRORS: dict[int, tuple[type[PenstockError], str]] = {
    413: (TooLarge, "send less with each request"),
    GONE: (PageGone, "send it again"),
}
"""By the status of an error in reading a body, its class here and what to do next."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of the query string; `choices` are all its values, if there are only a few."""

    name: str
    text: str
    choices: tuple[str, ...] = ()
    whole: bool = False


@dataclass(frozen=True)
class Call:
    """A request whose parameters are known ones; `path` are the parts of the address."""

    request: Request
    path: Json
    query: dict[str, str]

    async def body(self) -> Json:
        """The body as a JSON object; raises PenstockError for another one, and TooLarge."""
        if self.request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise PenstockError("the body is not JSON", next="send it with the header Content-Type: application/json")
        try:
            document = await json_body(self.request)
        except RestError as error:
            kind, next = _BODY_ERRORS.get(error.status, (PenstockError, "see /openapi.json for its form"))
            raise kind(error.what, next=next) from None
        if document is not None and not isinstance(document, dict):
            raise PenstockError("the body is not a JSON object", next="see /openapi.json for its form")
        return document or {}


def call_of(path: str, parameters: tuple[Parameter, ...], request: Request) -> Call:
    """The call of a route; raises PenstockError for a parameter that is unknown, given twice or too long."""
    known = {parameter.name: parameter for parameter in parameters}
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            step = f"give {', '.join(known)}" if known else "give none"
            raise PenstockError(f"there is no parameter {name[:100]!r}", where=path, next=step)
        if name in query:
            raise PenstockError(f"{name} is given twice", where=path, next="give it once")
        if len(value) > LONGEST:
            raise PenstockError(f"{name} has more than {LONGEST} characters", where=path, next="give less")
        if value and (choices := known[name].choices) and value not in choices:
            step = f"give {' or '.join(choices)}"
            raise PenstockError(f"{name} is not one of its values: {value[:100]!r}", where=path, next=step)
        if value and known[name].whole and not (value.isascii() and value.isdecimal() and len(value) < 10):
            raise PenstockError(f"{name} is not a number: {value[:100]!r}", where=path, next="give 0 or more")
        if value:
            query[name] = value
    return Call(request, request.path_params, query)


async def while_connected(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """The result; if the page goes, the work is cancelled. Raises PageGone.

    A page that is left or loaded again would else keep others from the process that reads records.
    """
    task, gone = asyncio.create_task(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise PageGone("the page does not wait for the answer any more", next="ask again")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
