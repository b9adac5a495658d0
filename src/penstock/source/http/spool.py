"""Keeps events on disk until Kafka has them: acknowledged after an fsync, which all requests that wait at a time share.

Everything goes through the disk, also while Kafka is there: so events keep their order, and Kafka's speed is no
caller's business. `Replay` carries them on.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from penstock.source.http.answers import Refused
from penstock.source.http.events import Events
from penstock.source.http.gather import Gather, Waiting
from penstock.source.http.replay import Replay
from penstock.source.http.segments import Folder, Place, frame
from penstock.source.http.store import RETRY, Facts
from penstock.wire import Producer

log = logging.getLogger(__name__)

LOT = 16 << 20
"""Bytes that are written together at most."""
SEGMENT = 64 << 20
"""Bytes after which a new file is begun, unless the bound of the spool is less than 8 of these."""
LAST = 1.0
"""Seconds for the producer to end after that: it would wait as long as Kafka is away."""
DRAIN = 5.0
"""Seconds that the end waits for Kafka to take what is left; the rest is replayed after the next start."""


class Spool:
    """The locks of its folder and of those that are `left` are the caller's to hold, from `open` to `close`."""

    status = 202

    def __init__(self, folder: Folder, producer: Producer, most: int, left: Sequence[Folder] = ()) -> None:
        """`left` are folders that others have left, whose events go to Kafka, too."""
        self._folder, self._producer, self._most, self._left = folder, producer, most, left
        self._segment_size = min(SEGMENT, max(1, most // 8))
        self._gather: Gather[bytes] = Gather(self._write, largest=LOT, at_once=1)
        self._coming = 0
        self._broken = ""

    async def open(self) -> None:
        """Cut off what a dead process left unfinished, begin a segment, and start replay."""
        loop = asyncio.get_running_loop()
        next_free = [await loop.run_in_executor(None, one.recover) for one in (self._folder, *self._left)]
        self._begin(next_free[0])
        self._replay = self._replay_of(self._folder, lambda: Place(self._segment, self._end))
        ends = [Place(segment, 0) for segment in next_free[1:]]
        others = [self._replay_of(one, partial(Place, *end)) for one, end in zip(self._left, ends, strict=True)]
        self._replays = [self._replay, *others]
        for one in self._replays:
            one.start()

    def _replay_of(self, folder: Folder, end: Callable[[], Place]) -> Replay:
        return Replay(folder, self._producer, max(folder.place(), Place(min(folder.segments(), default=0), 0)), end)

    def put(self, topic: str, events: Events) -> asyncio.Future[None]:
        data = frame(topic, time.time_ns() // 1_000_000, events)
        if self.size() + self._coming + len(data) > self._most:
            away = " and Kafka does not answer" if self._problem() else ""
            raise Refused(503 if away else 429, f"the spool is full{away}; nothing was stored", retry_after=RETRY)
        self._coming += len(data)
        done = self._gather.put(data, len(data))
        done.add_done_callback(lambda _: self._came(len(data)))
        return done

    def _came(self, size: int) -> None:
        self._coming -= size

    def size(self) -> int:
        """What lies on disk."""
        return sum(one.size() for one in self._replays)

    def _problem(self) -> str:
        """Why replay does not go on."""
        return next((one.problem for one in self._replays if one.problem), "")

    def require_ready(self) -> None:
        if self._broken:
            raise Refused(503, f"the spool cannot be written: {self._broken}", retry_after=RETRY)

    def facts(self) -> Facts:
        problem = self._problem()
        return Facts(not self._broken, "away" if problem else "ok", self._broken or problem, self.size())

    async def close(self) -> None:
        await self._gather.finish()
        try:
            async with asyncio.timeout(DRAIN):
                for one in self._replays:
                    await one.drained()
        except TimeoutError:
            log.warning("%d bytes stay in the spool %s", self.size(), self._folder.path)
        for one in self._replays:
            await one.stop()
        os.close(self._file)
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST):
                await self._producer.close()

    async def _write(self, lot: Sequence[Waiting[bytes]]) -> None:
        data = b"".join(one.item for one in lot)
        try:
            if self._end >= self._segment_size:
                full = self._file
                self._begin(self._segment + 1)
                os.close(full)
            await asyncio.get_running_loop().run_in_executor(None, partial(self._append, data))
        except OSError as error:
            log.error("the spool %s cannot be written: %s", self._folder.path, error)
            raise Refused(503, f"the spool cannot be written: {error.strerror}", retry_after=RETRY) from error
        self._end += len(data)
        self._replay.more()

    def _append(self, data: bytes) -> None:
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            os.ftruncate(self._file, self._end)  # a full disk may get room again
            raise
        try:
            os.fdatasync(self._file)
        except OSError as error:
            # What the disk has of it is unknown, and a second fsync would not tell (Linux forgets the error).
            self._broken = f"{error.strerror}; look at the disk, then start again"
            raise

    def _begin(self, segment: int) -> None:
        file = os.open(self._folder.file(segment), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._folder.sync()
        self._file, self._segment, self._end = file, segment, 0
