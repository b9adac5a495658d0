"""The process that runs queries: its Spark session, and the JVM, which must end with it."""

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
    # Penstock reports failures itself; Spark's log repeats them with a hundred lines of stack.
    session.sparkContext.setLogLevel("WARN" if verbose else "OFF")
    if not verbose:
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    return session


def jvm_process(spark: SparkSession) -> subprocess.Popen[bytes]:
    """The JVM that PySpark started; it ends when its standard input closes, also if this process is killed."""
    gateway: Any = spark.sparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    return process


def explain(error: Exception, jvm: subprocess.Popen[bytes], stop: Stop) -> None:
    """Handle an error of the connection to the JVM; ignored after a stop request, whose signal may also end the JVM."""
    if stop.gently.is_set():
        return
    if jvm.poll() is None:
        raise error
    raise PenstockError(
        "Spark's Java process ended",
        where=f"exit code {jvm.returncode}",
        next="run again: it continues from its checkpoint; if this repeats, find what kills it (memory?)",
    ) from error


def end(spark: SparkSession, jvm: subprocess.Popen[bytes]) -> None:
    """Stop Spark; its JVM and its Python workers have ended when this returns."""
    with contextlib.suppress(Py4JError, OSError):
        spark.stop()
    if jvm.stdin:
        jvm.stdin.close()
    jvm.wait()
