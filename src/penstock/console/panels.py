"""A panel of the console as the server, the description and the metrics know it: its routes, schemas and statuses.

Each module of `routes/` has one as `PANEL`. What is here and beside it knows no panel by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.console.calls import Call, Parameter
from penstock.console.watched_systems import WatchedSystems

Schema = dict[str, Any]
Status = int | Callable[[Any], int]
"""An HTTP status, or how it follows from the error."""


@dataclass(frozen=True)
class ApiRoute:
    """A route; `returns` is the name of its answer's schema, "events" for a stream, "file" for a download.

    `choices` are all values of a part of its path, by the part's name, if there are only a few.
    """

    path: str
    summary: str
    answer: Callable[[WatchedSystems, Call], Awaitable[Any]]
    returns: str
    parameters: tuple[Parameter, ...] = ()
    method: str = "GET"
    body: str = ""
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class ConsolePanel:
    """Its `schemas` are those of answers and bodies by name, its `statuses` those of errors by the class's name.

    Errors without a status are 503 if they are retriable, and else 400.
    """

    routes: tuple[ApiRoute, ...]
    schemas: Mapping[str, Schema]
    statuses: Mapping[str, Status] = field(default_factory=dict)
