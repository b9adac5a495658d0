"""A task that runs: a thread that keeps its queries alive, and what the REST API tells of it."""

from __future__ import annotations

import logging
import math
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock.connect.task import Task
from penstock.errors import PenstockError
from penstock.run.supervise import PipelineRun, Stop

log = logging.getLogger(__name__)

RUNNING, FAILED, UNASSIGNED = "RUNNING", "FAILED", "UNASSIGNED"
ENDED = "ENDED"
"""Of a task that was stopped; no state of the API."""


class RunningTask:
    """Starts at once; ends by `stop`, or by a failure that waiting does not heal."""

    def __init__(
        self,
        task: Task,
        spark: SparkSession,
        checkpoints: Path,
        progress: Callable[[str], None],
        hide: Callable[[str], str],
    ) -> None:
        self.task, self._progress, self._hide = task, progress, hide
        self.state, self.trace = RUNNING, ""
        self._stop = Stop(threading.Event(), threading.Event())
        self._run = PipelineRun(task, spark, checkpoints, self._stop, self._say, self._told, tries=math.inf)
        self._thread = threading.Thread(target=self._supervise, name=f"{task.name}-{task.number}", daemon=True)
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Have the batch in flight finished, and no other begun."""
        self._stop.gently.set()

    def wait(self) -> None:
        """Until it has ended."""
        self._thread.join()

    def _supervise(self) -> None:
        try:
            self._run.supervise()
            self.state = ENDED
        except PenstockError as error:
            self._fail(str(error))
        except Exception:
            self._fail(traceback.format_exc())

    def _fail(self, why: str) -> None:
        self.state, self.trace = FAILED, self._hide(why)
        log.error("task %s-%d failed: %s", self.task.name, self.task.number, self.trace)

    def _say(self, line: str) -> None:
        log.warning("%s", self._hide(line))

    def _told(self, query: str, batch: dict[str, Any]) -> None:
        self._progress(query)
