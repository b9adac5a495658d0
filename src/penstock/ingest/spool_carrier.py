"""Carries the frames of a spool's folder to Kafka, so that a topic that does not take its events holds up no other.

An error that may pass is retried for ever. When Kafka refuses a topic (no right to write, a topic that is gone), or is
available and has not taken its events for `PATIENCE`, that topic's events go to a folder of their own, `topic-NAME`, in
the order in which they came, and from there to Kafka as soon as it takes them. Until that folder is empty, later events
go there, too. So each topic keeps its order, and the others continue. Moved events are in both folders for a moment.

An event that the topic will never take (it is too large, or lacks a key) goes to `refused.ndjson` in the folder, so
that it neither stops the others nor is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

import msgspec
import pyarrow as pa

from penstock.ingest.events import table
from penstock.ingest.kafka_store import NEVER, STALLED
from penstock.ingest.spool_files import Frame, SpoolFolder, SpoolPosition, SpoolWriter, damaged, frame, private
from penstock.wire import Producer, TableFailed
from penstock.wire.errors import AuthenticationFailed, ClusterAuthorizationFailed, DeliveryTimeout, KafkaError

SOME = 4 << 20
"""Bytes of frames that are delivered together."""
log = logging.getLogger(__name__)

PAUSE = 1.0
"""Seconds until failed events are sent again; the producer itself has retried for long by then."""
LONGEST_PAUSE = 60.0
"""Most seconds between two tries for a topic that is kept apart; they begin with `PAUSE` and double."""
PATIENCE = 15.0
"""Seconds that the events of a topic may hold up the others while Kafka is available."""
ASK = 5.0
"""Seconds between two checks whether Kafka has taken them, and is available."""
LOOK = 0.01
"""Seconds between two checks whether an append has ended."""
SEGMENT = 16 << 20
"""Bytes after which a topic's next file begins."""
OF_ALL = (AuthenticationFailed, ClusterAuthorizationFailed, DeliveryTimeout)
"""Errors that are not of one topic only, or that sending again at once may solve."""
REFUSED = "refused.ndjson"
ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
"""JSON has line feeds between its tokens only."""

Ask = Callable[[], Awaitable[object]]
"""Returns if Kafka is available; raises KafkaError if not."""


class Left(NamedTuple):
    """Rows that were not written, and why; if `error` is None, there are none."""

    rows: pa.RecordBatch
    error: KafkaError | None


Send = Callable[[str, pa.RecordBatch], Coroutine[None, None, Left]]


async def send(producer: Producer, refused: SpoolFolder, topic: str, rows: pa.RecordBatch) -> Left:
    """Send the rows of a topic, once, and write those that it will never take to `refused.ndjson` of the folder."""
    try:
        await producer.send_table(topic, rows)
    except TableFailed as failed:
        again: list[int] = []
        error: KafkaError | None = None
        for first, last, why in failed.failed:
            if isinstance(why, NEVER):
                _refuse(refused.path / REFUSED, topic, rows.slice(first, last - first + 1), str(why))
            else:
                again += range(first, last + 1)
                error = why
        return Left(rows.take(pa.array(again, pa.int64())), error)
    except KafkaError as error:
        return Left(rows, error)
    return Left(rows.slice(0, 0), None)


def _refuse(file: Path, topic: str, rows: pa.RecordBatch, why: str) -> None:
    log.error("%d events for %s were refused, see %s: %s", rows.num_rows, topic, file, why)
    with open(file, "ab", opener=private) as out:
        for row in rows.to_pylist():
            entry = {
                "topic": topic,
                "time": row["timestamp"],
                "key": (row.get("key") or b"").decode(errors="replace"),
                "reason": why,
                "event": msgspec.Raw(row["value"].translate(ONE_LINE)),
            }
            out.write(msgspec.json.encode(entry) + b"\n")
        out.flush()
        os.fsync(out.fileno())


