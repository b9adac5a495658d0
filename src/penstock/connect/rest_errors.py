"""Errors of the REST API."""

from __future__ import annotations

from penstock.errors import PenstockError


class RestError(PenstockError):
    """An error answer; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def not_found(connector: str) -> RestError:
    return RestError(404, f"Connector {connector} not found")
