"""Keeps the queries of a pipeline running until they are finished, stopped, or fail for good.

After a failure that a retry can help (see `faults`), it stops all queries of the pipeline, waits, builds them again and
starts them from their checkpoints. The pause doubles with each try; after `TRIES` starts without a finished batch the
failure is final.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock import real_time
from penstock.errors import PenstockError
from penstock.query import ONCE, Query
from penstock.real_time import REAL_TIME
from penstock.run import faults
from penstock.run.faults import Fault
from penstock.run.life_signs import Observer
from penstock.signals import Stopped, ended_by

TRIES = 10
FIRST_PAUSE = timedelta(seconds=1)
LONGEST_PAUSE = timedelta(seconds=30)
# Interval between checks of the queries; a check is one call into the JVM.
LOOK = timedelta(milliseconds=200)
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
class Stop:
    """Requests from outside: `gently` lets the batch in flight finish, `now` does not."""

    gently: threading.Event
    now: threading.Event


@dataclass(frozen=True)
class PipelineRun:
    """A pipeline in a Spark session; `observer` gets what happens.

    It gives up after `tries` starts without a finished batch.
    """

    pipeline: Buildable
    spark: SparkSession
    checkpoint: Path
    stop: Stop
    observer: Observer
    once: bool = False
    tries: float = TRIES

    def supervise(self) -> None:
        """Run until stopped or, with `once`, until all data that is present now is written.

        Raises PenstockError after a failure that a retry cannot help, or after too many tries.
        """
        queries = self._start_first()
        tries, began = 0, time.monotonic()
        while (fault := self._watch(queries)) and not self.stop.gently.is_set():
            worked = any(query.lastProgress for query in queries)
            tries = 1 if worked or self._ran_long(began) else tries + 1
            self._halt(queries)
            queries, began = self._start_again(fault, tries), time.monotonic()
        if self.stop.gently.is_set():
            self.observer.stopping()
        self._halt(queries)

    def _start_first(self) -> list[StreamingQuery]:
        try:
            return self._start()
        except PenstockError as error:
            # Final errors are raised unchanged: `next` has the next step, which a fault's text may lack.
            if not error.retriable:
                raise
            return self._start_again(faults.of_error(error), 1)

    def _start(self) -> list[StreamingQuery]:
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
        except PySparkException as error:
            self._halt(started)
            raise faults.of_spark(error, f"pipeline {self.pipeline.name}") from error
        except PenstockError:
            self._halt(started)
            raise
        return started

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

        Spark's own `stop()` cancels a running batch, whose rows would be written again at the next start. Setting the
        query's state first, as `stop()` itself does, makes its thread end after the batch; then nothing is cancelled.
        """
        if not queries:
            return
        jvm: Any = self.spark.sparkContext._jvm
        states = jvm.org.apache.spark.sql.execution.streaming.runtime
        terminated = getattr(getattr(states, "TERMINATED$"), "MODULE$")
        for query in queries:
            query._jsq.streamingQuery().state().set(terminated)
        with real_time.ending(self.spark) if self._in_real_time else nullcontext():
            end = time.monotonic() + (real_time.END_PATIENCE if self._in_real_time else math.inf)
            for query in queries:
                while query.status["isTriggerActive"] and time.monotonic() < end and not self.stop.now.wait(0.05):
                    pass
                if self._in_real_time and query.status["isTriggerActive"]:
                    self.observer.say(
                        f"{query.name}: stopped within a batch, whose rows are sent again at the next start"
                    )
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

    def _start_again(self, fault: Fault, tries: int) -> list[StreamingQuery]:
        """Build and start the queries after this fault's pause; an error while doing so is the next fault."""
        while True:
            self._require_hope(fault, tries)
            pause = timedelta(0) if fault.at_once else min(FIRST_PAUSE * 2 ** min(tries - 1, 5), LONGEST_PAUSE)
            self.observer.say(f"{self.pipeline.name}: {fault.text}; starting again in {pause.total_seconds():g} s")
            if self.stop.gently.wait(pause.total_seconds()):
                return []
            try:
                return self._start()
            except PenstockError as error:
                fault, tries = faults.of_error(error), tries + 1

    def _require_hope(self, fault: Fault, tries: int) -> None:
        if not fault.retriable:
            raise PenstockError(fault.text, where=f"pipeline {self.pipeline.name}")
        if tries >= self.tries:
            raise PenstockError(
                f"gave up after {self.tries} tries without a finished batch: {fault.text}",
                where=f"pipeline {self.pipeline.name}",
                next="remove the cause and run again: it continues from its checkpoint",
            )

    def _watch(self, queries: list[StreamingQuery]) -> Fault | None:
        """Wait for a failure, the end of all queries, or a stop request; returns the failure or None."""
        seen = dict.fromkeys((query.name for query in queries), -1)
        while not self.stop.gently.is_set():
            ended = [query for query in queries if not query.isActive]
            for query in queries:
                seen[query.name] = self._tell(query, seen[query.name])
            if self.once and (idle := [query for query in queries if query.isActive and _passes_time(query)]):
                self._halt(idle)
            for query in ended:
                if fault := faults.of_query(query):
                    return fault
            if len(ended) == len(queries):
                return None
            self.stop.gently.wait(LOOK.total_seconds())
        return None

    def _tell(self, query: StreamingQuery, seen: int) -> int:
        """Report new batches with rows; an idle query reports its last number again."""
        known = query._jsq.lastProgress()
        # Its number alone: all of it is written to JSON and parsed, which takes most of an idle query's CPU.
        if known is None or known.batchId() <= seen:
            return seen
        last = query.lastProgress
        assert last
        # Several batches may have finished since the last check; reading all of them each time would cost more.
        if not last["numInputRows"] and not self.once:
            self.observer.idle(query.name or "")
        news = [last] if last["batchId"] == seen + 1 else query.recentProgress
        for batch in news:
            if batch["batchId"] > seen and batch["numInputRows"]:
                self.observer.batch(query.name or "", batch)
                self._tell_dropped(query, batch)
        return int(last["batchId"])

    def _tell_dropped(self, query: StreamingQuery, batch: Mapping[str, Any]) -> None:
        """Say how many rows Spark's own stages dropped; those of `penstock` drop none."""
        dropped = sum(stage["numRowsDroppedByWatermark"] for stage in batch["stateOperators"])
        if dropped:
            what = "rows came after their window had ended and were dropped"
            self.observer.say(
                f"{query.name}: batch {batch['batchId']}: {dropped} {what}; give kafka.read a longer late="
            )


def _passes_time(query: StreamingQuery) -> bool:
    """Whether all data is handled and only time passes: a query with timers runs batches forever."""
    last = query.recentProgress[-IDLE:]
    sources = [source for batch in last for source in batch["sources"]]
    return len(last) == IDLE and all(source["startOffset"] == source["endOffset"] for source in sources)
