"""What a process does when it is asked to end."""

from __future__ import annotations

import signal
import threading
import time
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event

ENDING = (signal.SIGTERM, signal.SIGINT)

_end: ContextVar[Event | None] = ContextVar("end", default=None)
_raising = False
"""Whether the main thread is where a signal is to raise."""


class Stopped(BaseException):
    """Something was to end while it waited; no error, so that no `except Exception` on its way takes it for one."""


def listen(*events: Event) -> None:
    """Each SIGTERM or Ctrl-C sets one event more, in this order; to be called in the main thread."""

    def heard(number: int, frame: object) -> None:
        for event in events:
            if not event.is_set():
                # In a thread: this one may hold the event's lock, as it was interrupted anywhere, in here too.
                start_new_thread(event.set, ())
                break
        _raise_once()

    for number in ENDING:
        signal.signal(number, heard)


@contextmanager
def ended_by(event: Event) -> Iterator[None]:
    """What waits in here ends with `Stopped` when `event` is set: where it calls `pause`.

    In the main thread a signal ends it wherever it is, as what a user's function waits for does not know of us.
    """
    global _raising
    in_main = threading.current_thread() is threading.main_thread()
    before = _end.set(event)
    try:
        if in_main:
            _raising = True
        yield
    finally:
        if in_main:
            _raising = False
        _end.reset(before)


def pause(seconds: float) -> None:
    """Sleep; raises `Stopped` instead when what this thread does is to end."""
    event = _end.get()
    if event is None:
        time.sleep(seconds)
    elif event.wait(seconds):
        raise Stopped


def _raise_once() -> None:
    """Not again on the way out, where what is closed must be closed."""
    global _raising
    if _raising:
        _raising = False
        raise Stopped
