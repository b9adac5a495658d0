"""Keeps events on disk until Kafka has them: acknowledged after an fsync, which all waiting requests share.

Everything goes through the disk, also while Kafka is available: so events keep their order, and callers do not depend
on Kafka's speed. `Carrier` brings the events to Kafka.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from penstock.ingest.events import KeyedEvents
from penstock.ingest.exchange import RefusedRequest
from penstock.ingest.kafka_store import RETRY, Facts, Gather, WaitingItem
from penstock.ingest.spool_carrier import Ask, Carrier
from penstock.ingest.spool_files import SpoolFolder, SpoolPosition, SpoolWriter, frame
from penstock.wire import Producer

log = logging.getLogger(__name__)

LOT = 16 << 20
"""Most bytes that are written together."""
SEGMENT = 64 << 20
"""Bytes after which the next file begins, unless the limit of the spool is less than 8 of these."""
LAST = 1.0
"""Seconds for the producer to close after `DRAIN`: otherwise it waits as long as Kafka is away."""
DRAIN = 5.0
"""Seconds that `close` waits for Kafka to take the rest; what is left is replayed after the next start."""


class Spool:
    """The caller holds the locks of its folder and of those in `left`, from `open` to `close`."""

    status = 202

    def __init__(
        self, folder: SpoolFolder, producer: Producer, most: int, ask: Ask, left: Sequence[SpoolFolder] = ()
    ) -> None:
        """`left` are folders of ended workers whose events go to Kafka, too; `ask` asks whether Kafka is available."""
        self._folder, self._producer, self._most, self._ask, self._left = folder, producer, most, ask, left
        self._segment_size = min(SEGMENT, max(1, most // 8))
        self._gather: Gather[bytes] = Gather(self._write, largest=LOT, at_once=1)
        self._coming = 0
        self._carriers: list[Carrier] = []

    async def open(self) -> None:
        """Cut off unfinished writes of a process that died, begin a segment, and start replay.

        Raises PenstockError if a file is damaged; then there is nothing to close.
        """
        loop = asyncio.get_running_loop()
        folders = (self._folder, *self._left)
        next_free = [await loop.run_in_executor(None, folder.recover) for folder in folders]
        for apart in [folder.of_topic(topic) for folder in folders for topic in folder.topics()]:
            await loop.run_in_executor(None, apart.recover)
        self._writer = SpoolWriter(self._folder, next_free[0], self._segment_size)
        self._own = Carrier(self._folder, self._producer, lambda: self._writer.end, self._ask)
        self._carriers = [self._own]
        for folder, segment in zip(self._left, next_free[1:], strict=True):
            self._carriers.append(Carrier(folder, self._producer, partial(SpoolPosition, segment, 0), self._ask))
        for carrier in self._carriers:
            carrier.start()

    def put(self, topic: str, events: KeyedEvents) -> asyncio.Future[None]:
        data = frame(topic, time.time_ns() // 1_000_000, events)
        self._require_room(topic, len(data))
        self._coming += len(data)
        done = self._gather.put(data, len(data))
        done.add_done_callback(lambda _: self._came(len(data)))
        return done

    def _require_room(self, topic: str, size: int) -> None:
        if apart := self._own.apart.get(topic):
            waiting = sum(topic_carrier.size() for topic_carrier in self._own.apart.values())
            if waiting + size > self._most // 2:  # the rest is for the other topics
                detail = f"events for {topic} wait, and there is no room for more; nothing was stored: {apart.problem}"
                raise RefusedRequest(503, detail, retry_after=RETRY)
        if self.size() + self._coming + size > self._most:
            away = " and Kafka does not answer" if self._problem() else ""
            raise RefusedRequest(
                503 if away else 429, f"the spool is full{away}; nothing was stored", retry_after=RETRY
            )

    def _came(self, size: int) -> None:
        self._coming -= size

    def size(self) -> int:
        """Bytes on disk."""
        return sum(carrier.size() for carrier in self._carriers)

    def _problem(self) -> str:
        """Why nothing moves; empty if something does."""
        return next((carrier.problem for carrier in self._carriers if carrier.problem), "")

    def _waiting(self) -> dict[str, int]:
        """The bytes by topic that Kafka does not take, while it takes other topics."""
        sizes: Counter[str] = Counter()
        for carrier in self._carriers:
            sizes.update({topic: apart.size() for topic, apart in carrier.apart.items()})
        return dict(sizes)

    def _reason(self) -> str:
        """Why a topic waits; empty if none does."""
        waiting = ((topic, apart.problem) for carrier in self._carriers for topic, apart in carrier.apart.items())
        return next((f"events for {topic} wait: {reason}" for topic, reason in waiting if reason), "")

    def require_ready(self) -> None:
        if self._writer.broken:
            raise RefusedRequest(503, f"the spool cannot be written: {self._writer.broken}", retry_after=RETRY)

    def facts(self) -> Facts:
        problem, broken = self._problem(), self._writer.broken
        said = broken or problem or self._reason()
        return Facts(not broken, "away" if problem else "ok", said, self.size(), self._waiting(), self._most)

    async def close(self) -> None:
        await self._gather.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN):
                for carrier in self._carriers:
                    await carrier.drained()
        if not all(carrier.is_drained() for carrier in self._carriers):
            log.warning("%d bytes stay in the spool %s", self.size(), self._folder.path)
        for carrier in self._carriers:
            await carrier.stop()
        self._writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST):
                await self._producer.close()

    async def _write(self, batch: Sequence[WaitingItem[bytes]]) -> None:
        data = b"".join(waiting.item for waiting in batch)
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._writer.append, data)
        except OSError as error:
            log.error("the spool %s cannot be written: %s", self._folder.path, error)
            raise RefusedRequest(503, f"the spool cannot be written: {error.strerror}", retry_after=RETRY) from error
        self._own.more()
