"""Problem documents (RFC 9457) for refused requests, and the headers that belong to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

Headers = list[tuple[bytes, bytes]]

PLAIN, PROBLEM = b"application/json", b"application/problem+json"

DETAIL = 1000
"""Most characters of a refusal's detail, which may quote what the caller sent."""
SHOWN = 100
"""Most problems of events that an answer lists."""
LONGEST = 300
"""Most characters of a reason or a path; validators quote whole values."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with an event: its index in the request from 0, the path in it as a JSON pointer, and why."""

    index: int
    path: str
    reason: str


class Refused(Exception):
    """Ends a request with an error; `retry_after` is in seconds, for an error that may pass."""

    def __init__(
        self, status: int, detail: str, *, retry_after: int | None = None, problems: Sequence[Problem] = (), **more: Any
    ) -> None:
        detail = detail if len(detail) <= DETAIL else f"{detail[:DETAIL]} ..."
        super().__init__(detail)
        self.status, self.detail, self.retry_after, self.problems, self.more = (
            status,
            detail,
            retry_after,
            problems,
            more,
        )

    def document(self) -> dict[str, Any]:
        title = HTTPStatus(self.status).phrase
        return {"title": title, "status": self.status, "detail": self.detail, **listed(self.problems), **self.more}


def listed(problems: Sequence[Problem]) -> dict[str, Any]:
    """The first problems, and the number of bad events."""
    if not problems:
        return {}
    return {"bad": len({one.index for one in problems}), "errors": problems[:SHOWN]}


def shortened(text: str) -> str:
    """The text, cut to `LONGEST` characters."""
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def refusal(why: Refused) -> bytes:
    """The problem document."""
    return msgspec.json.encode(why.document())


def refusal_headers(why: Refused) -> Headers:
    more = [] if why.retry_after is None else [(b"retry-after", b"%d" % why.retry_after)]
    if why.status == HTTPStatus.UNAUTHORIZED:
        more.append((b"www-authenticate", b"Bearer"))
    return more
