"""Keeps the queries of a pipeline running until they are finished, stopped, or fail for good.

After a failure that a retry can help (see `faults`), it stops all queries of the pipeline, waits, builds them again and
starts them from their checkpoints. The pause doubles with each try; after `TRIES` starts without a finished batch the
failure is final.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.checkpoint.checkpoint_folder import Location
from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.process.signals import Stopped, ended_by
from penstock.query import real_time
from penstock.query.query import ONCE, Query
from penstock.query.real_time import REAL_TIME
from penstock.run import faults
from penstock.run.faults import Fault
from penstock.run.life_signs import Observer
from penstock.spark_runtime import running_query
from penstock.spark_runtime.failures import passing_failure

TRIES = 10
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(seconds=30)
# Interval between checks of the queries; a check is a few calls into the JVM.
LOOK = timedelta(milliseconds=200)
STATUS = 1.0
"""Seconds between two reports of what a query does."""
LONG_RUN = 60.0
"""Seconds after which queries of real-time mode have worked, though none of their batches has ended."""
IDLE = 2
"""Consecutive batches without data after which a query with `once` is finished."""


_starting = threading.Lock()
"""Held while a query makes its sources: Spark writes the environment of their Python processes to one map, and two
threads at the same time corrupt it for good ("Illegal size 5 of collection" whenever a task is sent).
"""


class Buildable(Protocol):
    """A pipeline, or another object that makes queries."""

    @property
    def name(self) -> str:
        """Prefix of the names of its queries."""

    @property
    def every(self) -> timedelta | str:
        """From the start of a batch to the start of the next, or "real-time"."""

    def queries(self, spark: SparkSession) -> dict[str, Query]:
        """The queries by the name of their checkpoint; called at each start."""


@dataclass(frozen=True)
class StopRequests:
    """Requests from outside: `gently` lets the batch in flight finish, `now` does not."""

    gently: threading.Event
    now: threading.Event


@dataclass(frozen=True)
class PipelineRun:
    """A pipeline in a Spark session; `observer` gets what happens.

    It gives up after `tries` starts without a finished batch. `require_lease` raises an error if another process may
    run the pipeline: the queries are left as they are then, and their session must end at once.
    """

    pipeline: Buildable
    spark: SparkSession
    checkpoint: Location
    stop: StopRequests
    observer: Observer
    once: bool = False
    tries: float = TRIES
    require_lease: Callable[[], None] = lambda: None

    def supervise(self) -> None:
        """Run until stopped or, with `once`, until all data that is present now is written.

        Raises PenstockError after a failure that a retry cannot help, or after too many tries.
        """
        queries = self._start_first()
        tries, began = 0, time.monotonic()
        while (fault := self._watch(queries)) and not self.stop.gently.is_set():
            worked = any(watched.query.lastProgress for watched in queries)
            tries = 1 if worked or self._ran_long(began) else tries + 1
            if fault.query:
                self.observer.query_failed(fault.query, fault.text)
            self._end(queries)
            queries, began = self._start_again(fault, tries), time.monotonic()
        if self.stop.gently.is_set():
            self.observer.stopping()
        self._end(queries)

    def _end(self, queries: list[Watched]) -> None:
        """Stop the queries, and report the batches that they finished meanwhile."""
        self._halt([watched.query for watched in queries])
        for watched in queries:
            self._report(watched)
            self.observer.stopped(watched.name)

    def _start_first(self) -> list[Watched]:
        try:
            return self._start()
        except PenstockError as error:
            # Final errors are raised unchanged: `next` has the next step, which a fault's text may lack.
            if not error.retriable:
                self.observer.fault(str(error))
                raise
            return self._start_again(faults.of_error(error), 1)

    def _start(self) -> list[Watched]:
        self.require_lease()
        trigger = ONCE if self.once else self.pipeline.every
        started: list[StreamingQuery] = []
        try:
            queries = self._queries()
            if self._in_real_time:
                frames = [query.frame for query in queries.values()]
                real_time.require_slots(self.spark, frames, f"pipeline {self.pipeline.name}")
            for name, query in queries.items():
                # All are claimed before the first one starts: else it would write until another one is refused.
                query.claim(self.checkpoint / name)
                self.observer.begins(self._full_name(name), query, self.checkpoint / name)
            for name, query in queries.items():
                full_name = self._full_name(name)
                with _starting:
                    started.append(query.start(checkpoint=self.checkpoint / name, trigger=trigger, name=full_name))
                    self._let_begin(started[-1])
                self.observer.started(full_name)
        except PySparkException as error:
            self._halt(started)
            raise faults.of_spark(error, f"pipeline {self.pipeline.name}") from error
        except Py4JJavaError as error:
            self._halt(started)
            # PySpark passes most Java exceptions unchanged, such as those of a Python process that died.
            if passing := passing_failure(error, f"pipeline {self.pipeline.name}"):
                raise passing from error
            raise faults.of_spark(error, f"pipeline {self.pipeline.name}") from error
        except PenstockError:
            self._halt(started)
            raise
        return [Watched(query) for query in started]

    def _full_name(self, query: str) -> str:
        return f"{self.pipeline.name}.{query}" if query else self.pipeline.name

    @property
    def _in_real_time(self) -> bool:
        return self.pipeline.every == REAL_TIME and not self.once

    def _ran_long(self, began: float) -> bool:
        """Whether the queries run in real-time mode, whose batches take minutes, and began long ago."""
        return self._in_real_time and time.monotonic() - began > LONG_RUN

    def _halt(self, queries: list[StreamingQuery]) -> None:
        """Stop the queries after the batch in flight, or immediately if `stop.now` is set.

        Spark's own `stop()` cancels a running batch, whose rows would be written again at the next start.
        """
        if not queries:
            return
        for query in queries:
            running_query.end_after_batch(self.spark, query)
        with real_time.ending(self.spark) if self._in_real_time else nullcontext():
            end = time.monotonic() + (real_time.END_PATIENCE if self._in_real_time else math.inf)
            for query in queries:
                while query.status["isTriggerActive"] and time.monotonic() < end and not self.stop.now.wait(0.05):
                    pass
                if query.status["isTriggerActive"]:
                    self.observer.cut(query.name or "")
                query.stop()

    def _queries(self) -> dict[str, Query]:
        """The queries to start; none if a stop is requested while the pipeline waits, for example for a database."""
        try:
            with ended_by(self.stop.gently):
                return self.pipeline.queries(self.spark)
        except Stopped:
            return {}

    def _let_begin(self, query: StreamingQuery) -> None:
        """Wait until a query has its sources: Spark times out if too many start their processes at the same time."""
        while query.isActive and query.status["message"].startswith("Initializing") and not self.stop.gently.is_set():
            self.stop.gently.wait(0.05)

    def _start_again(self, fault: Fault, tries: int) -> list[Watched]:
        """Build and start the queries after this fault's pause; an error while doing so is the next fault."""
        while True:
            self._require_hope(fault, tries)
            pause = timedelta(0) if fault.at_once else min(FIRST_PAUSE * 2 ** min(tries - 1, 5), LONGEST_PAUSE)
            self.observer.say(f"{self.pipeline.name}: {fault.text}; starting again in {pause.total_seconds():g} s")
            self.observer.fault(fault.text, query=fault.query, pause=pause.total_seconds(), trace=fault.trace)
            if self.stop.gently.wait(pause.total_seconds()):
                return []
            try:
                return self._start()
            except PenstockError as error:
                fault, tries = faults.of_error(error), tries + 1

    def _require_hope(self, fault: Fault, tries: int) -> None:
        if fault.retriable and tries < self.tries:
            return
        self.observer.fault(fault.text, query=fault.query, trace=fault.trace)
        where = f"pipeline {self.pipeline.name}"
        if not fault.retriable:
            raise PenstockError(fault.text, where=where)
        raise PenstockError(
            f"gave up after {self.tries} tries without a finished batch: {fault.text}",
            where=where,
            next="remove the cause and run again: it continues from its checkpoint",
        )

    def _watch(self, queries: list[Watched]) -> Fault | None:
        """Wait for a failure, the end of all queries, or a stop request; returns the failure or None."""
        while not self.stop.gently.is_set():
            self.require_lease()
            ended = [watched for watched in queries if not watched.query.isActive]
            for watched in queries:
                self._report(watched)
                if (status := watched.status()) is not None:
                    self.observer.looked(watched.name, status)
            running = [watched for watched in queries if watched not in ended]
            if self.once and (idle := [watched for watched in running if _passes_time(watched.query)]):
                self._halt([watched.query for watched in idle])
                for watched in idle:
                    watched.stopped = True
            for watched in ended:
                if fault := faults.of_query(watched.query, stopped=watched.stopped):
                    delays.add_fault(str(watched.query.id), fault.trace)
                    return fault
            if len(ended) == len(queries):
                return None
            self.stop.gently.wait(LOOK.total_seconds())
        return None

    def _report(self, watched: Watched) -> None:
        """Report new progress."""
        for progress in watched.news():
            self.observer.progress(watched.name, progress)
            if not progress["numInputRows"]:
                if not self.once:
                    self.observer.idle(watched.name)
                continue
            self.observer.batch(watched.name, progress)
            self._report_dropped(watched.query, progress)

    def _report_dropped(self, query: StreamingQuery, batch: Mapping[str, Any]) -> None:
        """Say how many rows Spark's own stages dropped; those of `penstock` drop none."""
        dropped = sum(stage["numRowsDroppedByWatermark"] for stage in batch["stateOperators"])
        if dropped:
            what = "rows came after their window had ended and were dropped"
            self.observer.say(
                f"{query.name}: batch {batch['batchId']}: {dropped} {what}; give kafka.read a longer late="
            )


