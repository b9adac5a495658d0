"""Decodes pages of log rows into Arrow batches of changes: the frame of `cdc.read`, one row per change.

The page stays bytes until the rows are paired (`row_pairing`); then each column of the frame is decoded once, from
only the cells that belong in it. If a page ends inside a group, the group's bytes are put in front of the next page, so
that a change is always decoded with its images.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.cdc import row_pairing
from penstock.cdc.cdc_tables import LEFT, Images, LogLayout
from penstock.cdc.row_pairing import OPERATION, SEQUENCE, STREAM, TIME, TTL, ChangeRows
from penstock.cdc.sent_groups import hashes
from penstock.codec.problem import PROBLEM
from penstock.database import Page
from penstock.database.bad_values import bad_rows, excerpt, key_text
from penstock.database.cells import indexed
from penstock.database.columns import BadValue, Cells, decode, decode_list_in_log
from penstock.database.cql_types import Column, CqlType, clustering_order
from penstock.native import Array

log = logging.getLogger(__name__)

ROW_DELETE = 3
"""The log's code, negative if the row's time to live ended."""
SECOND = 1_000_000
LONGEST = 10**10
"""Seconds: more than any time to live that a database accepts."""
LOST = "the log has no value, as the column got its name later"


class ChangeDecoder:
    """Decodes the pages of one query, in order, into record batches; keeps a group that continues on the next page."""

    def __init__(
        self, columns: LogLayout, images: Images, schema: pa.Schema, read_micros: int, only: Array | None = None
    ) -> None:
        self.only = only
        self.layout, self.images, self.schema, self.read_micros = columns, images, schema, read_micros
        self.table = columns.table
        self.key_columns = np.array([columns.at(c.name) for c in self.table.clustering_key], np.int64)
        self.carried = Page(b"", 0, False)
        self.asked = np.empty(0, np.int64)

    def decode(self, page: Page) -> pa.RecordBatch | None:
        """Return the changes that are complete with this page, or None if there are none."""
        whole = Page(self.carried.data + page.data, self.carried.rows + page.rows, page.final)
        asked = np.append(self.asked, np.full(page.rows, page.asked))
        view = View.of(whole, self.layout, asked)
        groups, rest = row_pairing.pair(
            view.buffer,
            view.starts,
            view.lengths,
            self.key_columns,
            final=page.final,
            preimages=self.images.before != "none",
            postimages=self.images.after != "none",
        )
        left = whole.data[view.starts[rest, 0] - 4 :] if rest < whole.rows else b""
        self.carried, self.asked = Page(left, whole.rows - rest, False), asked[rest:]
        if self.only is not None:
            wanted = view.among(groups.change, self.only)
            groups = ChangeRows(*(entries[wanted] for entries in groups))
        return _Changes(self, view, groups).batch() if len(groups.change) else None


@dataclass(frozen=True)
class View:
    """A page with the positions of its cells, and the second at which each row was requested."""

    layout: LogLayout
    buffer: Array
    starts: Array
    lengths: Array
    asked: Array

    @classmethod
    def of(cls, page: Page, columns: LogLayout, asked: Array | None = None) -> View:
        """The page's cells; `asked` if its rows were requested with several pages."""
        where = f"{columns.table.keyspace}.{columns.table.log_name}"
        cells = indexed(page.data, page.rows, len(columns.names), where=where)
        return cls(columns, *cells, np.full(page.rows, page.asked) if asked is None else asked)

    def cells(self, column: int, rows: Array) -> Cells:
        """The cells of a column at `rows`; null where the row is -1."""
        starts, lengths = self.starts[:, column], self.lengths[:, column]
        return Cells(self.buffer, starts[rows], np.where(rows < 0, np.int32(-1), lengths[rows]))

    def present(self, column: int, rows: Array) -> Array:
        mask: Array = self.lengths[rows, column] >= 0
        return mask

    def among(self, rows: Array, ids: Array) -> Array:
        """A mask of the rows that belong to the groups with these hashes."""
        cells = self.starts[rows][:, [STREAM, STREAM, TIME, TIME]] + np.array([0, 8, 0, 8])
        words = self.buffer[cells[:, :, None] + np.arange(8)].view(">u8")[:, :, 0]
        return np.isin(hashes(words.astype(np.uint64)), ids)


