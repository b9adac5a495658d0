"""What every demo does: starts its parts, runs the load while it breaks parts, compares the results, stops all parts.

Started parts are put on a stack and stopped in reverse order; meanwhile, signals are ignored.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Generic, Protocol, TypeVar

from penstock.errors import PenstockError
from penstock.extras import install
from penstock.local import services
from penstock.local.process import uninterrupted
from penstock.local.spark_cluster import SparkMaster
from penstock.process.paths import usable
from penstock_demo.parts import CONSOLE_LOG, ConsolePage, Cpu, Load, LoadStatus, Part, Pipeline, SparkProcess, stop_kept
from penstock_demo.view import Board, View
from penstock_demo.watch import Watch, percentile

TURN = 0.2
WINDOW = 3.0
"""Seconds over which the view's numbers are computed."""
START = 240.0
PATIENCE = 90.0
SIGNALS = signal.SIGINT, signal.SIGTERM
AUTO = "auto"
TARGET = "target"
"""The node of a second cluster, and the folder of its services below the root."""
CONSOLE_NEEDS = "starlette", "uvicorn"
"""The packages of the console page."""
CPU_EVERY = 2.0
"""Seconds between two looks at the CPU time of the parts."""

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
    before = [signal.signal(number, _interrupt) for number in SIGNALS]
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
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _hear_nothing()
    raise Interrupted


def _hear_nothing() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _place(address: str) -> str:
    """Host and port of a URL that may have a password."""
    return address.rpartition("@")[2].partition("/")[0]


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
    """What the user asked for; `rate` is a number per second, of the shop's writes also "max"; `broken` the breaks.

    With the rate `AUTO` the demo finds a rate for this machine. With `cluster` workers the pipeline runs on a Spark
    cluster. `nodes` is the number of CQL nodes of the demo of a replication, which with
    `through_kafka` goes through topics.
    """

    root: Path
    seconds: float
    rate: str
    broken: tuple[str, ...]
    keep: bool
    cluster: int = 0
    nodes: int = 1
    through_kafka: bool = False


S = TypeVar("S", bound=LoadStatus)
"""The status that a demo's load reports."""
V = TypeVar("V")
"""The verdict of a demo."""