class Watched:
    """A started query, of whose progress each is read once.

    An idle query's progress has the number of its next batch, and a newer time each.
    """

    def __init__(self, query: StreamingQuery) -> None:
        self.query, self.name = query, query.name or ""
        self.stopped = False
        """Whether it was stopped as only time passes in it."""
        self._time = ""
        self._next: int | None = None
        self._looked = -math.inf

    def news(self) -> list[dict[str, Any]]:
        """Spark's progress since the last call, oldest first; of an idle query only the newest."""
        known = running_query.last_progress(self.query)
        # Its time alone: all of it is written to JSON and parsed, which takes most of an idle query's CPU.
        if known is None or known.timestamp() == self._time:
            return []
        last = json.loads(known.json())
        self._time = last["timestamp"]
        # Several batches may have finished since the last call; reading all of them each time would cost more.
        progress = [last] if last["batchId"] == self._next else self._missed(last)
        self._next = last["batchId"] + is_batch(last)
        return progress

    def _missed(self, last: dict[str, Any]) -> list[dict[str, Any]]:
        recent = running_query.recent_progress(self.query)
        since = -1 if self._next is None else self._next
        missed = [batch for batch in recent if is_batch(batch) and since <= batch["batchId"] <= last["batchId"]]
        return missed if missed and missed[-1]["timestamp"] == last["timestamp"] else [*missed, last]

    def status(self) -> dict[str, Any] | None:
        """Spark's status of the query; None if it was read a moment ago, or the query has ended."""
        now = time.monotonic()
        if now - self._looked < STATUS or not self.query.isActive:
            return None
        self._looked = now
        return running_query.status(self.query)


def is_batch(progress: Mapping[str, Any]) -> bool:
    """Whether this is the progress of a batch, and not of a query that had nothing to read."""
    return "addBatch" in progress["durationMs"]


def _passes_time(query: StreamingQuery) -> bool:
    """Whether all data is handled and only time passes: a query with timers runs batches forever."""
    last = query.recentProgress[-IDLE:]
    sources = [source for batch in last for source in batch["sources"]]
    return len(last) == IDLE and all(source["startOffset"] == source["endOffset"] for source in sources)
