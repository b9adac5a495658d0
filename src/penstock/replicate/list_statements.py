"""Turns lists of changes into statements: each write of a list writes the whole list, at the change's time.

Databases make the keys of a list's elements themselves, from their clocks. So the same list written twice at the same
time is there twice: the second write does not hide the elements of the first one. Therefore the list of the target is
read first: what is as new as the change stays. Where the database does not show when elements were written, a list that
is the same already is not written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.cdc.change_decoder import SECOND
from penstock.cdc.whole_lists import listed
from penstock.database.access import Access
from penstock.database.cells import indexed
from penstock.database.columns import Cells as ColumnCells, decode
from penstock.database.cql_types import Column, CqlType
from penstock.database.encode_cells import as_bytes, encode, list_bytes
from penstock.database.requests import CqlRequest, RequestLimits, Statement, send_all
from penstock.database.table_catalog import quoted
from penstock.database.token_ring import partition_key
from penstock.database.write_times import timed_columns
from penstock.replicate.change_statements import field, has_field, key_cells
from penstock.replicate.table_statements import Cells, TableStatements, added, time_to_live, to

_TIMES = CqlType("list", (CqlType("bigint"),), frozen=True)


@dataclass(frozen=True)
class ListWrite:
    """A list to write, for row `row` of a batch: its elements, and when each expires (seconds since 1970)."""

    row: int
    column: Column
    key: tuple[bytes | None, ...]
    time: int
    elements: list[bytes]
    expiries: list[int | None]


def _hides(later: ListWrite, known: ListWrite) -> bool:
    """Whether the later one of two lists of a row is the one that stays.

    A statement with a time to live is two changes at one time: one empties the list, the other has the elements.
    """
    return later.time > known.time or (later.time == known.time and (bool(later.elements) or not known.elements))


class ListStatements:
    """Makes the statements of the lists of one table, for the batches of a task.

    With `least`, a time in microseconds, a list that differs is written over the target's: after it, and after `least`.
    """

    def __init__(
        self, access: Access, texts: TableStatements, limits: RequestLimits, *, least: int | None = None
    ) -> None:
        self.access, self.texts, self.table, self.limits = access, texts, texts.table, limits
        self.least = least
        self.columns = [column for column in self.table.values if column.type.nonfrozen_list]
        self.timed = timed_columns(access, self.table, limits.patience) if self.columns else frozenset()

    def of(self, batch: pa.RecordBatch, now: int) -> dict[int, list[Statement]]:
        """The statements of each row that writes a list; `now` is in seconds since 1970."""
        newest: dict[tuple[str, tuple[bytes | None, ...]], ListWrite] = {}
        for column in self.columns:
            for write in self._writes(column, batch, now):
                known = newest.get((column.name, write.key))
                if known is None or _hides(write, known):
                    newest[column.name, write.key] = write
        statements: dict[int, list[Statement]] = defaultdict(list)
        for column in self.columns:
            writes = [write for (name, _), write in newest.items() if name == column.name]
            for write, time in self._to_write(column, writes):
                statements[write.row] += self._statements(write, time, now)
        return statements

    def _writes(self, column: Column, batch: pa.RecordBatch, now: int) -> Iterator[ListWrite]:
        static = column.kind == "static"
        key = self.table.partition_key if static else (*self.table.partition_key, *self.table.clustering_key)
        keys = list(zip(*key_cells(key, batch), strict=True))
        times: list[int] = batch.column("ts").cast(pa.int64()).to_pylist()
        for row, (values, expiries, time) in self._given(column, batch, times):
            elements = as_bytes(encode(column.type.args[0], values))
            ends = [None] * len(elements) if expiries is None else expiries
            live = [(element, end) for element, end in zip(elements, ends, strict=True) if end is None or end > now]
            yield ListWrite(row, column, keys[row], time, [element for element, _ in live], [end for _, end in live])  # type: ignore[misc]

    def _given(
        self, column: Column, batch: pa.RecordBatch, times: Sequence[int]
    ) -> Iterator[tuple[int, tuple[pa.Array, list[int | None] | None, int]]]:
        """The lists of the batch: the values, when they expire, and the time to write them at."""
        snapshot = pc.equal(batch.column("op"), "r").to_numpy(zero_copy_only=False)
        name = column.name
        if snapshot.any() and has_field(batch, "after", name):
            values = field(batch.column("after"), name)
            written, expiries = (field(batch.column(part), name) for part in ("write_times", "expiries"))
            for row in np.flatnonzero(snapshot & np.asarray(values.is_valid())).tolist():
                at = written[row].as_py()
                yield row, (values[row].values, expiries[row].as_py(), max(at) if at else times[row] - 1)
        if snapshot.all() or not has_field(batch, "delta", name):
            return
        looked_up = field(batch.column("lists"), name)
        whole, ends = field(looked_up, "values"), field(looked_up, "expiries")
        for row in np.flatnonzero(np.asarray(looked_up.is_valid())).tolist():
            yield row, (whole[row].values, ends[row].as_py(), times[row])
        delta, expires = field(batch.column("delta"), name), batch.column("expires").cast(pa.int64()).to_pylist()
        for row in np.flatnonzero(listed(batch.column("deleted"), name) & ~snapshot).tolist():
            values = delta[row].values.field(1) if delta[row].is_valid else pa.nulls(0, delta.type.item_type)
            end = expires[row]
            yield row, (values, None if end is None else [end // SECOND] * len(values), times[row])

    def _to_write(self, column: Column, writes: list[ListWrite]) -> Iterator[tuple[ListWrite, int]]:
        """The writes that the target does not have yet, each with the time to write at."""
        for write, (there, newest) in zip(writes, self._read(column, writes), strict=True):
            same = there == (list_bytes(write.elements) if write.elements else None)
            if self.least is not None:
                if not same:
                    yield write, max(write.time, newest or self.least) + 1
            elif newest is None:
                if not (same and there is not None):
                    yield write, write.time
            elif newest < write.time:
                yield write, write.time
            elif newest == write.time and not same:
                # At the same time, it would not hide the elements that are there.
                yield write, write.time + 1

    def _read(self, column: Column, writes: list[ListWrite]) -> list[tuple[bytes | None, int | None]]:
        """The target's lists, as bytes, and when the newest element of each was written; None if that is not known."""
        static = column.kind == "static"
        where = self.texts.of_partition if static else self.texts.of_row
        timed = column.name in self.timed
        wanted = quoted(column.name) + (f", WRITETIME({quoted(column.name)})" if timed else "")
        text = f"SELECT {wanted} FROM {self.texts.name} WHERE {where}{' LIMIT 1' if static else ''}"
        count = len(self.table.partition_key)
        requests = [CqlRequest(((text, write.key),), partition_key(write.key[:count])) for write in writes]  # type: ignore[arg-type]
        pages = send_all(
            self.access,
            self.table.keyspace,
            requests,
            self.limits,
            what="reading lists",
            where=self.table.full_name,
            table=self.table,
        )
        lists: list[tuple[bytes | None, int | None]] = []
        for page in pages:
            buffer, starts, lengths = indexed(page.data, page.rows, 1 + timed, where=self.table.full_name)
            if not page.rows or lengths[0, 0] < 0:
                lists.append((None, None))
                continue
            cell = ColumnCells(buffer, starts[:, 0], lengths[:, 0]).text(0)
            newest = None
            if timed and lengths[0, 1] >= 0:
                times = decode(_TIMES, ColumnCells(buffer, starts[:, 1], lengths[:, 1]), pa.list_(pa.int64()))
                newest = pc.max(times.values).as_py()
            lists.append((cell, newest))
        return lists

    def _statements(self, write: ListWrite, time: int, now: int) -> Iterator[Statement]:
        """One statement sets the list, and more append to it if its elements do not expire together."""
        static = write.column.kind == "static"
        key: Cells = list(write.key)
        at = time.to_bytes(8, "big", signed=True)
        parts = [
            (end, [element for element, _ in some])
            for end, some in groupby(zip(write.elements, write.expiries, strict=True), lambda pair: pair[1])
        ]
        for number, (end, elements) in enumerate(parts or [(None, [])]):
            text = (added if number else to)(write.column.name)
            value = list_bytes(elements) if elements else None
            yield self.texts.update([text], static=static), [at, time_to_live(end, now), value, *key]
