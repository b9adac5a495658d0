"""Signals that end a process: each counts, wherever it interrupts the process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import PATIENCE

from penstock.process.signals import run_until_interrupt

WAITING = """
import asyncio
import signal
import sys
import threading
from penstock.process.signals import listen

first, second = threading.Event(), threading.Event()
listen(first, second)
# Where a signal finds a process that is about to wait for the event, or sets it.
with first._cond:
    for _ in range(int(sys.argv[1])):
        signal.raise_signal(signal.SIGTERM)
print("ready", flush=True)
first.wait()
print("asked", flush=True)
second.wait()
print("told", flush=True)
"""


def go_on() -> None:
    """As `nohup` does."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def end() -> None:
    """As a shell in a terminal does."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def waiting(inside: int = 0, first: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    """`inside`: signals that come while the first event is locked."""
    command = [sys.executable, "-c", WAITING, str(inside)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=first)


def test_a_signal_that_comes_while_the_event_is_locked_is_heard() -> None:
    with waiting(inside=1) as process:
        try:
            assert process.stdout and process.stdout.read(12) == "ready\nasked\n"
            process.send_signal(signal.SIGTERM)
            assert process.communicate(timeout=PATIENCE)[0] == "told\n"
        finally:
            process.kill()


def test_two_signals_at_once_are_two() -> None:
    with waiting(inside=2) as process:
        try:
            assert process.communicate(timeout=PATIENCE)[0] == "ready\nasked\ntold\n"
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("first", "second"), [(signal.SIGINT, signal.SIGTERM), (signal.SIGHUP, signal.SIGHUP)], ids=["keys", "terminal"]
)
def test_the_second_signal_is_not_the_first(first: signal.Signals, second: signal.Signals) -> None:
    with waiting(first=end) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            process.send_signal(first)
            assert process.stdout.readline() == "asked\n"
            process.send_signal(second)
            assert process.communicate(timeout=PATIENCE)[0] == "told\n"
        finally:
            process.kill()


def test_a_process_that_is_to_outlive_its_terminal_goes_on() -> None:
    with waiting(first=go_on) as process:
        try:
            assert process.stdout and process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGHUP)
            ignored = Path(f"/proc/{process.pid}/status").read_text()
            assert int(ignored.partition("SigIgn:\t")[2].split()[0], 16) & 1 << signal.SIGHUP - 1
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "asked\n"
        finally:
            process.kill()


def test_ctrl_c_cancels_work_between_the_steps_of_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    """Not within a step that is about to complete a future, as asyncio does when a thread has ended."""
    ended = False

    async def work() -> None:
        nonlocal ended
        loop = asyncio.get_running_loop()
        answer = loop.create_future()

        def complete() -> None:
            if not answer.cancelled():
                signal.raise_signal(signal.SIGINT)
                answer.set_result(None)

        loop.call_soon(complete)
        try:
            await answer
            await asyncio.Event().wait()
        finally:
            ended = True

    with pytest.raises(KeyboardInterrupt):
        run_until_interrupt(work())
    assert ended and not caplog.messages
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_work_that_does_not_end_is_interrupted_by_the_second_ctrl_c() -> None:
    async def work() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            signal.raise_signal(signal.SIGINT)
            pytest.fail("the second Ctrl-C did not interrupt")

    with pytest.raises(KeyboardInterrupt):
        run_until_interrupt(work())
