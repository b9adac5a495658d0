"""Penstock's Spark session: local, quiet, on the loopback address, with the Kafka connector from the lock file.

A program that runs queries also ends its session's JVM, which must not outlive it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from penstock.codec import avro_limits
from penstock.errors import PenstockError
from penstock.local import classes, fork_server, jars, java
from penstock.local.ports import HOST

FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

# Much of the code that plans a batch runs about once per batch. By default the JVM compiles all of it in the first
# minutes, which takes half of the CPU. It never compiles methods of more than 8 000 bytes, and Spark generates such
# methods for many predicates or columns (docs/decisions/0009).
COMPILER = (
    "-XX:Tier3DelayOn=0 -XX:Tier3InvocationThreshold=400 -XX:Tier3MinInvocationThreshold=200"
    " -XX:Tier3CompileThreshold=2500 -XX:Tier4InvocationThreshold=15000 -XX:Tier4MinInvocationThreshold=2000"
    " -XX:Tier4CompileThreshold=45000 -XX:-DontCompileHugeMethods"
)

# Live objects of a few queries take 100 MB. By default the heap begins with more, in proportion to the machine's
# memory, and stays as large as it has once been.
HEAP = "-Xms96m -XX:MinHeapFreeRatio=20 -XX:MaxHeapFreeRatio=40"

LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of the short-lived JVM with which Spark makes its command line."""
QUERY_CONTEXTS = "DataFrameQueryContextLogger", "SQLQueryContextLogger"
"""PySpark's loggers of refused queries: each error of a frame with its stack, as JSON."""
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
JVM_ENDS = 5.0
"""Seconds in which Spark's process has ended, if it is its end that broke the connection."""
STOPPED = "stopped SparkContext", "SparkContext was shut down"
"""In Spark's errors after its process was told to end."""
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def spark(app: str = "penstock", cores: int = 2, memory: str = "1g", **conf: str) -> SparkSession:
    """The running session, or a new one with `cores` worker threads; `conf` overrides Penstock's settings.

    A new session sets JAVA_HOME, PYSPARK_PYTHON and SPARK_LOCAL_IP in this process: Spark starts its processes with
    them.
    """
    if is_remote():
        what = "penstock.spark() needs a classic Spark session, and this is a process of Spark Connect"
        raise PenstockError(what, next="unset SPARK_REMOTE, or use SparkSession.builder.getOrCreate()")
    if not find_spec("pyarrow"):
        raise PenstockError("Spark needs pyarrow to exchange data with Python", next="run: pip install pyarrow")
    settings = _settings(app, cores, memory) | conf
    if SparkSession.getActiveSession() is None:
        found = java.find()
        settings[JAVA_OPTIONS] = f"{classes.options(found)} {settings[JAVA_OPTIONS]}"
        os.environ["JAVA_HOME"] = str(java.home_for_spark(found, jars.cache() / "java"))
        os.environ["PYSPARK_PYTHON"] = str(fork_server.start(jars.cache() / "python"))
        os.environ["SPARK_LOCAL_IP"] = HOST
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", LAUNCHER)
        # PySpark loads it for its first call into the JVM; until then it waits for the JVM.
        threading.Thread(target=import_module, args=["pandas"], daemon=True).start()
    builder = SparkSession.Builder()
    for name, value in settings.items():
        builder.config(name, value)
    return builder.getOrCreate()


