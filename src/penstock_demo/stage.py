"""What every demo needs to run: parts that are always stopped again, steps with a deadline, numbers to show.

Started parts are put on a stack and stopped in reverse order; meanwhile, signals are ignored.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from penstock.errors import PenstockError
from penstock.paths import usable
from penstock_demo import kept
from penstock_demo.parts import Cpu, Load, Pipeline
from penstock_demo.verdict import percentile
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


@dataclass(frozen=True)
class Options:
    """What the user asked for; `rate` is a number per second, of the shop's writes also "max"; `broken` the breaks."""

    root: Path
    seconds: float
    rate: str
    broken: tuple[str, ...]
    keep: bool


class LoadStatus(Protocol):
    """What every load reports; `going`: at the full rate."""

    going: bool
    seconds: float
    cpu: float


class Reading(Protocol):
    """A consumer of the results; `fault` is why it ended."""

    @property
    def fault(self) -> Any: ...

    def recent(self, since: int) -> Iterable[int]: ...


S = TypeVar("S", bound=LoadStatus)
"""The status that a load reports."""


class Stage(Generic[S]):
    """A demo from start to end: the board with the numbers, and steps that wait.

    Each step waits for a condition with a deadline, and checks meanwhile that all parts still run. Subclasses say which
    parts there are, and use other servers and other breaks.
    """

    start, warm_longest, patience = START, 30.0, PATIENCE
    """Seconds for the first events, then until events come soon, and without progress at the end until it gives up."""
    warm_delay = 3.0
    """Seconds; with a smaller delay the load runs at its full rate."""
    warming, working = "warm-up rate", "writing"
    """What the load does before and after that."""
    _reader: Reading
    _pipeline: Pipeline

    def __init__(self, options: Options, view: View, board: Board, stack: ExitStack) -> None:
        self._options, self._root, self._view, self._board, self._stack = options, options.root, view, board, stack
        self._began, self._flowing = time.monotonic(), 0.0
        self._rates, self._lag = Rates(), 0
        self._loading: Load[S] | None = None

    @property
    def _load(self) -> Load[S]:
        assert self._loading is not None
        return self._loading

    def _to_the_load_s_end(self) -> dict[str, float]:
        """Start all parts, warm up, and run the load; returns the CPU seconds of each part under load."""
        self._start()
        self._phase("warming up", load=self.warming)
        self._until(self._warm, "the first events did not arrive in time", self.start)
        self._before_load()
        self._load.go()
        self._until(lambda: self._load.status.going, "the load does not answer")
        self._lag, cpu = 0, self._cpu()
        self._phase("running", load=self.working)
        self._run_load()
        return self._cpu().since(cpu)

    def _start(self) -> None:
        """Start all parts, the load last."""
        raise NotImplementedError

    def _first(self) -> bool:
        """Whether the first events have arrived."""
        raise NotImplementedError

    def _before_load(self) -> None:
        """What is done when events arrive soon."""

    def _run_load(self) -> None:
        raise NotImplementedError

    def _cpu(self) -> Cpu:
        raise NotImplementedError

    def _warm(self) -> bool:
        """Whether events arrive soon after their causes; after `warm_longest` later ones are enough."""
        if not self._first():
            return False
        self._flowing = self._flowing or time.monotonic()
        soon = 0 < self._board.delay_p99 < self.warm_delay
        return soon or time.monotonic() - self._flowing > self.warm_longest

    def _look(self) -> None:
        """Measure; raises PenstockError if a part has ended."""
        self._pipeline.look()
        if self._reader.fault:
            raise PenstockError(f"the consumer ended: {self._reader.fault}", where=str(self._root))
        if self._loading:
            self._loading.look()
            self._measure(self._loading.status)

    def _measure(self, status: S) -> None:
        board = self._board
        board.writes, board.events, board.lag, board.retries = self._counts(status)
        board.writes_per_s, board.events_per_s = self._rates.of(board.writes, board.events)
        recent = sorted(self._reader.recent(time.time_ns() // 1000 - int(WINDOW * 1e6)))
        board.delay_p50, board.delay_p99 = percentile(recent, 0.5) / 1e6, percentile(recent, 0.99) / 1e6
        self._lag = max(self._lag, board.lag)
        board.batch = self._pipeline.batch
        board.parts["pipeline"] = f"pid {self._pipeline.pid}"

    def _counts(self, status: S) -> tuple[int, int, int, int]:
        """Writes, events, events that are still to come, and repeated writes."""
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
