"""Proves that two tables are equal, or says in which rows they differ.

Both tables are read once, by ranges of their tokens, in Spark's tasks; only digests of buckets leave the tasks
(`row_digests`). The buckets that differ are read again, row by row (`row_differences`), until each difference is either
proven or gone, so writes may go on meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import islice
from typing import Literal, TypeAlias

import numpy as np
from pyspark.sql import SparkSession

from penstock.border.public import public
from penstock.cdc.generations import now_micros
from penstock.durations import Duration, duration, duration_text
from penstock.errors import PenstockError
from penstock.native import Array
from penstock.replicate.applied_changes import Progress
from penstock.replicate.comparison_tasks import in_tasks, number_of_ranges
from penstock.replicate.hidden_comparison import HiddenComparison, HiddenReport, hidden_scans
from penstock.replicate.reconciliation import left_of, reads_alike
from penstock.replicate.repair import repair as repair_rows
from penstock.replicate.row_differences import Difference, Key, Pair, described, differing, proven
from penstock.replicate.row_digests import BUCKETS, COUNT, WIDTH, Compared, bounds, compare, digests
from penstock.replicate.table_scan import Scans, Side, TableScan, scans
from penstock.replicate.take_source import take_source as take_rows

log = logging.getLogger(__name__)

WHERE = "replicate.verify"
Level: TypeAlias = Literal[1, 2, 3]
Result: TypeAlias = Literal["equal", "different", "undecided"]
LEFT = (
    "write in the source again what is left, or repair with take_source (--take-source), which gives it later write "
    "times in the target"
)
LEFT_AFTER_ALL = "write in the source again what is left, or TRUNCATE the target and repair it"
TAKEN = (
    "the target has the source's values with later write times, which are differences at level 2 until the source "
    "writes them again, or the target is truncated and repaired"
)
"""What helps against differences that a repair has left."""
ROWS_TOGETHER = 20_000
"""Rows of a side that a task holds to compare them one by one."""
MOST_ROWS = 100_000
"""Rows that differ and are compared again; of more, only the number is known."""
LEAST_ROWS = 100
"""The fewest of them for each part of the table."""
PARTS_TOGETHER = MOST_ROWS // LEAST_ROWS
"""Parts of the table that are compared in one job of Spark."""
Buckets: TypeAlias = tuple[int, int]
"""The first bucket of some, and the one after the last."""


@dataclass(frozen=True)
class Report:
    """The result of a comparison.

    `rows` are the rows of the source and of the target. `different` rows differ, of which `described` has the first
    ones; `undecided` rows differed in every comparison, but were written in between. `repaired` rows were written again
    from the source, with its times; with `take_source`, `taken` ones have its values with later write times, in which
    they differ still. `unlike` says how the columns of the tables differ, and `unseen` what this comparison cannot see.
    `hidden` is what level 3 found besides.
    """

    source: Side
    target: Side
    level: int
    rows: tuple[int, int]
    different: int
    undecided: int
    repaired: int
    described: tuple[Difference, ...]
    unlike: tuple[str, ...]
    unseen: tuple[str, ...]
    read_again: int
    seconds: float
    hidden: HiddenReport | None = None
    take_source: bool = False
    taken: int = 0

    @property
    def result(self) -> Result:
        hidden = self.hidden or HiddenReport(0, 0, 0, ())
        if self.different or self.unlike or hidden.different:
            return "different"
        return "undecided" if self.undecided or hidden.undecided else "equal"

    @property
    def next(self) -> str:
        """What helps against the differences of rows that a repair has left; "" without any."""
        if not any(row.left for row in self.described):
            return ""
        if not self.taken:
            return LEFT_AFTER_ALL if self.take_source else LEFT
        return TAKEN if self.taken == self.different else f"{TAKEN}; {LEFT_AFTER_ALL}"


@public("replicate.verify")
def verify(
    spark: SparkSession,
    source: Side,
    target: Side,
    *,
    level: Level = 2,
    settle: Duration | Progress = timedelta(minutes=1),
    tries: int = 5,
    most: int = 1000,
    repair: bool = False,
    take_source: bool = False,
    page_size: int = 5000,
    patience: Duration = timedelta(minutes=5),
) -> Report:
    """Compare two tables, while changes of the source may still be written and applied to the target.

    `level` 1 compares values; 2 also write times, and times to live within 2 seconds; 3 also what reads do not show:
    markers of rows, deletions that nodes still have, and the times of all elements of collections.

    A row that differs is compared again when all changes of before have arrived, and a difference counts if it is the
    same. `settle` says when that is: `replicate.progress(...)` asks the replication, a duration is how long a change
    may take from the source to the target; give 0 if nothing is written or on its way. Rows that were written in
    between are compared up to `tries` times, then they are undecided. `most` differences are described. With `repair`
    the rows that differ are written again from the source, with their times; the report has those that differ still,
    and why: the target's write is newer, or CQL keeps it of two with the same time. With `take_source` these get the
    source's values, too: with later write times, in which they differ from then on.

    Raises PenstockError if a table does not exist or the keys differ, if a cluster does not show what level 3 compares,
    or if the replication does not get on for `patience`; DatabaseUnavailable if no node answers within `patience`.
    """
    arrival = settle if isinstance(settle, Progress) else duration(settle, name="settle")
    longest = duration(patience, name="patience")
    _check(level, tries, repair, take_source)
    began = time.monotonic()
    both = scans(source, target, level, patience=longest, page_size=page_size)
    sure, hidden = arrival == timedelta(0), None
    if level > 2:
        found_hidden, unseen = hidden_scans(both, patience=longest, page_size=page_size)
        both, hidden = both._replace(unseen=unseen), HiddenComparison(spark, found_hidden, sure=sure)
    digests = _digested(spark, both)
    compared = compare(*digests)
    log.info("%s and %s: %d of %d buckets differ", source, target, len(compared.different), BUCKETS)
    rows = np.maximum(digests[0][:, COUNT], digests[1][:, COUNT]).astype(np.int64)
    comparison = _Comparison(spark, both, hidden, sure=sure)
    parts = comparison.compare(_parts(compared.different, rows))
    if hidden:
        hidden.compare()
    for _ in range(tries - 1):
        if not parts and not (hidden and hidden.open):
            break
        _await(arrival, len(comparison.open), longest)
        parts = comparison.compare(parts)
        if hidden:
            hidden.again()
    if repair:
        comparison.repair(take_source=take_source)
    return comparison.report(source, target, level, compared, most, time.monotonic() - began)


def _await(arrival: timedelta | Progress, rows: int, patience: timedelta) -> None:
    """Wait until all changes of before have arrived."""
    if isinstance(arrival, Progress):
        log.info("%d rows differ; they are compared again when the replication has applied the changes of now", rows)
        arrival.wait(now_micros(), patience)
        return
    log.info("%d rows differ; they are compared again in %s", rows, duration_text(arrival))
    time.sleep(arrival / timedelta(seconds=1))


def _check(level: int, tries: int, repair: bool, take_source: bool) -> None:
    if take_source and not repair:
        raise PenstockError(
            "take_source says what a repair does",
            where=WHERE,
            next="give repair=True (--repair) with it, or leave it out",
        )
    if repair and level < 2:
        raise PenstockError(
            "a repair needs the times of writes", where=WHERE, next="leave level out: level 2 compares them"
        )
    if level not in (1, 2, 3):
        raise PenstockError(
            f"level cannot be {level!r}",
            where=WHERE,
            next="use 1 (values), 2 (and their times) or 3 (and what reads do not show)",
        )
    if tries < 2:
        raise PenstockError(
            f"tries cannot be {tries}", where=WHERE, next="use 2 or more: a difference needs two comparisons to be sure"
        )


class _Comparison:
    """The rows that differ, over several comparisons; `sure` says that the first one counts already."""

    def __init__(self, spark: SparkSession, both: Scans, hidden: HiddenComparison | None, *, sure: bool) -> None:
        self.spark, self.both, self.hidden, self.sure = spark, both, hidden, sure
        self.different: dict[Key, Pair] = {}
        self.parts: dict[Key, Buckets] = {}
        self.repaired = 0
        self.take_source = False
        self.taken: set[Key] = set()
        self.after_repair = False
        self.open: dict[Key, Pair] = {}
        self.more = 0

    def compare(self, parts: Sequence[Buckets]) -> list[Buckets]:
        """Compare the rows of some buckets; the buckets to compare again."""
        known, self.open, self.more, again = self.open, {}, 0, []
        if not parts:
            return []
        for part, pairs, more in _differing(self.spark, self.both, parts):
            self.more += more
            undecided = more
            for key, pair in pairs:
                if key in self.different:
                    continue
                if self.sure or (key in known and proven(known[key], pair, self.both.source.level)):
                    self.different[key], self.parts[key] = pair, part
                else:
                    self.open[key] = pair
                    undecided += 1
            if undecided:
                again.append(part)
        return [] if self.sure else again

    def repair(self, *, take_source: bool) -> None:
        """Write the rows that differ again, and compare them once more; the same for what reads do not show."""
        tried: set[Key] = set()
        todo, began = self.different, now_micros()
        self.after_repair, self.take_source = True, take_source
        if not todo:
            self._repair_hidden(todo)
        while todo:
            by_part = self._by_part(todo)
            self._write(by_part)
            self._repair_hidden(todo)
            tried |= todo.keys()
            left: dict[Key, Pair] = {}
            self.more = 0 if self.sure else self.more
            for part, pairs, more in _differing(self.spark, self.both, list(by_part)):
                left |= pairs
                self.parts |= {key: part for key, _ in pairs}
                self.more += more if self.sure else 0
            others = {key: pair for key, pair in self.different.items() if self.parts[key] not in by_part}
            self.different = others | {key: pair for key, pair in left.items() if key in tried}
            # Of rows that were too many to keep, the next ones. While writes go on, they may be on their way.
            todo = {key: pair for key, pair in left.items() if key not in tried} if self.sure else {}
        if take_source and self.different:
            self._take_source(began)
        self.repaired = len(tried) - len(self.different)

    def _take_source(self, began: int) -> None:
        """Write the source's values over those that the target still has, and compare these rows once more."""
        still_different, by_part = self.different, self._by_part(self.different)
        self._write(by_part, take_since=began)
        if self.hidden:
            self.hidden.take_markers(self._partitions(still_different), began)
        self.different = {}
        self.more = 0 if self.sure else self.more
        for _, pairs, more in _differing(self.spark, self.both, list(by_part)):
            self.different |= {key: pair for key, pair in pairs if key in still_different}
            self.more += more if self.sure else 0
        self.taken = {key for key, pair in self.different.items() if reads_alike(self.both.source, pair)}

    def _by_part(self, rows: Mapping[Key, Pair]) -> dict[Buckets, dict[Key, Pair]]:
        by_part: dict[Buckets, dict[Key, Pair]] = {}
        for key, pair in rows.items():
            by_part.setdefault(self.parts[key], {})[key] = pair
        return by_part

    def _repair_hidden(self, rows: Iterable[Key]) -> None:
        """Write what reads do not show, also of the partitions of these rows."""
        if self.hidden:
            self.hidden.repair(self._partitions(rows))

    def _partitions(self, rows: Iterable[Key]) -> Iterator[tuple[bytes, ...]]:
        count = len(self.both.source.table.partition_key)
        return (tuple(cell or b"" for cell in key[:count]) for key in rows)

    def _write(self, by_part: dict[Buckets, dict[Key, Pair]], take_since: int | None = None) -> None:
        """Write rows with their own times, or with later ones that win over what the target had at `take_since`."""
        source, target = self.both[:2]
        # Level 3 knows the markers of rows, and writes them itself.
        markers = self.hidden is None

        def work(items: list[tuple[Buckets, dict[Key, Pair]]]) -> Iterator[None]:
            for part, pairs in items:
                if take_since is None:
                    repair_rows(source, target, bounds(*part), pairs, markers=markers)
                else:
                    take_rows(source, target, bounds(*part), pairs, take_since, markers=markers)
                yield

        for _ in in_tasks(self.spark, work, list(by_part.items())):
            pass

    def report(self, source: Side, target: Side, level: int, compared: Compared, most: int, seconds: float) -> Report:
        now = int(time.time())
        return Report(
            source=source,
            target=target,
            level=level,
            rows=compared.rows,
            different=len(self.different) + (self.more if self.sure else 0),
            undecided=len(self.open) + (0 if self.sure else self.more),
            repaired=self.repaired,
            described=tuple(self._described(key, pair, now) for key, pair in islice(self.different.items(), most)),
            unlike=self.both.unlike,
            unseen=self.both.unseen,
            read_again=len(compared.different),
            seconds=seconds,
            hidden=self.hidden.report(most) if self.hidden else None,
            take_source=self.take_source,
            taken=len(self.taken),
        )

    def _described(self, key: Key, pair: Pair, now: int) -> Difference:
        difference = described(self.both.source, key, pair, now)
        return replace(difference, left=left_of(self.both.source, pair)) if self.after_repair else difference


