"""What a process does on SIGTERM, Ctrl-C, and SIGHUP, which comes when its terminal is closed."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from _thread import start_new_thread
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event
from typing import Any, TypeVar

T = TypeVar("T")
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_end: ContextVar[Event | None] = ContextVar("end", default=None)
_raising = False
"""Whether a signal raises in the main thread."""


class Stopped(BaseException):
    """Raised in work that must end while it waits; a BaseException, so that no `except Exception` catches it."""


def listen(*events: Event) -> None:
    """Each signal of ENDING sets the next event, in this order; call it in the main thread."""
    left = list(events)

    def heard(number: int, frame: object) -> None:
        while left:
            event = left.pop(0)
            if not event.is_set():
                # In a thread: this thread may hold the event's lock, because a signal can interrupt it anywhere.
                start_new_thread(event.set, ())
                break
        _raise_once()

    for number in heeded():
        signal.signal(number, heard)


def heeded() -> list[signal.Signals]:
    """The signals that end this process: started by `nohup`, it goes on when its terminal is closed."""
    return [ending for ending in ENDING if ending != signal.SIGHUP or signal.getsignal(ending) is not signal.SIG_IGN]


@contextmanager
def ended_by(event: Event) -> Iterator[None]:
    """Code inside ends with `Stopped` at its next `pause` after `event` is set, and does not begin if it is.

    In the main thread a signal ends it anywhere, because a user's function may wait without calling `pause`.
    """
    global _raising
    in_main = threading.current_thread() is threading.main_thread()
    before = _end.set(event)
    try:
        if in_main:
            _raising = True
        if event.is_set():
            raise Stopped
        yield
    finally:
        if in_main:
            _raising = False
        _end.reset(before)


def run_until_interrupt(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, in which the first Ctrl-C cancels the work between two steps of the loop.

    asyncio itself cancels within a step, wherever that is. A future that the step was about to complete is then
    cancelled, and the step's error is logged with a traceback. Raises KeyboardInterrupt when the work has ended.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(work)
    asked = False

    async def run() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task

        def heard() -> None:
            nonlocal asked
            asked = True
            # The next one interrupts work that does not end.
            loop.remove_signal_handler(signal.SIGINT)
            task.cancel()

        loop.add_signal_handler(signal.SIGINT, heard)
        try:
            return await work
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        if asked:
            raise KeyboardInterrupt from None
        raise


@contextmanager
def kept_interrupt() -> Iterator[Event]:
    """Ctrl-C sets the event, and a second one raises `KeyboardInterrupt`; only in the main thread.

    PySpark's handler calls the JVM. If the main thread is within such a call itself, both use one connection: the
    answers change places, and the call fails with an error that does not tell of Ctrl-C.
    """
    asked = Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def heard(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = signal.signal(signal.SIGINT, heard)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def pause(seconds: float) -> None:
    """Sleep; raises `Stopped` if this thread's work must end."""
    event = _end.get()
    if event is None:
        time.sleep(seconds)
    elif event.wait(seconds):
        raise Stopped


def _raise_once() -> None:
    """Raises only once: a second signal must not interrupt the cleanup."""
    global _raising
    if _raising:
        _raising = False
        raise Stopped
