"""How many distinct members: sketches of times from a minute to a day in the database, and the answer for any time.

A batch's sketches are united with those that stand in their rows. A union of sets changes nothing when it is made
again, so a batch that is written again counts nobody twice. One query writes the counts of a keyspace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from datasketches import compact_theta_sketch

from penstock.database.access import Access
from penstock.database.cql_connection import connection
from penstock.database.requests import RequestLimits
from penstock.database.retrying import retrying
from penstock.errors import PenstockError
from penstock.segment.member_tables.member_schema import COUNTS_KEPT, explained
from penstock.segment.member_tables.set_expression import Sketch, parse, united

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


SIZE = 12
"""The logarithm of how many hashes a sketch keeps, as in `set_expression`, which unites them."""
LENGTHS = {
    "minute": timedelta(minutes=1),
    "ten": timedelta(minutes=10),
    "hour": timedelta(hours=1),
    "quarter": timedelta(hours=6),
    "day": timedelta(days=1),
}
SPANS = {"minute": "%Y-%m-%d", "ten": "%Y-%m-%d", "hour": "%Y-%m", "quarter": "%Y-%m", "day": "%Y"}
"""What a partition holds of a level: a day of minutes and of tens of them, a month of hours and of quarters of a day,
a year of days."""
IN_FLIGHT = 64
SIGMAS = 2
"""The bounds are those of two standard deviations: 95 % certain."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Counted:
    """Distinct members: the estimate and its bounds, which are all the same where the count is exact.

    Not `complete`: some of the time is so long ago that its finest rows may have expired (`tables.COUNTS_KEPT`).
    """

    members: float
    low: float
    high: float
    exact: bool
    complete: bool


@dataclass(frozen=True)
class Counts:
    """The counts of a keyspace that has the tables of `segments.tables`."""

    keyspace: str
    access: Access

    def add(self, changes: DataFrame) -> None:
        """Put the membership events of one batch into the counts."""
        # Spark takes seconds to load, and the questions need none.

        sketches: dict[tuple[str, str, datetime], Sketch] = {}
        for segment, at, members in minutes(changes).selectExpr("segment", "unix_seconds(at)", "members").collect():
            made, minute = compact_theta_sketch.deserialize(bytes(members)), EPOCH + timedelta(seconds=at)
            for level in LENGTHS:
                key = segment, level, begin(minute, level)
                sketches[key] = united([sketches[key], made]) if key in sketches else made
        self.unite(sketches)

    def unite(self, sketches: Mapping[tuple[str, str, datetime], Sketch]) -> None:
        """Unite sketches by (segment, level, begin) with those that are there; a node that is away is waited for."""
        with explained(self.keyspace, self.access.hosts):
            retrying(
                partial(self._unite, sketches),
                what="writing counts",
                where=f"{self.keyspace}.counts at {self.access.hosts}",
                patience=RequestLimits.patience,
            )

    def _unite(self, sketches: Mapping[tuple[str, str, datetime], Sketch]) -> None:
        session = connection(self.access).rows
        read = session.prepare(
            f"SELECT members FROM {self.keyspace}.counts WHERE segment = ? AND level = ? AND span = ? AND at = ?"
        )
        write = session.prepare(
            f"INSERT INTO {self.keyspace}.counts (segment, level, span, at, members) VALUES (?, ?, ?, ?, ?) USING TTL ?"
        )
        keys = [(segment, level, at.strftime(SPANS[level]), at) for segment, level, at in sketches]
        found = _concurrently(session, [(read, key) for key in keys])
        writes = []
        for key, made, rows in zip(keys, sketches.values(), found, strict=True):
            old = [compact_theta_sketch.deserialize(row[0]) for row in rows]
            writes.append((write, (*key, united([*old, made]).serialize(), COUNTS_KEPT[key[1]])))
        _concurrently(session, writes)

    def count(self, expression: str, since: datetime, until: datetime) -> Counted:
        """The distinct members of "a & b | c" who entered or stayed longer from `since` until before `until`.

        Both are taken to whole minutes, downwards. The longest parts that fit cover the time in few rows: 23 at most
        for a day.
        """
        covering = _covering(since, until)
        names, value = parse(expression)
        asked = [(name, part) for name in sorted(names) for part in covering]
        answers = self._read([(name, *part) for name, part in asked])
        found: dict[str, list[Sketch]] = {name: [] for name in names}
        for (name, _), rows in zip(asked, answers, strict=True):
            found[name] += [compact_theta_sketch.deserialize(row[0]) for row in rows]
        sketch = value({name: united(some) for name, some in found.items()})
        bounds = sketch.get_lower_bound(SIGMAS), sketch.get_upper_bound(SIGMAS)
        complete = all(_kept(level, first) for _, (level, _, first, _) in asked)
        return Counted(sketch.get_estimate(), *bounds, exact=not sketch.is_estimation_mode(), complete=complete)

    def _read(self, asked: list[tuple[Any, ...]]) -> list[list[Any]]:
        """The rows of each (segment, level, span, from, before)."""
        with explained(self.keyspace, self.access.hosts):
            session = connection(self.access).rows
            read = session.prepare(
                f"SELECT members FROM {self.keyspace}.counts WHERE segment = ? AND level = ? AND span = ?"
                " AND at >= ? AND at < ?"
            )
            return _concurrently(session, [(read, one) for one in asked])


