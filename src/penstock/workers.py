"""Spark's daemon of Python workers, as `spark.python.daemon.module`: it forks workers with their libraries loaded.

Loading the libraries takes more than a second of CPU per process, and a query has half a dozen processes. The libraries
start no threads while they load, so a fork is safe. The workers' shared memory (`native.shared_memory`) is also made
here.
"""

from __future__ import annotations

import numba  # noqa: F401
import pandas  # type: ignore[import-untyped]  # noqa: F401
import pyarrow.compute  # noqa: F401
from pyspark import daemon

from penstock.native import shared_memory

if __name__ == "__main__":
    shared_memory.begin()
    daemon.manager()
