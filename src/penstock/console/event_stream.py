"""Server-sent events: the overview whenever it changed, to a bounded number of pages.

The overview is written once for all pages. An event's id says which state a page has: one that connects again with
`Last-Event-ID` gets the overview at once only if it changed meanwhile. Comments keep silent connections open. The
format is that of "Server-sent events" in the HTML standard.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.responses import Response, StreamingResponse

from penstock.errors import PenstockError

PERIOD = 1.0
"""Seconds between two looks whether something changed."""
HEARTBEAT = 10.0
"""Seconds without an event after which a comment is sent."""
RETRY = 1000
"""Milliseconds after which a page connects again."""
MOST_PAGES = 32


class TooManyPages(PenstockError):
    """There are as many open streams as the server has for pages."""

    retriable = True


def event(name: str, data: str, id: str = "") -> str:
    """One event; the data is JSON and has no line break."""
    return f"event: {name}\n{f'id: {id}' + chr(10) if id else ''}data: {data}\n\n"


class Streams:
    """Counts the open streams, and refuses more than `most`."""

    def __init__(self, most: int = MOST_PAGES) -> None:
        self.open, self._most = 0, most

    def require_room(self) -> None:
        if self.open >= self._most:
            raise TooManyPages(
                f"{self.open} pages are connected, which is the most", next="close some of the console's pages"
            )

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    def response(self, events: AsyncIterator[str]) -> Response:
        """The answer that sends the events until the page goes; raises TooManyPages."""
        self.require_room()

        async def sent() -> AsyncGenerator[str, None]:
            # Again: several requests may have found room before the first of them took it.
            if self.open >= self._most:
                return
            with self.counted():
                yield f"retry: {RETRY}\n\n"
                async for text in events:
                    yield text

        # A proxy may collect an answer before it passes it on, unless a header forbids it.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(sent(), media_type="text/event-stream", headers=headers)


class OverviewEvents:
    """The present overview as text with an id, made again at most once a second while somebody looks."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make
        # Ids of another process must not look like those of this one.
        self._start, self._number = secrets.token_hex(4), 0
        self._same, self._text = "", ""
        self.changed = asyncio.Event()
        self._ended = False

    @property
    def id(self) -> str:
        return f"{self._start}-{self._number}"

    def look(self) -> None:
        """Make the overview; a new id if anything but its time changed."""
        overview = self._make()
        same = json.dumps({**overview, "now": "", "runs": [{**run, "now": ""} for run in overview["runs"]]})
        if same != self._same:
            self._same, self._text = same, json.dumps(overview)
            self._number += 1
            changed, self.changed = self.changed, asyncio.Event()
            changed.set()

    def end(self) -> None:
        """End all streams."""
        self._ended = True
        self.changed.set()

    async def follow(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(PERIOD)

    async def events(self, last: str) -> AsyncGenerator[str, None]:
        """The overview now, unless the page has it (`last` is its last id), then after each change."""
        sent = last
        while not self._ended:
            changed = self.changed
            if sent != self.id and self._text:
                sent = self.id
                yield event("overview", self._text, sent)
            try:
                async with asyncio.timeout(HEARTBEAT):
                    await changed.wait()
            except TimeoutError:
                yield ": still here\n\n"
