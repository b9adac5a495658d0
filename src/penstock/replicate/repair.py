"""Writes rows that differ from the source to the target, with the times that they have there.

What only the target has is deleted at the time at which it was written. So nothing that is newer is touched: a value
that the target got later than the source's stays, and is told as a difference that is left.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

import pyarrow as pa

from penstock.cdc.cdc_options import CdcSettings
from penstock.cdc.cdc_tables import Images, frame_schema
from penstock.cdc.generations import TokenRange, now_micros
from penstock.cdc.partition_read import read_range
from penstock.database.encode_cells import list_bytes
from penstock.database.requests import RequestLimits, Statement, send_all, together
from penstock.database.table_catalog import base_name
from penstock.database.token_ring import partition_key
from penstock.replicate.change_statements import key_cells
from penstock.replicate.replicate_sink import ChangeWriter
from penstock.replicate.row_differences import Cell, Key, Pair
from penstock.replicate.table_scan import TableScan
from penstock.replicate.table_statements import TableStatements, removed, to, to_field
from penstock.schema import Column


def repair(
    source: TableScan, target: TableScan, bounds: tuple[int, int], pairs: Mapping[Key, Pair], *, markers: bool
) -> None:
    """Repair rows within the tokens (after, until]; without `markers`, rows are updated but not inserted."""
    limits = RequestLimits(patience=source.patience)
    deletions = [
        (partition_key(key[: len(target.table.partition_key)]), statements)  # type: ignore[arg-type]
        for key, pair in pairs.items()
        if (statements := list(_deletions(target, key, pair)))
    ]
    keyspace = target.table.keyspace
    requests = together(target.side.access, keyspace, deletions, limits)
    send_all(target.side.access, keyspace, requests, limits, what="repairing", where=target.table.full_name)
    writer = ChangeWriter(target.side.access, target.table, limits, markers=markers)
    list(writer(_rows(source, bounds, pairs)))


def _rows(source: TableScan, bounds: tuple[int, int], pairs: Mapping[Key, Pair]) -> Iterator[pa.RecordBatch]:
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
    columns = [one.column for one in target.columns if one.is_value and one.column]
    if pair.source is None:
        newest = max((cell.newest for cell in pair.target if cell.newest is not None), default=now_micros())
        of_row = len(key) == len(texts.partition) or key[len(texts.partition)] is not None
        if of_row:
            yield texts.delete([texts.of_row]), [_bound(newest), *key]
        sources: tuple[Cell, ...] = tuple(Cell(None) for _ in columns)
    else:
        sources = pair.source
    for column, one, other in zip(columns, sources, pair.target, strict=True):
        if pair.source is not None or column.kind == "static":
            yield from _of_column(texts, column, key, one, other)


def _of_column(texts: TableStatements, column: Column, key: Key, source: Cell, target: Cell) -> Iterator[Statement]:
    static = column.kind == "static"
    own = key[: len(texts.partition)] if static else key
    if target.value is None:
        return
    if not column.type.multi_cell or column.type.nonfrozen_list:
        if source.value is None:
            newest = target.newest if target.newest is not None else now_micros()
            yield texts.update([to(column.name)], static=static), [_bound(newest), _NO_TTL, None, *own]
        return
    known = set(_elements(column, source.value))
    for number, element in enumerate(_elements(column, target.value)):
        at = target.times[number] if number < len(target.times) else None
        if (not element and column.type.name == "udt") or element in known or at is None:
            continue
        if column.type.name == "udt":
            text, value = to_field(column.name, column.type.fields[number]), None
        else:
            text, value = removed(column.name), list_bytes([element])
        yield texts.update([text], static=static), [_bound(at), _NO_TTL, value, *own]


_NO_TTL = bytes(4)


def _bound(micros: int) -> bytes:
    return micros.to_bytes(8, "big", signed=True)


def _elements(column: Column, cell: bytes | None) -> list[bytes]:
    """The keys of a collection's elements; of a user type, its fields that are not null by their numbers."""
    if cell is None:
        return []
    parts: list[bytes | None] = []
    at = 0 if column.type.name == "udt" else 4
    while at < len(cell):
        (length,) = struct.unpack_from(">i", cell, at)
        at += 4
        parts.append(cell[at : at + length] if length >= 0 else None)
        at += max(length, 0)
    if column.type.name == "udt":
        # A field that is null in the source is one that only the target has.
        return [b"%d" % number if part is not None else b"" for number, part in enumerate(parts)]
    return [part or b"" for part in (parts[::2] if column.type.name == "map" else parts)]
