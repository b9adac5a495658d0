"""What the server needs of a store for events, the first of two stores, which is Kafka itself, and what both share."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Generic, NamedTuple, Protocol, TypeVar

from penstock.ingest.events import KeyedEvents, table
from penstock.ingest.exchange import RefusedRequest
from penstock.wire import Producer, Reader, TableFailed
from penstock.wire.errors import (
    AuthenticationFailed,
    ClusterAuthorizationFailed,
    DeliveryTimeout,
    InvalidRecord,
    KafkaError,
    MessageTooLarge,
    TopicAuthorizationFailed,
)

TABLE = 800_000
"""Most bytes of events that are sent together: with the records' overhead, one batch."""
AT_ONCE = 2
"""Tables of a topic under way: one is being encoded while the other is being written."""
STALLED = 5.0
"""Seconds that the oldest events may be unanswered before Kafka counts as away."""
LOOK = 0.1
"""Seconds for which a look at the events under way stays valid."""
ASK = 1.0
"""Seconds between two requests that ask whether Kafka is back."""
RETRY = 5
"""Seconds after which callers may try again when Kafka is away."""
NEVER = (MessageTooLarge, InvalidRecord)
"""Errors of an event that sending it again does not solve."""
FORBIDDEN = (TopicAuthorizationFailed, ClusterAuthorizationFailed)
"""Errors that sending again does not solve, and that are not the caller's fault."""


class Facts(NamedTuple):
    """How a store is: whether it takes events, whether Kafka is "ok" or "away" and why, and its bytes on disk if any.

    `waiting` has the bytes by topic that Kafka does not take, while it takes other topics; `spool_limit` is the most
    that the disk may have.
    """

    takes: bool
    kafka: str
    problem: str
    spool: int | None = None
    waiting: dict[str, int] = {}  # noqa: RUF012
    spool_limit: int | None = None


class EventStore(Protocol):
    """The future of `put` is done when the events are safe; the future, or `put` itself, may raise `RefusedRequest`."""

    status: int
    """Of an answer: 200 if Kafka has the events, 202 if they are safe elsewhere."""

    def put(self, topic: str, events: KeyedEvents) -> asyncio.Future[None]: ...

    def require_ready(self) -> None:
        """Raises `RefusedRequest` if events could not be stored now."""

    def facts(self) -> Facts: ...

    async def close(self) -> None: ...


class KafkaStore:
    """Writes to Kafka; events are safe when all in-sync replicas have them."""

    status = 200

    def __init__(self, producer: Producer, reader: Reader, topics: Iterable[str]) -> None:
        """`reader` asks Kafka whether it is back."""
        self._producer, self._reader = producer, reader
        self._out = {topic: Gather(self._carry, largest=TABLE, at_once=AT_ONCE) for topic in topics}
        self._problem = ""
        """Why events failed last; empty once Kafka has answered since."""
        self._asking: asyncio.Task[None] | None = None
        self._looked_at, self._found = 0.0, ""

    async def open(self) -> None:
        """Find out whether Kafka is available; if not, callers are refused until it is."""
        try:
            await self._reader.topics()
        except KafkaError as error:
            self._away(error)

    def put(self, topic: str, events: KeyedEvents) -> asyncio.Future[None]:
        return self._out[topic].put((topic, events), events.size)

    def require_ready(self) -> None:
        now = time.monotonic()
        if now > self._looked_at + LOOK:
            self._looked_at, self._found = now, self.problem()
        if problem := self._problem or self._found:
            raise RefusedRequest(503, f"nothing was stored: {problem}", retry_after=RETRY)

    def problem(self) -> str:
        """Why events would not be taken now."""
        now = asyncio.get_running_loop().time()
        oldest = min((since for gather in self._out.values() if (since := gather.oldest()) is not None), default=now)
        return self._problem or ("Kafka does not answer" if now - oldest > STALLED else "")

    def facts(self) -> Facts:
        problem = self.problem()
        return Facts(not problem, "away" if problem else "ok", problem)

    async def close(self) -> None:
        for gather in self._out.values():
            await gather.finish()
        if self._asking:
            self._asking.cancel()
        await self._producer.close()

    async def _carry(self, batch: Sequence[WaitingItem[tuple[str, KeyedEvents]]]) -> None:
        topic, events = batch[0].item[0], [waiting.item[1] for waiting in batch]
        try:
            if all(keyed.keys is None for keyed in events):
                await self._producer.send_values(topic, [keyed.values for keyed in events])
            else:
                await self._producer.send_table(topic, table(events))
        except TableFailed as error:
            _refuse_failed(batch, error)
            reasons = [why for _, _, why in error.failed]
        except KafkaError as error:
            settle(batch, refusal(error))
            reasons = [error]
        else:
            return
        # An error of an event or a topic says nothing about the others.
        if away := next(filter(_is_away, reasons), None):
            self._away(away)
            # They would only wait as long again.
            self._out[topic].fail_waiting(refusal(away))

    def _away(self, why: KafkaError) -> None:
        self._problem = str(why)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        while self._problem:
            await asyncio.sleep(ASK)
            with suppress(KafkaError):
                await self._reader.topics()
                self._problem = ""


