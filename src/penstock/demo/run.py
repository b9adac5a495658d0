"""The demo from start to end: services, tables, pipeline, load, consumer, proof; and everything stopped again.

Each step waits for a condition with a deadline, and looks meanwhile whether all parts still run. What is started is
put on a stack and taken down in reverse order, whatever happens; while it is taken down, signals are not heard.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from penstock.demo import breaks, consume, journal, kept, shop
from penstock.demo.consume import Reader
from penstock.demo.load import Status
from penstock.demo.node import connect
from penstock.demo.parts import Cpu, Load, Pipeline
from penstock.demo.reconcile import reconcile
from penstock.demo.verdict import Verdict, examples, judge, percentile
from penstock.demo.view import Board, View
from penstock.errors import PenstockError
from penstock.local import services
from penstock.local.process import uninterrupted

TURN = 0.2
WINDOW = 3.0
"""Seconds over which the numbers of the view are taken."""
WARM_DELAY = 3.0
WARM_LONGEST = 30.0
START = 240.0
PATIENCE = 90.0


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM came."""


@dataclass(frozen=True)
class Options:
    """What the user asked for; `rate` is a number of writes a second or "max", `broken` the parts to kill."""

    root: Path
    seconds: float
    rate: str
    broken: tuple[str, ...]
    keep: bool


