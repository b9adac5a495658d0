"""A standalone Spark cluster of this machine: a master and workers, each with a folder and executors of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pyspark
from waiting import patience, until

from penstock.local import jars, java, ports

HOST = ports.HOST
SPARK = Path(pyspark.__file__).parent


class SparkCluster:
    """Workers of one core, below `folder`; `url` is for `--master`."""

    def __init__(self, folder: Path) -> None:
        self.folder, taken = folder, set[int]()
        for _ in range(2):
            taken.add(ports.free(taken))
        port, self._page = taken
        self.url = f"spark://{HOST}:{port}"
        place = ("--host", HOST, "--port", str(port), "--webui-port", str(self._page))
        self._master = self._start("master", "org.apache.spark.deploy.master.Master", *place)
        self._workers: list[subprocess.Popen[bytes]] = []

    def add_worker(self, memory: str = "1g") -> int:
        """Start a worker; its number."""
        number = len(self._workers)
        place = ("--host", HOST, "--port", "0", "--webui-port", "0", "-c", "1", "-m", memory)
        own = self.folder / f"worker{number}"
        self._workers.append(
            self._start(f"worker{number}", "org.apache.spark.deploy.worker.Worker", *place, "-d", str(own), self.url)
        )
        return number

    def wait(self, workers: int) -> None:
        """Wait until the master has so many workers."""
        until(lambda: self._alive() == workers, f"{workers} workers", patience(120))

    def executors(self, number: int) -> list[psutil.Process]:
        """The executors of a worker."""
        below = psutil.Process(self._workers[number].pid).children(recursive=True)
        return [one for one in below if "CoarseGrainedExecutorBackend" in " ".join(one.cmdline())]

    def kill(self, number: int) -> None:
        """End a worker and all its processes, as a machine does that loses its power."""
        worker = self._workers[number]
        below = psutil.Process(worker.pid).children(recursive=True)
        worker.kill()
        for one in below:
            if one.is_running():
                one.kill()
        worker.wait()

    def stop(self) -> None:
        for process in (*self._workers, self._master):
            process.terminate()
        for process in (*self._workers, self._master):
            process.wait(patience(60))

    def _alive(self) -> int:
        try:
            with urlopen(f"http://{HOST}:{self._page}/json/", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except (URLError, OSError, ValueError):
            # Its page is not there yet, or not whole.
            return 0

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        home = java.home_for_spark(java.find(), jars.cache() / "java")
        own = {"JAVA_HOME": str(home), "SPARK_LOCAL_IP": HOST, "SPARK_HOME": str(SPARK)}
        # Of the executors' Python the driver says where it is.
        rest = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
        rest["SPARK_DAEMON_MEMORY"] = "256m"
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [str(SPARK / "bin/spark-class"), *words],
                env=rest | own,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )


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
