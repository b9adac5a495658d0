"""Reads a task's partition as record batches of the frame: spans of the log, or the rows of a token range.

The rows of a token range are changes with the operation 'r'. Some pages of rows are held until the range's log since L
(see `planner.Snapshot`) has been read. If changes carry the whole row (`after`), a row whose key is in that log is left
out: its first change brings it. If they do not, the row comes without the columns that these changes write. Non-frozen
collections and user types stay, because their changes carry single elements. So a value is never followed by an older
one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from penstock.cdc.cdc_options import CdcSettings
from penstock.cdc.cdc_tables import MARKER, TIME_TO_LIVE, WRITE_TIME, LogLayout, layout, log_name
from penstock.cdc.change_decoder import ChangeDecoder, FrameColumns, View, decode_log, names_where
from penstock.cdc.generations import Span, TokenRange, now_micros
from penstock.cdc.log_pages import IN_SPAN, in_range, pages_of_log, pages_of_table, span_queries
from penstock.cdc.row_pairing import row_hashes
from penstock.cdc.whole_lists import WholeLists
from penstock.database import Page
from penstock.database.columns import decode
from penstock.database.cql_types import Column, CqlTable, CqlType, log_value_type, spark_type
from penstock.database.table_catalog import base_name
from penstock.database.write_times import rows_with_markers, timed_columns
from penstock.native import Array
from penstock.spark_runtime.arrow_types import to_arrow_schema, to_arrow_type

HELD_ROWS = 20_000
AD_HOC = 0
"""The operation of a row of an ad-hoc snapshot; the log has it for preimages, which are no changes."""
AHEAD = 3_600_000_000
"""Microseconds beyond the current time up to which the log is read, because writers' clocks may run ahead."""


def span_select(columns: LogLayout) -> str:
    """The SELECT statement for these columns of a span."""
    return f"SELECT {columns.selection()} FROM {log_name(columns.table)} WHERE {IN_SPAN}"


def read_span(chosen: CdcSettings, table: CqlTable, schema: StructType, span: Span) -> Iterator[pa.RecordBatch]:
    """Yield the span's rows as record batches of `schema`; the rows of each stream are in the log's order."""
    columns = layout(table, write_times=chosen.write_times)
    lists = WholeLists(chosen, table) if "lists" in schema.names else None
    arrow = to_arrow_schema(schema, timezone="UTC")
    text = span_select(columns)
    for query in span_queries(chosen, span):
        pages = pages_of_log(chosen, text, query)
        if chosen.rows == "log":
            yield from decode_log(pages, columns, arrow, span.only)
            continue
        decoder = ChangeDecoder(columns, chosen.images, arrow, span.planned, span.only)
        for page in pages:
            batch = decoder.decode(page)
            if batch is not None:
                yield batch if lists is None else lists(batch)


# The rows of a token range.


