"""Groups the items that come while the last lot is under way: lots are small at low load, and large at high load.

No item waits for a timer, and all items of a lot share its cost (a request to Kafka, an fsync).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")


class WaitingItem(NamedTuple, Generic[Item]):
    """An item to carry, its size in bytes, the future of its end, and the loop's time when it came."""

    item: Item
    size: int
    done: asyncio.Future[None]
    since: float


class Gather(Generic[Item]):
    """Calls `carry` with lots of at most `largest` bytes, or of one larger item, at most `at_once` at the same time.

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
        lot: list[WaitingItem[Item]] = []
        size = 0
        while self._waiting and (not lot or size + self._waiting[0].size <= self._largest):
            lot.append(self._waiting.popleft())
            size += lot[-1].size
        if lot:
            task = asyncio.create_task(self._work(lot))
            self._running[task] = lot[0].since
            task.add_done_callback(self._ended)

    async def _work(self, lot: Sequence[WaitingItem[Item]]) -> None:
        try:
            await self._carry(lot)
        except Exception as error:
            settle(lot, error)
        else:
            settle(lot, None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if self._waiting and not self._scheduled:
            self._start()


def settle(lot: Iterable[WaitingItem[Item]], error: Exception | None) -> None:
    """End the futures that are still open."""
    for one in lot:
        if one.done.done():
            continue
        if error is None:
            one.done.set_result(None)
        else:
            one.done.set_exception(error)