def _settings(app: str, cores: int, memory: str) -> dict[str, str]:
    log4j = f"-Dlog4j2.configurationFile={files('penstock') / 'log4j2.properties'}"
    return {
        "spark.app.name": app,
        # A task may fail three times before its batch fails: a Python worker that dies is replaced.
        "spark.master": f"local[{cores},4]",
        "spark.driver.memory": memory,
        "spark.driver.host": HOST,
        "spark.driver.bindAddress": HOST,
        JAVA_OPTIONS: f"{log4j} -XX:-UsePerfData {COMPILER} {HEAP} {avro_limits.JAVA_OPTIONS}",
        "spark.jars": ",".join(map(str, jars.fetch("spark"))),
        "spark.python.daemon.module": "penstock.workers",
        "spark.python.worker.reuse": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A reused shuffle hides the watermark from a stage with state: see `keyed_state.buckets`.
        "spark.sql.exchange.reuse": "false",
        # Few readers besides Spark know the default (96 bits without a zone).
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        # The default manager starts twenty processes per batch (readlink, chmod) to write two files to a local folder.
        "spark.sql.streaming.checkpointFileManagerClass": FILE_MANAGER,
        # State that Python keeps needs it; a batch then writes only the changes, not all of the state.
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def session_of_program(name: str, cores: int, verbose: bool) -> SparkSession:
    """The session of a command; py4j logs nothing, and without `verbose` neither do Spark and PySpark.

    Penstock reports failures itself: their logs repeat them with a hundred lines of stack.
    """
    _silence_py4j()
    if not verbose:
        for logger in QUERY_CONTEXTS:
            PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    session = spark(name, cores=cores)
    _silence_accumulators(session)
    session.sparkContext.setLogLevel("WARN" if verbose else "OFF")
    return session


def start_workers(session: SparkSession, cores: int) -> None:
    """Begin to load what a first batch needs in the JVM, and to start Python workers, while the program plans queries.

    It only saves them time, so its errors are not theirs: a session may end at any moment of it.
    """
    threading.Thread(target=_load_first_batch, args=[session, cores], daemon=True).start()


def _load_first_batch(session: SparkSession, cores: int) -> None:
    with contextlib.suppress(Exception):
        # Spark looks for data sources in Python's packages when it is asked for one that it does not know.
        session._jsparkSession.sessionState().dataSourceManager().dataSourceExists("penstock")
        session.range(0, cores, 1, cores).mapInArrow(lambda batches: batches, "id long").collect()


def jvm_process(session: SparkSession) -> subprocess.Popen[bytes]:
    """The JVM that PySpark started; it ends when its standard input closes, also if this process is killed."""
    gateway: Any = session.sparkContext._gateway
    process: subprocess.Popen[bytes] = gateway.proc
    return process


def require_java(jvm: subprocess.Popen[bytes], next: str, within: float) -> None:
    """Raise PenstockError if the JVM has ended, or ends `within` seconds: its connections are closed before it ends."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = jvm.wait(within)
        raise PenstockError("Spark's Java process ended", where=f"exit code {code}", next=next)


def memory(session: SparkSession) -> tuple[int, int]:
    """The bytes of the JVM's heap in use, and the most that it may use."""
    jvm: Any = session.sparkContext._jvm
    runtime = jvm.java.lang.Runtime.getRuntime()
    return int(runtime.totalMemory() - runtime.freeMemory()), int(runtime.maxMemory())


def end(session: SparkSession) -> None:
    """Stop Spark, if it runs; its JVM and its Python workers have ended when this returns."""
    jvm = jvm_process(session)
    with contextlib.suppress(Py4JError, OSError):
        session.stop()
    if jvm.stdin:
        jvm.stdin.close()
    jvm.wait()
    fork_server.end()


@contextlib.contextmanager
def until_end(session: SparkSession) -> Iterator[None]:
    """`end` after the code inside; raises PenstockError for an error whose cause is that the JVM has ended."""
    try:
        yield
    except Exception as error:
        again = "run the command again; if this repeats, find what kills Spark's process (memory?)"
        explain(error, jvm_process(session), again)
        raise
    finally:
        end(session)


def explain(error: BaseException, jvm: subprocess.Popen[bytes], next: str) -> None:
    """Raise PenstockError if the cause of `error` is that the JVM has ended."""
    if is_of_lost_jvm(error):
        require_java(jvm, next, JVM_ENDS)


def is_of_lost_jvm(error: BaseException | None) -> bool:
    """Whether the JVM does not answer or is about to end, perhaps in a user's function, whose errors have a place."""
    if isinstance(error, Py4JJavaError):
        return any(text in str(error) for text in STOPPED)
    if isinstance(error, ConnectionError) and _raised_in(error).startswith("py4j."):
        # py4j raises the errors of a new connection as they are.
        return True
    return isinstance(error, Py4JError) or (error is not None and is_of_lost_jvm(error.__cause__))


def _raised_in(error: BaseException) -> str:
    """The name of the module that raised `error`, empty for an error that was not raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return str(frames[-1].f_globals.get("__name__", "")) if frames else ""


def _silence_py4j() -> None:
    """It logs a traceback, to the root logger too, for each call that fails or that a Ctrl-C interrupts."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_py4j)


def _not_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname


def _silence_accumulators(session: SparkSession) -> None:
    """PySpark's server for accumulators writes a traceback when the JVM ends without a word, as it does when killed."""
    server: Any = session.sparkContext._accumulatorServer
    of_request = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            of_request(request, address)

    server.handle_error = handle_error
