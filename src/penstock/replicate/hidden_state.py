"""What a partition has that reads do not show: markers of rows, deletions, and the times of elements of collections.

The sources of a partition (`fragment_reader`) are merged, and everything that depends on when a node has compacted its
sstables is taken away, so that two partitions with the same writes have the same facts:

1. Of the same thing written twice, the newer write stays; at the same time a deletion.
2. What a deletion covers is left out, also another deletion: of the partition, of a range, of a row, of a collection.
3. Deleted ranges become the steps of one line: at each row the newest of those that cover it. Neighbours with the same
   time are one range, and a range of one row is the deletion of this row.
4. Deletions from before `Shape.since` are left out, after they have covered what is older: a node forgets deletions
   when `gc_grace_seconds` are over, each node at another time.
5. A value or a marker that has expired is a deletion at its time.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from penstock.database.cql_types import Column
from penstock.errors import PenstockError
from penstock.replicate.clustering_order import position
from penstock.replicate.fragment_reader import CLUSTERED, START, STATIC, Fragment

NEVER = -(2**63)
"""The time of a deletion that is not there."""
PARTITION, RANGE, ROW, MARKER, CELL, COLLECTION, ELEMENT = range(7)
Place: TypeAlias = tuple[tuple[bytes, ...], int]
"""The first values of the clustering key, and whether the place is before (-1), at (0) or after (1) their rows."""
LAST: Place = ((), 1)


class Path(NamedTuple):
    """What a fact is about. `row` has the clustering key, None if it is static; of a range, it is the start.

    `column` and `element` are empty where there is none.
    """

    kind: int
    row: tuple[bytes, ...] | None = ()
    weight: int = 0
    end: Place = LAST
    column: str = ""
    element: str = ""


class WriteFacts(NamedTuple):
    """When it was written or deleted (microseconds), whether it is a deletion, and when it expires or has expired
    (seconds since 1970)."""

    time: int
    dead: bool = False
    expires: int | None = None


Fact: TypeAlias = tuple[Path, WriteFacts]


@dataclass(frozen=True)
class WantedFacts:
    """What facts are wanted: of these columns, and deletions since a time in microseconds.

    `elements` are the columns whose elements count; of those in `timed` only the ones that were deleted or expire,
    since a read shows the times of the others.
    """

    clustering: tuple[Column, ...]
    columns: frozenset[str]
    elements: frozenset[str]
    timed: frozenset[str]
    since: int


def facts(sources: Sequence[Iterator[Fragment]], shape: WantedFacts, now: int) -> Iterator[Fact]:
    """The facts of a partition in the order of its rows; `now` is in seconds since 1970."""
    return _Partition(shape, now, len(sources)).facts(_merged(sources, shape.clustering))


def _merged(
    sources: Sequence[Iterator[Fragment]], clustering: Sequence[Column]
) -> Iterator[list[tuple[int, Fragment]]]:
    """The fragments of all sources, with the numbers of their sources; those of one place together."""
    if len(sources) == 1:
        for fragment in sources[0]:
            yield [(0, fragment)]
        return

    def placed(number: int, source: Iterator[Fragment]) -> Iterator[tuple[tuple[Any, ...], int, Fragment]]:
        for fragment in source:
            at = position(clustering, fragment.clustering, fragment.weight) if fragment.region == CLUSTERED else ()
            yield (fragment.region, at), number, fragment

    streams = [placed(number, source) for number, source in enumerate(sources)]
    for _, group in groupby(heapq.merge(*streams, key=lambda entry: entry[:2]), lambda entry: entry[0]):
        yield [(number, fragment) for _, number, fragment in group]


class _Partition:
    """The deletions that are open while the fragments of a partition pass."""

    def __init__(self, shape: WantedFacts, now: int, sources: int) -> None:
        self.shape, self.now = shape, now
        self.deleted = NEVER
        self.open = [NEVER] * sources
        self.ranges = _Ranges()

    def facts(self, places: Iterable[list[tuple[int, Fragment]]]) -> Iterator[Fact]:
        for some in places:
            first = some[0][1]
            if first.region == START:
                self.deleted = max(_deleted(json.loads(fragment.metadata)["tombstone"]) for _, fragment in some)
                if self.deleted >= self.shape.since:
                    yield Path(PARTITION), WriteFacts(self.deleted, dead=True)
            elif first.region == STATIC:
                columns = [json.loads(fragment.metadata) for _, fragment in some]
                yield from self._columns(columns, None, self.deleted)
            elif first.region == CLUSTERED and first.weight:
                yield from self._changed(some)
            elif first.region == CLUSTERED:
                yield from self._row(first.clustering, [json.loads(fragment.metadata) for _, fragment in some])
        yield from self.ranges.change(NEVER, LAST)

    def _changed(self, some: list[tuple[int, Fragment]]) -> Iterator[Fact]:
        for number, fragment in some:
            self.open[number] = _deleted(json.loads(fragment.metadata)["tombstone"])
        seen = max(self.open)
        visible = seen if seen > self.deleted and seen >= self.shape.since else NEVER
        first = some[0][1]
        last = len(first.clustering) == len(self.shape.clustering)
        yield from self.ranges.change(visible, (first.clustering, first.weight), of_row=last)

    def _row(self, row: tuple[bytes, ...], versions: list[dict[str, Any]]) -> Iterator[Fact]:
        covered = max(self.deleted, *self.open)
        deleted = max(_deleted(version.get("tombstone")) for version in versions)
        if deleted > covered:
            if deleted >= self.shape.since:
                self.ranges.row = row
                yield Path(ROW, row), WriteFacts(deleted, dead=True)
            covered = deleted
        markers = [self._written(version["marker"]) for version in versions if "marker" in version]
        if markers and (marker := _newest(markers)).time > covered and self._counts(marker):
            yield Path(MARKER, row), marker
        yield from self._columns([version["columns"] for version in versions], row, covered)

    def _columns(self, versions: list[dict[str, Any]], row: tuple[bytes, ...] | None, covered: int) -> Iterator[Fact]:
        # Most rows have one version.
        names = versions[0] if len(versions) == 1 else dict.fromkeys(name for version in versions for name in version)
        for name in names:
            if name in self.shape.columns:
                cells = [version[name] for version in versions if name in version]
                if "cells" in cells[0]:
                    yield from self._collection(name, cells, row, covered)
                else:
                    yield from self._cell(name, cells, row, covered)

    def _cell(
        self, name: str, versions: list[dict[str, Any]], row: tuple[bytes, ...] | None, covered: int
    ) -> Iterator[Fact]:
        cell = _newest(map(self._written, versions))
        # A value that does not expire is compared by a read.
        if cell.time > covered and (cell.dead or cell.expires is not None) and self._counts(cell):
            yield Path(CELL, row, column=name), cell

    def _collection(
        self, name: str, versions: list[dict[str, Any]], row: tuple[bytes, ...] | None, covered: int
    ) -> Iterator[Fact]:
        deleted = max(_deleted(version.get("tombstone")) for version in versions)
        if deleted > covered:
            if deleted >= self.shape.since:
                yield Path(COLLECTION, row, column=name), WriteFacts(deleted, dead=True)
            covered = deleted
        if name not in self.shape.elements:
            return
        newest: dict[str, WriteFacts] = {}
        for version in versions:
            for cell in version["cells"]:
                written, key = self._written(cell["value"]), cell["key"]
                newest[key] = _newest((written, newest.get(key, written)))
        for key, written in newest.items():
            hidden = written.dead or written.expires is not None or name not in self.shape.timed
            if hidden and written.time > covered and self._counts(written):
                yield Path(ELEMENT, row, column=name, element=key), written

    def _counts(self, written: WriteFacts) -> bool:
        return not written.dead or written.time >= self.shape.since

    def _written(self, cell: Mapping[str, Any]) -> WriteFacts:
        expires = _second(cell["expiry"]) if "expiry" in cell else None
        dead = not cell.get("is_live", True) or (expires is not None and expires <= self.now)
        return WriteFacts(cell["timestamp"], dead, expires)


class _Ranges:
    """The line of deleted ranges."""

    def __init__(self) -> None:
        self.time, self.start = NEVER, LAST
        self.before: tuple[int, Place] | None = None
        """The range that ended where this one begins, if this one may be of one row."""
        self.row: tuple[bytes, ...] | None = None
        """The last row that was deleted at a later time than its range."""

    def change(self, time: int, at: Place, *, of_row: bool = False) -> Iterator[Fact]:
        """From a place on, rows are deleted at another time; `of_row` says that the place is beside one row."""
        if time == self.time:
            return
        before, self.before = self.before, None
        row, weight = at
        if self.time != NEVER and of_row and weight == 1 and self.start == (row, -1):
            if self.row != row:
                yield Path(ROW, row), WriteFacts(self.time, dead=True)
            if before and before[0] == time:
                # It goes on behind the row.
                self.time, self.start = before
                return
            if before:
                yield _range(*before, self.start)
        else:
            if before:
                yield _range(*before, self.start)
            if self.time != NEVER and time != NEVER and of_row and weight == -1:
                # The next one may be of one row.
                self.before = self.time, self.start
            elif self.time != NEVER:
                yield _range(self.time, self.start, at)
        self.time, self.start = time, at


def _range(time: int, start: Place, end: Place) -> Fact:
    return Path(RANGE, start[0], start[1], end), WriteFacts(time, dead=True)


def _newest(versions: Iterable[WriteFacts]) -> WriteFacts:
    return max(versions, key=lambda written: (written.time, written.dead, written.expires or 0))


def _deleted(tombstone: Mapping[str, Any] | None) -> int:
    return tombstone.get("timestamp", NEVER) if tombstone else NEVER


@lru_cache(maxsize=4096)
def _second(text: str) -> int:
    """The second of "2026-01-02 03:04:05z"."""
    try:
        return int(datetime.strptime(text, "%Y-%m-%d %H:%M:%Sz").replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise PenstockError(
            f"a node gives {text!r} as the time of an expiry", next="compare with level 2, and report it"
        ) from None
