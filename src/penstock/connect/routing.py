"""What a request is to the functions that answer it, and how these are found by method and path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.connect.rest_errors import RestError
from penstock.connect.worker import ConnectWorker


@dataclass(frozen=True)
class Ask:
    """A request: the parts of its path, the parameters of its query, and its body, decoded."""

    path: Mapping[str, str]
    query: Mapping[str, list[str]]
    body: Any

    @property
    def name(self) -> str:
        """The connector's."""
        return self.path["name"]

    def flag(self, name: str, default: str = "false") -> bool:
        return self.query.get(name, [default])[-1].lower() == "true"


Answer = tuple[int, Any]
"""HTTP's status, and the body; None for no body."""
Call = Callable[[ConnectWorker, Ask], Answer]
Routes = dict[tuple[str, str], Call]


def route(routes: Routes, method: str, path: str) -> Callable[[Call], Call]:
    """Have requests answered by the function that this decorates."""

    def mark(call: Call) -> Call:
        routes[method, path] = call
        return call

    return mark


KINDS = {dict: "an object", list: "an array"}


def as_object(body: Any) -> dict[str, Any]:
    """A body that must be a JSON object."""
    if not isinstance(body, dict):
        raise RestError(400, "The body must be a JSON object")
    return body


def as_config(body: Any) -> dict[str, str]:
    """A configuration of a body: values that are no text become the text that Connect makes of them."""
    config = {}
    for name, value in as_object(body).items():
        if value is None:
            raise RestError(400, f"Null value can not be supplied as the configuration value: {name}; leave it out")
        if isinstance(value, dict | list):
            raise RestError(
                400, f"The value of {name} must be text, a number or a truth value, not {KINDS[type(value)]}"
            )
        config[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return config
