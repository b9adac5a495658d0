"""The settings of a new Spark session: ours are defaults, which the user's, the cluster's and a call's overrule.

Later ones win: ours; `spark-defaults.conf`; PENSTOCK_SPARK_CONF, PENSTOCK_SPARK_MASTER and PENSTOCK_STATE_MEMORY;
PYSPARK_SUBMIT_ARGS; those of a call or a command line. Under `spark-submit` Spark has read all but the last already.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from urllib.parse import urlsplit

import javaproperties
from pyspark import SparkConf, SparkContext
from pyspark.find_spark_home import _find_spark_home

from penstock.durations import whole
from penstock.errors import PenstockError
from penstock.local import jars
from penstock.local.ports import HOST
from penstock.native import memory_bound
from penstock.serve.access.hosts import is_loopback
from penstock.spark_runtime import avro_limits

MASTER = "spark.master"
DRIVER_OPTIONS, EXECUTOR_OPTIONS = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"
JARS = "spark.jars"
STATE_MEMORY = f"spark.executorEnv.{memory_bound.VARIABLE}"
EXECUTOR_MEMORY, EXECUTOR_CORES = "spark.executor.memory", "spark.executor.cores"
OVERHEAD = "spark.executor.memoryOverhead"
"""What a container has besides the JVM's heap. Spark's own default, a tenth of the heap, is for programs that have
neither Python processes nor state in them."""
OF_EXECUTOR, OF_CORE = 768, 384
"""Megabytes beside heap and state: for RocksDB, the JVM itself and Python daemons; for the Python workers of a core."""
MOST_CORES = "spark.cores.max"
"""The most cores of all executors; only a standalone cluster heeds it."""
LOOPBACK = {"spark.driver.host": HOST, "spark.driver.bindAddress": HOST}
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""The environment variable that says that spark-submit has started this process."""
MASTER_VARIABLE, CONF_VARIABLE = "PENSTOCK_SPARK_MASTER", "PENSTOCK_SPARK_CONF"
CORES, MEMORY = 2, "1g"
ANSWERS = 5.0
"""Seconds in which a master accepts a connection."""
PARTITIONS = 8
"""Shuffle partitions on a cluster whose number of cores is not known."""

ARGUMENTS = {
    "--master": MASTER,
    "--name": "spark.app.name",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": DRIVER_OPTIONS,
    "--executor-memory": EXECUTOR_MEMORY,
    "--executor-cores": EXECUTOR_CORES,
    "--num-executors": "spark.executor.instances",
    "--total-executor-cores": MOST_CORES,
    "--jars": JARS,
}
"""The options of spark-submit that are settings of a session, with their names."""

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

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

EXECUTOR_JAVA = f"-XX:-UsePerfData {COMPILER} {avro_limits.JAVA_OPTIONS}"


def settings(app: str, cores: int | None, memory: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    """All settings of a new session; `conf` overrules those from outside, and these overrule ours.

    On a standalone cluster `cores` are the most of all executors of this session. The JVM options and jars of both are
    used. Raises PenstockError for `cores` on another cluster, which would not heed them, and for
    `cores` beside a number of executors.
    """
    outside = from_outside()
    master = conf.get(MASTER, outside.get(MASTER, local_master(CORES)))
    if cores and is_local(master) and MASTER not in conf:
        master = local_master(cores)
    asked = {"spark.driver.memory": memory} if memory else {}
    if cores and not is_local(master):
        asked[MOST_CORES] = _most_cores(cores, master, conf)
    theirs = outside | asked | dict(conf) | {MASTER: master}
    ours = _of_any(app) | (_of_local() if is_local(master) else _of_cluster(master, theirs))
    joins = {DRIVER_OPTIONS: " ", EXECUTOR_OPTIONS: " ", JARS: ","}
    _require_state_memory(theirs)
    both = {
        name: f"{ours[name]}{sign}{theirs[name]}" for name, sign in joins.items() if name in ours and name in theirs
    }
    return ours | theirs | both


def require_master(master: str) -> None:
    """Raise PenstockError for a master that Spark does not know, or a standalone one that nobody answers for.

    Spark itself asks it for a minute, and ends with a hundred lines of stack.
    """
    if not re.match(r"(local(\[|$)|local-cluster\[|yarn$|k8s://.|spark://.)", master):
        what = f"{master!r} is not a master of Spark"
        raise PenstockError(what, next="use spark://HOST:7077, k8s://https://HOST:6443, yarn, or local[4]")
    if not master.startswith("spark://"):
        return
    failed = {}
    for place in master.removeprefix("spark://").split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWERS).close()
            return
        except ValueError:
            failed[place] = "it has no port"
        except OSError as error:
            failed[place] = error.strerror or str(error)
    what = "; ".join(f"{place}: {reason}" for place, reason in failed.items())
    raise PenstockError(
        f"no Spark master can be reached: {what}", next="check the address and its port, and that the master runs"
    )


