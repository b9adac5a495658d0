"""Writes rows that differ from the source to the target, with the times that they have there.

What only the target has is deleted at the time at which it was written. So nothing that is newer is touched: a value
that the target got later than the source's stays, and is reported as a difference that is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from penstock.cdc.cdc_options import CdcSettings
from penstock.cdc.cdc_tables import Images, frame_schema
from penstock.cdc.generations import TokenRange, now_micros
from penstock.cdc.partition_read import read_range
from penstock.database.cql_types import Column
from penstock.database.encode_cells import list_bytes
from penstock.database.requests import RequestLimits, Statement, send_all, together
from penstock.database.table_catalog import base_name
from penstock.database.token_ring import partition_key
from penstock.replicate.change_statements import key_cells
from penstock.replicate.reconciliation import parts_of
from penstock.replicate.replicate_sink import ChangeWriter
from penstock.replicate.row_differences import Cell, Key, Pair
from penstock.replicate.table_scan import TableScan
from penstock.replicate.table_statements import TableStatements, removed, to, to_field


def repair(
    source: TableScan, target: TableScan, bounds: tuple[int, int], pairs: Mapping[Key, Pair], *, markers: bool
) -> None:
    """Repair rows within the tokens (after, until]; without `markers`, rows are updated but not inserted."""
    count = len(target.table.partition_key)
    deletions = (
        (partition_key(key[:count]), list(_deletions(target, key, pair)))  # type: ignore[arg-type]
        for key, pair in pairs.items()
    )
    send(target, deletions)
    limits = RequestLimits(patience=source.patience)
    writer = ChangeWriter(target.side.access, target.table, limits, markers=markers)
    list(writer(rows_again(source, bounds, pairs)))


def send(target: TableScan, writes: Iterable[tuple[bytes, list[Statement]]]) -> None:
    """Write to the target; the statements come with their partitions."""
    access, keyspace, limits = target.side.access, target.table.keyspace, RequestLimits(patience=target.patience)
    requests = together(access, keyspace, [write for write in writes if write[1]], limits)
    send_all(access, keyspace, requests, limits, what="repairing", where=target.table.full_name)


def rows_again(source: TableScan, bounds: tuple[int, int], pairs: Mapping[Key, Pair]) -> Iterator[pa.RecordBatch]:
    """The source's rows with these keys, and the static rows of their partitions."""
    table, now = source.table, now_micros()
    chosen = CdcSettings(
        source.side.access,
        base_name(table),
        "repair",
        Images(),
        page_size=source.page_size,
        patience=source.patience,
        write_times=True,
    )
    count = len(table.partition_key)
    wanted = {*pairs, *((*key[:count], *(None for _ in key[count:])) for key in pairs)}
    part = TokenRange(*bounds, (), now, now)
    for batch in read_range(chosen, table, frame_schema(table, write_times=True), part):
        keys = zip(*key_cells((*table.partition_key, *table.clustering_key), batch), strict=True)
        chosen_rows = batch.filter(pa.array([key in wanted for key in keys]))
        if chosen_rows.num_rows:
            yield chosen_rows


def _deletions(target: TableScan, key: Key, pair: Pair) -> Iterator[Statement]:
    """What only the target has, each deleted at its own time."""
    if pair.target is None:
        return
    texts = TableStatements(target.table)
    if pair.source is None and is_row(texts, key):
        yield row_deletion(texts, key, newest_of(target, pair.target) or now_micros())
    for column, source_cell, target_cell in columns_of(target, pair):
        yield from column_deletions(texts, column, key, source_cell, target_cell)


def is_row(texts: TableStatements, key: Key) -> bool:
    """Whether it is the key of a row, and not of the static columns of a partition without rows."""
    return len(key) == len(texts.partition) or key[len(texts.partition)] is not None


def row_deletion(texts: TableStatements, key: Key, at: int) -> Statement:
    return texts.delete([texts.of_row]), [bound(at), *key]


def newest_of(scan: TableScan, row: tuple[Cell, ...]) -> int | None:
    """When the newest value of a row was written; its static columns are not the row's."""
    cells = zip(scan.value_columns, row, strict=True)
    times = (cell.newest for column, cell in cells if column.kind != "static")
    return max((time for time in times if time is not None), default=None)


def columns_of(scan: TableScan, pair: Pair) -> Iterator[tuple[Column, Cell, Cell]]:
    """The columns as both sides have them; of a row that the source lacks, the static ones."""
    nothing = tuple(Cell(None) for _ in scan.value_columns)
    ours, theirs = (row or pair.sibling or nothing for row in (pair.source, pair.target))
    for column, source_cell, target_cell in zip(scan.value_columns, ours, theirs, strict=True):
        if column.kind == "static":
            yield column, source_cell, target_cell
        elif pair.source is not None:
            yield column, source_cell, target_cell if pair.target else Cell(None)


def column_deletions(
    texts: TableStatements, column: Column, key: Key, source: Cell, target: Cell
) -> Iterator[Statement]:
    """What only the target has of a column."""
    static = column.kind == "static"
    own = key[: len(texts.partition)] if static else key
    if target.value is None:
        return
    if not column.type.multi_cell or column.type.nonfrozen_list:
        if source.value is None:
            newest = target.newest if target.newest is not None else now_micros()
            yield texts.update([to(column.name)], static=static), [bound(newest), NO_TTL, None, *own]
        return
    known = parts_of(column, source)
    for name, part in parts_of(column, target).items():
        if name in known or part.time is None:
            continue
        if column.type.name == "udt":
            text, value = to_field(column.name, column.type.fields[int(name)]), None
        else:
            text, value = removed(column.name), list_bytes([name])
        yield texts.update([text], static=static), [bound(part.time), NO_TTL, value, *own]


NO_TTL = bytes(4)


def bound(micros: int) -> bytes:
    return micros.to_bytes(8, "big", signed=True)
