"""Carries a spool's frames into Kafka in their order, and forgets them when Kafka has them.

Whatever may pass is tried again for ever. An event that the topic will never take (it is too large, or lacks a key)
goes to `refused.ndjson` in the spool's folder, so that it neither stops the others nor is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Callable

import msgspec
import pyarrow as pa

from penstock.source.http.segments import Folder, Frame, Place, damaged
from penstock.source.http.store import NEVER, STALLED
from penstock.source.http.tables import table
from penstock.wire import Producer, TableFailed
from penstock.wire.errors import KafkaError

log = logging.getLogger(__name__)

SOME = 4 << 20
"""Bytes of frames that go to Kafka together."""
PAUSE = 1.0
"""Seconds until what failed is sent again; the producer itself has tried for long by then."""
REFUSED = "refused.ndjson"
ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
"""JSON has line feeds between its tokens only."""


class Replay:
    """Runs from `start` to `stop`; `end` tells how far the newest segment may be read."""

    def __init__(self, folder: Folder, producer: Producer, place: Place, end: Callable[[], Place]) -> None:
        self._folder, self._producer, self._place, self._end = folder, producer, place, end
        self._sizes = {number: folder.file(number).stat().st_size for number in folder.segments()}
        self._more = asyncio.Event()
        self._empty = asyncio.Event()
        self._sent_at: float | None = None
        self._said = ""

    @property
    def problem(self) -> str:
        """Why nothing goes on; empty while it does."""
        if self._said or self._sent_at is None:
            return self._said
        waited = asyncio.get_running_loop().time() - self._sent_at
        return f"Kafka has not answered for {waited:.0f} s" if waited > STALLED else ""

    def size(self) -> int:
        """What lies on disk; a segment counts until all of it is in Kafka."""
        end = self._end()
        return sum(size for number, size in self._sizes.items() if number < end.segment) + end.offset

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def more(self) -> None:
        """Something was written."""
        end = self._end()
        self._sizes[end.segment] = end.offset
        self._empty.clear()
        self._more.set()

    async def drained(self) -> None:
        """Wait until Kafka has everything."""
        while self._place != self._end():
            self._empty.clear()
            self._more.set()
            await self._empty.wait()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._carry()
        except Exception as error:
            # Nobody waits for this task: the server would go on until the spool is full, and nobody know why.
            log.exception("the spool %s is not replayed any more", self._folder.path)
            self._said = f"the spool is not replayed any more: {error}; start again"

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

    async def _deliver(self, found: list[Frame]) -> None:
        by_topic: dict[str, list[Frame]] = defaultdict(list)
        for one in found:
            by_topic[one.topic].append(one)
        self._sent_at = asyncio.get_running_loop().time()
        await asyncio.gather(*(self._send(topic, lot) for topic, lot in by_topic.items()))
        self._sent_at = None

    async def _send(self, topic: str, lot: list[Frame]) -> None:
        rows = table([one.events() for one in lot], [one.time for one in lot])
        while rows.num_rows:
            try:
                await self._producer.send_table(topic, rows)
                self._said = ""
                return
            except TableFailed as error:
                rows = self._left(topic, rows, error)
                problem = str(error)
            except KafkaError as error:
                problem = str(error)
            if rows.num_rows:
                log.warning("the spool's events for %s wait: %s", topic, problem)
                self._said = problem
                await asyncio.sleep(PAUSE)

    def _left(self, topic: str, rows: pa.RecordBatch, error: TableFailed) -> pa.RecordBatch:
        """The rows to send again; those that never can be are written away."""
        again: list[int] = []
        for first, last, why in error.failed:
            if isinstance(why, NEVER):
                self._refuse(topic, rows.slice(first, last - first + 1), str(why))
            else:
                again += range(first, last + 1)
        return rows.take(pa.array(again, pa.int64()))

    def _refuse(self, topic: str, rows: pa.RecordBatch, why: str) -> None:
        log.error("%d events for %s were refused, see %s: %s", rows.num_rows, topic, self._folder.path / REFUSED, why)
        with (self._folder.path / REFUSED).open("ab") as file:
            for row in rows.to_pylist():
                key = (row.get("key") or b"").decode(errors="replace")
                told = {
                    "topic": topic,
                    "time": row["timestamp"],
                    "key": key,
                    "reason": why,
                    "event": msgspec.Raw(row["value"].translate(ONE_LINE)),
                }
                file.write(msgspec.json.encode(told) + b"\n")
            file.flush()
            os.fsync(file.fileno())
