"""The tasks of a sender: requests in flight, and the preparation of other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class SenderTasks:
    """Runs tasks until `cancel`; `changed` is set when a task of `once` ends, or by its owner."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[object] = set()

    def start(self, what: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def once(self, about: object, what: Coroutine[None, None, None]) -> None:
        """Run `what` unless a task for the same `about` is running."""
        if about in self._busy:
            what.close()
            return
        self._busy.add(about)

        async def work() -> None:
            try:
                await what
            finally:
                self._busy.discard(about)
                self.changed.set()

        self.start(work())

    async def any_ended(self) -> None:
        """Wait for the next task to end."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def cancel(self) -> None:
        """Cancel all tasks, and wait for their end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