class Stage(Generic[S, V]):
    """A demo from start to end: the parts, the board with the numbers, and steps that wait.

    Each step waits for a condition with a deadline, and checks meanwhile that all parts still run. Subclasses say which
    parts there are, and use other servers and other breaks.
    """

    target: str
    """The pipeline, as `penstock run` takes it."""
    load_module: str
    load_status: type[S]
    topics: tuple[str, ...]
    """The topics of the results, for users who look at them."""
    usual: tuple[str, ...] = ("cassandra", "kafka")
    also: tuple[str, ...] = ()
    """Services besides these."""
    parts: tuple[str, ...] = ("pipeline",)
    """The processes that start before the load."""
    logs: tuple[str, ...] = ("pipeline.log",)
    creating = "creating tables and topics"
    starting, draining = "starting the pipeline", "waiting for the last events"
    warming, working = "warm-up rate", "writing"
    """What the load does before and after the change to the full rate."""
    judging = "comparing every write with every event"
    cores = 2
    """Tasks of the pipeline that run at the same time."""
    start, warm_longest, patience = START, 30.0, PATIENCE
    """Seconds for the first events, then until events come soon, and without progress at the end until it gives up."""
    warm_delay = 3.0
    """Seconds; with a smaller delay the load runs at its full rate."""
    _reader: Watch
    _pipeline: Pipeline
    _running: Running

    def __init__(self, options: Options, view: View, board: Board, stack: ExitStack) -> None:
        self._options, self._root, self._view, self._board, self._stack = options, options.root, view, board, stack
        self._began, self._flowing = time.monotonic(), 0.0
        self._rates, self._lag = Rates(), 0
        self._processes: dict[str, Part] = {}
        """The running parts by the names that breaks have for them."""
        self._breaks: list[int] = []
        """When parts were broken, in microseconds."""
        self._loading: Load[S] | None = None
        self._page: ConsolePage | None = None
        self._master: str | None = None
        """The Spark master of the cluster that the pipeline runs on."""
        self._rate = ""
        """At which the load runs after the warm-up, per second, or "max"."""
        self._seen_cpu: tuple[float, Cpu] | None = None
        """When the parts' CPU time was read last, and that time."""

    @property
    def _load(self) -> Load[S]:
        assert self._loading is not None
        return self._loading

    def run(self) -> V:
        """Start all parts, warm up, run the load, wait for its results, and judge them."""
        self._start()
        self._view.say(self._told_of_warm_up())
        self._phase("warming up", load=self.warming)
        self._until(self._warm, "the first events did not arrive in time", self.start)
        self._before_load()
        self._rate = self._chosen_rate()
        self._load.go(self._rate)
        self._until(lambda: self._load.status.going, "the load does not answer")
        self._lag, before = 0, self._cpu()
        self._seen_cpu = time.monotonic(), before
        self._phase("running", load=self.working)
        self._run_load()
        used = self._cpu().since(before)
        self._phase(self.draining, load="done")
        self._drain()
        self._phase(self.judging)
        return self._judge(used)

    def _start(self) -> None:
        self._phase("starting", **dict.fromkeys((*self.usual, *self.also), "starting"))
        self._prepare()
        self._running = running = self._serve()
        addresses = {"postgres": _place(running.postgres)} if "postgres" in self.also else {}
        addresses |= {"kafka": running.kafka} if "kafka" in self.usual else {}
        self._phase(self.creating, cassandra=running.cql, **addresses)
        self._create()
        self._reader = self._read()
        self._reader.start()
        self._stack.callback(self._reader.close)
        with uninterrupted():
            self._open_console()
        self._phase(self.starting, **dict.fromkeys(self.parts, "starting"))
        with uninterrupted():
            self._start_parts()
        self._await_parts()
        with uninterrupted():
            self._loading = Load(self._root, self.load_module, self._load_arguments(), self.load_status)
            self._stack.callback(self._loading.close)

    def _prepare(self) -> None:
        """Stop the pipeline that an earlier run has left under this root, and delete its checkpoints and logs."""
        stop_kept(self._root)
        with usable(self._root):
            self._root.mkdir(parents=True, exist_ok=True)
        for folder in (self._root / "checkpoints", self._root / "executors"):
            if folder.exists():
                shutil.rmtree(folder)
        for log in (*self.logs, CONSOLE_LOG):
            (self._root / log).unlink(missing_ok=True)
        # In a run of minutes the JVM's optimising compiler uses more CPU than it saves: half of Spark's on two cores.
        os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

    def _serve(self) -> Running:
        """Start the servers."""
        self._stack.callback(services.down, self._root)
        return services.up(self._root, clean=True, only=self.usual, also=self.also, say=self._view.say)

    def _create(self) -> None:
        """Create tables and topics."""
        raise NotImplementedError

    def _read(self) -> Watch:
        """The consumer of the results."""
        raise NotImplementedError

    def _open_console(self) -> None:
        """Start the page that shows the pipelines, and tell its address."""
        if not all(map(find_spec, CONSOLE_NEEDS)):
            self._view.say(f"no console page: it needs another extra, run: {install('console')}")
            return
        kafka = self._running.kafka if "kafka" in self.usual else None
        self._page = ConsolePage(self._root, kafka, stay=self._options.keep)
        self._stack.callback(self._page.close)
        self._view.say(f"see it in a browser: http://{self._page.address}")

    def _look_at_console(self) -> None:
        """Tell if the page has ended: the proof does not need it."""
        if self._page and self._page.code is not None:
            self._view.say(f"the console page ended with code {self._page.code}; see {self._page.log}")
            self._page = None

    def _start_parts(self) -> None:
        """Start the processes besides the load."""
        if self._options.cluster:
            self._start_cluster(self._options.cluster)
        self._pipeline = self._processes["spark"] = self._pipe()
        self._stack.callback(self._pipeline.close)

    def _start_cluster(self, workers: int) -> None:
        """Start a Spark cluster; "worker" is the first of its workers."""
        master = SparkMaster.on_free_ports()
        self._master = master.url
        self._start_spark("master", master.command())
        for number in range(1, workers + 1):
            name = "worker" if number == 1 else f"worker{number}"
            command = master.worker(self._root / "executors" / name, cores=1, memory="1g")
            self._start_spark(name, command)
        self._until(lambda: master.alive() == workers, "the workers do not find their master", self.start)
        self._phase(self.starting, cluster=f"{master.url}, {workers} workers of a core each")

    def _start_spark(self, name: str, command: list[str]) -> None:
        part = self._processes[name] = SparkProcess(self._root, name, command, stay=self._options.keep)
        self._stack.callback(part.close)

    def _pipe(self) -> Pipeline:
        given = self._root, self.target, self._environment()
        return Pipeline(*given, stay=self._options.keep, cores=self.cores, master=self._master)

    def _environment(self) -> dict[str, str]:
        """The addresses for pipelines."""
        running = self._running
        found = {"PENSTOCK_DEMO_CQL": running.cql, "PENSTOCK_DEMO_KAFKA": running.kafka}
        return found | ({"PENSTOCK_DEMO_POSTGRES": running.postgres} if "postgres" in self.also else {})

    def _await_parts(self) -> None:
        """Wait until the load may start."""
        raise NotImplementedError

    def _load_arguments(self) -> list[str]:
        """The load's options: where it writes, and how fast."""
        return ["--seconds", str(self._options.seconds)]

    def _chosen_rate(self) -> str:
        """The full rate: the user's, or one for this machine."""
        return self._options.rate

    def _told_of_warm_up(self) -> str:
        return (
            f"warming up for at most {self._longest_warm_up:.0f} s after the first events: Spark compiles its code, and"
            f" delays are long; the full rate begins when P99 is below {self.warm_delay:.0f} s"
        )

    @property
    def _longest_warm_up(self) -> float:
        """Seconds; a short run is not worth a long warm-up."""
        return min(self.warm_longest, 5 + self._options.seconds)

    def _first(self) -> bool:
        """Whether the first events have arrived."""
        raise NotImplementedError

    def _before_load(self) -> None:
        """What is done when events arrive soon."""

    def _run_load(self) -> None:
        parts, seconds = self._options.broken, self._options.seconds
        for number, part in enumerate(parts, 1):
            self._await_load(seconds * number / (len(parts) + 1))
            self._break(part, number)
        self._until(lambda: self._load.done, "the load does not end", seconds)

    def _await_load(self, seconds: float) -> None:
        """Wait until the load has run for this time at its full rate."""
        self._until(lambda: self._load.status.seconds >= seconds, "the load makes no progress", seconds)

    def _break(self, part: str, number: int) -> None:
        """Kill a part with kill -9 and start it again at the same address; Spark restarts a worker itself."""
        self._phase(f"killing {part}")
        self._breaks.append(time.time_ns() // 1000)
        if part in self._processes:
            self._processes[part].kill()
        elif part == "worker":
            self._pipeline.kill_worker()
        else:
            os.kill(self._pids[part], signal.SIGKILL)
        self._view.say(f"killed {part} with kill -9")
        if part in self._processes:
            self._processes[part].start_again()
        elif part != "worker":
            self._serve_again(part)
        self._phase("running after the break")

    @property
    def _pids(self) -> dict[str, int]:
        """The process ids of the servers, by name."""
        return self._running.pids

    def _serve_again(self, part: str) -> None:
        """Start a server that was killed."""
        self._running = services.up(self._root, only=[part])

    def _cpu(self) -> Cpu:
        processes = {name: part.pid for name, part in self._processes.items() if part is not self._pipeline}
        processes |= {"console": self._page.pid} if self._page else {}
        return Cpu.now(self._pids | processes, self._pipeline.pid, self._load.status.cpu)

    def _drain(self) -> None:
        """Wait for all results of the load, while there is progress."""
        raise NotImplementedError

    def _judge(self, cpu: dict[str, float]) -> V:
        """Compare; `cpu` has the CPU seconds of each part under load."""
        raise NotImplementedError

    def _warm(self) -> bool:
        """Whether events arrive soon after their causes; after `warm_longest` later ones are enough."""
        if not self._first():
            return False
        self._flowing = self._flowing or time.monotonic()
        soon = 0 < self._board.delay_p99 < self.warm_delay
        return soon or time.monotonic() - self._flowing > self._longest_warm_up

    def _look(self) -> None:
        """Measure; raises PenstockError if a part has ended."""
        self._look_at_console()
        for part in self._processes.values():
            part.look()
        if self._reader.fault:
            raise PenstockError(f"the consumer ended: {self._reader.fault}", where=str(self._root))
        if self._loading:
            self._loading.look()
            self._measure(self._loading.status)

    def _measure(self, status: S) -> None:
        board = self._board
        board.retries = status.retries
        board.writes, board.events, board.lag = self._counts(status)
        board.writes_per_s, board.events_per_s = self._rates.of(board.writes, board.events)
        recent = self._reader.recent(time.time_ns() // 1000 - int(WINDOW * 1e6))
        board.delay_p50, board.delay_p99 = percentile(recent, 0.5), percentile(recent, 0.99)
        self._lag = max(self._lag, board.lag)
        board.batch = self._pipeline.batch
        self._measure_cpu()
        board.parts["pipeline"] = f"pid {self._pipeline.pid}"

    def _measure_cpu(self) -> None:
        if self._seen_cpu and (passed := time.monotonic() - self._seen_cpu[0]) >= CPU_EVERY:
            now = self._cpu()
            self._board.cpu = now.shares(self._seen_cpu[1], passed)
            self._seen_cpu = time.monotonic(), now

    def _counts(self, status: S) -> tuple[int, int, int]:
        """Writes, events, and events that are still to come."""
        raise NotImplementedError

    def _pass_time(self, seconds: float) -> None:
        """Show the numbers for this time."""
        end = time.monotonic() + seconds
        self._until(lambda: time.monotonic() >= end, "time does not pass", seconds)

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
