"""What a run reports of itself: what its queries read and write, their first rows, how they go on, and their end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.checkpoint.checkpoint_folder import Location
from penstock.checkpoint.hadoop_folder import store_of
from penstock.checkpoint.identity import ADDRESSES, CDC, SourceIdentity, source_of, streams, target_of
from penstock.process.log_lines import Terminal
from penstock.query.query import Query
from penstock.run.positions import NONE_YET, resumed

log = logging.getLogger(__name__)

PACE = 60.0
"""Seconds between two summaries, where no line can be updated."""
STARTS = ("start", "startingoffsets")
CUT = "stopped within a batch; the next start runs it again"
MOST = 60
"""Characters of a position: a topic may have hundreds of partitions."""


class Observer:
    """Gets what happens in a run; this one ignores all of it. `name` is the full name of a query."""

    def begins(self, name: str, query: Query, checkpoint: Location) -> None:
        """A query is about to start."""

    def started(self, name: str) -> None:
        """A query has started and has its sources."""

    def batch(self, name: str, batch: Mapping[str, Any]) -> None:
        """A batch with rows has finished; `batch` is Spark's progress."""

    def idle(self, name: str) -> None:
        """A query has found nothing to read."""

    def progress(self, name: str, progress: Mapping[str, Any]) -> None:
        """Spark's progress: of each batch, with rows or without, and now and then of a query that has nothing to read.

        The latter have the number of the batch before, or of the next one, and no duration of "addBatch".
        """

    def looked(self, name: str, status: Mapping[str, Any]) -> None:
        """What a query does now, about once a second: its id, and Spark's message, isDataAvailable, isTriggerActive."""

    def query_failed(self, name: str, text: str) -> None:
        """A query has failed; `fault` comes when the batches of the others have ended, which may take a while."""

    def fault(self, text: str, *, query: str = "", pause: float | None = None, trace: str = "") -> None:
        """A query, or a start of the pipeline if `query` is empty, has failed.

        All queries start again after `pause` seconds; None if the failure is final. `trace` is all that is known of it.
        """

    def stopping(self) -> None:
        """A stop was requested; a batch may be in flight."""

    def cut(self, name: str) -> None:
        """A query is stopped within a batch: the next start runs it again, and how many rows it wrote is not known."""

    def stopped(self, name: str) -> None:
        """A query has ended without a fault, or was stopped because of another one's."""

    def ended(self) -> None:
        """The run has ended without an error."""

    def say(self, line: str) -> None:
        """A warning."""


class Observers(Observer):
    """Tells everything to each of several observers, in their order; an error of one is logged, and ends no run."""

    def __init__(self, *all: Observer) -> None:
        self._all = all
        self._logged: set[tuple[type, type]] = set()

    def begins(self, name: str, query: Query, checkpoint: Location) -> None:
        self._each(lambda observer: observer.begins(name, query, checkpoint))

    def started(self, name: str) -> None:
        self._each(lambda observer: observer.started(name))

    def batch(self, name: str, batch: Mapping[str, Any]) -> None:
        self._each(lambda observer: observer.batch(name, batch))

    def idle(self, name: str) -> None:
        self._each(lambda observer: observer.idle(name))

    def progress(self, name: str, progress: Mapping[str, Any]) -> None:
        self._each(lambda observer: observer.progress(name, progress))

    def looked(self, name: str, status: Mapping[str, Any]) -> None:
        self._each(lambda observer: observer.looked(name, status))

    def query_failed(self, name: str, text: str) -> None:
        self._each(lambda observer: observer.query_failed(name, text))

    def fault(self, text: str, *, query: str = "", pause: float | None = None, trace: str = "") -> None:
        self._each(lambda observer: observer.fault(text, query=query, pause=pause, trace=trace))

    def stopping(self) -> None:
        self._each(lambda observer: observer.stopping())

    def cut(self, name: str) -> None:
        self._each(lambda observer: observer.cut(name))

    def stopped(self, name: str) -> None:
        self._each(lambda observer: observer.stopped(name))

    def ended(self) -> None:
        self._each(lambda observer: observer.ended())

    def say(self, line: str) -> None:
        self._each(lambda observer: observer.say(line))

    def _each(self, tell: Callable[[Observer], None]) -> None:
        for observer in self._all:
            try:
                tell(observer)
            except Exception as error:
                self._log(observer, error)

    def _log(self, observer: Observer, error: Exception) -> None:
        """Log an error with its traceback, each kind once: it may come with every batch."""
        kind = type(observer), type(error)
        if kind not in self._logged:
            self._logged.add(kind)
            what = "%s cannot take what happens in the run, which goes on; report this: %s"
            log.warning(what, kind[0].__name__, error, exc_info=error, extra={"event": "warning"})


