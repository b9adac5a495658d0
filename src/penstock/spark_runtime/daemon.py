"""Spark's daemon of Python workers, as `spark.python.daemon.module`: it forks workers with their libraries loaded.

Loading the libraries takes more than a second of CPU per process, and a query has half a dozen processes. The libraries
start no threads while they load, so a fork is safe. The workers' shared memory (`native.shared_memory`) is also created
here.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import numba
import pandas  # type: ignore[import-untyped]  # noqa: F401
import pyarrow.compute  # noqa: F401
from pyspark import daemon

from penstock.native import shared_memory
from penstock.process import log_lines
from penstock.spark_runtime import user_modules

OWN = "penstock.cdc.partition_read", "penstock.kafka.kafka_records", "penstock.kafka.kafka_writer"
"""Modules of our sources and sinks; packages that some of them need may be missing."""
MOST = 300_000
"""Objects that may have survived full collections before the next one looks at all objects."""
YOUNG = 50_000
"""Objects that are created, and not freed, before a collection looks at them."""


def load() -> None:
    """Load what workers need, so that they share its memory."""
    for name in OWN:
        with suppress(ImportError):
            import_module(name)
    # The first compiled loop loads numba's compiler, which is a quarter of what a worker has in memory.
    numba.njit(lambda: 0)()


def freeze_what_stays() -> None:
    """From now on a full garbage collection looks at the objects that were created since the last one.

    A worker collects after each task. To look at all objects of the libraries takes 50 ms, more than a small task,
    and writes to memory that workers share. So that only happens when many objects have stayed. Young
    objects are looked at less often, too: a task that handles records one by one makes many, which need no collection.
    """
    stayed = 0

    def frozen(phase: str, about: dict[str, int]) -> None:
        nonlocal stayed
        if about["generation"] < 2:
            return
        if phase == "stop":
            stayed = 0 if stayed > MOST else stayed + len(gc.get_objects(2))
            gc.freeze()
        elif stayed > MOST:
            gc.unfreeze()

    gc.collect()
    gc.freeze()
    gc.callbacks.append(frozen)
    gc.set_threshold(YOUNG)


def ending_quietly(work: Callable[..., int]) -> Callable[..., int]:
    """The function of a worker, which ends without a traceback when its task has enough rows, as one of a limit has."""

    def run(*arguments: Any) -> int:
        try:
            return work(*arguments)
        except BrokenPipeError:
            return 1

    return run


if __name__ == "__main__":
    log_lines.begin()
    user_modules.import_from(os.environ)
    load()
    freeze_what_stays()
    shared_memory.begin()
    daemon.worker = ending_quietly(daemon.worker)
    daemon.manager()