def _is_away(error: KafkaError) -> bool:
    return error.retriable or isinstance(error, DeliveryTimeout | AuthenticationFailed)


def _refuse_failed(batch: Sequence[WaitingItem[tuple[str, KeyedEvents]]], error: TableFailed) -> None:
    """Refuse the requests that have a row among those that failed."""
    end = 0
    for waiting in batch:
        first, end = end, end + waiting.item[1].count
        why = next((why for a, b, why in error.failed if a < end and b >= first), None)
        if why and not waiting.done.done():
            waiting.done.set_exception(refusal(why))


def refusal(error: KafkaError) -> RefusedRequest:
    """The answer to a request whose events Kafka did not take."""
    if isinstance(error, MessageTooLarge):
        return RefusedRequest(413, f"an event is larger than the topic takes: {error}")
    if isinstance(error, InvalidRecord):
        return RefusedRequest(400, f"the topic does not take an event; others may be stored: {error}")
    if isinstance(error, FORBIDDEN):
        return RefusedRequest(500, f"this server may not write to the topic; tell its operator: {error}")
    return RefusedRequest(
        503, f"Kafka did not confirm all events; some may be stored, send them again: {error}", retry_after=RETRY
    )


# Groups the items that come while the last batch is under way: batches are small at low load, and large at high load.
#
# No item waits for a timer, and all items of a batch share its cost (a request to Kafka, an fsync).


Item = TypeVar("Item")


class WaitingItem(NamedTuple, Generic[Item]):
    """An item to carry, its size in bytes, the future of its end, and the loop's time when it came."""

    item: Item
    size: int
    done: asyncio.Future[None]
    since: float


class Gather(Generic[Item]):
    """Calls `carry` with batches of at most `largest` bytes, or of one larger item, at most `at_once` at the same time.

    `carry` settles the futures of items that failed; the others are done when it returns, and fail if it raises.
    """

    def __init__(
        self, carry: Callable[[Sequence[WaitingItem[Item]]], Awaitable[None]], *, largest: int, at_once: int
    ) -> None:
        self._carry, self._largest, self._at_once = carry, largest, at_once
        self._waiting: deque[WaitingItem[Item]] = deque()
        self._running: dict[asyncio.Task[None], float] = {}
        self._scheduled = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def put(self, item: Item, size: int) -> asyncio.Future[None]:
        # Until Python 3.12, asking for the loop is a system call: 3 % of a request.
        loop = self._loop = self._loop or asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append(WaitingItem(item, size, done, loop.time()))
        if not self._scheduled and len(self._running) < self._at_once:
            self._scheduled = True
            loop.call_soon(self._start)
        return done

    def fail_waiting(self, error: Exception) -> None:
        """Fail the items that are not under way yet."""
        settle(self._waiting, error)
        self._waiting.clear()

    def oldest(self) -> float | None:
        """The loop's time when the oldest unfinished item came; None if there is none."""
        if self._running:
            return next(iter(self._running.values()))
        return self._waiting[0].since if self._waiting else None

    async def finish(self) -> None:
        """Wait until all items are done."""
        while self._running or self._waiting:
            if self._running:
                await asyncio.wait(self._running)
            await asyncio.sleep(0)

    def _start(self) -> None:
        self._scheduled = False
        batch: list[WaitingItem[Item]] = []
        size = 0
        while self._waiting and (not batch or size + self._waiting[0].size <= self._largest):
            batch.append(self._waiting.popleft())
            size += batch[-1].size
        if batch:
            task = asyncio.create_task(self._work(batch))
            self._running[task] = batch[0].since
            task.add_done_callback(self._ended)

    async def _work(self, batch: Sequence[WaitingItem[Item]]) -> None:
        try:
            await self._carry(batch)
        except Exception as error:
            settle(batch, error)
        else:
            settle(batch, None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if self._waiting and not self._scheduled:
            self._start()


def settle(batch: Iterable[WaitingItem[Item]], error: Exception | None) -> None:
    """End the futures that are still open."""
    for waiting in batch:
        if waiting.done.done():
            continue
        if error is None:
            waiting.done.set_result(None)
        else:
            waiting.done.set_exception(error)
