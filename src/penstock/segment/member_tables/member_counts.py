"""Distinct members over time: the database has sketches of a minute to a day, which answer for any time range.

A batch's sketches are united with those in their rows. Repeating a union changes nothing, so a batch that is written
again counts nobody twice. Only one query may write the counts of a keyspace. An expression such as "a & b | c - d" says
whom to count; its value is computed from sketches.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from datasketches import compact_theta_sketch, theta_a_not_b, theta_intersection, theta_union

from penstock.border.public import public
from penstock.database.access import Access, AccessOptions
from penstock.database.cql_connection import connection
from penstock.database.requests import RequestLimits
from penstock.database.retrying import retrying
from penstock.durations import EPOCH
from penstock.errors import PenstockError
from penstock.segment.member_tables.member_schema import COUNTS_KEPT, aware, explained
from penstock.segment.rule_definitions import shown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LENGTHS = {
    "minute": timedelta(minutes=1),
    "ten": timedelta(minutes=10),
    "hour": timedelta(hours=1),
    "quarter": timedelta(hours=6),
    "day": timedelta(days=1),
}
LEVELS = tuple(reversed(LENGTHS))
SPANS = {"minute": "%Y-%m-%d", "ten": "%Y-%m-%d", "hour": "%Y-%m", "quarter": "%Y-%m", "day": "%Y"}
"""The time in a partition of each level: a day for minutes and ten minutes, a month for hours and quarters of a day, a
year for days."""
IN_FLIGHT = 64
PLACES = 10_000
"""Partitions that are looked through for the names of segments."""
SIGMAS = 2
"""Standard deviations of the bounds: 95 % confidence."""
SIZE = 12
"""The base-2 logarithm of the number of hashes in a sketch: with 4 096 the error is 3 % at 95 % confidence."""

Sketch: TypeAlias = compact_theta_sketch
Value: TypeAlias = Callable[[Mapping[str, Sketch]], Sketch]

_TOKEN = re.compile(r"\s*(?:([\w.]+(?:-[\w.]+)*)|([&|()-]))")


@dataclass(frozen=True)
class Counted:
    """Distinct members: the estimate and its bounds (95 % confidence), all three equal if the count is exact.

    `complete` is false if the time range is so old that some of its rows may have expired (`COUNTS_KEPT`).
    """

    members: float
    low: float
    high: float
    exact: bool
    complete: bool


@dataclass(frozen=True)
class Counts:
    """The counts of a keyspace with the tables of `segment.create_tables`."""

    keyspace: str
    access: Access

    def add(self, changes: DataFrame) -> None:
        """Add the membership events of one batch to the counts; adding a batch again changes nothing."""
        sketches: dict[tuple[str, str, datetime], Sketch] = {}
        for segment, at, members in minutes(changes).selectExpr("segment", "unix_seconds(at)", "members").collect():
            sketch, minute = compact_theta_sketch.deserialize(bytes(members)), EPOCH + timedelta(seconds=at)
            for level in LENGTHS:
                key = segment, level, begin(minute, level)
                sketches[key] = united([sketches[key], sketch]) if key in sketches else sketch
        self.unite(sketches)

    def unite(self, sketches: Mapping[tuple[str, str, datetime], Sketch]) -> None:
        """Unite sketches by (segment, level, begin) with the stored ones; waits for nodes that are down."""
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
        stored = _concurrently(session, [(read, key) for key in keys])
        writes = []
        for key, sketch, rows in zip(keys, sketches.values(), stored, strict=True):
            old = [compact_theta_sketch.deserialize(row[0]) for row in rows]
            writes.append((write, (*key, united([*old, sketch]).serialize(), COUNTS_KEPT[key[1]])))
        _concurrently(session, writes)

    def count(self, expression: str, since: datetime, until: datetime) -> Counted:
        """The distinct members of an expression such as "a & b | c" who entered or stayed longer in a time range.

        The range starts with `since` and ends before `until`; both are rounded down to whole minutes, and naive times
        are UTC. A day needs at most 23 rows per segment. Raises PenstockError if the expression is invalid or the range
        is empty.
        """
        covering = _covering(since, until)
        names, value = parse(expression)
        asked = [(name, part) for name in sorted(names) for part in covering]
        answers = self._read([(name, *part) for name, part in asked])
        sketches: dict[str, list[Sketch]] = {name: [] for name in names}
        for (name, _), rows in zip(asked, answers, strict=True):
            sketches[name] += [compact_theta_sketch.deserialize(row[0]) for row in rows]
        sketch = value({name: united(some) for name, some in sketches.items()})
        bounds = sketch.get_lower_bound(SIGMAS), sketch.get_upper_bound(SIGMAS)
        complete = all(_is_kept(level, first) for _, (level, _, first, _) in asked)
        return Counted(sketch.get_estimate(), *bounds, exact=not sketch.is_estimation_mode(), complete=complete)

    def uncounted(self, expression: str) -> dict[str, list[str]]:
        """The segments of an expression that have no counts at all, each with the names that are near."""
        names, _ = parse(expression)
        with explained(self.keyspace, self.access.hosts):
            places = f"SELECT DISTINCT segment, level, span FROM {self.keyspace}.counts LIMIT {PLACES}"
            known = {segment for segment, _, _ in connection(self.access).rows.execute(places)}
        return {name: get_close_matches(name, known, 3) for name in sorted(names - known)}

    def _read(self, asked: list[tuple[Any, ...]]) -> list[list[Any]]:
        """The rows for each (segment, level, span, from, before)."""
        with explained(self.keyspace, self.access.hosts):
            session = connection(self.access).rows
            read = session.prepare(
                f"SELECT members FROM {self.keyspace}.counts WHERE segment = ? AND level = ? AND span = ?"
                " AND at >= ? AND at < ?"
            )
            return _concurrently(session, [(read, values) for values in asked])


@public("segment.counts")
def counts(keyspace: str, *, hosts: str, **access: Unpack[AccessOptions]) -> Counts:
    """The counts in a keyspace; `hosts` is "host:port,..."; `access` are the arguments of `cql.sink` for users, TLS and
    so on."""
    return Counts(keyspace, Access.of(hosts, access, where="segment.counts", function=counts))


def begin(at: datetime, level: str) -> datetime:
    """The start of the minute, ten minutes, hour, quarter of a day or day that contains `at`."""
    return EPOCH + (at - EPOCH) // LENGTHS[level] * LENGTHS[level]


def parts(
    since: datetime, until: datetime, levels: Sequence[str] = LEVELS
) -> Iterator[tuple[str, str, datetime, datetime]]:
    """The time range as (level, span, from, before): the longest levels that fit, split where partitions end."""
    if since >= until:
        return
    level, finer = levels[0], levels[1:]
    length = LENGTHS[level]
    first, last = begin(since + length - timedelta(microseconds=1), level), begin(until, level)
    if first >= last:
        yield from parts(since, until, finer)
        return
    yield from parts(since, first, finer)
    at = first
    while at < last:
        span, stop = at.strftime(SPANS[level]), at
        while stop < last and stop.strftime(SPANS[level]) == span:
            stop += length
        yield level, span, at, stop
        at = stop
    yield from parts(last, until, finer)


def _covering(since: datetime, until: datetime) -> list[tuple[str, str, datetime, datetime]]:
    """The parts of a time range, rounded down to whole minutes."""
    try:
        first, end = begin(aware(since), "minute"), begin(aware(until), "minute")
        covering = list(parts(first, end))
    except OverflowError:
        raise PenstockError(
            f"the time from {since} to {until} exceeds the calendar",
            where="segment.count",
            next="use times between the years 2 and 9998",
        ) from None
    if not covering:
        raise PenstockError(
            f"no whole minute from {first} to {end}", where="segment.count", next="use a range of a minute or more"
        )
    return covering


def _is_kept(level: str, at: datetime) -> bool:
    """Whether rows of that time cannot have expired yet."""
    return datetime.now(UTC) - at < timedelta(seconds=COUNTS_KEPT[level])


def _concurrently(session: Any, statements: list[tuple[Any, tuple[Any, ...]]]) -> list[list[Any]]:
    """The rows of each statement; at most `IN_FLIGHT` run at a time."""
    answers: list[list[Any]] = []
    for first in range(0, len(statements), IN_FLIGHT):
        futures = [session.execute_async(*statement) for statement in statements[first : first + IN_FLIGHT]]
        answers += [list(future.result() or ()) for future in futures]
    return answers


# Distinct members by minute as theta sketches, built by Spark: exact up to 4 096 per minute, estimates above.
#
# Theta sketches (Dasgupta, Lang, Rhodes, Thaler 2016) can be united and intersected, and have known error bounds. Spark
# writes the bytes that the Apache DataSketches libraries read.


def minutes(changes: DataFrame) -> DataFrame:
    """The persons who entered or stayed longer in each segment and minute: segment, at (its start), members (a sketch).

    `changes` are membership events as `segment.match` returns them.
    """
    # Imported here, since queries of counts need no Spark.
    from pyspark.sql import functions as F

    minute = F.date_trunc("minute", "at").alias("at")
    active = changes.where("event IN ('enter', 'prolong')")
    return active.groupBy("segment", minute).agg(F.theta_sketch_agg("person", SIZE).alias("members"))


# Set expressions over segments, and their values as sketches: `&` and `-` (without) bind more tightly than `|`;
# parentheses group. Names are segment names.


def parse(text: str) -> tuple[set[str], Value]:
    """The names in an expression, and a function from their sketches to the expression's sketch."""
    postfix = _postfix(text)

    def value(sketches: Mapping[str, Sketch]) -> Sketch:
        stack: list[Sketch] = []
        for token in postfix:
            if token in JOINS:
                right = stack.pop()
                stack.append(JOINS[token](stack.pop(), right))
            else:
                stack.append(sketches[token])
        return stack[0]

    return {token for token in postfix if token not in JOINS}, value


