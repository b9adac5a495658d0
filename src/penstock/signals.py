"""What a process does when it is asked to end."""

from __future__ import annotations

import signal
from _thread import start_new_thread
from threading import Event

ENDING = (signal.SIGTERM, signal.SIGINT)


def listen(*events: Event) -> None:
    """Each SIGTERM or Ctrl-C sets one event more, in this order; to be called in the main thread."""

    def heard(number: int, frame: object) -> None:
        for event in events:
            if not event.is_set():
                # In a thread: this one may hold the event's lock, as it was interrupted anywhere, in here too.
                start_new_thread(event.set, ())
                return

    for number in ENDING:
        signal.signal(number, heard)
