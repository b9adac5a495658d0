"""Spark's daemon of Python workers, as `spark.python.daemon.module`: it forks workers that have their libraries.

Loading these takes each process more than a second of CPU, and a query has half a dozen. They start no threads when
they are loaded, so that a fork of them is whole. What workers share (`stream.shared`) is made here, too.
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
