"""A request with its body as it comes, within limits of size and memory, and the answer to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple
from urllib.parse import unquote

import httptools

from penstock.ingest.body import InFlight, Share, too_large
from penstock.ingest.responses import PLAIN, Headers, Refused


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


class Request:
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
        self._most, self._parts, self._size = most, list[bytes](), 0
        self._share = Share(in_flight)
        self._late: Refused | None = None
        """What went wrong while the body came."""

    @cached_property
    def path(self) -> str:
        """The path, decoded; raises Refused if the URL is not valid."""
        try:
            return unquote((httptools.parse_url(self.url).path or b"").decode("ascii"))
        except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
            raise Refused(400, "the URL is not valid; encode it (RFC 3986)") from None

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
            self._parts.append(part)
        except Refused as why:
            self._late = why
            self._drop()

    def take(self, size: int) -> None:
        """Count bytes that this request needs; raises Refused if the memory for requests is used up."""
        self._share.take(size)

    def body(self) -> bytes:
        """The whole body; raises Refused if it is too large or there was no memory for it."""
        if self._late:
            raise self._late
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def end(self) -> None:
        """Give back the memory when the request has its answer, or gets none."""
        self.answered = True
        self._drop()

    def _drop(self) -> None:
        self._parts.clear()
        self._share.give_back()
