"""Reads a spool's frames in their order, hands them on, and forgets them when that is done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from penstock.source.http.segments import Folder, Frame, Place, damaged

log = logging.getLogger(__name__)

SOME = 4 << 20
"""Bytes of frames that are handed on together."""


class Replay:
    """Runs from `start` to `stop`; `end` tells how far the newest segment may be read.

    `deliver` returns when the frames are elsewhere; what cannot be handed on now, it tries for ever.
    """

    def __init__(
        self, folder: Folder, end: Callable[[], Place], deliver: Callable[[list[Frame]], Awaitable[None]]
    ) -> None:
        """The folder is recovered."""
        first = Place(min(folder.segments(), default=0), 0)
        self._folder, self._place, self._end, self._deliver = folder, max(folder.place(), first), end, deliver
        self._sizes = {number: folder.file(number).stat().st_size for number in folder.segments()}
        self._more = asyncio.Event()
        self._empty = asyncio.Event()
        self.problem = ""
        """Why nothing is read any more; empty while it is."""

    def size(self) -> int:
        """What lies on disk; a segment counts until all of it is handed on."""
        end = self._end()
        return sum(size for number, size in self._sizes.items() if number < end.segment) + end.offset

    def start(self, first: Callable[[], Awaitable[Place]] | None = None) -> None:
        """`first` hands on what lies before the place that it returns, which was not read from here."""
        self._task = asyncio.create_task(self._run(first))

    def more(self) -> None:
        """Something was written."""
        end = self._end()
        self._sizes[end.segment] = end.offset
        self._empty.clear()
        self._more.set()

    def is_empty(self) -> bool:
        """Whether all is handed on."""
        return self._place == self._end()

    async def drained(self) -> None:
        """Wait until all is handed on."""
        while not self.is_empty():
            self._empty.clear()
            self._more.set()
            await self._empty.wait()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self, first: Callable[[], Awaitable[Place]] | None) -> None:
        try:
            if first:
                await self._reached(await first())
            await self._carry()
        except Exception as error:
            # Nobody waits for this task: the server would go on until the spool is full, and nobody know why.
            log.exception("the spool %s is not replayed any more", self._folder.path)
            self.problem = f"the spool is not replayed any more: {error}; start again"

    async def _carry(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            end = self._end()
            if self._place == end:
                self._empty.set()
                self._more.clear()
                await self._more.wait()
                continue
            until = end.offset if end.segment == self._place.segment else None
            if until is None and self._place.offset >= self._sizes.get(self._place.segment, 0):
                await self._reached(Place(self._place.segment + 1, 0))
                continue
            found, place = await loop.run_in_executor(None, self._folder.read, self._place, until, SOME)
            if not found:
                raise damaged(self._folder.file(self._place.segment), self._place.offset)
            await self._deliver(found)
            await self._reached(place)

    async def _reached(self, place: Place) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._folder.note, place)
        self._place = place
        for number in [number for number in self._sizes if number < place.segment]:
            del self._sizes[number]
