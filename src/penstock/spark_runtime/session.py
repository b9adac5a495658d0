"""Penstock's Spark session: by default local, quiet, and on the loopback address.

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
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias, cast

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from penstock.border.public import public
from penstock.errors import PenstockError
from penstock.local import jars, java
from penstock.local.ports import HOST
from penstock.spark_runtime import class_archive as classes, fork_server, settings as spark_settings
from penstock.spark_runtime.settings import MASTER, is_local, local_master

LAUNCHER = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of the short-lived JVM with which Spark makes its command line."""
QUERY_CONTEXTS = "DataFrameQueryContextLogger", "SQLQueryContextLogger"
"""PySpark's loggers of refused queries: each error of a frame with its stack, as JSON."""
JVM_ENDS = 5.0
"""Seconds in which Spark's process has ended, if it is its end that broke the connection."""
STOPPED = "stopped SparkContext", "SparkContext was shut down"
"""In Spark's errors after its process was asked to end."""


@public("spark")
def spark(app: str = "penstock", cores: int | None = None, memory: str | None = None, **conf: str) -> SparkSession:
    """The running session, which keeps its settings except for `conf`, or a new one.

    A new one is local with `cores` worker threads (default 2) and `memory` for its JVM (default "1g"), unless a master
    is set: by spark-submit, in Spark's own files, by PENSTOCK_SPARK_MASTER, or in `conf`. Settings from there overrule
    Penstock's, and `conf` overrules them (docs/cluster.md). On a standalone cluster `cores` are the most of all its
    executors; YARN and Kubernetes do not have such a limit, and refuse it.

    A new session sets JAVA_HOME, PYSPARK_PYTHON and SPARK_LOCAL_IP in this process: Spark starts its processes with
    them.
    """
    if is_remote():
        what = "penstock.spark() needs a classic Spark session, and this is a process of Spark Connect"
        raise PenstockError(what, next="unset SPARK_REMOTE, or use SparkSession.builder.getOrCreate()")
    if not find_spec("pyarrow"):
        raise PenstockError("Spark needs pyarrow to exchange data with Python", next="run: pip install pyarrow")
    if SparkSession.getActiveSession() is None:
        conf = spark_settings.settings(app, cores, memory, conf)
        spark_settings.require_master(conf[MASTER])
        _set_environment(conf)
        _start_java(conf)
    builder = SparkSession.Builder()
    for name, value in conf.items():
        builder.config(name, value)
    return builder.getOrCreate()


def _set_environment(settings: dict[str, str]) -> None:
    """Set what a new session reads from the environment, and the JVM options that depend on this machine's Java."""
    local = is_local(settings[MASTER])
    if spark_settings.SUBMITTED not in os.environ:
        installed = java.find()
        own = settings[spark_settings.DRIVER_OPTIONS]
        settings[spark_settings.DRIVER_OPTIONS] = f"{classes.options(installed)} {own}"
        os.environ["JAVA_HOME"] = str(java.home_for_spark(installed, jars.cache() / "java"))
        os.environ.setdefault("SPARK_LAUNCHER_OPTS", LAUNCHER)
        if settings.get("spark.driver.bindAddress") == HOST:
            os.environ["SPARK_LOCAL_IP"] = HOST
    if local:
        os.environ["PYSPARK_PYTHON"] = str(fork_server.start(jars.cache() / "python"))
    else:
        # Executors have it at the same path, unless the user says where. PySpark itself reads the variable only.
        python = os.environ.get("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_PYTHON"] = settings.get("spark.pyspark.python", python)
    # PySpark loads it for its first call into the JVM; until then it waits for the JVM.
    threading.Thread(target=import_module, args=["pandas"], daemon=True).start()


def _start_java(settings: dict[str, str]) -> None:
    """Start Spark's JVM in a session of its own, if there is none yet.

    A signal to the group of this process, of a shell or a supervisor, would end the JVM in the middle of a batch, which
    this process lets finish first. The JVM ends with its standard input, and so with this process, however that ends.
    """
    if spark_settings.SUBMITTED in os.environ or SparkContext._gateway:
        return
    conf, launch = SparkConf().setAll(list(settings.items())), cast("Callable[..., Any]", launch_gateway)
    SparkContext._ensure_initialized(conf=conf, gateway=launch(conf, {"start_new_session": True}))


def session_of_program(name: str, cores: int | None, verbose: bool, **conf: str) -> SparkSession:
    """The session of a command, as `spark` makes it.

    py4j logs nothing, and without `verbose` neither do Spark and PySpark: Penstock reports failures itself, which their
    logs repeat with a hundred lines of stack.
    """
    _silence_py4j()
    if not verbose:
        for logger in QUERY_CONTEXTS:
            PySparkLogger.getLogger(logger).setLevel(logging.CRITICAL)
    session = spark(name, cores=cores, **conf)
    _silence_accumulators(session)
    session.sparkContext.setLogLevel("WARN" if verbose else "OFF")
    return session


def local_session(name: str, cores: int) -> SparkSession:
    """The session of a command that only looks: on this machine, wherever pipelines run."""
    return session_of_program(name, None, verbose=False, **{MASTER: local_master(cores)})


def start_workers(session: SparkSession) -> None:
    """Begin to load what a first batch needs in the JVM, and to start Python workers, while the program plans queries.

    It only saves them time, so its errors are not theirs: a session may end at any moment of it.
    """
    threading.Thread(target=_load_first_batch, args=[session], daemon=True).start()


def _load_first_batch(session: SparkSession) -> None:
    with contextlib.suppress(Exception):
        cores = session.sparkContext.defaultParallelism
        # Spark looks for data sources in Python's packages when it is asked for one that it does not know.
        session._jsparkSession.sessionState().dataSourceManager().dataSourceExists("penstock")
        session.range(0, cores, 1, cores).mapInArrow(lambda batches: batches, "id long").collect()


Jvm: TypeAlias = "subprocess.Popen[bytes] | None"
"""The JVM that PySpark started; it ends when its standard input closes, also if this process is killed. None if it is
that of spark-submit, which started this process."""


def jvm_process(session: SparkSession) -> Jvm:
    gateway: Any = session.sparkContext._gateway
    process: Jvm = gateway.proc
    return process


def require_java(jvm: Jvm, next: str, within: float) -> None:
    """Raise PenstockError if the JVM has ended, or ends `within` seconds: its connections are closed before it ends."""
    if jvm is None:
        return
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
    if jvm:
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


def explain(error: BaseException, jvm: Jvm, next: str) -> None:
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
