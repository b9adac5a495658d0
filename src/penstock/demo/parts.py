"""The two processes of the demo itself: the pipeline, which is `penstock run`, and the load."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import orjson

from penstock.demo import child
from penstock.demo.load import Status
from penstock.errors import PenstockError
from penstock.local.process import tail, uninterrupted
from penstock.local.services import Services

PATIENCE = 60.0
BATCH = re.compile(rb"batch \d+: (\d+) rows in ([\d.]+) s")
WORKER = "pyspark.daemon"


class Pipeline:
    """`penstock run` of the demo's pipeline; `close` waits for the batch in flight."""

    def __init__(self, root: Path, services: Services, *, stay: bool) -> None:
        self.log = root / "pipeline.log"
        self.batch: tuple[int, float] | None = None
        """Rows and seconds of the newest batch."""
        self._checkpoints, self._services, self._stay = root / "checkpoints", services, stay
        self._read = 0
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def reads(self) -> bool:
        """Whether it has planned its first batch."""
        return (self._checkpoints / "changes" / "offsets" / "0").exists()

    def look(self) -> None:
        """Read what it said since; raise if it has ended."""
        with self.log.open("rb") as file:
            file.seek(self._read)
            said = file.read()
        end = said.rfind(b"\n") + 1
        self._read += end
        for rows, seconds in BATCH.findall(said[:end])[-1:]:
            self.batch = int(rows), float(seconds)
        _require_running("pipeline", self._process, self.log)

    def kill(self) -> None:
        """kill -9: Python, Spark's JVM and all workers at once, as when a machine is lost."""
        with uninterrupted():
            child.kill(self._process)

    def start_again(self) -> None:
        with uninterrupted():
            self._process = self._start()

    def kill_worker(self) -> None:
        """kill -9 for the busiest of its Python workers."""
        tree = child.below(self.pid)
        daemons = {one.pid for one in tree if WORKER in one.command}
        workers = [one for one in tree if one.parent in daemons]
        if not workers:
            raise PenstockError("the pipeline has no Python worker", where=str(self.log))
        os.kill(max(workers, key=lambda one: one.cpu).pid, signal.SIGKILL)

    def close(self) -> None:
        child.stop(self._process, PATIENCE)

    def _start(self) -> subprocess.Popen[bytes]:
        target = f"{Path(__file__).with_name('pipelines.py')}:changes"
        command = [
            sys.executable,
            "-m",
            "penstock",
            "run",
            target,
            "--checkpoints",
            str(self._checkpoints),
            "--verbose",
        ]
        environment = {"PENSTOCK_DEMO_CQL": self._services.cql, "PENSTOCK_DEMO_KAFKA": self._services.kafka}
        with self.log.open("ab") as log:
            return child.start(command, environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, stay=self._stay)


class Load:
    """The load generator in its own process; `status` is what it said last."""

    def __init__(self, root: Path, cql: str, *, rate: str, seconds: float) -> None:
        self.journal, self.log = root / "journal.jsonl", root / "load.log"
        self.status = Status()
        command = [sys.executable, "-m", "penstock.demo.load", "--hosts", cql, "--journal", str(self.journal)]
        command += ["--rate", rate, "--seconds", str(seconds)]
        with self.log.open("wb") as log:
            self._process = child.start(command, {}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def done(self) -> bool:
        return self._process.poll() is not None

    def look(self) -> None:
        """Raise if it ended with an error."""
        if self._process.poll():
            _require_running("load", self._process, self.log)

    def go(self) -> None:
        """Leave the warm-up for the full rate."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def close(self) -> None:
        child.stop(self._process, 0)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.status = Status(**orjson.loads(line))


def _require_running(name: str, process: subprocess.Popen[bytes], log: Path) -> None:
    if process.poll() is not None:
        raise PenstockError(
            f"the {name} ended by itself with code {process.returncode}; its log ends with\n{tail(log)}\n",
            where=str(log),
        )


@dataclass(frozen=True)
class Cpu:
    """CPU seconds that each part has used; a part that was started again counts from zero."""

    seconds: dict[str, float]

    @classmethod
    def now(cls, services: Services, pipeline: Pipeline, load: Load) -> Cpu:
        by_pid = {one.pid: one.cpu for one in child.listed()}
        used = {name: by_pid.get(pid, 0.0) for name, pid in services.pids.items()} | {"load": load.status.cpu}
        tree = child.below(pipeline.pid)
        used["spark"] = sum(one.cpu for one in tree if "java" in one.command.split(" ", 1)[0])
        used["workers"] = sum(one.cpu for one in tree if WORKER in one.command)
        used["demo"] = by_pid.get(os.getpid(), 0.0)
        return cls(used)

    def since(self, earlier: Cpu) -> dict[str, float]:
        return {name: round(used - earlier.seconds.get(name, 0.0), 1) for name, used in self.seconds.items()}
