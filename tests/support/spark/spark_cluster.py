"""A standalone Spark cluster of this machine: a master and workers, each with a folder and executors of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from waiting import patience, until

from penstock.local.spark_cluster import SparkMaster, environment
from penstock_demo import child


class SparkCluster:
    """Workers of one core, below `folder`; `url` is for `--master`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._place = folder, SparkMaster.on_free_ports()
        self.url = self._place.url
        self._master = self._start("master", self._place.command())
        self._workers: list[subprocess.Popen[bytes]] = []

    @property
    def worker_pids(self) -> list[int]:
        """The process ids of the workers, by number."""
        return [one.pid for one in self._workers]

    def add_worker(self, memory: str = "1g") -> int:
        """Start a worker; its number."""
        number = len(self._workers)
        command = self._place.worker(self.folder / f"worker{number}", cores=1, memory=memory)
        self._workers.append(self._start(f"worker{number}", command))
        return number

    def wait(self, workers: int) -> None:
        """Wait until the master has so many workers."""
        until(lambda: self._place.alive() == workers, f"{workers} workers", patience(120))

    def executors(self, number: int) -> list[psutil.Process]:
        """The executors of a worker."""
        found = []
        for one in psutil.Process(self._workers[number].pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it ended meanwhile
                if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def kill(self, number: int) -> None:
        """End a worker and all its processes, as a machine does that loses its power."""
        child.kill(self._workers[number])

    def stop(self) -> None:
        for process in (*self._workers, self._master):
            process.terminate()
        for process in (*self._workers, self._master):
            process.wait(patience(60))

    def _start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        rest = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, env=rest | environment(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)


@contextmanager
def spark_cluster(folder: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """A cluster with its workers, stopped afterwards."""
    cluster = SparkCluster(folder)
    try:
        for _ in range(workers):
            cluster.add_worker()
        cluster.wait(workers)
        yield cluster
    finally:
        cluster.stop()
