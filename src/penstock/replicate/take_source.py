"""Writes the source's values over those that the target keeps after a repair, with times that win there.

Each value is written a microsecond after the one that the target has, not at the time of now: what would be lost among
the changes that are on their way is what the target's value had hidden anyway. Of a deletion, reads do not show the
time; what it hides is written at the time at which the repair began, before it read the source, so that changes of
later still win. A value that reads as the source's is left, so a second repair writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from penstock.database.cql_types import Column
from penstock.database.encode_cells import list_bytes
from penstock.database.requests import RequestLimits, Statement, Value
from penstock.database.token_ring import partition_key
from penstock.replicate.change_statements import partitions
from penstock.replicate.list_statements import ListStatements
from penstock.replicate.reconciliation import CellState, has_parts, parts_of
from penstock.replicate.repair import (
    bound,
    column_deletions,
    columns_of,
    is_row,
    newest_of,
    row_deletion,
    rows_again,
    send,
)
from penstock.replicate.row_differences import Cell, Key, Pair
from penstock.replicate.table_scan import TableScan
from penstock.replicate.table_statements import TableStatements, added, time_to_live, to, to_field

LAST_TIME = 2**63 - 1


def take_source(
    source: TableScan, target: TableScan, tokens: tuple[int, int], pairs: Mapping[Key, Pair], at: int, *, markers: bool
) -> None:
    """Make rows within the tokens (after, until] read as the source's; `at` is when the repair began, in microseconds.

    Without `markers`, rows that are missing are updated but not inserted.
    """
    texts = TableStatements(target.table)
    count = len(target.table.partition_key)
    send(
        target,
        (
            (partition_key(key[:count]), list(_statements(target, texts, key, pair, at, markers=markers)))  # type: ignore[arg-type]
            for key, pair in pairs.items()
        ),
    )
    lists = ListStatements(target.side.access, texts, RequestLimits(patience=target.patience), least=at)
    if not lists.columns:
        return
    for batch in rows_again(source, tokens, pairs):
        of_rows = partitions(target.table, batch)
        send(target, ((of_rows[row], some) for row, some in lists.of(batch, int(time.time())).items()))


def _statements(
    target: TableScan, texts: TableStatements, key: Key, pair: Pair, at: int, *, markers: bool
) -> Iterator[Statement]:
    if is_row(texts, key):
        if pair.source is None and pair.target is not None:
            yield row_deletion(texts, key, max(at, newest_of(target, pair.target) or at))
        elif pair.target is None and pair.source is not None and markers:
            expires = _expiry_of_row(target, pair.source)
            yield texts.insert([]), [*key, bound(at), time_to_live(expires, int(time.time()))]
    for column, source_cell, target_cell in columns_of(target, pair):
        yield from column_deletions(texts, column, key, source_cell, target_cell)
        if not column.type.nonfrozen_list:
            yield from _of_column(texts, column, key, source_cell, target_cell, at)


def _expiry_of_row(scan: TableScan, row: tuple[Cell, ...]) -> int | None:
    """When a row expires that was inserted with its oldest value, which is what a repair writes too."""
    cells = zip(scan.value_columns, row, strict=True)
    parts = [part for column, cell in cells if column.kind != "static" for part in parts_of(column, cell).values()]
    return min(parts, key=lambda part: part.time or 0).expires if parts else None


def _of_column(
    texts: TableStatements, column: Column, key: Key, source: Cell, target: Cell, at: int
) -> Iterator[Statement]:
    static = column.kind == "static"
    own = key[: len(texts.partition)] if static else key
    theirs, whole = parts_of(column, target), not has_parts(column, source)
    for name, part in parts_of(column, source).items():
        when = _winning(part, theirs.get(name), at)
        if part.reads_as(theirs.get(name)) or when > LAST_TIME:
            continue
        text, value = (to(column.name), part.value) if whole else _assignment(column, name, part)
        bindings: list[Value] = [bound(when), time_to_live(part.expires, int(time.time())), value, *own]
        yield texts.update([text], static=static), bindings


def _winning(source: CellState, target: CellState | None, at: int) -> int:
    """A time at which the source's value wins in the target."""
    there = at if target is None or target.time is None else target.time
    return max(there, source.time or 0) + 1


def _assignment(column: Column, name: bytes, part: CellState) -> tuple[str, bytes]:
    """What writes one element of a collection, or one field of a user type."""
    if column.type.name == "udt":
        return to_field(column.name, column.type.fields[int(name)]), part.value
    if column.type.name == "map":
        return added(column.name), (1).to_bytes(4, "big") + list_bytes([name, part.value])[4:]
    return added(column.name), list_bytes([name])
