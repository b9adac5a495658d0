"""The tasks of a sender: requests under way, and what has to be known before others can go."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class SenderTasks:
    """Runs tasks until `cancel`; `changed` tells that one about something ended, or whatever else its owner sets."""

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[object] = set()

    def start(self, what: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def once(self, about: object, what: Coroutine[None, None, None]) -> None:
        """Do something once at a time for each `about`."""
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
        """Stop all that runs, and wait for its end."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
