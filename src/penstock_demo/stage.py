"""What every demo needs to run: parts that are always stopped again, steps with a deadline, numbers to show.

Started parts are put on a stack and stopped in reverse order; meanwhile, signals are ignored.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Protocol, TypeVar

from penstock.errors import PenstockError
from penstock.paths import usable
from penstock_demo import kept
from penstock_demo.view import Board, View

TURN = 0.2
WINDOW = 3.0
"""Seconds over which the view's numbers are computed."""
START = 240.0
PATIENCE = 90.0

T = TypeVar("T")


class Running(Protocol):
    """Running servers: their addresses, and their process ids by name."""

    @property
    def kafka(self) -> str: ...

    @property
    def cql(self) -> str: ...

    @property
    def postgres(self) -> str: ...

    @property
    def pids(self) -> dict[str, int]: ...


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM came."""


def staged(run: Callable[[ExitStack], T], *, keep: bool) -> T:
    """Call `run`; on return, and on any exception, all parts are stopped, unless they are to be kept."""
    before = [signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with ExitStack() as stack:
            try:
                result = run(stack)
                if keep:
                    stack.pop_all()
                return result
            finally:
                _hear_nothing()
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def prepare(root: Path, *logs: str) -> None:
    """Stop the pipeline that an earlier run has left under this root, and delete its checkpoints and logs."""
    kept.stop(root / "checkpoints")
    with usable(root):
        root.mkdir(parents=True, exist_ok=True)
    for old in ("checkpoints", "pipeline.log", *logs):
        kept.remove(root / old)
    # In a run of minutes the JVM's optimising compiler uses more CPU than it saves: half of Spark's on two cores.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


def _interrupt(number: int, frame: FrameType | None) -> None:
    _hear_nothing()
    raise Interrupted


def _hear_nothing() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class Rates:
    """How fast counts grow, over the last `WINDOW` seconds."""

    def __init__(self) -> None:
        self._history: deque[tuple[float, tuple[int, ...]]] = deque()

    def of(self, *counts: int) -> list[float]:
        """The growth of each count per second."""
        now = time.monotonic()
        self._history.append((now, counts))
        while now - self._history[0][0] > WINDOW:
            self._history.popleft()
        since, before = self._history[0]
        passed = now - since
        return [(count - old) / passed if passed else 0.0 for count, old in zip(counts, before, strict=True)]


class Stage:
    """The board with the numbers, and steps that wait; `_look` raises PenstockError if a part has ended."""

    def __init__(self, root: Path, view: View, board: Board) -> None:
        self._root, self._view, self._board = root, view, board
        self._began = time.monotonic()

    def _look(self) -> None:
        raise NotImplementedError

    def _until(self, condition: Callable[[], bool], failure: str, extra: float = 0.0) -> None:
        deadline = time.monotonic() + PATIENCE + extra
        while not condition():
            self._turn()
            if time.monotonic() > deadline:
                raise PenstockError(failure, where=str(self._root), next="see the logs there")

    def _turn(self) -> None:
        """Check all parts, show the numbers, and wait a little."""
        self._board.elapsed = time.monotonic() - self._began
        self._look()
        self._view.show(self._board)
        time.sleep(TURN)

    def _phase(self, phase: str, **parts: str) -> None:
        self._board.phase = phase
        self._board.parts |= parts
        self._board.elapsed = time.monotonic() - self._began
        self._view.show(self._board)