def read_range(chosen: CdcSettings, table: CqlTable, schema: StructType, part: TokenRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a token range as record batches of `schema`; holds at most `HELD_ROWS` rows and one page."""
    timed = timed_columns(chosen.access, table, chosen.patience) if chosen.write_times else frozenset()
    marked = rows_with_markers(chosen.access, table, chosen.patience) if chosen.write_times else None
    build = RowBuilder(table, to_arrow_schema(schema, timezone="UTC"), part, timed, marked=bool(marked))
    source = marked or base_name(table)
    text = f"SELECT {build.layout.selection()} FROM {source} WHERE {in_range(table, part.filter)}"
    pages = pages_of_table(chosen, text, (part.after, part.until))
    if chosen.write_times:
        # Each value has the time of its write: whoever applies the changes needs no order among them.
        yield from (build.batch(page, Changed(None, {})) for page in pages if page.rows)
        return
    held: list[Page] = []
    for page in pages:
        held.append(page)
        if page.final or sum(page.rows for page in held) >= HELD_ROWS:
            if any(page.rows for page in held):
                changed = changed_since(chosen, table, part)
                yield from (build.batch(page, changed) for page in held if page.rows)
            held = []


@dataclass
class Changed:
    """Hashes of the keys that changed; if changes do not carry whole rows, for each column instead."""

    keys: Array | None
    by_column: dict[str, Array]


def changed_since(chosen: CdcSettings, table: CqlTable, part: TokenRange) -> Changed:
    """The keys that the log of the range holds since its low watermark."""
    whole = chosen.images.after != "none" and chosen.whole_rows
    keys = (*table.partition_key, *table.clustering_key)
    names, kinds = ["cdc$operation", *(c.name for c in keys)], [CqlType("tinyint"), *(c.type for c in keys)]
    masked = [] if whole else [c for c in table.values if not c.type.multi_cell]
    for column in masked:
        names += [column.name, f"cdc$deleted_{column.name}"]
        kinds += [column.type, CqlType("boolean")]
    columns = LogLayout(table, tuple(names), tuple(kinds))
    text = span_select(columns)
    key_hashes: list[Array] = []
    by_column: dict[str, list[Array]] = {column.name: [] for column in masked}
    for query in span_queries(chosen, Span(part.streams, part.low, now_micros() + AHEAD)):
        for page in pages_of_log(chosen, text, query):
            view = View.of(page, columns)
            hashes = row_hashes(view.buffer, view.starts, view.lengths, [columns.at(c.name) for c in keys])
            key_hashes.append(np.unique(hashes))
            writes = np.flatnonzero(np.isin(view.buffer[view.starts[:, 0]], (1, 2))) if page.rows else hashes[:0]
            for column in masked:
                at = columns.at(column.name)
                wrote = view.present(at, writes) | view.present(at + 1, writes)
                by_column[column.name].append(hashes[writes[wrote]])
    joined = {name: np.unique(np.concatenate(parts)) for name, parts in by_column.items()}
    return Changed(np.unique(np.concatenate(key_hashes)) if whole else None, joined)


class RowBuilder:
    """Builds batches of the frame from pages of a table's rows; a partition's static row comes before its rows."""

    def __init__(
        self,
        table: CqlTable,
        schema: pa.Schema,
        part: TokenRange,
        timed: Collection[str] = (),
        *,
        marked: bool = False,
    ) -> None:
        self.table, self.schema, self.part, self.timed, self.marked = table, schema, part, timed, marked
        names, kinds = [c.name for c in table.columns], [c.type for c in table.columns]
        for column in (value for value in table.values if value.name in timed):
            names += [WRITE_TIME + column.name, TIME_TO_LIVE + column.name]
            kinds += [_of_each(column, "bigint"), _of_each(column, "int")]
        if marked:
            names += MARKER
            kinds += [CqlType("bigint")] * len(MARKER)
        self.layout = LogLayout(table, tuple(names), tuple(kinds))
        self.partition_columns = [self.layout.at(c.name) for c in table.partition_key]
        self.clustering_columns = [self.layout.at(c.name) for c in table.clustering_key]
        self.statics = [self.layout.at(c.name) for c in table.columns if c.kind == "static"]
        self.last_partition: Array = np.empty(0, np.uint64)

    def batch(self, page: Page, changed: Changed) -> pa.RecordBatch:
        """The rows of the page, in order, without the rows that come complete with a later change."""
        view = View.of(page, self.layout)
        rows, static = self._entries(view)
        keys = self._keys(view, rows, static)
        if changed.keys is not None:
            is_unchanged = ~np.isin(keys, changed.keys)
            rows, static, keys = rows[is_unchanged], static[is_unchanged], keys[is_unchanged]
        cells = {
            column.name: self._rows_with(column, rows, static, keys, changed.by_column) for column in self.table.columns
        }
        if self.marked:
            cells |= dict.fromkeys(MARKER, np.where(static, -1, rows))
        return _Rows(self, view, rows, cells, self._masked(keys, changed)).batch()

    def _entries(self, view: View) -> tuple[Array, Array]:
        """Row numbers, and a mask of the static rows; the first row of a partition with static values occurs twice."""
        rows = np.arange(len(view.starts))
        if not self.clustering_columns:
            return rows, np.zeros(len(rows), np.bool_)
        partitions = row_hashes(view.buffer, view.starts, view.lengths, self.partition_columns)
        before = np.concatenate([self.last_partition, partitions[:-1]])
        opens = np.ones(len(rows), np.bool_)
        opens[len(rows) - len(before) :] = partitions[len(rows) - len(before) :] != before
        self.last_partition = partitions[-1:]
        has_statics = (view.lengths[:, self.statics] >= 0).any(axis=1)
        # A partition with only static values is one row without a clustering key.
        is_row = view.lengths[:, self.clustering_columns[0]] >= 0
        entries = np.concatenate([rows[opens & has_statics] * 2, rows[is_row] * 2 + 1])
        entries.sort()
        return entries // 2, entries % 2 == 0

    def _keys(self, view: View, rows: Array, static: Array) -> Array:
        lengths = view.lengths[rows]
        for column in self.clustering_columns:
            lengths[static, column] = -1
        columns = [*self.partition_columns, *self.clustering_columns]
        return row_hashes(view.buffer, view.starts[rows], lengths, columns)

    def _rows_with(self, column: Column, rows: Array, static: Array, keys: Array, by_column: dict[str, Array]) -> Array:
        """The rows with the column's cells; -1 if the row's kind lacks the column or a change will bring the value."""
        if column.kind == "partition_key":
            return rows
        absent = ~static if column.kind == "static" else static
        if column.name in by_column:
            absent = absent | np.isin(keys, by_column[column.name])
        return np.where(absent, -1, rows)

    def _masked(self, keys: Array, changed: Changed) -> Array:
        masked = np.zeros(len(keys), np.bool_)
        for hashes in changed.by_column.values():
            masked |= np.isin(keys, hashes)
        return masked


def _of_each(column: Column, kind: str) -> CqlType:
    """The type of a function of the column: of an element's or a field's, if they have their own."""
    return CqlType("list", (CqlType(kind),), frozen=True) if column.type.multi_cell else CqlType(kind)


class _Rows(FrameColumns):
    """Builds the columns of a snapshot's rows."""

    def __init__(self, builder: RowBuilder, view: View, rows: Array, cells: dict[str, Array], masked: Array) -> None:
        super().__init__(view, rows, builder.schema, builder.part.planned)
        self.part, self.cells, self.masked, self.timed = builder.part, cells, masked, builder.timed
        self.marked = builder.marked

    def _decode(self, part: str, name: str, kind: CqlType, t: pa.DataType) -> pa.Array:
        cells = self.view.cells(self.layout.at(name), self.cells[name])
        return self.problems.decode(part, name, cells, t, kind)

    def _row(self, part: str, t: pa.DataType) -> pa.Array:
        children = [self._decode(part, f.name, self._kind(f.name), f.type) for f in t]
        return pa.StructArray.from_arrays(children, fields=list(t))

    def _kind(self, name: str) -> CqlType:
        return self.layout.kinds[self.layout.at(name)]

    def column_op(self, t: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar("r", t), len(self.rows))

    def column_key(self, t: pa.DataType) -> pa.Array:
        return self._row("key", t)

    def column_after(self, t: pa.DataType) -> pa.Array:
        return self._row("after", t)

    def column_delta(self, t: pa.DataType) -> pa.Array:
        children = []
        for f in t:
            kind = self._kind(f.name)
            # CQL cannot select the ids of a list's elements.
            known = not kind.nonfrozen_list
            children.append(
                self._decode("delta", f.name, log_value_type(kind), f.type) if known else self._null(f.type)
            )
        return pa.StructArray.from_arrays(children, fields=list(t))

    def column_written(self, t: pa.DataType) -> pa.Array:
        names = [c.name for c in self.table.values]
        present = [self.view.cells(self.layout.at(name), self.cells[name]).lengths >= 0 for name in names]
        return names_where(names, np.column_stack(present) if names else np.empty((len(self.rows), 0), np.bool_), t)

    def column_deleted(self, t: pa.DataType) -> pa.Array:
        return names_where([], np.empty((len(self.rows), 0), np.bool_), t)

    def column_operation(self, t: pa.DataType) -> pa.Array:
        return self._null(t) if self.part.ts is None else pa.repeat(pa.scalar(AD_HOC, t), len(self.rows))

    def column_ts(self, t: pa.DataType) -> pa.Array:
        if self.part.ts is not None:
            return pa.repeat(self.part.ts, len(self.rows)).view(t)
        # A row that leaves columns to its changes must be older than they are, and so must one that tells write times.
        older = self.masked | ("write_times" in self.schema.names)
        return pa.array(np.where(older, self.part.low, self.part.planned)).view(t)

    def column_write_times(self, t: pa.DataType) -> pa.Array:
        return self._times(WRITE_TIME, t, 0)

    def column_expiries(self, t: pa.DataType) -> pa.Array:
        # All rows are of one page.
        return self._times(TIME_TO_LIVE, t, int(self.view.asked[0]))

    def column_inserted(self, t: pa.DataType) -> pa.Array:
        if not self.marked:
            return self._null(t)
        children = [
            decode(CqlType("bigint"), self.view.cells(self.layout.at(name), self.cells[name]), pa.int64())
            for name in MARKER
        ]
        return pa.StructArray.from_arrays(children, fields=list(t))

    def _times(self, prefix: str, t: pa.DataType, since: int) -> pa.Array:
        """The results of a function of each column, with `since` added; null where the database does not tell them."""
        values = {column.name: column for column in self.table.values if column.name in self.timed}
        children = [
            self._time(values[f.name], prefix, f.type, since) if f.name in values else self._null(f.type) for f in t
        ]
        return pa.StructArray.from_arrays(children, fields=list(t))

    def _time(self, column: Column, prefix: str, t: pa.DataType, since: int) -> pa.Array:
        place = self.layout.at(prefix + column.name)
        cells = self.view.cells(place, self.cells[column.name])
        kind = self.layout.kinds[place]
        times = decode(kind, cells, to_arrow_type(spark_type(kind)))
        if not column.type.multi_cell:
            return pc.add(times.cast(t), since)
        return pa.ListArray.from_arrays(
            times.offsets, pc.add(times.values.cast(t.value_type), since), type=t, mask=times.is_null()
        )
