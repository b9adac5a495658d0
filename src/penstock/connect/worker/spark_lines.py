"""What Spark's processes say on standard error: lines of the log, without secrets, and a count.

Java and Spark's Python workers inherit standard error, so that their tracebacks would pass by the log and its filter.
They get a pipe in its place.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

LONGEST = 16 << 10
"""Characters of a line; longer ones are cut into several."""
MOST_EARLY = 1000
"""Lines of a start that are held back until it is over."""


class SparkLines(Collector):
    """Reads the lines in a thread, for the log."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        self._early: deque[str] | None = deque(maxlen=MOST_EARLY)

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Processes that start while the code inside runs say to this reader what they say on standard error.

        It lasts as short as possible: so long, this process says it to the reader, too.
        """
        read, write = os.pipe()
        threading.Thread(target=self._read, args=[read], name="spark-lines", daemon=True).start()
        stderr = os.dup(2)
        try:
            os.dup2(write, 2)
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            os.close(write)
            with self._lock:
                early, self._early = self._early or (), None
                for line in early:
                    log.warning("Spark: %s", line)

    def _read(self, pipe: int) -> None:
        with os.fdopen(pipe, errors="backslashreplace") as lines:
            while line := lines.readline(LONGEST):
                if said := line.rstrip():
                    self._heard(said)

    def _heard(self, line: str) -> None:
        with self._lock:
            self.count += 1
            # The log is on standard error: until that is its own again, a line would come back for ever.
            if self._early is not None:
                self._early.append(line)
            else:
                log.warning("Spark: %s", line)

    def collect(self) -> Iterator[Metric]:
        text = "Lines that Spark's processes wrote to standard error"
        yield CounterMetricFamily("penstock_spark_lines", text, value=self.count)
