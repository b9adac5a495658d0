"""The two processes of every demo: the pipeline, which is `penstock run`, and the load, which the demo commands.

Commands come on the load's standard input (`pace RATE`: another rate of the warm-up; `go RATE`: change to the full
rate; `stop`, or end of input: finish). Its status goes to standard output, one JSON object per line.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import orjson

from penstock.errors import PenstockError
from penstock.local import ports, spark_cluster
from penstock.local.process import POLL, tail, uninterrupted
from penstock.run.checkpoint import holder
from penstock.serve.http_client import Address, NoHttpAnswer, fetch_blocking
from penstock.spark_runtime.fork_server import WORKER, WORKER_NAME
from penstock.watch import run_files
from penstock_demo import child

PATIENCE = 60.0
LOOK_PATIENCE = 5.0
"""Seconds for an answer of the pipeline's metrics server."""
BATCH = re.compile(rb"batch \d+: (\d+) rows in ([\d.]+) s")
PENSTOCK = sys.executable, "-m", "penstock"
INGEST = "ingest.toml"
"""The configuration of `penstock ingest`, below the root of a demo that has it."""
CONSOLE_LOG = "console.log"
EXECUTOR_MEMORY = "700m"


@dataclass
class LoadStatus:
    """What every load reports; `going` at the full rate, which has lasted `seconds` since `started_us`.

    `cpu` is the process's CPU time in seconds.
    """

    retries: int = 0
    going: bool = False
    started_us: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    finished: bool = False

    def report(self) -> None:
        """Write it to standard output; called in the load's process."""
        self.cpu = time.process_time()
        sys.stdout.buffer.write(orjson.dumps(asdict(self), option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()


@dataclass
class Commands:
    """What a load was told: the newest rate, `go`, and `stop` or the end of input."""

    go: threading.Event
    stop: threading.Event
    rate: str = ""


def commands() -> Commands:
    """Listen to standard input, in the load's process."""
    told = Commands(threading.Event(), threading.Event())

    def listen() -> None:
        for command in sys.stdin:
            word, _, told.rate = command.strip().partition(" ")
            if word != "pace":
                (told.go if word == "go" else told.stop).set()
        told.stop.set()

    threading.Thread(target=listen, daemon=True).start()
    return told


S = TypeVar("S", bound=LoadStatus)
"""The status that a load reports."""


class Part:
    """A process of the demo that may be killed and started again; `close` lets it finish its current work."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        stay: bool,
        patience: float,
    ) -> None:
        self.log = log
        self._name, self._command, self._environment = name, command, environment
        self._stay, self._patience = stay, patience
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def look(self) -> None:
        """Raises PenstockError if it has ended by itself."""
        require_running(self._name, self._process, self.log)

    @property
    def code(self) -> int | None:
        """The exit code if it has ended, else None."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill it and all processes that it has started with kill -9, as when a machine is lost."""
        with uninterrupted():
            child.kill(self._process)

    def start_again(self) -> None:
        with uninterrupted():
            self._process = self._start()

    def close(self) -> None:
        child.stop(self._process, self._patience)

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            nothing = subprocess.DEVNULL
            return child.start(self._command, self._environment, stdin=nothing, stdout=log, stderr=log, stay=self._stay)


class Bucket(NamedTuple):
    """A part of a histogram: seconds above `least` and up to `most`; `rows` counts those of the earlier ones, too."""

    least: float
    most: float
    rows: int


class Pipeline(Part):
    """`penstock run` of a demo's pipeline, FILE.py:NAME; `close` waits for the batch in flight.

    `cores` are its tasks at the same time, None for the default; with a `master` those of its cluster. `part` is its
    name in the demo, and that of its log. `words` are another command and its arguments, in place of `run` and the
    pipeline.
    """

    def __init__(
        self,
        root: Path,
        target: str,
        environment: Mapping[str, str],
        *,
        stay: bool,
        cores: int | None = 2,
        part: str = "pipeline",
        master: str | None = None,
        words: Sequence[str] | None = None,
    ) -> None:
        self.rows = 0
        """The rows of all batches that it has told."""
        self.batch: tuple[int, float] | None = None
        """Rows and seconds of the newest batch."""
        self._checkpoints, self._target, self._read = root / "checkpoints", target, 0
        command = [*PENSTOCK, *(words or ("run", target)), "--verbose", "--checkpoints", str(self._checkpoints)]
        if master:
            command += ["--master", master, "--executor-memory", EXECUTOR_MEMORY]
        elif cores is not None:
            command += ["--cores", str(cores)]
        super().__init__(part, command, environment, root / f"{part}.log", stay=stay, patience=PATIENCE)

    @property
    def reads(self) -> bool:
        """Whether it has planned its first batch."""
        return (self._checkpoints / self._target.rpartition(":")[2] / "offsets" / "0").exists()

    def delays(self) -> list[Bucket]:
        """The delays of all rows as its metrics count them; empty if they cannot be had."""
        url = next((one.url for one in run_files.running() if one.pid == self.pid), None)
        if url is None:
            return []
        try:
            answer = fetch_blocking(Address(url, None), "/status", patience=LOOK_PATIENCE)
            queries = orjson.loads(answer.body)["queries"]
        except (NoHttpAnswer, KeyError, orjson.JSONDecodeError):
            return []
        found = [sink["delay"] for query in queries for sink in query["sinks"] if sink.get("delay")]
        counts = [sum(column) for column in zip(*(one["buckets"] for one in found), strict=True)]
        bounds = [*(found[0]["bounds"] if found else ()), inf]
        return [Bucket(*one) for one in zip([0.0, *bounds], bounds, counts, strict=False)]

    def look(self) -> None:
        """Read its new log lines; raises PenstockError if it has ended."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            said = file.read()
        end = said.rfind(b"\n") + 1
        self._read += end
        for rows, seconds in BATCH.findall(said[:end]):
            self.batch = int(rows), float(seconds)
            self.rows += int(rows)
        super().look()

    def kill_worker(self) -> None:
        """Kill the busiest of its Python workers with kill -9."""
        os.kill(self.worker(), signal.SIGKILL)

    def jvm(self) -> int:
        """The process id of its Spark session."""
        for one in child.below(self.pid):
            if "java" in one.command.split(" ", 1)[0]:
                return one.pid
        raise PenstockError("the pipeline has no Spark session", where=str(self.log))

    def worker(self) -> int:
        """The process id of the busiest of its Python workers."""
        tree = child.below(self.pid)
        daemons = {one.pid for one in tree if _is_worker(one)}
        workers = [one for one in tree if one.parent in daemons]
        if not workers:
            raise PenstockError("the pipeline has no Python worker", where=str(self.log))
        return max(workers, key=lambda one: one.cpu).pid


def _is_worker(one: child.Listed) -> bool:
    """Whether it is a Python worker or the daemon: a copy of another process has a name, of 15 bytes, not a command."""
    return WORKER in one.command or one.name == WORKER_NAME


class Printing:
    """A running `penstock` command that prints its result; its exit code is one of `codes` if it has one."""

    def __init__(self, log: Path, words: Sequence[str], codes: Sequence[int] = (0,)) -> None:
        self.log, self._codes = log, codes
        with log.open("ab") as file:
            command = [*PENSTOCK, *words]
            self._process = child.start(command, {}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file)

    @property
    def done(self) -> bool:
        return self._process.poll() is not None

    def printed(self, failure: str) -> bytes:
        """What it printed; raises PenstockError if it failed: `failure`, which names the log, and the log's end."""
        said, _ = self._process.communicate()
        if self._process.returncode not in self._codes:
            raise PenstockError(f"{failure} ends with\n{tail(self.log)}\n", where=str(self.log))
        return said

    def close(self) -> None:
        child.stop(self._process, 0)


class SparkProcess(Part):
    """A master or a worker of a cluster; a worker has the processes of its executors below it."""

    def __init__(self, root: Path, name: str, command: Sequence[str], *, stay: bool) -> None:
        log = root / f"{name}.log"
        super().__init__(name, command, spark_cluster.environment(), log, stay=stay, patience=PATIENCE)


class ConsolePage(Part):
    """`penstock console` at a fixed port, for the demo's topics, connectors and pipelines."""

    def __init__(self, root: Path, kafka: str | None, *, stay: bool) -> None:
        self.address = f"{ports.HOST}:{ports.free(set())}"
        servers = [] if kafka is None else ["--servers", kafka]
        command = [
            *PENSTOCK,
            "console",
            "--listen",
            self.address,
            *servers,
            "--checkpoints",
            str(root / "checkpoints"),
        ]
        super().__init__("console", command, {}, root / CONSOLE_LOG, stay=stay, patience=PATIENCE)


class Load(Generic[S]):
    """A load generator in its own process; `status` is the last one that it reported."""

    def __init__(self, root: Path, module: str, arguments: Sequence[str], status: type[S]) -> None:
        self.journal, self.log = root / "journal.jsonl", root / "load.log"
        self.status = status()
        self._status = status
        command = [sys.executable, "-m", module, "--journal", str(self.journal), *arguments]
        with self.log.open("wb") as log:
            self._process = child.start(command, {}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def done(self) -> bool:
        """Whether it has ended; raises PenstockError if it ended with an error."""
        self.look()
        return self._process.poll() is not None

    def look(self) -> None:
        """Raises PenstockError if it ended with an error."""
        if self._process.poll():
            require_running("load", self._process, self.log)

    def pace(self, rate: str) -> None:
        """Warm up at another rate."""
        self._tell(f"pace {rate}")

    def go(self, rate: str) -> None:
        """Change from the warm-up to the full rate."""
        self._tell(f"go {rate}")

    def stop(self) -> None:
        """Tell it to make no more writes, wait for the last answers, and end."""
        with suppress(BrokenPipeError):
            self._tell("stop")

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()

    def close(self) -> None:
        child.stop(self._process, 0)
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.status = self._status(**orjson.loads(line))


def require_running(name: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Raises PenstockError, with the end of its log, if a part has ended."""
    if process.poll() is not None:
        raise PenstockError(
            f"the {name} ended by itself with code {process.returncode}; its log ends with\n{tail(log)}\n",
            where=str(log),
        )


def kept(root: Path) -> list[tuple[str, int]]:
    """The names and process ids of what an earlier demo with `--keep` has left running under this root."""
    holders = [holder(lock.with_suffix("")) for lock in (root / "checkpoints").glob("*.lock")]
    endings = {"ingest": f"ingest {root / INGEST}", "console": f"--checkpoints {root / 'checkpoints'}"}
    listed = child.listed()
    servers = [
        (name, one.pid)
        for name, ending in endings.items()
        for one in listed
        if f" penstock {name} " in one.command and one.command.endswith(ending)
    ]
    return [("pipeline", pid) for pid in holders if pid is not None] + servers


def stop_kept(root: Path) -> None:
    """Stop what an earlier demo has left running under this root, and wait until it is gone."""
    for _, pid in kept(root):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE
    while left := kept(root):
        name, pid = left[0]
        if time.monotonic() > deadline:
            raise PenstockError(
                f"the {name} of an earlier demo does not stop (pid {pid})",
                where=str(root),
                next=f"end it with: kill -9 {pid}",
            )
        time.sleep(POLL)


@dataclass(frozen=True)
class Cpu:
    """The CPU seconds of each part; a part that was started again counts from zero."""

    seconds: dict[str, float]

    @classmethod
    def now(cls, pids: Mapping[str, int], pipeline: int, load: float) -> Cpu:
        """`pids` are process ids of parts by name, `pipeline` that of `penstock run`, `load` the load's CPU seconds.

        The CPU time of a part includes that of the processes below it.
        """
        listed = child.listed()
        by_pid = {one.pid: one.cpu for one in listed}
        used = {"load": load}
        for name, pid in pids.items():
            used[name] = by_pid.get(pid, 0.0) + sum(one.cpu for one in child.below(pid, listed))
        tree = child.below(pipeline, listed)
        used["spark"] = sum(one.cpu for one in tree if "java" in one.command.split(" ", 1)[0])
        used["workers"] = sum(one.cpu for one in tree if _is_worker(one))
        used["demo"] = by_pid.get(os.getpid(), 0.0)
        return cls(used)

    def shares(self, earlier: Cpu, seconds: float) -> dict[str, float]:
        """The cores that each part has used in these seconds, the busiest first."""
        used = {name: one / seconds for name, one in self.since(earlier).items()}
        return dict(sorted(used.items(), key=lambda item: item[1], reverse=True))

    def since(self, earlier: Cpu) -> dict[str, float]:
        before = {name: earlier.seconds.get(name, 0.0) for name in self.seconds}
        return {n: round(used - before[n] if used >= before[n] else used, 1) for n, used in self.seconds.items()}