class LifeSigns(Observer):
    """Writes them to the log: a line for each batch with `verbose`, otherwise a summary now and then.

    `terminal` has a line that is updated; None where lines stay.
    """

    def __init__(self, pipeline: str, *, verbose: bool = False, terminal: Terminal | None = None) -> None:
        self._pipeline, self._verbose, self._terminal = pipeline, verbose, terminal
        self._began = self._summed = time.monotonic()
        self._plans: dict[str, tuple[str, ...]] = {}
        self._rows: dict[str, int] = {}
        self._rates: dict[str, float] = {}
        self._known = 0
        self._idle: set[str] = set()
        self._cut = False

    def starts(self, checkpoint: Location) -> None:
        self._info("starts", f"starting Spark; the checkpoint is {checkpoint}", checkpoint=str(checkpoint))

    def begins(self, name: str, query: Query, checkpoint: Location) -> None:
        reads, writes = reads_of(query, checkpoint), writes_of(query)
        # A query that starts again after a fault goes on with the same.
        if self._plans.get(name) == (*reads, *writes):
            return
        self._plans[name] = *reads, *writes
        line = f"reads {' and '.join(reads)}; writes to {' and '.join(writes)}"
        self._info("begins", line, query=name, reads=reads, writes=writes)

    def batch(self, name: str, batch: Mapping[str, Any]) -> None:
        rows, seconds, number = batch["numInputRows"], batch["batchDuration"] / 1000, batch["batchId"]
        before = self._rows.get(name)
        self._rows[name], self._rates[name] = (before or 0) + rows, batch.get("inputRowsPerSecond") or 0.0
        about = {"query": name, "batch": number, "rows": rows, "seconds": seconds}
        if before is None and not self._verbose:
            self._info("first", f"first {rows} rows after {time.monotonic() - self._began:.1f} s", **about)
        if self._verbose:
            log.info("%s  batch %d: %d rows in %.2f s", name, number, rows, seconds, extra={"event": "batch"} | about)
        elif self._terminal:
            rate = sum(self._rates.values())
            self._terminal.status(f"{name}: {self._total} rows, {rate:.0f}/s; the last batch took {seconds:.2f} s")
        elif time.monotonic() - self._summed >= PACE:
            self._summarize()

    def idle(self, name: str) -> None:
        if name not in self._rows and name not in self._idle:
            self._idle.add(name)
            self._info("idle", "nothing to read yet; waiting", query=name)

    def query_failed(self, name: str, text: str) -> None:
        if len(self._plans) > 1:
            what = "%s: %s; the other queries finish their batches before all start again"
            log.warning(what, name, text, extra={"event": "warning", "pipeline": self._pipeline, "query": name})

    def stopping(self) -> None:
        self._info("stopping", "stopping after the batch in flight; Ctrl-C or SIGTERM again ends it at once")

    def cut(self, name: str) -> None:
        self._cut = True
        self.say(f"{name}: {CUT}")

    def say(self, line: str) -> None:
        log.warning("%s", line, extra={"event": "warning", "pipeline": self._pipeline})

    def ended(self) -> None:
        if self._terminal:
            self._terminal.status("")
        seconds = time.monotonic() - self._began
        about: dict[str, Any] = {"seconds": round(seconds, 3)}
        line = f"ended after {seconds:.0f} s"
        # Of a batch that was cut nobody knows how many rows were read and written.
        if not self._cut:
            line, about = f"{line} and {self._total} rows", about | {"rows": self._total}
        self._info("ended", f"{line}; the next run goes on from here", **about)

    @property
    def _total(self) -> int:
        return sum(self._rows.values())

    def _summarize(self) -> None:
        now, rows = time.monotonic(), self._total
        rate = (rows - self._known) / (now - self._summed)
        self._info("rows", f"{rows} rows so far, {rate:.0f}/s", rows=rows, rows_per_second=round(rate, 1))
        self._summed, self._known = now, rows

    def _info(self, event: str, line: str, query: str = "", **about: Any) -> None:
        about = {"event": event, "pipeline": self._pipeline} | ({"query": query} if query else {}) | about
        log.info("%s: %s", query or self._pipeline, line, extra=about)


def reads_of(query: Query, checkpoint: Location) -> tuple[str, ...]:
    """What a query reads, and from where on."""
    sources = list(streams(query.frame))
    positions = [reading.position for reading in resumed(store_of(checkpoint, query.frame.sparkSession))]
    known = [*positions, *[NONE_YET] * len(sources)]
    return tuple(_read(*source, position) for source, position in zip(sources, known, strict=False))


def writes_of(query: Query) -> tuple[str, ...]:
    """Where a query writes."""
    return tuple(str(target_of(sink)) for sink in query.sinks)


def _read(format: str, options: Mapping[str, str], position: str) -> str:
    source = source_of(format, options)
    option_by_name = {name.lower(): value for name, value in options.items()}
    place = next((f" at {option_by_name[name]}" for name in ADDRESSES if name in option_by_name), "")
    start = next((option_by_name[name] for name in STARTS if name in option_by_name), "")
    begin = start if position == NONE_YET else position
    begin = begin if len(begin) <= MOST else f"{begin[: MOST - 3]}..."
    since = f", from {begin}" if begin else ""
    return f"{_named(source)}{place}{since}"


def _named(source: SourceIdentity) -> str:
    if source.format == CDC:
        return f"the {'log' if source.of['rows'] == 'log' else 'changes'} of {source.of['table']}"
    return f"topic {source.of['topic']}" if "topic" in source.of else str(source)
