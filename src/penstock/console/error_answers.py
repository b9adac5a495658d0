"""Answers in JSON, and errors as answers: what went wrong, where, what to do next, and the HTTP status."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from penstock.codec import exact_json
from penstock.console.panels import ConsolePanel, Status
from penstock.console.reading.reader_process import UNEXPECTED, ReaderError
from penstock.console.reading.topic_list import CHECK_KAFKA
from penstock.errors import PenstockError
from penstock.wire.errors import KafkaError

log = logging.getLogger(__name__)

OF_ALL: dict[str, Status] = {"NotFound": 404, "Refused": 403, "TooLarge": 413, "PageGone": 499, UNEXPECTED: 500}
"""The HTTP statuses of errors that any panel may have, by the names of their classes."""


class SafeJSONResponse(JSONResponse):
    """What others sent may have what JSON in UTF-8 cannot have: half of a character, or a number that is not finite."""

    def render(self, content: Any) -> bytes:
        try:
            return exact_json.dumps(content, compact=True).encode()
        except ValueError:
            return exact_json.dumps(_finite(content), compact=True, ascii=True).encode()


def _finite(value: Any) -> Any:
    """The value with other numbers as text."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class ErrorAnswers:
    """The answers of errors, with the statuses of the panels."""

    def __init__(self, panels: Sequence[ConsolePanel]) -> None:
        self._statuses = dict(OF_ALL)
        for panel in panels:
            self._statuses |= panel.statuses

    async def penstock(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, PenstockError)
        kind = error.kind if isinstance(error, ReaderError) else type(error).__name__
        status = self._statuses.get(kind) or (503 if error.retriable else 400)
        return error_answer(status if isinstance(status, int) else status(error), error.what, error.where, error.next)

    async def kafka(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, KafkaError)
        return error_answer(503, str(error), "Kafka", error.next or CHECK_KAFKA)

    async def http(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        where = f"{request.method} {request.url.path[:200]}"
        return error_answer(error.status_code, error.detail, where, "see /openapi.json", dict(error.headers or {}))

    async def unknown(self, request: Request, error: Exception) -> Response:
        where = request.url.path[:200]
        log.error("the console failed to answer %s", where, exc_info=error)
        return error_answer(500, "the console failed to answer", where, "see what the console printed")


def error_answer(status: int, what: str, where: str, next: str, headers: dict[str, str] | None = None) -> Response:
    return SafeJSONResponse({"error": what, "where": where, "next": next}, status, headers)
