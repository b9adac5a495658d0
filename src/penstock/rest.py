"""The error answers of commands that serve HTTP: what happened, where, and what to do next."""

from __future__ import annotations

from starlette.responses import JSONResponse

from penstock.errors import PenstockError


def told(error: PenstockError, status: int | None = None) -> JSONResponse:
    """The error as JSON; by default the status is 503 for a retriable error, else 400."""
    said = {"error": error.what, "where": error.where, "next": error.next}
    return JSONResponse(said, status or (503 if error.retriable else 400))
