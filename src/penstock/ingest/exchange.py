"""A request with its body as it comes, within limits of size and memory, and the answer to it.

A refusal is a problem document (RFC 9457). This module knows neither topics nor connections.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import unquote

import httptools
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
class EventProblem:
    """What is wrong with an event: its index in the request from 0, the path in it as a JSON pointer, and why."""

    index: int
    path: str
    reason: str


class RefusedRequest(Exception):
    """Ends a request with an error; `retry_after` is in seconds, for an error that may pass."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        retry_after: int | None = None,
        problems: Sequence[EventProblem] = (),
        **more: Any,
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


def listed(problems: Sequence[EventProblem]) -> dict[str, Any]:
    """The first problems, and the number of bad events."""
    if not problems:
        return {}
    return {"bad": len({problem.index for problem in problems}), "errors": problems[:SHOWN]}


def shortened(text: str) -> str:
    """The text, cut to `LONGEST` characters."""
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def refusal(why: RefusedRequest) -> bytes:
    """The problem document."""
    return msgspec.json.encode(why.document())


def refusal_headers(why: RefusedRequest) -> Headers:
    more = [] if why.retry_after is None else [(b"retry-after", b"%d" % why.retry_after)]
    if why.status == HTTPStatus.UNAUTHORIZED:
        more.append((b"www-authenticate", b"Bearer"))
    return more


# The bytes of requests: counted while they are under way, and unpacked.


GZIP = 16 + zlib.MAX_WBITS
WINDOW = 16 << 10
"""Bytes unpacked at a time: what follows the end of a member is copied, up to a window for each member."""
MEMBERS = 10_000
"""Most gzip members in a body. A member costs a few microseconds and may be empty: 8 MB have room for 400 000."""
JOINED = 4 << 10
"""Parts of a body below this size are joined at once: an object for each would take many times as much memory."""
FULL = 1
"""Seconds after which callers may try again when the memory for requests is used up."""


class InFlight:
    """Counts the bytes of requests that are not answered yet."""

    def __init__(self, most: int) -> None:
        self.most, self.bytes = most, 0

    def require_room(self) -> None:
        if self.bytes >= self.most:
            raise RefusedRequest(
                429, f"{self.bytes} bytes of requests are under way; send again later", retry_after=FULL
            )


def too_large(most: int) -> RefusedRequest:
    return RefusedRequest(413, f"a request may have at most {most} bytes; send fewer events in each")


def unpack(body: bytes, encoding: bytes, *, most: int) -> bytes:
    """The body without its Content-Encoding; at most `most` bytes are unpacked.

    Raises `RefusedRequest` if the encoding is unknown, the gzip is not valid, or there are too many bytes or members.
    """
    coding = encoding.strip().lower()
    if coding in (b"", b"identity"):
        return body
    if coding not in (b"gzip", b"x-gzip"):
        raise RefusedRequest(415, f"the content encoding {encoding.decode('latin-1')!r} is not known; use gzip or none")
    out: list[bytes] = []
    size, members, at, member = 0, 0, 0, None
    while at < len(body):
        if member is None:  # members may follow one another (RFC 1952, section 2.2)
            member, members = zlib.decompressobj(GZIP), members + 1
            if members > MEMBERS:
                raise RefusedRequest(400, f"the body has more than {MEMBERS} gzip members; send it as one")
        window = body[at : at + WINDOW]
        try:
            # At most `most` + 1 in all, so that only what is behind the member's end is left over of the window.
            out.append(member.decompress(window, most - size + 1))
        except zlib.error as error:
            raise RefusedRequest(400, f"the body is not valid gzip: {error}") from None
        size += len(out[-1])
        if size > most:
            raise too_large(most)
        at += len(window) - len(member.unused_data)
        if member.eof:
            member = None
    if member is not None:
        raise RefusedRequest(400, "the body is not valid gzip: it ends too early")
    return b"".join(out)


# Requests and answers.


class Answer(NamedTuple):
    status: int
    body: bytes = b""
    kind: bytes = PLAIN
    headers: Sequence[tuple[bytes, bytes]] = ()


class Asked(NamedTuple):
    """What a request asks for: how its body is cut, a key for all events, and whether bad events may be left out."""

    lines: bool
    key: bytes | None
    partial: bool


class HttpRequest:
    """A request from its head on.

    `asked` and `shared` are set when it is admitted; `shared` are headers of the answer by which a browser knows which
    page may read it.
    """

    def __init__(self, method: str, url: bytes, headers: dict[bytes, bytes], in_flight: InFlight, most: int) -> None:
        """`most` is the largest number of bytes of the body; `url` is as in the head."""
        self.method, self.url, self.headers = method, url, headers
        self.topic, self.image = "", False
        self.asked = Asked(lines=False, key=None, partial=False)
        self.shared: Headers = []
        self.keep_alive = self.expects_continue = False
        self.begun = self.complete = self.answered = False
        self.began = time.perf_counter()
        self._most, self._parts, self._size = most, list[bytes | bytearray](), 0
        self._in_flight, self._taken = in_flight, 0
        """The memory of all requests, and the part of it that this one has."""
        self._late: RefusedRequest | None = None
        """What went wrong while the body came."""

    @cached_property
    def path(self) -> str:
        """The path, decoded; raises RefusedRequest if the URL is not valid."""
        try:
            return unquote((httptools.parse_url(self.url).path or b"").decode("ascii"))
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            raise RefusedRequest(400, "the URL is not valid; encode it (RFC 3986)") from None

    @property
    def query(self) -> bytes:
        return httptools.parse_url(self.url).query or b""

    def add(self, part: bytes) -> None:
        """Take a part of the body; only received bytes count as memory in use, not the announced ones."""
        if self._late or self.answered:
            return
        try:
            self.take(len(part))
            self._size += len(part)
            if self._size > self._most:
                raise too_large(self._most)
            self._keep(part)
        except RefusedRequest as why:
            self._late = why
            self.release()

    def _keep(self, part: bytes) -> None:
        last = self._parts[-1] if self._parts else b""
        if len(part) >= JOINED or not self._parts:
            self._parts.append(part)
        elif isinstance(last, bytearray):
            last += part
        elif len(last) < JOINED:
            self._parts[-1] = bytearray(last + part)
        else:
            self._parts.append(bytearray(part))

    def count_head(self, size: int) -> None:
        """Count the memory of the head, without a refusal: a request without events needs no room for any."""
        self._taken += size
        self._in_flight.bytes += size

    def take(self, size: int) -> None:
        """Count bytes that this request needs; raises RefusedRequest if the memory for requests is used up."""
        self._taken += size
        self._in_flight.bytes += size
        if self._in_flight.bytes > self._in_flight.most and self._in_flight.bytes > self._taken:
            raise RefusedRequest(429, "the memory for requests is taken; send again later", retry_after=FULL)

    def body(self) -> bytes:
        """The whole body; raises RefusedRequest if it is too large or there was no memory for it."""
        if self._late:
            raise self._late
        first = self._parts[0] if len(self._parts) == 1 else None
        return first if isinstance(first, bytes) else b"".join(self._parts)

    def end(self) -> None:
        """Give back the memory when the request has its answer, or gets none."""
        self.answered = True
        # Its body may still be coming.
        self.url, self.headers = b"", {}
        self.release()

    def release(self) -> None:
        """Give back the memory; what has come of the body is gone."""
        self._parts.clear()
        self._in_flight.bytes -= self._taken
        self._taken = 0
