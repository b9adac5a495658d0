"""A running task: a thread that keeps the queries of its tables running, and its state for the REST API.

A task is RUNNING once each of its queries has finished a batch, or has found nothing to read. Before that it is
UNASSIGNED, and after a fault RESTARTING, with the fault as its trace, until its queries have finished a batch again.
FAILED is only a task that does not try again: operators and scripts restart such tasks.
"""

from __future__ import annotations

import logging
import math
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.checkpoint.checkpoint_folder import Location
from penstock.connect.sinks.record_sink import SinkTask
from penstock.connect.source.task import Task
from penstock.errors import PenstockError
from penstock.query.query import Query
from penstock.run.life_signs import Observer, Observers
from penstock.run.pipeline import default_target
from penstock.run.supervise import PipelineRun, StopRequests
from penstock.watch.meters import Meters
from penstock.watch.probe import heard

log = logging.getLogger(__name__)

RUNNING, RESTARTING, FAILED, UNASSIGNED = "RUNNING", "RESTARTING", "FAILED", "UNASSIGNED"
ENDED = "ENDED"
"""The state of a stopped task; not a state of the REST API."""

PLAN = "\n=== Streaming Query ==="
"""Behind this line of Spark's message come the query's offsets and its plan: pages of text, and no reason."""


def trace_of(error: Exception) -> str:
    """What a status shows of an error: the message, with the traceback if nobody expected the error."""
    return str(error) if isinstance(error, PenstockError) else "".join(traceback.format_exception(error))


def key_of(connector: str, number: int) -> str:
    """The key of a task in the meters."""
    return f"{connector}/{number}"


class RunningTask(Observers):
    """Starts immediately; ends after `ask_to_stop`, or after a failure that a retry cannot help.

    `progress` gets the name of a query that has written a batch; `hide` takes secrets out of a text. In `meters` each
    task is a pipeline, whose name is the connector's. What happens to its queries goes to `observer`, too.
    """

    def __init__(
        self,
        task: Task | SinkTask,
        spark: SparkSession,
        checkpoints: Path,
        progress: Callable[[str], None],
        hide: Callable[[str], str],
        meters: Meters,
        observer: Observer,
    ) -> None:
        target = default_target(task.every).total_seconds()
        self._meter = meters.pipeline(task.name, task.every, target, key=key_of(task.name, task.number))
        super().__init__(self._meter, observer)
        self.task, self.trace = task, ""
        self._progress, self._hide, self._meters = progress, hide, meters
        self._end = self._final = ""
        self._begun: set[str] = set()
        self._works: set[str] = set()
        """The queries that have finished a batch, or found nothing to read, since they began."""
        self._stop = StopRequests(threading.Event(), threading.Event())
        self._run = PipelineRun(task, spark, checkpoints, self._stop, self, tries=math.inf)
        self._thread = threading.Thread(target=self._supervise, name=f"{task.name}-{task.number}", daemon=True)
        self._thread.start()

    @property
    def state(self) -> str:
        """Its state in the REST API, or ENDED."""
        if self._end:
            return self._end
        if self._begun and self._begun <= self._works:
            return RUNNING
        return RESTARTING if self.trace else UNASSIGNED

    @property
    def waits_for(self) -> str:
        """What keeps it from running, or from finishing a batch, and for how long; "" if nothing does."""
        if self._end:
            return ""
        blocked = self._blocked()
        if self.state == RUNNING:
            return blocked
        if not self._begun:
            return f"its queries to start{': ' if blocked else ''}{blocked}"
        missing = ", ".join(sorted(name.removeprefix(f"{self.task.name}.") for name in self._begun - self._works))
        return f"the first batch of {missing}{': ' if blocked else ''}{blocked}"

    def ask_to_stop(self, *, now: bool = False) -> None:
        """Finish the batch in flight and start no other; with `now`, do not wait for that batch."""
        self._stop.gently.set()
        if now:
            self._stop.now.set()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or failed."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _blocked(self) -> str:
        """What is in the way of its queries, as its meter knows."""
        with self._meters.lock:
            now, meter = self._meters.clock(), self._meter
            waits = (meter.waiting(now), *(query.waits_for(now) for query in meter.queries.values()))
        return self._hide(next(filter(None, waits), ""))

    def _supervise(self) -> None:
        try:
            with heard(self._meter):
                self._run.supervise()
            self.ended()
            self._end = ENDED
        except Exception as error:
            self.trace = self._hide("\n".join(filter(None, (trace_of(error), self._final))))
            self._end = FAILED
            if not isinstance(error, PenstockError):
                # The supervisor reports to its observers only errors that it expects.
                super().fault(self._hide(f"{type(error).__name__}: {error}"), trace=self.trace)
            log.error("task %s-%d failed: %s", self.task.name, self.task.number, self.trace)

    # What happens to its queries.

    def begins(self, name: str, query: Query, checkpoint: Location) -> None:
        self._begun.add(name)
        super().begins(name, query, checkpoint)

    def batch(self, name: str, batch: Mapping[str, Any]) -> None:
        self._progress(name)
        super().batch(name, batch)

    def progress(self, name: str, progress: Mapping[str, Any]) -> None:
        self._worked(name)
        super().progress(name, progress)

    def looked(self, name: str, status: Mapping[str, Any]) -> None:
        # Spark reports a batch without data only after seconds; its message is there at once.
        if not status["isTriggerActive"] and status["message"].startswith("Waiting"):
            self._worked(name)
        super().looked(name, status)

    def query_failed(self, name: str, text: str) -> None:
        text = self._hide(text)
        self.trace = text
        self._works.discard(name)
        super().query_failed(name, text)

    def fault(self, text: str, *, query: str = "", pause: float | None = None, trace: str = "") -> None:
        text, trace = self._hide(text), self._hide(trace.partition(PLAN)[0])
        self._final = trace if pause is None else ""
        # Before the queries are forgotten: without them and without a trace it would be one that has never run.
        self.trace = "\n".join(filter(None, (text, trace)))
        self._works.clear()
        self._begun.clear()
        super().fault(text, query=query, pause=pause, trace=trace)

    def say(self, line: str) -> None:
        log.warning("%s", self._hide(line))

    def _worked(self, name: str) -> None:
        self._works.add(name)
        if self._begun <= self._works:
            self.trace = ""