def counts(keyspace: str, *, hosts: str, **access: Any) -> Counts:
    """The counts in a keyspace; `access` as in `cql.sink`."""
    return Counts(keyspace, Access.of(hosts, access, where="segment.counts"))


def begin(at: datetime, level: str) -> datetime:
    """The begin of the minute, ten minutes, hour or day of a time."""
    return EPOCH + (at - EPOCH) // LENGTHS[level] * LENGTHS[level]


def parts(since: datetime, until: datetime) -> Iterator[tuple[str, str, datetime, datetime]]:
    """The time as (level, span, from, before): the longest levels that fit, cut where partitions end."""
    yield from _cover(since, until, ["day", "quarter", "hour", "ten", "minute"])


def _covering(since: datetime, until: datetime) -> list[tuple[str, str, datetime, datetime]]:
    """The parts of a time that is taken to whole minutes."""
    try:
        first, end = begin(_aware(since), "minute"), begin(_aware(until), "minute")
        found = list(parts(first, end))
    except OverflowError:
        raise PenstockError(
            f"the time from {since} to {until} ends where the calendar does",
            where="segment.count",
            next="give times between the years 2 and 9998",
        ) from None
    if not found:
        raise PenstockError(f"no time between {first} and {end}", where="segment.count", next="give a minute or more")
    return found


def _cover(since: datetime, until: datetime, levels: list[str]) -> Iterator[tuple[str, str, datetime, datetime]]:
    if since >= until:
        return
    level, finer = levels[0], levels[1:]
    length = LENGTHS[level]
    first, last = begin(since + length - timedelta(microseconds=1), level), begin(until, level)
    if first >= last:
        yield from _cover(since, until, finer)
        return
    yield from _cover(since, first, finer)
    at = first
    while at < last:
        span, stop = at.strftime(SPANS[level]), at
        while stop < last and stop.strftime(SPANS[level]) == span:
            stop += length
        yield level, span, at, stop
        at = stop
    yield from _cover(last, until, finer)


def _kept(level: str, at: datetime) -> bool:
    """Whether rows of that time cannot have expired."""
    return datetime.now(UTC) - at < timedelta(seconds=COUNTS_KEPT[level])


def _concurrently(session: Any, statements: list[tuple[Any, tuple[Any, ...]]]) -> list[list[Any]]:
    """The rows of each statement, some of them asked for at a time."""
    answers: list[list[Any]] = []
    for first in range(0, len(statements), IN_FLIGHT):
        futures = [session.execute_async(*one) for one in statements[first : first + IN_FLIGHT]]
        answers += [list(future.result() or ()) for future in futures]
    return answers


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


# Distinct members by minute as theta sketches, made by Spark: exact up to 4 096 of a minute, estimates above.
#
# A theta sketch (Dasgupta, Lang, Rhodes, Thaler 2016) can be united and intersected, and tells its error. Spark
# writes the same bytes that the Apache DataSketches libraries read.


def minutes(changes: DataFrame) -> DataFrame:
    """The persons who entered or stayed longer in each segment and minute: segment, at (its begin), members (a sketch).

    `changes` are membership events as `segment.match` gives them.
    """
    # Here, since what asks for counts needs no Spark.
    from pyspark.sql import functions as F

    minute = F.date_trunc("minute", "at").alias("at")
    active = changes.where("event IN ('enter', 'prolong')")
    return active.groupBy("segment", minute).agg(F.theta_sketch_agg("person", SIZE).alias("members"))
