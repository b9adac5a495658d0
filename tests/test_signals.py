"""Signals that end a process: each counts, wherever it interrupts the process."""

from __future__ import annotations

import signal
import subprocess
import sys

from waiting import PATIENCE

WAITING = """
import signal
import sys
import threading
from penstock.signals import listen

first, second = threading.Event(), threading.Event()
listen(first, second)
if "inside" in sys.argv:
    # Where a signal finds a process that is about to wait for the event, or sets it.
    with first._cond:
        signal.raise_signal(signal.SIGTERM)
print("ready", flush=True)
first.wait()
print("asked", flush=True)
second.wait()
print("told", flush=True)
"""


def waiting(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WAITING, *words], stdout=subprocess.PIPE, text=True)


def test_a_signal_that_comes_while_the_event_is_locked_is_heard() -> None:
    with waiting("inside") as process:
        try:
            assert process.stdout and process.stdout.read(12) == "ready\nasked\n"
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=PATIENCE)[0] == "told\n"
        finally:
            process.kill()


def test_the_second_signal_is_not_the_first() -> None:
    with waiting() as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "asked\n"
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=PATIENCE)[0] == "told\n"
        finally:
            process.kill()
