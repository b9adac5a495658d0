"""How much memory the state of an executor's Python workers takes at most; the rest of it is on disk.

PENSTOCK_STATE_MEMORY says it, as in 700m or 4g. The default is a quarter of what the system gives these processes.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

VARIABLE = "PENSTOCK_STATE_MEMORY"
LIMIT = "PYSPARK_EXECUTOR_MEMORY_MB"
"""Spark's variable for `spark.executor.pyspark.memory`: the megabytes of addresses that each worker may use."""
SHARE = 4
UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SIZE = re.compile(r"([1-9]\d{0,11})([kmgt])b?", re.IGNORECASE)
"""A size in Spark's form."""
OF_CONTAINER = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"
"""Where Linux says what a container may use, in the second and in the first version of control groups."""

_LOG = logging.getLogger(__name__)


def of_executor() -> int:
    """Bytes for the state that an executor's workers share."""
    text = os.environ.get(VARIABLE)
    if text is not None and (size := size_in_bytes(text)) is not None:
        return size
    bound = _of_system() // SHARE
    if text is not None:
        _LOG.warning(
            "%s is %r, which is not a size as in 700m or 4g: state takes up to %d bytes", VARIABLE, text, bound
        )
    return bound


def of_worker() -> int:
    """Bytes for the state that one worker has for itself, where workers share nothing."""
    if limit := os.environ.get(LIMIT):
        return int(limit) * UNITS["m"] // SHARE
    return of_executor() // (os.cpu_count() or 1)


def size_in_bytes(text: str) -> int | None:
    """The bytes of a size such as 700m or 4g; None if it is not one."""
    match = SIZE.fullmatch(text)
    return int(match[1]) * UNITS[match[2].lower()] if match else None


def _of_system() -> int:
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in map(Path, OF_CONTAINER):
        try:
            sizes.append(int(file.read_text()))
        except (OSError, ValueError):
            # "max" is no limit.
            continue
    return min(sizes)