def _postfix(text: str) -> list[str]:
    """The expression in postfix order, without parentheses: in a loop, since expressions may be long and deep."""
    output, waiting, name_next = list[str](), list[str](), True
    for token in _tokens(text):
        if name_next and token in ("&", "|", "-", ")"):
            raise _wrong(text, "a segment name is missing")
        if name_next != (token not in JOINS and token != ")"):
            raise _wrong(text, f"unexpected {token!r}")
        if token == "(":
            waiting.append(token)
        elif token == ")":
            while waiting and waiting[-1] != "(":
                output.append(waiting.pop())
            if not waiting:
                raise _wrong(text, "unexpected ')'")
            waiting.pop()
        elif token in JOINS:
            while waiting and waiting[-1] != "(" and (token == "|" or waiting[-1] != "|"):
                output.append(waiting.pop())
            waiting.append(token)
            name_next = True
        else:
            output.append(token)
            name_next = False
    if name_next:
        raise _wrong(text, "a segment name is missing")
    if "(" in waiting:
        raise _wrong(text, "a parenthesis is not closed")
    return [*output, *reversed(waiting)]


def _tokens(text: str) -> Iterator[str]:
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if not match:
            raise _wrong(text, f"unexpected character {text[at:].strip()[0]!r}")
        yield match[1] or match[2]
        at = match.end()


def united(sketches: Iterable[Sketch]) -> Sketch:
    """The union of the sketches."""
    union = theta_union(SIZE)
    for sketch in sketches:
        union.update(sketch)
    return union.get_result()


def _intersection(a: Sketch, b: Sketch) -> Sketch:
    both = theta_intersection()
    both.update(a)
    both.update(b)
    return both.get_result()


JOINS: dict[str, Callable[[Sketch, Sketch], Sketch]] = {
    "|": lambda a, b: united([a, b]),
    "&": _intersection,
    "-": lambda a, b: theta_a_not_b().compute(a, b),
}


def _wrong(text: str, what: str) -> PenstockError:
    return PenstockError(f"invalid segment expression: {what}", where=shown(text), next='write it as "a & b | c - d"')
