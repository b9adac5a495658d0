"""The meter of one query: what its progresses and its status say, added up. What is not known is None, never 0.

Times are Unix seconds. It takes Spark's progress as the parsed JSON, and needs no Spark itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from penstock.metrics import delays
from penstock.metrics.delays import BOUNDS, SinkCounts
from penstock.process.waits import span, waiting
from penstock.query.real_time import REAL_TIME
from penstock.watch.graph import AGGREGATE, JOIN, NATIVE, PROCESSOR, Graph
from penstock.watch.program import iso
from penstock.watch.source_lag import SourceLag, seconds_kept

STARTING, RUNNING, WAITING, FAILED, STOPPED = STATES = ("starting", "running", "waiting", "failed", "stopped")
FIRST, FAULT = "first", "fault"
"""Reasons of a start."""
NEXT_START = "its next start after a fault"
MOST_POINTS, OLDEST = 900, 900.0
"""The batches that a query's history has at most, and their age in seconds."""
ASKING = 2.0
"""Seconds after which a query that asks its sources for data is not idle any more."""
RECENT = 300.0
"""Seconds whose rows the percentiles of the delay are of, at least: as in the alerts."""
NO_EVENT_TIME = (
    "no event time reaches the sink: keep the column ts of cdc.read or timestamp of kafka.read, or give "
    "kafka.sink(event_time=...)"
)
RATE = 10.0
"""Seconds over which the present rate is counted, at least."""
NO_DATA = "No new data but cleaning up state"
"""Spark's message during a batch that has no data, as those of timers and ends of windows."""
WHOLE = "triggerExecution"
"""The duration of a batch as a whole; the other ones are of its phases."""


@dataclass
class SourceMeter:
    """What a query reads: the name of the source, and the id of its node in the graph."""

    name: str
    node: str
    address: str | None = None
    other_nodes: int = 0
    """How many nodes it reads beside this one: which records are of which is not known."""
    rows: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    lag: SourceLag = field(default_factory=SourceLag)
    retention: float | None = None
    """Seconds for which the source keeps a record."""


@dataclass
class SinkMeter:
    """Where a query writes."""

    name: str
    node: str
    address: str | None = None
    other_nodes: int = 0
    """How many nodes it writes to beside this one: which rows went to which is not counted."""
    counts: SinkCounts = field(default_factory=SinkCounts)
    is_counted: bool = False
    """Whether the sink counts what it writes; of Spark's own sinks nothing is known."""
    recent: deque[tuple[float, tuple[int, ...]]] = field(default_factory=lambda: deque(maxlen=MOST_POINTS))
    """What came to the delays' buckets, with the time, oldest first."""

    def take(self, counts: SinkCounts, now: float) -> list[int]:
        """Take over the present counts; what came to the buckets."""
        pairs = zip(counts.buckets, self.counts.buckets, strict=True)
        more = tuple(max(0, new - before) for new, before in pairs)
        if any(more):
            self.recent.append((now, more))
        self.counts, self.is_counted = counts, True
        return list(more)

    def delays_since(self, since: float) -> list[int]:
        """The buckets of the delays of rows that were acknowledged since then."""
        some = [more for at, more in self.recent if at >= since]
        return [sum(column) for column in zip(*some, strict=True)] if some else [0] * (len(BOUNDS) + 1)


@dataclass
class StateMeter:
    """A stage with state: what it holds now, and what was counted."""

    rows: int = 0
    memory: int = 0
    disk: int | None = None
    commit_seconds: float = 0.0
    late_rows: int = 0


@dataclass
class LookupMeter:
    """A lookup: rows, how many of them were found in memory, and the seconds that the tasks waited for the others."""

    rows: int = 0
    hits: int = 0
    wait: float = 0.0


@dataclass(frozen=True)
class Point:
    """A batch in the history; a moment without a batch has no `seconds`."""

    at: float
    seconds: float | None
    rows: int
    lag_records: int | None
    lag_seconds: float | None
    delay_p99: float | None
    phases: Mapping[str, float]

    @cached_property
    def as_dict(self) -> dict[str, Any]:
        """The point in a status, which is asked for every second, and has 900 of them."""
        return {
            "at": iso(self.at),
            "seconds": self.seconds,
            "rows": self.rows,
            "lag_records": self.lag_records,
            "lag_seconds": shortened(self.lag_seconds),
            "delay_p99": shortened(self.delay_p99),
            "phases": {name: round(some, 4) for name, some in self.phases.items()},
        }


