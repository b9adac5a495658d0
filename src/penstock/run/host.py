"""The process around queries: its Spark session, and the JVM that must not outlive it."""

from __future__ import annotations

import contextlib
import logging
import subprocess
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

from penstock.errors import PenstockError
from penstock.run.supervise import Stop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(name: str, cores: int, verbose: bool) -> SparkSession:
    from penstock.session import spark

    session = spark(name, cores=cores)
    # What matters of a failure is told in our own words; Spark's log repeats it with a hundred lines of stack.
    session.sparkContext.setLogLevel("WARN" if verbose else "OFF")
    if not verbose:
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    return session


def jvm_process(spark: SparkSession) -> subprocess.Popen[bytes]:
    """The process that PySpark started; it ends when its standard input closes, also when we are killed."""
    gateway: Any = spark.sparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    return process


def explain(error: Exception, jvm: subprocess.Popen[bytes], stop: Stop) -> None:
    """An error of talking to the JVM: expected when a stop request went to all our processes and ended it, too."""
    if stop.gently.is_set():
        return
    if jvm.poll() is None:
        raise error
    raise PenstockError(
        "Spark's Java process ended",
        where=f"exit code {jvm.returncode}",
        next="run again: it goes on from its checkpoint; if this repeats, look for what kills it, such as memory",
    ) from error


def end(spark: SparkSession, jvm: subprocess.Popen[bytes]) -> None:
    """Leave no process behind: Spark, its JVM and, with that, its Python workers have ended when this returns."""
    with contextlib.suppress(Py4JError, OSError):
        spark.stop()
    if jvm.stdin:
        jvm.stdin.close()
    jvm.wait()
