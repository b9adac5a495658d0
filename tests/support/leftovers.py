"""What still runs when a module's tests have ended: clients, servers and threads that nobody stopped.

They would go on during the tests of other modules, and write their lines over the end of the report.
"""

from __future__ import annotations

import gc
import threading
from collections import Counter
from pathlib import Path

from waiting import patience, until

LASTING = (
    # The driver's, of connections that the process keeps for all its queries.
    *("Task Scheduler", "Connection heartbeat", "event_loop", "ThreadPoolExecutor-"),
    # Of a table that a worker follows, and of a source that Spark plans with: both as long as the process lives.
    *("replica of ", "reader of ", "asyncio_"),
    # Of a test client of an ASGI application, which ends by itself.
    "AnyIO worker thread",
    "spark-lines",
)
"""Names of threads that belong to the process, or their beginnings."""
SESSIONS = ("py4j", "pyspark")
"""Packages whose threads end with the Spark session."""
ENDING = patience(10)
"""Seconds that a thread has to end after it was told to."""
LIBRDKAFKA = "rdk:main"
"""The name that librdkafka gives to the thread of a client."""


def running() -> Counter[str]:
    """The threads that a module has to end, by name."""
    found = Counter(one.name for one in threading.enumerate() if not _lasts(one))
    for name in Path("/proc/self/task").glob("*/comm"):
        try:
            if name.read_text().strip() == LIBRDKAFKA:
                found["a client of librdkafka"] += 1
        except OSError:  # It has ended.
            continue
    return found


def _lasts(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)
    owner = getattr(target, "__self__", thread)
    return thread.name.startswith(LASTING) or type(owner).__module__.startswith(SESSIONS)


def require_none(before: Counter[str]) -> None:
    """Fail if more runs than before; sockets that nobody closed warn here, in the module that left them."""

    def left() -> Counter[str]:
        gc.collect()
        return running() - before

    # A collection takes as long as a quick module.
    if names := left():
        until(lambda: not left(), f"end of {', '.join(names)}, which nobody stopped", ENDING)
    # What is left was seen: the next collection looks at newer objects only.
    gc.freeze()