def demo(options: Options, view: View) -> Verdict:
    """Run it all; on return, and on any exception, nothing runs any more, unless it is to be kept."""
    before = [signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        with ExitStack() as stack:
            try:
                verdict = _Demo(options, view, stack).run()
                if options.keep:
                    stack.pop_all()
                return verdict
            finally:
                _hear_nothing()
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _hear_nothing()
    raise Interrupted


def _hear_nothing() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


class _Demo:
    """The parts as they come up, and the board with their numbers."""

    def __init__(self, options: Options, view: View, stack: ExitStack) -> None:
        self._options, self._view, self._stack = options, view, stack
        self._board = Board()
        self._began = time.monotonic()
        self._history: deque[tuple[float, int, int]] = deque()
        self._breaks: list[int] = []
        self._lag = 0
        self._flowing = 0.0
        self._loading: Load | None = None

    @property
    def _load(self) -> Load:
        assert self._loading is not None
        return self._loading

    def run(self) -> Verdict:
        self._start()
        self._phase("warming up", load="warm-up rate")
        self._until(self._warm, "the first events did not arrive in time", START)
        self._load.go()
        self._until(lambda: self._load.status.going, "the load does not answer")
        self._lag, cpu = 0, Cpu.now(self._services, self._pipeline, self._load)
        self._phase("running", load="writing")
        self._run_load()
        used = Cpu.now(self._services, self._pipeline, self._load).since(cpu)
        self._phase("waiting for the last events", load="done")
        self._drain()
        return self._judge(used)

    def _start(self) -> None:
        root = self._options.root
        self._phase("starting", cassandra="starting", kafka="starting", pipeline="", load="")
        kept.stop(root / "checkpoints")
        root.mkdir(parents=True, exist_ok=True)
        for old in ("checkpoints", "pipeline.log"):
            kept.remove(root / old)
        self._stack.callback(services.down, root)
        # In a run of minutes the JVMs' optimising compiler takes more CPU than it saves: half of Spark's on two cores.
        os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        self._services = services.up(root, clean=True, say=self._view.say)
        self._phase("creating tables and topics", cassandra=self._services.cql, kafka=self._services.kafka)
        with connect(self._services.cql) as session:
            for statement in shop.statements():
                session.execute(statement)
        consume.create_topics(self._services.kafka)
        self._reader = Reader(self._services.kafka)
        self._reader.start()
        self._stack.callback(self._reader.close)
        self._phase("starting the pipeline", pipeline="starting")
        with uninterrupted():
            self._pipeline = Pipeline(root, self._services, stay=self._options.keep)
            self._stack.callback(self._pipeline.close)
        self._until(lambda: self._pipeline.reads, "the pipeline does not read", START)
        with uninterrupted():
            self._loading = Load(root, self._services.cql, rate=self._options.rate, seconds=self._options.seconds)
            self._stack.callback(self._loading.close)

    def _warm(self) -> bool:
        """Whether events of all tables arrive, and soon after their writes; a slow machine need not wait for long."""
        if len(self._reader.tables) < len(shop.TABLES):
            return False
        self._flowing = self._flowing or time.monotonic()
        return 0 < self._board.delay_p99 < WARM_DELAY or time.monotonic() - self._flowing > WARM_LONGEST

    def _run_load(self) -> None:
        parts = self._options.broken
        for number, part in enumerate(parts, 1):
            self._break(part, number, self._options.seconds * number / (len(parts) + 1))
        self._until(lambda: self._load.done, "the load does not end", self._options.seconds)

    def _break(self, part: str, number: int, at: float) -> None:
        """Strike `part` once the load has run for `at` seconds, and start it again."""
        self._until(lambda: self._load.status.seconds >= at, "the load stands still", at)
        self._phase("altering a table" if part == "alter" else f"killing {part}")
        self._breaks.append(time.time_ns() // 1000)
        self._view.say(breaks.strike(part, number, self._services, self._pipeline))
        breaks.start_again(part, self._options.root, self._pipeline)
        self._phase("running after the break")

    def _drain(self) -> None:
        """Wait until every certain event was seen, as long as there is progress; then for the end of all topics."""
        self._expected = list(journal.expected(journal.read(self._load.journal)))
        missing = {event.identity for event in self._expected if event.certain}
        progress = time.monotonic()
        while missing and time.monotonic() - progress < PATIENCE:
            before = len(missing)
            missing -= self._reader.seen
            if len(missing) < before:
                progress = time.monotonic()
            self._turn()
        if not self._options.keep:
            self._pipeline.close()
        ends = consume.ends(self._services.kafka)
        deadline = time.monotonic() + PATIENCE
        while not self._reader.has_read(ends) and time.monotonic() < deadline:
            time.sleep(TURN)

    def _judge(self, cpu: dict[str, float]) -> Verdict:
        self._phase("comparing every write with every event")
        report = reconcile(self._expected, list(self._reader.records), breaks=self._breaks)
        verdict = judge(report, self._load.status, self._reader.times, cpu)
        verdict.lag_max, verdict.broken = self._lag, list(self._options.broken)
        verdict.examples = examples(report, self._load.journal, self._services.kafka)
        return verdict

    def _until(self, condition: Callable[[], bool], failure: str, extra: float = 0.0) -> None:
        deadline = time.monotonic() + PATIENCE + extra
        while not condition():
            self._turn()
            if time.monotonic() > deadline:
                raise PenstockError(failure, where=str(self._options.root), next="look into the logs there")

    def _turn(self) -> None:
        """Look at all parts, show the numbers, and wait a little."""
        self._board.elapsed = time.monotonic() - self._began
        self._pipeline.look()
        if self._reader.fault:
            raise PenstockError(f"the consumer ended: {self._reader.fault}", where=self._services.kafka)
        if self._loading:
            self._loading.look()
            self._measure(self._loading.status)
        self._view.show(self._board)
        time.sleep(TURN)

    def _measure(self, status: Status) -> None:
        now, board = time.monotonic(), self._board
        self._history.append((now, status.writes, len(self._reader.times) // 2))
        while now - self._history[0][0] > WINDOW:
            self._history.popleft()
        since, writes, events = self._history[0]
        board.writes, board.events, board.retries = status.writes, len(self._reader.times) // 2, status.retries
        if now > since:
            board.writes_per_s = (board.writes - writes) / (now - since)
            board.events_per_s = (board.events - events) / (now - since)
        recent = sorted(self._reader.recent(time.time_ns() // 1000 - int(WINDOW * 1e6)))
        board.delay_p50, board.delay_p99 = percentile(recent, 0.5) / 1e6, percentile(recent, 0.99) / 1e6
        board.lag = max(0, status.events - len(self._reader.records))
        self._lag = max(self._lag, board.lag)
        board.batch = self._pipeline.batch
        board.parts["pipeline"] = f"pid {self._pipeline.pid}"

    def _phase(self, phase: str, **parts: str) -> None:
        self._board.phase = phase
        self._board.parts |= parts
        self._board.elapsed = time.monotonic() - self._began
        self._view.show(self._board)
