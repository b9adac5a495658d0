"""Plans micro-batches of a change log and of a snapshot: where to begin, where a batch ends, which task reads what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

from penstock.cdc.ad_hoc import Chunk
from penstock.cdc.batch_sizing import Probe
from penstock.cdc.cdc_options import CdcSettings
from penstock.cdc.cdc_tables import find_table, log_name
from penstock.cdc.generations import (
    FIRST_TOKEN,
    LAST_TOKEN,
    MICROSECOND,
    Generations,
    Position,
    Span,
    TokenRange,
    first_micros,
    now_micros,
    published,
)
from penstock.cdc.log_pages import IN_SPAN, pages_of_log, span_queries
from penstock.database.cql_connection import connection
from penstock.database.cql_types import CqlTable
from penstock.database.retrying import retrying as wait_out
from penstock.database.table_catalog import base_name, token_of_key
from penstock.errors import PenstockError, SchemaChanged

T = TypeVar("T")

FOREVER = 2**62

COUNT_FROM = timedelta(seconds=2)
"""A batch that covers at most this much time is planned without counting its rows."""


MOVE_EVERY = 10_000_000
"""Microseconds after which the offset of an idle source moves, so that a restart has little to read."""

EDGE = 60_000_000
"""Microseconds; a query does not begin with rows that expire sooner (or within a tenth of the ttl, if that is less),
because its first batch takes time."""


def describe(chosen: CdcSettings) -> CqlTable:
    """Describe the table to read.

    Raises PenstockError if its log cannot be read or does not have what the settings need.
    """

    def find() -> CqlTable:
        session = connection(chosen.access).rows
        table = find_table(session, chosen.table)
        require_readable(session, table)
        return table

    table = retrying(chosen, "describing the table", find)
    _check_log(chosen, table)
    return table


def require_readable(session: Any, table: CqlTable) -> None:
    """Raise the error that reading the log or the generations of its streams would raise."""
    session.execute(f'SELECT "cdc$time" FROM {log_name(table)} LIMIT 1')
    Generations(session, published(session, table)).starts()


def retrying(chosen: CdcSettings, what: str, call: Callable[[], T]) -> T:
    where = f"{chosen.table} at {chosen.access.hosts}"

    def attempt() -> T:
        connection(chosen.access)  # it connects again what has lost its connection
        return call()

    return wait_out(attempt, what=what, where=where, patience=chosen.patience)


def _ttl(table: CqlTable) -> int:
    """How long the log of a table holds its rows, in microseconds; 0 means for ever."""
    return int(table.option("ttl") or 0) * 1_000_000


def _check_log(chosen: CdcSettings, table: CqlTable) -> None:
    """Raise PenstockError if the log lacks the images, or if its rows expire within `confidence`."""
    if 0 < _ttl(table) <= chosen.confidence // MICROSECOND:
        raise PenstockError(
            f"rows would expire before they are read: the log holds them {table.option('ttl')} s, "
            f"and confidence is {chosen.confidence / timedelta(seconds=1):g} s",
            where=table.full_name,
            next=f"ALTER TABLE {table.full_name} WITH cdc = {{'enabled': true, 'ttl': 86400, ...}}, "
            "or read with a smaller confidence",
        )
    for image, option in ((chosen.images.before, "preimage"), (chosen.images.after, "postimage")):
        if image != "none" and not table.has_image(option):
            raise PenstockError(
                f"the change log has no {option}s",
                where=table.full_name,
                next=f"ALTER TABLE {table.full_name} WITH cdc = {{'enabled': true, '{option}': true, ...}}, "
                f"or read without {option}s",
            )


class Planner:
    """Plans the batches of one query; lives in the Python process that Spark keeps for it between batches."""

    def __init__(self, chosen: CdcSettings, table: CqlTable) -> None:
        self.settings, self.table = chosen, table
        session = connection(chosen.access).rows
        self.generations = Generations(session, published(session, table))
        self.schema_version: Any = None

    def confident(self) -> int:
        """The last microsecond that is complete in the log now."""
        return now_micros() - self.settings.confidence // MICROSECOND

    def held_from(self) -> int:
        """The oldest time whose rows the log still holds."""
        ttl = _ttl(self.table)
        return now_micros() - ttl if ttl else 0

    def earliest(self) -> int:
        """The oldest time whose rows the log holds long enough to read them."""
        ttl = _ttl(self.table)
        return self.held_from() + min(EDGE, ttl // 10)

    def first(self) -> Position:
        """Where a new query begins."""
        token = FIRST_TOKEN if self.settings.start == "snapshot" else None
        return replace(self.begin(self.settings.start_micros()), snapshot=token)

    def begin(self, chosen: int | None) -> Position:
        """The position before the changes from time `chosen` on, or before the earliest changes of the log."""
        starts = self.generations.starts()
        begin = self.earliest() if chosen is None or chosen < self.held_from() else chosen
        generation = covering(starts, begin)
        # Writes older than the first generation went to its streams.
        earliest = 0 if generation == starts[0] else first_micros(generation) + 1
        # `planned` is 0, long ago, so that the first batch comes at once even if the table has no changes.
        return Position(generation, max(begin, earliest) - 1, 0)

    def next(self, at: Position, target: int, most: int) -> Position:
        """Where the batch after `at` ends: within `target`, its generation, about `most` rows and `max_time`."""
        self.check_schema()
        generation, end = self.generation(at)
        until = min(target, end)
        if until <= at.time:
            return at if generation == at.generation else Position(generation, at.time, at.planned)
        return Position(generation, self.cut(generation, at.time, until, most), now_micros())

    def generation(self, at: Position) -> tuple[int, int]:
        """The generation to read next, and its last microsecond."""
        generation = at.generation
        following = self.generations.after(generation)
        while following is not None and at.time >= first_micros(following):
            generation, following = following, self.generations.after(following)
        return generation, FOREVER if following is None else first_micros(following)

    def cut(self, generation: int, after: int, until: int, most: int) -> int:
        """Where a batch of (after, until] ends: at `until` if the span is short, else after about `most` rows."""
        if until - after <= COUNT_FROM // MICROSECOND:
            return until
        span = Span(self.generations.streams(generation), after, until)
        return self.probe.last_time_within(span, self.generations.shares(generation), most)

    @cached_property
    def probe(self) -> Probe:
        return Probe(self.settings, self.table)

    def moves(self, at: Position, now: int) -> bool:
        """Whether the offset of an idle source must move now, before it looks as if rows had expired after it."""
        ttl = _ttl(self.table)
        left = (ttl - self.settings.confidence // MICROSECOND) // 2
        return now - at.planned >= (min(MOVE_EVERY, left) if ttl else MOVE_EVERY)

    def idle(self, at: Position, until: Position) -> bool:
        """Whether to skip the batch (at, until] because nothing was written in it.

        Returns False from time to time although nothing was written, so that the offset moves.
        """
        if until.generation != at.generation or self.moves(at, until.planned):
            return False
        span = Span(self.generations.streams(at.generation), at.time, until.time)
        text = f'SELECT "cdc$time" FROM {log_name(self.table)} WHERE {IN_SPAN} LIMIT 1'
        queries = span_queries(self.settings, span)
        return not any(page.rows for query in queries for page in pages_of_log(self.settings, text, query))

    def spans(self, begin: Position, until: Position) -> list[Span]:
        """The batch's streams as one span per task, each with streams that are adjacent in token order."""
        if begin.generation != until.generation and begin.time < first_micros(until.generation):
            raise PenstockError(
                f"a batch from {begin} to {until} would skip the rest of a generation",
                where=self.settings.name,
                next="start the query with its own checkpoint",
            )
        streams = self.generations.streams(until.generation)
        size = -(-len(streams) // self.tasks(until))
        groups = (streams[i : i + size] for i in range(0, len(streams), size))
        return [Span(group, begin.time, until.time, until.planned) for group in groups]

    def tasks(self, until: Position) -> int:
        """The greatest number of tasks of a batch: the number when it was planned."""
        return until.tasks or self.settings.partitions

    def check_schema(self) -> None:
        """Raise SchemaChanged if the table's columns or its log changed: values of new columns would be missing."""
        version = self.generations.session.execute("SELECT schema_version FROM system.local WHERE key = 'local'").one()
        if version == self.schema_version:
            return
        table = find_table(self.generations.session, self.settings.table)
        if table.columns != self.table.columns:
            raise SchemaChanged(
                f"the columns of the table changed: {_difference(self.table, table)}",
                where=table.full_name,
                next="restart the query: it continues with the same rows and the new columns",
            )
        if table.log != self.table.log:
            raise SchemaChanged(
                "the table or its change log was dropped and created again",
                where=table.full_name,
                next="restart the query: it reports what was not read",
            )
        _check_log(self.settings, table)
        self.table, self.schema_version = table, version


def covering(starts: list[int], micros: int) -> int:
    """The generation that a write at `micros` went to; for earlier writes the first generation."""
    return max((start for start in starts if start * 1000 <= micros), default=starts[0])


def _difference(old: CqlTable, new: CqlTable) -> str:
    before, after = ({c.name: str(c.type) for c in table.columns} for table in (old, new))
    words = [f"{name} {kind} added" for name, kind in after.items() if name not in before]
    words += [f"{name} dropped" for name in before if name not in after]
    words += [f"{name} is now {after[name]}" for name in before if name in after and before[name] != after[name]]
    return ", ".join(words) or "a user type has other fields"


# Plans a snapshot: the rows that a table already holds, read before its changes, some token ranges per batch.
#
# After all rows, changes are read from a point L before the first row was read (`confidence` before the first plan). So
# every change that a row does not show comes after the row. Changes since L that a row does show would come a second
# time, after the row: the task that reads the rows of a range therefore reads the range's log since L afterwards, and
# leaves values that these changes carry to the changes (`partition_read`). This is the watermark of DBLog (Andreakis
# and Papapanagiotou, 2020), with one low watermark for all chunks, because a log can be read again from any point.

TOKENS_SAMPLED = 1000
"""Rows whose tokens are used to estimate how far `max_rows` rows reach."""


class Snapshot:
    """Plans the batches of a snapshot without state: an offset's `snapshot` is the token up to which rows are read."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        key = token_of_key(planner.table)
        self.sample = f"SELECT {key} FROM {base_name(planner.table)} WHERE {key} > %s LIMIT %s"

    def next(self, at: Position, most: int) -> Position:
        """Where the batch after `at` ends: after about `most` rows, or at the end of the snapshot."""
        assert at.snapshot is not None
        self.planner.check_schema()
        count = min(TOKENS_SAMPLED, most)
        rows = list(self.planner.generations.session.execute(self.sample, (at.snapshot, count)))
        until: int | None = None
        if len(rows) == count:
            last = max(token for (token,) in rows)
            reach = at.snapshot + (last - at.snapshot) * most // count
            until = reach if reach < LAST_TOKEN else None
        return replace(at, snapshot=until, planned=now_micros())

    def ranges(self, begin: Position, until: Position) -> list[TokenRange]:
        """The token ranges of a batch's tasks."""
        first = FIRST_TOKEN if begin.snapshot is None else begin.snapshot
        end = LAST_TOKEN if until.snapshot is None else until.snapshot
        # The end's time: the start of the first batch is in no checkpoint, and is later when that batch runs again.
        return self._ranges(first, end, until.time, until)

    def chunk(self, of: Chunk, at: Position) -> list[TokenRange]:
        """The token ranges of the tasks that read a chunk of an ad-hoc snapshot, while the log was read up to `at`.

        With low latency, changes up to `at.newest` were sent already, except for late ones, which may still come.
        """
        parts = self._ranges(of.after, of.until, at.newest, replace(at, planned=of.planned))
        return [replace(part, ts=at.time, filter=of.filter) for part in parts]

    def _ranges(self, first: int, end: int, low: int, until: Position) -> list[TokenRange]:
        size = -(-(end - first) // self.planner.tasks(until))
        ranges = []
        for after in range(first, end, size):
            last = min(after + size, end)
            streams = self.planner.generations.streams_within(low, after, last)
            ranges.append(TokenRange(after, last, streams, low, until.planned))
        return ranges
