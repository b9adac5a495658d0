"""Spark's daemon of Python workers, as `spark.python.daemon.module`: it forks workers with their libraries loaded.

Loading the libraries takes more than a second of CPU per process, and a query has half a dozen processes. The libraries
start no threads while they load, so a fork is safe. The workers' shared memory (`native.shared_memory`) is also made
here.
"""

from __future__ import annotations

import gc
from itertools import count

import numba  # noqa: F401
import pandas  # type: ignore[import-untyped]  # noqa: F401
import pyarrow.compute  # noqa: F401
from pyspark import daemon

from penstock.native import shared_memory

THOROUGH = 200
"""One of so many full collections looks at all objects."""


def freeze_what_stays() -> None:
    """From now on a full garbage collection looks at the objects that were made since the last one.

    A worker collects after each task. To look at all that the libraries have made takes 50 ms: more than a small task.
    """
    numbers = count(1)

    def frozen(phase: str, about: dict[str, int]) -> None:
        if about["generation"] < 2:
            return
        if phase == "stop":
            gc.freeze()
        elif next(numbers) % THOROUGH == 0:
            gc.unfreeze()

    gc.callbacks.append(frozen)
    gc.collect()


if __name__ == "__main__":
    freeze_what_stays()
    shared_memory.begin()
    daemon.manager()
