"""A standalone Spark cluster of this machine: the commands of its master and of workers with executors of their own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyspark

from penstock.local import jars, java, ports
from penstock.local.ports import HOST
from penstock.serve.http_client import Address, NoHttpAnswer, fetch_blocking

SPARK = Path(pyspark.__file__).parent
_PROGRAM = str(SPARK / "bin/spark-class")
_PATIENCE = 5.0
"""Seconds for an answer of the master's page."""


@dataclass(frozen=True)
class SparkMaster:
    """Where a master listens; `url` is for `--master`."""

    port: int
    page: int

    @classmethod
    def on_free_ports(cls) -> SparkMaster:
        port = ports.free(set())
        return cls(port, ports.free({port}))

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.port}"

    def command(self) -> list[str]:
        place = ["--host", HOST, "--port", str(self.port), "--webui-port", str(self.page)]
        return [_PROGRAM, "org.apache.spark.deploy.master.Master", *place]

    def worker(self, folder: Path, *, cores: int, memory: str) -> list[str]:
        """The command of a worker that keeps its executors' folders below `folder`."""
        place = ["--host", HOST, "--port", "0", "--webui-port", "0", "--work-dir", str(folder)]
        size = ["--cores", str(cores), "--memory", memory]
        return [_PROGRAM, "org.apache.spark.deploy.worker.Worker", *place, *size, self.url]

    def alive(self) -> int:
        """How many workers it has; 0 while it does not answer."""
        page = Address(f"http://{HOST}:{self.page}", None)
        try:
            return int(fetch_blocking(page, "/json/", patience=_PATIENCE).parsed(page.url)["aliveworkers"])
        except (NoHttpAnswer, TypeError, ValueError, KeyError):
            return 0


def environment() -> dict[str, str]:
    """What master and workers need in their environment; of the executors' Python the driver says where it is."""
    home = java.home_for_spark(java.find(), jars.cache() / "java")
    return {
        "JAVA_HOME": str(home),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
    }
