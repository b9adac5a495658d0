"""What a run needs of a cluster's executors, asked before its first query: Penstock in their Python, and the folder of
the checkpoint, in which they write state.

Without it a query fails later, with Spark's words: a data source that it does not know, or a file that is not there.
"""

from __future__ import annotations

import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession

import penstock
from penstock.checkpoint.checkpoint_folder import Location
from penstock.errors import PenstockError
from penstock.process.paths import usable
from penstock.spark_runtime.settings import is_local

LACKS = re.compile(
    r"No module named '[\w.]+'"
    r'|Cannot run program "[^"]+"'
    r"|Python in worker has different version: \S+ than that in driver:? \S+"
)
"""What Spark says of a Python without Penstock, without a program, or of another version."""
INSTALL = (
    "install the same penstock there, or name a Python that has it: --conf spark.pyspark.python=PATH (docs/cluster.md)"
)


class ExecutorFacts(NamedTuple):
    """What an executor has: its machine, the version of Penstock, and whether it sees the checkpoint."""

    host: str
    version: str
    sees: bool


def require_executors(session: SparkSession, checkpoint: Location | None) -> None:
    """Raise PenstockError if executors lack what a run needs; a local session has none.

    Those are asked that Spark has at this moment. Without a checkpoint they write no state.
    """
    if is_local(str(session.sparkContext.master)):
        return
    where = f"executors of {session.sparkContext.master}"
    with _mark(checkpoint) if isinstance(checkpoint, Path) else nullcontext() as mark:
        executors = _ask(session, mark, where)
    for executor in executors:
        if executor.version != penstock.__version__:
            what = f"{executor.host} has penstock {executor.version}, and the driver has {penstock.__version__}"
            raise PenstockError(what, where=where, next=INSTALL)
        if not executor.sees:
            raise PenstockError(
                f"{executor.host} does not see the checkpoint {checkpoint}, in which executors write state",
                where=where,
                next="give --checkpoints a folder that all machines share at the same path",
            )


@contextmanager
def _mark(checkpoint: Path) -> Iterator[Path]:
    """A file in the folder, by which an executor knows it."""
    with usable(checkpoint, "the checkpoint cannot be written", "give another --checkpoints folder"):
        checkpoint.mkdir(parents=True, exist_ok=True)
        mark = checkpoint / f".executors-{uuid.uuid4().hex}"
        mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def _ask(session: SparkSession, mark: Path | None, where: str) -> list[ExecutorFacts]:
    tasks = session.sparkContext.defaultParallelism
    try:
        return session.sparkContext.parallelize(range(tasks), tasks).mapPartitions(partial(_look, mark)).collect()
    except Exception as error:
        if said := LACKS.search(str(error)):
            what = f"executors cannot run Penstock's Python: {said[0]}"
            raise PenstockError(what, where=where, next=INSTALL) from error
        raise


def _look(mark: Path | None, rows: Iterator[int]) -> Iterator[ExecutorFacts]:
    """What the executor has whose process this is; a checkpoint elsewhere is not asked for: Spark itself writes it."""
    yield ExecutorFacts(socket.gethostname(), penstock.__version__, mark is None or mark.exists())