def is_on_cluster(conf: Mapping[str, str]) -> bool:
    """Whether a new session with the settings `conf` runs its tasks in executors."""
    return not is_local(conf.get(MASTER, from_outside().get(MASTER, local_master(CORES))))


def local_master(cores: int) -> str:
    # A task may fail three times before its batch fails: a Python worker that dies is replaced.
    return f"local[{cores},4]"


def is_local(master: str) -> bool:
    """Whether tasks run in the driver's process."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def _of_any(app: str) -> dict[str, str]:
    log4j = f"-Dlog4j2.configurationFile={files('penstock') / 'log4j2.properties'}"
    return {
        "spark.app.name": app,
        "spark.driver.memory": MEMORY,
        DRIVER_OPTIONS: f"{log4j} -XX:-UsePerfData {COMPILER} {HEAP} {avro_limits.JAVA_OPTIONS}",
        JARS: ",".join(map(str, jars.fetch("spark"))),
        "spark.python.daemon.module": "penstock.spark_runtime.daemon",
        "spark.python.worker.reuse": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A reused shuffle hides the watermark from a stage with state: see `keyed_state.buckets`.
        "spark.sql.exchange.reuse": "false",
        # Few readers besides Spark know the default (96 bits without a zone).
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.session.timeZone": "UTC",
        # The default manager starts twenty processes per batch (readlink, chmod) to write two files to a local folder.
        MANAGER: FILE_MANAGER,
        # State that Python keeps needs it; a batch then writes only the changes, not all of the state.
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _of_local() -> dict[str, str]:
    return {"spark.sql.shuffle.partitions": "2"} | LOOPBACK


def _of_cluster(master: str, theirs: Mapping[str, str]) -> dict[str, str]:
    ours = {EXECUTOR_OPTIONS: EXECUTOR_JAVA, "spark.sql.shuffle.partitions": theirs.get(MOST_CORES, str(PARTITIONS))}
    # Machines may run several executors: each has a share for its state of its own memory, not of the machine's.
    if memory := memory_bound.size_in_bytes(theirs.get(EXECUTOR_MEMORY, MEMORY)):
        ours[STATE_MEMORY] = f"{memory // memory_bound.SHARE >> 10}k"
    if _has_containers(master) and f"{OVERHEAD}Factor" not in theirs:
        ours[OVERHEAD] = _overhead(ours | dict(theirs))
    if "spark.executor.instances" in theirs and MOST_CORES not in theirs:
        each = theirs.get(EXECUTOR_CORES, "1")
        all_cores = _product(theirs["spark.executor.instances"], each)
        ours["spark.sql.shuffle.partitions"] = all_cores
        if master.startswith("spark://"):
            # A standalone cluster has no number of executors: it divides cores.
            ours |= {EXECUTOR_CORES: each, MOST_CORES: all_cores}
    here = master.startswith("local-cluster") or is_loopback(urlsplit(master).hostname or "")
    return ours | (LOOPBACK if here else {})


def _most_cores(cores: int, master: str, conf: Mapping[str, str]) -> str:
    if _has_containers(master):
        what = f"a number of cores limits a standalone cluster only, and {master} gives executors of a size"
        raise PenstockError(what, next="leave --cores out, and give --executors N and --executor-cores N")
    if "spark.executor.instances" in conf:
        executors = conf["spark.executor.instances"]
        what = f"{cores} cores and {executors} executors are two limits of a standalone cluster"
        raise PenstockError(what, next="give --executors N and --executor-cores N, or --cores N")
    return str(cores)


def _has_containers(master: str) -> bool:
    """Whether executors have a fixed size, beyond which they are killed."""
    return master == "yarn" or master.startswith("k8s://")


def _overhead(settings: Mapping[str, str]) -> str:
    cores = settings.get(EXECUTOR_CORES, "1")
    state = memory_bound.size_in_bytes(settings.get(STATE_MEMORY, "")) or 0
    return f"{OF_EXECUTOR + OF_CORE * int(_product(cores, '1')) + (state >> 20)}m"


def _require_state_memory(theirs: Mapping[str, str]) -> None:
    memory = theirs.get(STATE_MEMORY, "1g")
    if memory_bound.size_in_bytes(memory) is None:
        what = f"{memory!r} is not an amount of memory for the state of an executor"
        raise PenstockError(what, where=STATE_MEMORY, next="give a size as in 700m or 4g")


def _product(executors: str, cores: str) -> str:
    for text in executors, cores:
        if not whole(text, 1):
            raise PenstockError(f"{text!r} is not a number of executors or cores", next="give a number, 1 or more")
    return str(int(executors) * int(cores))


def from_outside() -> dict[str, str]:
    """What spark-submit, Spark's own files, or the environment set.

    Raises PenstockError if one of them cannot be read.
    """
    if SUBMITTED in os.environ:
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    return _in_file() | _in_environment() | _in_arguments()


def _in_file() -> dict[str, str]:
    file = Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf"), "spark-defaults.conf")
    try:
        text = file.read_text()
        return {str(name): str(value).strip() for name, value in javaproperties.loads(text).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise PenstockError(
            f"Spark's settings cannot be read: {error}", where=str(file), next="fix the file"
        ) from error


def _in_environment() -> dict[str, str]:
    from_variables = dict(map(pair, _words(CONF_VARIABLE)))
    if master := os.environ.get(MASTER_VARIABLE):
        from_variables[MASTER] = master
    if memory := os.environ.get(memory_bound.VARIABLE):
        from_variables[STATE_MEMORY] = memory
    return from_variables


def _words(variable: str) -> list[str]:
    """The words of an environment variable, as a shell reads them."""
    try:
        return shlex.split(os.environ.get(variable, ""))
    except ValueError as error:
        raise PenstockError(f"{variable} cannot be read: {error}", next="fix its quotes") from error


def pair(text: str) -> tuple[str, str]:
    """The name and the value of "NAME=VALUE"; raises PenstockError if it is not a setting of Spark in this form."""
    name, sign, value = text.partition("=")
    if not sign or not name.startswith("spark."):
        raise PenstockError(
            f"{text!r} is not a setting of Spark", next="write NAME=VALUE, as in spark.executor.memory=4g"
        )
    return name, value


def _in_arguments() -> dict[str, str]:
    """Those of PYSPARK_SUBMIT_ARGS, in the forms `--name value` and `--name=value`."""
    words = _words("PYSPARK_SUBMIT_ARGS")
    from_arguments: dict[str, str] = {}
    while words:
        name, sign, value = words.pop(0).partition("=")
        if name not in ARGUMENTS and name not in ("--conf", "-c"):
            continue
        if not sign:
            value = words.pop(0) if words else ""
        key, value = (ARGUMENTS[name], value) if name in ARGUMENTS else pair(value)
        from_arguments[key] = value
    return from_arguments
