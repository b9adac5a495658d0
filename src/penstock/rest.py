"""What commands that serve over HTTP answer with when something is wrong: what, where, and what to do next."""

from __future__ import annotations

from starlette.responses import JSONResponse

from penstock.errors import PenstockError


def told(error: PenstockError, status: int | None = None) -> JSONResponse:
    """The error as JSON; its status is 503 if it may pass, else 400, unless given."""
    said = {"error": error.what, "where": error.where, "next": error.next}
    return JSONResponse(said, status or (503 if error.retriable else 400))