class QueryMeter:
    """What is known of one query; times are Unix seconds."""

    def __init__(self, pipeline: str, name: str, every: str, interval: float, target: float) -> None:
        self.pipeline, self.name, self.every, self.target = pipeline, name, every, target
        self.interval = interval
        self.phase, self.since = STARTING, 0.0
        """The state that the supervisor knows, and since when."""
        self.pause = ""
        """What a query that starts again waits for."""
        self.blocked, self.blocked_since = "", 0.0
        """What a query that makes no progress waits for, as `penstock.watch.probe` finds out."""
        self.reason = ""
        """Why that is not there, if it is known."""
        self.problem = self.next = ""
        self.id: str | None = None
        self.batch: int | None = None
        self.batches = self.rows = 0
        self.durations = [0] * (len(BOUNDS) + 1)
        """Batches by duration, not cumulative."""
        self.seconds = 0.0
        self.last_seconds: float | None = None
        self.last_commit: float | None = None
        self.starts = {FIRST: 0, FAULT: 0}
        self._reason = FIRST
        """Why the query will start the next time."""
        self.phases: dict[str, float] = defaultdict(float)
        self.watermark: float | None = None
        self.idle = False
        self.active_since: float | None = None
        """The first look that saw the present batch, or the search for one; None between batches."""
        self.asking = False
        self.sources: list[SourceMeter] = []
        self.planned: list[SourceMeter] = []
        """The source of each place in the plan: the same in several if Spark makes one source of them."""
        self._names: list[str] = []
        """The names of the sources in the plan."""
        self.sinks: list[SinkMeter] = []
        self.states: dict[str, StateMeter] = {}
        self.lookups: dict[str, LookupMeter] = {}
        self.tables: dict[str, float] = {}
        """Global tables, with the seconds for which the source had been away at the last batch with rows."""
        self.history: deque[Point] = deque(maxlen=MOST_POINTS)
        self.graph = Graph()
        self.observed: Mapping[str, Sequence[int]] = {}
        """The places in the plan of the records that are counted under a name in the query's observed metrics."""

    # What happens.

    def begins(
        self,
        graph: Graph,
        sources: Sequence[SourceMeter],
        sinks: Sequence[SinkMeter],
        observed: Mapping[str, Sequence[int]],
        now: float,
    ) -> None:
        """The query is about to start, and reads and writes this; the counts of the same sources and sinks stay.

        `observed` has the places of sources by the names under which their records are counted.
        """
        self.graph, self.observed = graph, observed
        names = [source.name for source in sources]
        if names != self._names:
            self.sources, self.planned, self._names = list(sources), list(sources), names
        if [sink.name for sink in sinks] != [sink.name for sink in self.sinks]:
            self.sinks = list(sinks)
        self.enters(STARTING, now)

    def enters(self, phase: str, now: float, pause: str = "") -> None:
        """Change the phase; the time of the first entry stays."""
        if phase != self.phase:
            self.phase, self.since = phase, now
        self.pause = pause
        if phase != RUNNING:
            self.idle, self.asking, self.active_since = False, False, None
        if phase in (FAILED, STOPPED):
            self.blocked = ""

    def started(self) -> None:
        """The query has started."""
        self.starts[self._reason] += 1
        self._reason = FIRST

    def fault(self, now: float, *, final: bool) -> None:
        """A query of the pipeline has failed, this one or another: all start again, unless the failure is final."""
        self.enters(FAILED if final else WAITING, now, NEXT_START)
        self._reason = FIRST if final else FAULT
        # No progress comes for a batch that failed, and its sink has counted the failure.
        if self.id is not None:
            self._count_sinks(self.id, now)

    def waits(self, what: str, now: float, why: str = "") -> None:
        """The query makes no progress because of this; "" if nothing is known to be in its way."""
        self.reason = why
        if bool(what) != bool(self.blocked):
            self.blocked_since = now
        self.blocked = what
        self.idle = self.idle and not what

    def progress(self, progress: Mapping[str, Any], now: float) -> None:
        """Count a progress of Spark."""
        self.problem = self.next = ""
        self.enters(RUNNING, now)
        self.blocked, self.active_since = "", None
        self.id = id = str(progress["id"])
        at = _seconds(progress["timestamp"]) or now
        self._count_sources(progress["sources"], at)
        self._count_observed(id, progress.get("observedMetrics") or {})
        self.watermark = _watermark(progress) or self.watermark
        phases = {name: ms / 1000 for name, ms in progress["durationMs"].items() if name != WHOLE}
        if "addBatch" not in phases:
            self.idle = True
            self._rest(at)
            self._note(Point(now, None, 0, *self.lag(now), None, {}))
            return
        self.idle = False
        self._count_batch(progress, phases, at)
        self._count_states(progress["stateOperators"])
        p99 = self._count_sinks(id, now)
        self._note(Point(now, self.last_seconds, progress["numInputRows"], *self.lag(now), p99, phases))

    def looked(self, status: Mapping[str, Any], now: float) -> None:
        """Spark's status of the query, about once a second."""
        # Of a first batch there is no progress that has it.
        self.id = status.get("id", self.id)
        active, available = status["isTriggerActive"], status["isDataAvailable"]
        self.active_since = (self.active_since or now) if active else None
        searches = active and not available
        self.asking = searches and status["message"] != NO_DATA
        if self.in_real_time and self.phase == STARTING and available:
            self.enters(RUNNING, now)
        # Spark asks idle queries' sources at each trigger: to see that is no sign of data.
        if not searches:
            self.idle = self.phase == RUNNING and not available
            if self.idle:
                self._rest(now)
        elif now - (self.active_since or now) > ASKING:
            self.idle = False

    def _rest(self, now: float) -> None:
        for source in self.sources:
            source.lag.idle(now)

    # What is known.

    @property
    def in_real_time(self) -> bool:
        """Whether rows do not wait for batches, whose progress comes every few minutes."""
        return self.every == REAL_TIME

    @property
    def state(self) -> str:
        """One of STATES."""
        return WAITING if self.blocked and self.phase in (STARTING, RUNNING) else self.phase

    def waits_for(self, now: float) -> str:
        """What the query waits for, and for how long; "" if it does not wait."""
        if self.state != WAITING:
            return ""
        if not self.blocked:
            return waiting(self.pause, now - self.since)
        return waiting(self.blocked, now - self.blocked_since, self.reason)

    def lag(self, now: float) -> tuple[int | None, float | None]:
        """The records of all sources, and the largest lag in seconds; None where it is not known."""
        records = [source.lag.records for source in self.sources if source.lag.records is not None]
        seconds = [some for source in self.sources if (some := self.lag_seconds(source, now)) is not None]
        return sum(records) if records else None, max(seconds, default=None)

    def lag_seconds(self, source: SourceMeter, now: float) -> float | None:
        return source.lag.seconds(now, self.idle)

    def retention_left(self, source: SourceMeter, now: float) -> float | None:
        """Seconds until the source deletes what was not read; None if it keeps all, or that is not known."""
        lag = self.lag_seconds(source, now)
        if source.retention is None or lag is None or not source.lag.is_exact:
            return None
        return source.retention if source.lag.records == 0 else source.retention - lag

    def rate(self, now: float) -> float:
        """Rows a second, of late: at least over the time from one batch to the next."""
        seconds = max(RATE, self.interval, self.last_seconds or 0.0)
        return sum(point.rows for point in self.history if now - seconds < point.at <= now) / seconds

    def recent_seconds(self) -> float:
        """The seconds whose rows the percentiles of the delay are of: at least the time of two batches."""
        return max(RECENT, 2 * self.interval, 2 * (self.last_seconds or 0.0))

    def recent_delays(self, sink: SinkMeter, now: float) -> list[int]:
        """The buckets of the delays of a sink's rows, of late."""
        return sink.delays_since(now - self.recent_seconds())

    def unmeasured(self, sink: SinkMeter, now: float) -> str:
        """Why no delay of a sink is known; "" if it is."""
        if any(self.recent_delays(sink, now)):
            return ""
        if self.in_real_time:
            return "it is not measured in real-time mode"
        if not self.rows:
            return "no row was read yet"
        if not sink.counts.rows:
            return 'the sink has counted no row: Spark\'s own sinks and client="spark" count none'
        if not any(sink.counts.buckets):
            return NO_EVENT_TIME
        return f"no row was written in the last {span(self.recent_seconds())}"

    def _note(self, point: Point) -> None:
        self.history.append(point)
        while self.history[0].at < point.at - OLDEST:
            self.history.popleft()

    def note_wait(self, now: float) -> None:
        """Add a point to the history of a query that makes none itself."""
        if not self.history or now - self.history[-1].at >= 1:
            self._note(Point(now, None, 0, *self.lag(now), None, {}))

    def _count_batch(self, progress: Mapping[str, Any], phases: Mapping[str, float], at: float) -> None:
        seconds = progress["batchDuration"] / 1000
        self.batch, self.last_seconds, self.last_commit = progress["batchId"], seconds, at + seconds
        self.batches += 1
        self.rows += progress["numInputRows"]
        self.durations[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds
        for name, some in phases.items():
            self.phases[name] += some

    def _count_sources(self, sources: Sequence[Mapping[str, Any]], at: float) -> None:
        if len(sources) != len(self.sources):
            first: dict[str, SourceMeter] = {}
            self.planned = [first.setdefault(source.node, source) for source in self.planned]
            self.sources = list(first.values())
        if len(sources) != len(self.sources):
            self.sources = [SourceMeter(f"source {number}", "") for number in range(1, len(sources) + 1)]
            self.planned = []
        for source, progress in zip(self.sources, sources, strict=True):
            source.rows += progress["numInputRows"]
            source.retention = seconds_kept(progress["endOffset"]) or source.retention
            # A batch of real-time mode goes on reading for minutes after it has asked for the newest offset.
            if not self.in_real_time:
                source.lag.planned(at, progress["endOffset"], progress.get("latestOffset"))

    def _count_observed(self, id: str, observed: Mapping[str, Mapping[str, Any]]) -> None:
        """Count what the stages of the query have observed: bad records, lookups; sinks' counts go to `delays`."""
        delays.add_observed(id, observed)
        ages: dict[str, float] = {}
        for name, numbers in observed.items():
            if "wait_ms" in numbers:
                lookup = self.lookups.setdefault(name, LookupMeter())
                lookup.rows += numbers.get("rows") or 0
                lookup.hits += numbers.get("hits") or 0
                lookup.wait += (numbers["wait_ms"] or 0) / 1000
            if numbers.get("stale_ms") is not None:
                table = numbers.get("table", name)
                ages[table] = max(ages.get(table, 0.0), numbers["stale_ms"] / 1000)
        self.tables |= ages
        for name, reasons in delays.bad_records(observed).items():
            if (source := self._source_of(name)) is not None:
                source.bad.update(reasons)

    def _source_of(self, name: str) -> SourceMeter | None:
        """The source whose records are counted under this name; None if several are, or it is not known."""
        sources = [self.planned[place] for place in self.observed.get(name, ()) if place < len(self.planned)]
        of = sources or self.sources
        return of[0] if of and all(source is of[0] for source in of) else None

    def _count_sinks(self, id: str, now: float) -> float | None:
        """Take over the sinks' counts; the 99th percentile of the delays that came with them."""
        news = [0] * (len(BOUNDS) + 1)
        for place, counts in delays.counts_of(id).items():
            if place >= len(self.sinks):
                continue
            news = [sum(pair) for pair in zip(news, self.sinks[place].take(counts, now), strict=True)]
        return quantile(news, 0.99)

    def _count_states(self, operators: Sequence[Mapping[str, Any]]) -> None:
        for name, operator in zip(distinct(self._names_of_states(operators)), operators, strict=True):
            state = self.states.setdefault(name, StateMeter())
            state.rows, state.memory = operator["numRowsTotal"], operator["memoryUsedBytes"]
            state.disk = operator.get("customMetrics", {}).get("rocksdbSstFileSize", state.disk)
            state.commit_seconds += operator["commitTimeMs"] / 1000
            state.late_rows += operator["numRowsDroppedByWatermark"]

    def _names_of_states(self, operators: Sequence[Mapping[str, Any]]) -> list[str]:
        """The names of the states in the pipeline, of which Spark knows only its own ones."""
        state_names = [node.name for node in self.graph.nodes if node.kind == "state"]
        operator_names = [str(operator["operatorName"]) for operator in operators]
        if len(state_names) == len(operators) == 1:
            return state_names
        # Spark does not say which of several stages in Python is which.
        named = [name for name in state_names if name not in (*NATIVE.values(), AGGREGATE, JOIN)]
        if len(named) == operator_names.count(NATIVE[PROCESSOR]) == 1:
            return [named[0] if name == NATIVE[PROCESSOR] else name for name in operator_names]
        return operator_names


def shortened(seconds: float | None) -> float | None:
    """Seconds with the digits that a reader wants."""
    return None if seconds is None else round(seconds, 4)


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """The quantile of a histogram with the bounds of `delays`, as Prometheus interpolates it; None if it is empty.

    `buckets` are not cumulative. What lies in the last one counts as its lower bound.
    """
    rank, below = share * sum(buckets), 0
    for place, count in enumerate(buckets):
        if count and below + count >= rank:
            if place == len(BOUNDS):
                return BOUNDS[-1]
            low = BOUNDS[place - 1] if place else 0.0
            return low + (BOUNDS[place] - low) * (rank - below) / count
        below += count
    return None


def distinct(names: Sequence[str]) -> Iterator[str]:
    """The names; those that come again get a number."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} {seen[name]}"


def _seconds(iso: str) -> float | None:
    try:
        return datetime.fromisoformat(iso).timestamp()
    except ValueError:
        return None


def _watermark(progress: Mapping[str, Any]) -> float | None:
    """The watermark; None if the query has none, or none yet."""
    text = (progress.get("eventTime") or {}).get("watermark")
    return (_seconds(text) or None) if text else None
