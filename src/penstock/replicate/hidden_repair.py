"""Writes what reads do not show to the target, as far as CQL can say it: deletions at their times, markers of rows.

Nothing can be taken back: a deletion or a marker that only the target has stays, and so does one that is newer there.
With later times, rows can be inserted again that a deletion of the target hides.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import pyarrow as pa

from penstock.database.columns import BadValue
from penstock.database.cql_types import Column, CqlType
from penstock.database.encode_cells import as_bytes, encode, list_bytes
from penstock.database.requests import RequestLimits, Statement, Value, send_all, together
from penstock.database.token_ring import partition_key
from penstock.errors import PenstockError
from penstock.replicate.fragment_reader import FragmentReader, Key
from penstock.replicate.hidden_differences import Both, Unlike
from penstock.replicate.hidden_state import CELL, COLLECTION, ELEMENT, MARKER, PARTITION, RANGE, ROW, Path, WriteFacts
from penstock.replicate.reconciliation import CellState, why_kept
from penstock.replicate.repair import NO_TTL, bound
from penstock.replicate.table_statements import TableStatements, removed, slices, time_to_live, to, to_field

TAKEN_BACK = "CQL cannot take it back"
"""Why what only the target has, or has newer, is left."""
COVERED = "deleted in the target, at the same write time or later, by a deletion that covers it"
WITH_ROW = "it is written with its row, which does not differ"


def repair(target: FragmentReader, differences: Iterable[tuple[Key, Unlike]]) -> None:
    """Write what CQL can say of these differences."""
    texts = TableStatements(target.table)
    writes = [
        (partition_key(key), statements)
        for key, unlike in differences
        for path, both in unlike.items()
        if not reason(target, path, both) and (statements := _statements(texts, target, key, path, both))
    ]
    _send(target, writes)


def insert_again(target: FragmentReader, key: Key, unlike: Unlike, at: int) -> None:
    """Insert the rows of a partition whose markers a deletion of the target hides, at a time that wins over it."""
    texts, now = TableStatements(target.table), int(time.time())
    inserts: list[Statement] = [
        (
            texts.insert([]),
            [*key, *(path.row or ()), bound(max(at, source.time) + 1), time_to_live(source.expires, now)],
        )
        for path, (source, there) in unlike.items()
        if path.kind == MARKER and source is not None and not source.dead and there is None
    ]
    _send(target, [(partition_key(key), inserts)] if inserts else [])


def _send(target: FragmentReader, writes: list[tuple[bytes, list[Statement]]]) -> None:
    table, limits = target.table, RequestLimits(patience=target.patience)
    requests = together(target.side.access, table.keyspace, writes, limits)
    send_all(target.side.access, table.keyspace, requests, limits, what="repairing", where=table.full_name)


def why_left(target: FragmentReader, path: Path, both: Both) -> str:
    """Why a difference is there after a repair."""
    return reason(target, path, both) or COVERED


def reason(target: FragmentReader, path: Path, both: Both) -> str:
    """Why a difference cannot be written; "" if it can."""
    source, there = both
    if source is not None and not source.dead and path.kind in (CELL, ELEMENT):
        return WITH_ROW if there is None else why_kept(_part(source), None if there.dead else _part(there))
    if source is None or (there is not None and there.time > source.time):
        return TAKEN_BACK
    if path.kind == MARKER and source.dead:
        return "CQL cannot write a marker that has expired"
    if path.kind in (PARTITION, RANGE, ROW, MARKER, COLLECTION):
        return TAKEN_BACK if there is not None and there.time == source.time and there.dead else ""
    column = _column(target, path)
    if path.kind == ELEMENT and column.type.name != "udt" and _cell(column.type.args[0], path.element) is None:
        return f"the key of an element is shown as text only, and {column.type.args[0]} cannot be read from it"
    return ""


def _part(written: WriteFacts) -> CellState:
    return CellState(b"", written.time, written.expires)


def _column(target: FragmentReader, path: Path) -> Column:
    return next(column for column in target.table.values if column.name == path.column)


def _statements(texts: TableStatements, target: FragmentReader, key: Key, path: Path, both: Both) -> list[Statement]:
    written = both.source or WriteFacts(0)
    at, row = bound(written.time), list(path.row or ())
    if path.kind == PARTITION:
        return [(texts.delete([texts.of_partition]), [at, *key])]
    if path.kind == ROW:
        return [(texts.delete([texts.of_row]), [at, *key, *row])]
    if path.kind == RANGE:
        return _range(texts, target, key, path, at)
    if path.kind == MARKER:
        return [(texts.insert([]), [*key, *row, at, time_to_live(written.expires, int(time.time()))])]
    own = key if path.row is None else (*key, *row)
    column = _column(target, path)
    text, value = to(column.name), None
    if path.kind == COLLECTION:
        # A column that is set deletes what was there a microsecond before.
        at = bound(written.time + 1)
    elif path.kind == ELEMENT and column.type.name == "udt":
        text = to_field(column.name, path.element)
    elif path.kind == ELEMENT:
        text, value = removed(column.name), list_bytes([_cell(column.type.args[0], path.element) or b""])
    values: list[Value] = [at, NO_TTL, value, *own]
    return [(texts.update([text], static=path.row is None), values)]


def _range(texts: TableStatements, target: FragmentReader, key: Key, path: Path, at: bytes) -> list[Statement]:
    descending = [column.descending for column in target.table.clustering_key]
    start, (end, after) = path.row or (), path.end
    conditions = slices(texts.clustering, start, path.weight < 0 or not start, end, after > 0 or not end, descending)
    return [(texts.delete([texts.of_partition, *some]), [at, *key, *values]) for some, values in conditions]


_TEXTS = ("ascii", "text", "varchar", "decimal", "varint", "uuid", "timeuuid", "inet")
_INTEGERS = {"tinyint": 1, "smallint": 2, "int": 4, "bigint": 8}


def _cell(kind: CqlType, text: str) -> bytes | None:
    """The bytes of an element's key from its text; None if that cannot be read."""
    if kind.name in _TEXTS:
        try:
            return as_bytes(encode(kind, pa.array([text])))[0]
        except (BadValue, PenstockError):
            return None
    if kind.name in _INTEGERS:
        return int(text).to_bytes(_INTEGERS[kind.name], "big", signed=True)
    if kind.name == "blob":
        return bytes.fromhex(text)
    return bytes([text == "true"]) if kind.name == "boolean" else None
