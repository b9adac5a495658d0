"""What a partition must contain after each write, and the event that the write must become.

Values have the form that they have in an event (a set as a sorted list, a map as sorted entries, a decimal as a
string), so a row's image is the model itself. An image never changes once created: events share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock_demo.shop import Table

Image = dict[str, Any]
Clustering = tuple[Any, ...]


class Event(NamedTuple):
    """An expected event; `range` is set for the delete of a clustering range or of a partition of rows."""

    key: Image
    op: str
    before: Image | None
    after: Image | None
    range: Image | None = None


class Row(NamedTuple):
    """A row: its image, and whether an INSERT made it (then it remains when its last column is set to null)."""

    image: Image
    inserted: bool


@dataclass(frozen=True)
class Bound:
    """One side of a range delete: values for a prefix of the clustering columns; an empty prefix is an open side."""

    prefix: Clustering
    inclusive: bool = True


class Partition:
    """The rows of one partition, with the client timestamp of its newest write; `bound` is its key for the driver."""

    __slots__ = ("bound", "busy", "key", "newest", "rows", "static", "table")

    def __init__(self, table: Table, key: tuple[Any, ...], bound: tuple[Any, ...]) -> None:
        self.table, self.key, self.bound = table, key, bound
        self.rows: dict[Clustering, Row] = {}
        self.static: Image | None = None
        self.newest = 0
        self.busy = False

    def next_timestamp(self, now: int) -> int:
        """A timestamp in microseconds: `now`, or one more than the newest of this partition."""
        self.newest = max(now, self.newest + 1)
        return self.newest

    def image(self, key: Image) -> Image | None:
        """The row with this key, or the static row, as it is now."""
        ck = tuple(key[column] for column in self.table.clustering)
        if ck and None in ck:
            return self.static
        row = self.rows.get(ck)
        return row.image if row else None

    def replace(self, key: Image, column: str, value: Any) -> None:
        """Set a column to the value that was read from the table."""
        ck = tuple(key[column] for column in self.table.clustering)
        row = self.rows[ck]
        self.rows[ck] = Row(row.image | {column: value}, row.inserted)

    def insert(self, ck: Clustering, values: Image) -> Event:
        before = self.rows.get(ck)
        after = (before.image if before else self._empty(ck)) | values
        self.rows[ck] = Row(after, inserted=True)
        return Event(self._key(ck), "c", before.image if before else None, after)

    def update(self, ck: Clustering, values: Image) -> Event:
        before = self.rows.get(ck)
        after = (before.image if before else self._empty(ck)) | values
        inserted = before is not None and before.inserted
        if inserted or any(after[column] is not None for column in self.table.regular):
            self.rows[ck] = Row(after, inserted)
        else:
            self.rows.pop(ck, None)
        return Event(self._key(ck), "u", before.image if before else None, after)

    def update_static(self, values: Image) -> Event:
        before = self.static
        after = (before or self._empty(self._no_ck)) | values
        self.static = after if any(after[column] is not None for column in self.table.statics) else None
        return Event(self._key(self._no_ck), "u", before, after)

    def delete_row(self, ck: Clustering) -> Event:
        before = self.rows.pop(ck, None)
        return Event(self._key(ck), "d", before.image if before else None, None)

    def delete_partition(self) -> Event:
        """Without clustering columns this is the delete of a row, else of a range without bounds."""
        if not self.table.clustering:
            return self.delete_row(())
        everything = Bound(())
        self.static = None
        return self.delete_range(everything, everything, lambda ck: True)

    def delete_range(self, start: Bound, end: Bound, inside: Callable[[Clustering], bool]) -> Event:
        """Delete the rows whose clustering key is `inside`; `start` comes before `end` in clustering order."""
        for ck in [ck for ck in self.rows if inside(ck)]:
            del self.rows[ck]
        return Event(self._key(self._no_ck), "d", None, None, self._range(start, end))

    @property
    def _no_ck(self) -> Clustering:
        return (None,) * len(self.table.clustering)

    def _key(self, ck: Clustering) -> Image:
        return dict(zip(self.table.key, self.key + ck, strict=True))

    def _empty(self, ck: Clustering) -> Image:
        return self._key(ck) | dict.fromkeys(self.table.statics + self.table.regular)

    def _range(self, start: Bound, end: Bound) -> Image:
        return {
            "start": self._bound(start),
            "start_inclusive": start.inclusive,
            "end": self._bound(end),
            "end_inclusive": end.inclusive,
        } | ({"order": [*self.table.order]} if self.table.order else {})

    def _bound(self, bound: Bound) -> Image | None:
        if not bound.prefix:
            return None
        columns = self.table.clustering
        padded = bound.prefix + (None,) * (len(columns) - len(bound.prefix))
        return dict(zip(columns, padded, strict=True))