class FrameColumns:
    """Builds the columns of one batch of the frame, with a method for each; a column without a method is null.

    `rows` are the rows of the page that the batch's changes come from, and `t` is a column's Arrow type.
    """

    def __init__(self, view: View, rows: Array, schema: pa.Schema, read_micros: int) -> None:
        self.view, self.rows, self.schema, self.read_micros = view, rows, schema, read_micros
        self.layout, self.table = view.layout, view.layout.table
        self.problems = Problems(view, rows, schema)

    def batch(self) -> pa.RecordBatch:
        arrays = [getattr(self, f"column_{field.name}", self._null)(field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _null(self, t: pa.DataType) -> pa.Array:
        return pa.nulls(len(self.rows), t)

    def column_read_ts(self, t: pa.DataType) -> pa.Array:
        return pa.array(np.full(len(self.rows), self.read_micros)).view(t)

    def column_keyspace(self, t: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(self.table.keyspace, t), len(self.rows))

    def column_table(self, t: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(self.table.name, t), len(self.rows))

    def column_problem(self, t: pa.DataType) -> pa.Array:
        return self.problems.column(t)


class _Changes(FrameColumns):
    """Builds the columns of changes from the log."""

    def __init__(self, decoder: ChangeDecoder, view: View, groups: ChangeRows) -> None:
        super().__init__(view, groups.change, decoder.schema, decoder.read_micros)
        self.images, self.groups = decoder.images, groups
        self.code = view.buffer[view.starts[self.rows, OPERATION]].view(np.int8)
        self.is_range = self.code >= 5
        self.is_write = (self.code == 1) | (self.code == 2)
        self.values = [c.name for c in self.table.values]
        flags = {name: self._flags(name, self.rows) for name in self.values}
        written = [self._written(name, deleted) for name, deleted in flags.items()]
        none = np.empty((len(self.rows), 0), np.bool_)
        self.deleted = np.column_stack([none, *flags.values()])
        self.written = np.column_stack([none, *written])

    def _flags(self, name: str, rows: Array) -> Array:
        column = self.layout.at(f"cdc$deleted_{name}")
        flags: Array = self.view.lengths[rows, column] == 1
        flags &= self.view.buffer[np.where(flags, self.view.starts[rows, column], 0)] == 1
        return flags

    def _written(self, name: str, deleted: Array) -> Array:
        written: Array = self.view.present(self.layout.at(name), self.rows) | deleted
        elements = f"cdc$deleted_elements_{name}"
        if elements in self.layout.names:
            written |= self.view.present(self.layout.at(elements), self.rows)
        written &= self.is_write
        return written

    def _decode(self, part: str, name: str, rows: Array, t: pa.DataType, prefix: str = "") -> pa.Array:
        column = self.layout.at(prefix + name)
        return self.problems.decode(part, name, self.view.cells(column, rows), t, self.layout.kinds[column])

    def _struct(self, t: pa.DataType, children: list[pa.Array], present: Array) -> pa.Array:
        return pa.StructArray.from_arrays(children, fields=list(t), mask=pa.array(~present))

    def column_op(self, t: pa.DataType) -> pa.Array:
        letters = pa.array(["d", "u", "c"], t)
        return letters.take(pa.array(np.where(self.is_write, self.code, 0)))

    def column_key(self, t: pa.DataType) -> pa.Array:
        for column, lost in self._lost_keys():
            self.problems.lost(column, lost)
        # A range delete has no row key; its bounds are in the column `range`.
        clustering = np.where(self.is_range, -1, self.rows)
        partition = {c.name for c in self.table.partition_key}
        rows = [self.rows if field.name in partition else clustering for field in t]
        children = [self._decode("key", field.name, row, field.type) for field, row in zip(t, rows, strict=True)]
        return pa.StructArray.from_arrays(children, fields=list(t))

    def _lost_keys(self) -> Iterator[tuple[Column, Array]]:
        """The changes that lack a column of the primary key, by column.

        A key column that is renamed is a new one of the log: rows from before have no value for it.
        """
        for column in self.table.partition_key:
            yield column, ~self.view.present(self.layout.at(column.name), self.rows)
        clustering = self.table.clustering_key
        if not clustering:
            return
        present = self._present(self.rows)
        regular = np.array([c.kind == "regular" for c in self.table.values], np.bool_)
        # The static row has no clustering key.
        static = ~regular.all() & self.is_write & ~present.any(axis=1) & ~self.written[:, regular].any(axis=1)
        of_rows = (self.is_write | (np.abs(self.code) == ROW_DELETE)) & ~static
        ranges = self._lost_bounds()
        for number, column in enumerate(clustering):
            yield column, of_rows & ~present[:, number] | ranges[:, number]

    def _present(self, rows: Array) -> Array:
        """Which clustering columns these rows have; none for no row."""
        columns = [self.view.present(self.layout.at(c.name), rows) for c in self.table.clustering_key]
        there: Array = np.column_stack(columns) & (rows >= 0)[:, None]
        return there

    def _lost_bounds(self) -> Array:
        """The clustering columns that a bound of a deleted range lacks, by change."""
        both = self._present(self.rows), self._present(self.groups.range_end)
        ends = self.view.buffer[self.view.starts[np.maximum(self.groups.range_end, 0), OPERATION]]
        open_start, open_end = ~both[0].any(axis=1), (self.groups.range_end >= 0) & ~both[1].any(axis=1)
        lost = np.zeros_like(both[0])
        # What has no bound at all is the delete of a partition, and what a bound leaves out is behind its columns.
        lost[:, 0] = open_start & (open_end | (self.code == 6) | (self.code == 8)) | (open_end & (ends == 8))
        for present in both:
            lost |= np.cumsum(present[:, ::-1], axis=1)[:, ::-1].astype(np.bool_) & ~present
        lost &= self.is_range[:, None]
        return lost

    def column_before(self, t: pa.DataType) -> pa.Array:
        pre = self.groups.preimage
        return self._image("before", t, pre, [self._before_rows(c) for c in self.table.columns])

    def _before_rows(self, column: Column) -> Array:
        """The rows that hold a column's old value.

        With `preimage: true` the value of a column that an update did not touch is only in the postimage.
        """
        pre, post = self.groups.preimage, self.groups.postimage
        if column.name not in self.values:
            return pre
        # The change row alone is not enough: with `delta: keys`, or if the log split a write with a TTL into several
        # rows, it names fewer columns than the write touched. The preimage has all touched columns, perhaps as null.
        known = self.view.present(self.layout.at(column.name), pre) | self._flags(column.name, pre)
        untouched = ~known & ~self.written[:, self.values.index(column.name)]
        # The connector uses the preimage of an insert unchanged.
        untouched &= self.code == 1
        return np.where(untouched & (post >= 0) & (pre >= 0), post, pre)

    def column_after(self, t: pa.DataType) -> pa.Array:
        return self._image("after", t, self.groups.postimage, [self.groups.postimage] * len(self.table.columns))

    def _image(self, part: str, t: pa.DataType, present: Array, rows: list[Array]) -> pa.Array:
        children = []
        for column, field, at in zip(self.table.columns, t, rows, strict=True):
            place = self.layout.at(column.name)
            cells = self.view.cells(place, at)
            if column.type.multi_cell and column.type.name != "udt":
                cells = cells.without_empty_collections()
            if column.type.nonfrozen_list:
                kind, read = column.type, decode_list_in_log
            else:
                kind, read = self.layout.kinds[place], decode
            children.append(self.problems.decode(part, column.name, cells, field.type, kind, read))
        return self._struct(t, children, present >= 0)

    def column_delta(self, t: pa.DataType) -> pa.Array:
        return self._struct(t, [self._decode("delta", f.name, self.rows, f.type) for f in t], self.is_write)

    def column_written(self, t: pa.DataType) -> pa.Array:
        return names_where(self.values, self.written, t)

    def column_deleted(self, t: pa.DataType) -> pa.Array:
        return names_where(self.values, self.deleted, t)

    def column_deleted_elements(self, t: pa.DataType) -> pa.Array:
        prefix = "cdc$deleted_elements_"
        children = [self._decode("deleted_elements", f.name, self.rows, f.type, prefix) for f in t]
        return self._struct(t, children, self.is_write)

    def column_range(self, t: pa.DataType) -> pa.Array:
        # One of the two rows of a range delete may have expired: the unknown side then has no bound.
        lone_end = self.code >= 7
        start = np.where(self.is_range & ~lone_end, self.rows, -1)
        end = np.where(lone_end, self.rows, self.groups.range_end)
        end_code = self.view.buffer[self.view.starts[np.where(end < 0, 0, end), OPERATION]]
        bound = t.field("start").type
        first = self._bound(bound, start), pa.array((start < 0) | (self.code != 6))
        last = self._bound(bound, end), pa.array((end < 0) | (end_code != 8))
        names = [column.name for column in self.table.clustering_key]
        if len(names) == 1:
            # The log's order is the table's. One column has an order that needs no words: that of its values.
            return self._struct(t, [*last, *first] if self.table.descending else [*first, *last], self.is_range)
        order = pa.scalar(clustering_order(names, self.table.descending), t.field("order").type)
        return self._struct(t, [*first, *last, pa.repeat(order, len(self.rows))], self.is_range)

    def _bound(self, t: pa.DataType, rows: Array) -> pa.Array:
        children = [self._decode("range", field.name, rows, field.type) for field in t]
        # A side with no value in any bound column is open.
        bounded = np.zeros(len(rows), np.bool_)
        for child in children:
            bounded |= ~np.asarray(child.is_null())
        return self._struct(t, children, bounded)

    def column_operation(self, t: pa.DataType) -> pa.Array:
        return pa.array(np.where(self.is_range, np.int8(5), self.code), t)

    def column_ttl(self, t: pa.DataType) -> pa.Array:
        return self._fixed(TTL, t)

    def column_expires(self, t: pa.DataType) -> pa.Array:
        """When the values of a change expire; null for values that do not."""
        ttl = self._fixed(TTL, pa.int64())
        seconds = self._written_seconds() + np.clip(ttl.fill_null(0).to_numpy(), 0, LONGEST)
        return pa.array(seconds * SECOND, mask=np.asarray(ttl.is_null())).view(t)

    def _written_seconds(self) -> Array:
        """The seconds of the clock, since 1970, at which the changes were written: a time to live counts from there.

        It is the change's timestamp, unless a client chose one in the past: then the log tells, by how long it holds
        the row.
        """
        seconds = self.groups.micros // SECOND
        held = int(self.table.option("ttl") or 0)
        if LEFT not in self.layout.names or not held:
            return seconds
        left = self._decode("log", LEFT, self.rows, pa.int32())
        asked = self.view.asked[self.rows]
        written = asked - held + left.fill_null(0).to_numpy().astype(np.int64)
        # The log's own time to live may have been changed: then it tells a wrong time of rows from before, which is in
        # the future or before the change.
        late = np.asarray(left.is_valid()) & (written >= self.table.altered // SECOND - 1)
        late &= (written > seconds + 1) & (written <= asked)
        return np.where(late, written, seconds)

    def column_ts(self, t: pa.DataType) -> pa.Array:
        return pa.array(self.groups.micros).view(t)

    def column_stream_id(self, t: pa.DataType) -> pa.Array:
        return self._fixed(STREAM, t)

    def column_time(self, t: pa.DataType) -> pa.Array:
        return self._fixed(TIME, t)

    def column_batch_seq_no(self, t: pa.DataType) -> pa.Array:
        return self._fixed(SEQUENCE, t)

    def _fixed(self, column: int, t: pa.DataType) -> pa.Array:
        name = self.layout.names[column]
        return self.problems.decode("log", name, self.view.cells(column, self.rows), t, self.layout.kinds[column])

    def column_end_of_batch(self, t: pa.DataType) -> pa.Array:
        return pa.array(self.groups.last != 0)


def names_where(names: list[str], marks: Array, t: pa.DataType) -> pa.Array:
    """For each row of `marks`, the names of the marked columns."""
    rows, columns = np.nonzero(marks)
    offsets = np.searchsorted(rows, np.arange(len(marks) + 1)).astype(np.int32)
    values = pa.array(names, pa.string()).take(pa.array(columns))
    return pa.Array.from_buffers(t, len(marks), [None, pa.py_buffer(offsets)], children=[values])


def decode_log(
    pages: Iterator[Page], columns: LogLayout, schema: pa.Schema, only: Array | None = None
) -> Iterator[pa.RecordBatch]:
    """Decode the rows of a log unchanged, one batch per page."""
    for page in pages:
        if page.rows:
            view = View.of(page, columns)
            rows = np.arange(page.rows)
            if only is not None:
                rows = rows[view.among(rows, only)]
            problems = Problems(view, rows, schema)
            arrays = [
                problems.decode("log", name, view.cells(i, rows), schema.field(i).type, columns.kinds[i])
                for i, name in enumerate(columns.names)
            ]
            if len(schema) > len(arrays):
                arrays.append(problems.column(schema.field(len(arrays)).type))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


# Cells that cannot be read: an error that names the first of them, or entries in the column `problem`.
#
# The batch has the column `problem` if the reader was created with `bad_values="problem"`.


class Problems:
    """The unreadable cells of one batch, whose changes are the rows `rows` of a page."""

    def __init__(self, view: View, rows: Array, schema: pa.Schema) -> None:
        self.view, self.rows = view, rows
        self.stop = PROBLEM not in schema.names
        self.cells_by_row: dict[int, list[dict[str, Any]]] = {}

    def decode(
        self,
        part: str,
        column: str,
        cells: Cells,
        target: pa.DataType,
        kind: CqlType,
        read: Callable[[CqlType, Cells, pa.DataType], pa.Array] = decode,
    ) -> pa.Array:
        """Decode the cells of the batch's changes; a cell that cannot be read is null.

        Raises BadValue for the first such cell if the batch has no column `problem`.
        """
        try:
            return read(kind, cells, target)
        except BadValue:
            lengths = cells.lengths.copy()
            for row, reason in bad_rows(lambda some: read(kind, some, target), cells):
                value = cells.text(row)
                if self.stop:
                    raise self._error(row, part, column, reason, value) from None
                about = {"part": part, "column": column, "type": str(kind), "reason": reason, "value": value}
                self.cells_by_row.setdefault(row, []).append(about)
                lengths[row] = -1
            return read(kind, Cells(cells.buffer, cells.starts, lengths), target)

    def lost(self, column: Column, rows: Array) -> None:
        """These of the batch's changes lack a column of the primary key, without which they belong to no row.

        Raises BadValue if there are some and the batch has no column `problem`.
        """
        for row in np.flatnonzero(rows).tolist():
            if self.stop:
                raise BadValue(
                    f"{np.count_nonzero(rows)} of {len(rows)} changes of {self._table} have no {column.name}, a column "
                    "of the primary key: changes from before it got this name lose its values",
                    where=f"time {self._place(row).get('cdc$time')}, the first of them",
                    next="read from after the ALTER TABLE with `penstock checkpoints set NAME --to TIME`, and the rows "
                    'from the table with start="snapshot"; or give cdc.read(...) bad_values="problem": these changes '
                    "go to kafka.dead_letters(...). A connector skips them with errors.tolerance=all",
                )
            about = {"part": "key", "column": column.name, "type": str(column.type), "reason": LOST, "value": b""}
            self.cells_by_row.setdefault(row, []).append(about)

    def column(self, target: pa.DataType) -> pa.Array:
        """The column `problem`; call it after all other columns are decoded."""
        if not self.cells_by_row:
            return pa.nulls(len(self.rows), target)
        first = self._problem(min(self.cells_by_row))
        log.warning(
            "%s: %d rows have a problem; the first, %s, %s",
            self._table,
            len(self.cells_by_row),
            first["key"],
            first["reason"],
        )
        return pa.array(
            [self._problem(row) if row in self.cells_by_row else None for row in range(len(self.rows))], target
        )

    def _problem(self, row: int) -> dict[str, object]:
        cells = self.cells_by_row[row]
        columns = ", ".join(dict.fromkeys(f"{cell['column']} in {cell['part']}" for cell in cells))
        place = self._place(row)
        about = {name: place.get(f"cdc${name}") for name in ("stream_id", "time", "batch_seq_no")}
        reason = f"cannot be read: {columns}: {cells[0]['reason']}"
        return about | {"reason": reason, "table": self._table, "key": self._key(row), "cells": cells}

    def _error(self, row: int, part: str, column: str, reason: str, value: bytes) -> BadValue:
        place = self._place(row)
        stream = place.get("cdc$stream_id")
        of_log = f"stream 0x{stream.hex()}, time {place.get('cdc$time')}, " if isinstance(stream, bytes) else ""
        return BadValue(
            f"column {column} of {self._table} has a value that cannot be read: {reason}",
            where=f"{of_log}key {self._key(row)}, {part}, cell {excerpt(value)}",
            next='give cdc.read(...) bad_values="problem": the value becomes null, its row goes to '
            "kafka.dead_letters(...) and the other rows continue; or skip the row with a start after its time. A "
            "connector skips the row with errors.tolerance=all",
        )

    @property
    def _table(self) -> str:
        return self.view.layout.table.full_name

    def _cells(self, name: str, row: int) -> Cells:
        return self.view.cells(self.view.layout.at(name), self.rows[row : row + 1])

    def _place(self, row: int) -> dict[str, Any]:
        """The position of a change in the log; empty for a row of a snapshot."""
        targets = {"cdc$stream_id": pa.binary(), "cdc$time": pa.string(), "cdc$batch_seq_no": pa.int32()}
        layout = self.view.layout
        return {
            name: decode(layout.kinds[layout.at(name)], self._cells(name, row), target)[0].as_py()
            for name, target in targets.items()
            if name in layout.names
        }

    def _key(self, row: int) -> str:
        table = self.view.layout.table
        key = (*table.partition_key, *table.clustering_key)
        return key_text({c.name: c.type for c in key}, {c.name: self._cells(c.name, row) for c in key}, row=0)