class Apart:
    """The events of a topic that wait for Kafka to take them, in a folder of their own."""

    def __init__(self, folder: SpoolFolder, topic: str, send: Send, ended: Callable[[], None]) -> None:
        """`ended` is called when Kafka has all of them, and the folder is gone."""
        self._folder, self._topic, self._send_once, self._ended = folder, topic, send, ended
        self.reason = ""
        """Why Kafka does not take them; empty while it does."""
        self._is_open = False
        self._append: asyncio.Future[None] | None = None

    async def begin(self, frames: Sequence[Frame], attempt: asyncio.Future[Left]) -> None:
        """Take the first frames, whose rows `attempt` has tried to send, or still tries to; raises OSError."""
        if not self._is_open:
            self._open()
        await self.add(frames)
        behind = self._writer.end

        async def finish() -> SpoolPosition:
            left = await attempt
            await self._send(left.rows, left.error)
            return behind

        self._start(finish)

    def go_on(self) -> None:
        """Continue with the frames of a process that ended; raises PenstockError if they are damaged."""
        self._open()
        self.reason = "not tried again since the start"
        self._start(None)

    async def add(self, frames: Sequence[Frame]) -> None:
        """Returns when the frames are on disk; raises OSError."""
        data = b"".join(frame(spooled.topic, spooled.time, spooled.events()) for spooled in frames)
        self._append = asyncio.get_running_loop().run_in_executor(None, self._writer.append, data)
        await asyncio.shield(self._append)  # its thread cannot be stopped
        self._replay.more()

    @property
    def problem(self) -> str:
        return self._replay.problem or self.reason

    def size(self) -> int:
        return self._replay.size()

    async def stop(self) -> None:
        self._watch.cancel()
        await self._replay.stop()
        if self._append:
            await asyncio.wait([self._append])
        self._writer.close()

    def _open(self) -> None:
        self._folder.make()
        self._writer = SpoolWriter(self._folder, self._folder.recover(), SEGMENT)
        self._replay = Replay(self._folder, lambda: self._writer.end, self._deliver)
        self._is_open = True

    def _start(self, first: Callable[[], Awaitable[SpoolPosition]] | None) -> None:
        self._replay.start(first)
        self._watch = asyncio.create_task(self._until_empty())

    async def _until_empty(self) -> None:
        await self._replay.drained()
        while (self._append and not self._append.done()) or not self._replay.is_empty():
            await asyncio.sleep(LOOK)
            await self._replay.drained()
        # No other task may run before the end of this: the topic may begin a folder again at once.
        self._ended()
        self._writer.close()
        for segment in self._folder.segments():  # before `place.json`, without which they would be replayed
            self._folder.file(segment).unlink()
        rmtree(self._folder.path)
        await self._replay.stop()

    async def _deliver(self, frames: list[Frame]) -> None:
        await self._send(table([spooled.events() for spooled in frames], [spooled.time for spooled in frames]), None)

    async def _send(self, rows: pa.RecordBatch, error: KafkaError | None) -> None:
        """Send the rows again and again until none is left."""
        pause = PAUSE
        while rows.num_rows:
            if error:
                self.reason = str(error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            rows, error = await self._send_once(self._topic, rows)
        self.reason = ""


class Carrier:
    """Carries one folder, from `start` to `stop`; `end` returns how far its newest segment may be read."""

    def __init__(self, folder: SpoolFolder, producer: Producer, end: Callable[[], SpoolPosition], ask: Ask) -> None:
        """The folder must be recovered before."""
        self._folder, self._send, self._ask = folder, partial(send, producer, folder), ask
        self._replay = Replay(folder, end, self._deliver)
        self._sent_at: float | None = None
        self._said = ""
        self.apart: dict[str, Apart] = {}
        """By topic."""

    def start(self) -> None:
        """Raises PenstockError if a folder of a topic is damaged."""
        for topic in self._folder.topics():
            self.apart[topic] = self._new(topic)
            self.apart[topic].go_on()
        self._replay.start()

    @property
    def problem(self) -> str:
        """Why nothing moves; empty while something does."""
        if self._replay.problem or self._said or self._sent_at is None:
            return self._replay.problem or self._said
        waited = asyncio.get_running_loop().time() - self._sent_at
        return f"Kafka has not answered for {waited:.0f} s" if waited > STALLED else ""

    def size(self) -> int:
        """Bytes on disk."""
        return self._replay.size() + sum(apart.size() for apart in self.apart.values())

    def more(self) -> None:
        """Call this when something was written."""
        self._replay.more()

    async def drained(self) -> None:
        """Wait until Kafka has everything, except events that are kept apart."""
        await self._replay.drained()

    def is_drained(self) -> bool:
        """Whether Kafka has everything."""
        return self._replay.is_empty() and not self.apart

    async def stop(self) -> None:
        await self._replay.stop()
        for topic, apart in list(self.apart.items()):
            if topic in self.apart:  # not if Kafka got its events while another one stopped
                await apart.stop()

    async def _deliver(self, frames: list[Frame]) -> None:
        by_topic: dict[str, list[Frame]] = defaultdict(list)
        for spooled in frames:
            by_topic[spooled.topic].append(spooled)
        self._sent_at = asyncio.get_running_loop().time()
        await asyncio.gather(*(self._carry(topic, of_topic) for topic, of_topic in by_topic.items()))
        self._sent_at = None

    async def _carry(self, topic: str, frames: list[Frame]) -> None:
        while (apart := self.apart.get(topic)) is not None:
            if await self._is_written(topic, apart.add(frames)):
                return
        attempt = self._attempt(
            topic, table([spooled.events() for spooled in frames], [spooled.time for spooled in frames])
        )
        began, there = asyncio.get_running_loop().time(), 0
        try:
            while there < 2:
                await asyncio.wait([attempt], timeout=ASK)
                error = attempt.result().error if attempt.done() else None
                if attempt.done() and not error:
                    self._said = ""
                    return
                if error and not error.retriable and not isinstance(error, OF_ALL):
                    break
                # Twice, so that Kafka has time to take them if it has just come back.
                is_late = asyncio.get_running_loop().time() - began > PATIENCE
                there = there + 1 if is_late and await self._is_there() else 0
                if error and there < 2:
                    log.warning("the spool's events for %s wait: %s", topic, error)
                    self._said = str(error)
                    await asyncio.sleep(PAUSE)
                    attempt = self._attempt(topic, attempt.result().rows)
        except BaseException:
            attempt.cancel()
            raise
        await self._put_apart(topic, frames, attempt, str(error) if error else f"not taken for {PATIENCE:.0f} s")

    def _attempt(self, topic: str, rows: pa.RecordBatch) -> asyncio.Future[Left]:
        return asyncio.ensure_future(self._send(topic, rows))

    async def _is_there(self) -> bool:
        try:
            await self._ask()
        except KafkaError:
            return False
        return True

    async def _put_apart(self, topic: str, frames: list[Frame], attempt: asyncio.Future[Left], reason: str) -> None:
        apart = self._new(topic)
        apart.reason = reason
        while not await self._is_written(topic, apart.begin(frames, attempt)):
            pass
        self._said = ""
        self.apart[topic] = apart
        where = self._folder.of_topic(topic).path
        log.warning("the spool's events for %s wait in %s, the others continue: %s", topic, where, reason)

    def _new(self, topic: str) -> Apart:
        return Apart(self._folder.of_topic(topic), topic, self._send, partial(self._together, topic))

    def _together(self, topic: str) -> None:
        del self.apart[topic]
        log.warning("Kafka has all events for %s that waited", topic)

    async def _is_written(self, topic: str, writing: Awaitable[None]) -> bool:
        """Whether it is on disk; if not, returns after `PAUSE`."""
        try:
            await writing
        except OSError as error:
            log.error("the spool's events for %s cannot be put apart: %s", topic, error)
            self._said = f"the spool cannot be written: {error.strerror}"
            await asyncio.sleep(PAUSE)
            return False
        return True


# Reads a spool's frames in order, delivers them, and then removes them.


class Replay:
    """Runs from `start` to `stop`; `end` returns how far the newest segment may be read.

    `deliver` returns when the frames are safe elsewhere; it retries for ever.
    """

    def __init__(
        self, folder: SpoolFolder, end: Callable[[], SpoolPosition], deliver: Callable[[list[Frame]], Awaitable[None]]
    ) -> None:
        """The folder must be recovered before."""
        first = SpoolPosition(min(folder.segments(), default=0), 0)
        self._folder, self._place, self._end, self._deliver = folder, max(folder.place(), first), end, deliver
        self._sizes = {number: folder.file(number).stat().st_size for number in folder.segments()}
        self._more = asyncio.Event()
        self._empty = asyncio.Event()
        self.problem = ""
        """Why nothing is read any more; empty while replay runs."""

    def size(self) -> int:
        """Bytes on disk; a segment counts until all of it is delivered."""
        end = self._end()
        return sum(size for number, size in self._sizes.items() if number < end.segment) + end.offset

    def start(self, first: Callable[[], Awaitable[SpoolPosition]] | None = None) -> None:
        """`first` delivers what is before the position that it returns, which is not read here."""
        self._task = asyncio.create_task(self._run(first))

    def more(self) -> None:
        """Call this when something was written."""
        end = self._end()
        self._sizes[end.segment] = end.offset
        self._empty.clear()
        self._more.set()

    def is_empty(self) -> bool:
        """Whether all is delivered."""
        return self._place == self._end()

    async def drained(self) -> None:
        """Wait until all is delivered."""
        while not self.is_empty():
            self._empty.clear()
            self._more.set()
            await self._empty.wait()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self, first: Callable[[], Awaitable[SpoolPosition]] | None) -> None:
        try:
            if first:
                await self._reached(await first())
            await self._carry()
        except Exception as error:
            # Nobody awaits this task: the server would continue until the spool is full, and nobody would know why.
            log.exception("the spool %s is not replayed any more", self._folder.path)
            self.problem = f"the spool is not replayed any more: {error}; start again"

    async def _carry(self) -> None:
        while True:
            if self._place == (end := self._end()):
                self._empty.set()
                self._more.clear()
                await self._more.wait()
                continue
            until = end.offset if end.segment == self._place.segment else None
            if until is None and self._place.offset >= self._sizes.get(self._place.segment, 0):
                await self._reached(SpoolPosition(self._place.segment + 1, 0))
                continue
            frames, place = await asyncio.to_thread(self._folder.read, self._place, until, SOME)
            if not frames:
                raise damaged(self._folder.file(self._place.segment), self._place.offset)
            await self._deliver(frames)
            await self._reached(place)

    async def _reached(self, place: SpoolPosition) -> None:
        await asyncio.to_thread(self._folder.note, place)
        self._place = place
        self._sizes = {number: size for number, size in self._sizes.items() if number >= place.segment}
