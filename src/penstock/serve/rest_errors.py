"""The error answers of commands that serve HTTP."""

from __future__ import annotations

from starlette.responses import JSONResponse

from penstock.errors import PenstockError

GONE = 499
"""A status for the metrics only, as in nginx: the caller did not wait for the answer, or sent too slowly."""


class RestError(PenstockError):
    """An error answer; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def error_response(error: PenstockError, status: int | None = None) -> JSONResponse:
    """What happened, where, and what to do next, as JSON; by default the status is 503 if it is retriable, else 400."""
    said = {"error": error.what, "where": error.where, "next": error.next}
    return JSONResponse(said, status or (503 if error.retriable else 400))