def _parts(different: Sequence[int], rows: Array) -> list[Buckets]:
    """Put neighbours among the buckets together, as long as they have few rows."""
    parts: list[Buckets] = []
    held = 0
    for bucket in different:
        if parts and parts[-1][1] == bucket and held + rows[bucket] <= ROWS_TOGETHER:
            parts[-1] = (parts[-1][0], bucket + 1)
            held += rows[bucket]
        else:
            parts.append((bucket, bucket + 1))
            held = int(rows[bucket])
    return parts


# In Spark's tasks.


def _digested(spark: SparkSession, both: Scans) -> tuple[Array, Array]:
    """The buckets of both tables."""
    count = number_of_ranges(spark)
    edges = [BUCKETS * number // count for number in range(count + 1)]
    ranges = [(side, *edges[number : number + 2]) for number in range(count) for side in (0, 1)]
    scanned = both.source.compared, both.target.compared

    def work(items: list[tuple[int, int, int]]) -> Iterator[tuple[int, int, Array]]:
        for side, first, end in items:
            yield side, first, _digest(scanned[side], first, end)

    digests = np.zeros((BUCKETS, WIDTH), np.uint64), np.zeros((BUCKETS, WIDTH), np.uint64)
    for side, first, part in in_tasks(spark, work, ranges):
        digests[side][first : first + len(part)] = part
    return digests


def _digest(scan: TableScan, first: int, end: int) -> Array:
    buckets = np.zeros((BUCKETS, WIDTH), np.uint64)
    for page in scan.pages(*bounds(first, end)):
        if page.rows and digests(*scan.cells(page), scan.kinds, page.asked, buckets) >= 0:
            raise PenstockError(
                "a page of rows cannot be read: a cell is not inside it, or a token has no 8 bytes",
                where=str(scan.side),
                next="check the connection to the database, and start again",
            )
    return buckets[first:end]


def _differing(
    spark: SparkSession, both: Scans, parts: Sequence[Buckets]
) -> Iterator[tuple[Buckets, list[tuple[Key, Pair]], int]]:
    """The rows of some buckets that differ, and the number of those beyond `MOST_ROWS`."""
    source, target = both[:2]
    most = max(MOST_ROWS // len(parts), LEAST_ROWS)

    def work(items: list[Buckets]) -> Iterator[tuple[Buckets, list[tuple[Key, Pair]], int]]:
        for part in items:
            rows: list[tuple[Key, Pair]] = []
            more = 0
            for entry in differing(source, target, *bounds(*part)):
                if len(rows) < most:
                    rows.append(entry)
                else:
                    more += 1
            yield part, rows, more

    # The driver holds what a job found, which is at most MOST_ROWS.
    for first in range(0, len(parts), PARTS_TOGETHER):
        yield from in_tasks(spark, work, parts[first : first + PARTS_TOGETHER])
