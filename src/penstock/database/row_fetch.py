"""Fetches rows of a table by key: keys are given as bytes, and rows are returned as Arrow columns.

Rows whose keys differ in only one column are requested together, with IN, from the node that owns them: this costs the
node and the driver little more than a request for one row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from penstock.database import Page
from penstock.database.access import Access
from penstock.database.bad_values import decoded
from penstock.database.cells import MOST_OFFSET, indexed
from penstock.database.columns import Cells
from penstock.database.cql_types import CqlTable, spark_type
from penstock.database.encode_cells import encode, laid_out, list_bytes
from penstock.database.requests import CqlRequest, RequestLimits, send_all
from penstock.database.table_catalog import base_name, quoted
from penstock.database.token_ring import LONGEST_KEY, by_owner, partition_key
from penstock.errors import PenstockError
from penstock.native import Array
from penstock.spark_runtime.arrow_types import to_arrow_type

KEYS_TOGETHER = 32
Key: TypeAlias = tuple[bytes, ...]
"""The cells of a primary key."""


@dataclass(frozen=True)
class RowFetch:
    """Reads `columns` of the rows of a table by their full primary key."""

    access: Access
    table: CqlTable
    columns: tuple[str, ...]
    limits: RequestLimits

    @cached_property
    def key(self) -> tuple[str, ...]:
        return tuple(column.name for column in (*self.table.partition_key, *self.table.clustering_key))

    @cached_property
    def schema(self) -> pa.Schema:
        kinds = {column.name: column.type for column in self.table.columns}
        return pa.schema([(name, to_arrow_type(spark_type(kinds[name]), timezone="UTC")) for name in self.columns])

    def keys(self, columns: Sequence[pa.Array]) -> tuple[pa.Array, Array]:
        """The keys in these columns as bytes, and a mask of the keys that a row can have.

        A row cannot have a key with a null or a key that is too long; the database would refuse to look it up.
        """
        kinds = {column.name: column.type for column in self.table.columns}
        cells = [encode(kinds[name], column) for name, column in zip(self.key, columns, strict=True)]
        # The empty value is not a valid partition key, but can be one of its columns.
        shortest = 1 if len(self.table.partition_key) == 1 else 0
        valid = cells[0].lengths >= shortest
        for each in cells[1:]:
            valid &= each.lengths >= 0
        count = len(self.table.partition_key)
        # `partition_key` adds 3 bytes to each of several columns.
        short = _together(cells[:count]) + (3 * count if count > 1 else 0) <= LONGEST_KEY
        return _as_binary(laid_out(cells)), valid & short & (_together(cells[count:]) <= LONGEST_KEY)

    def fetch(self, keys: Sequence[bytes]) -> tuple[pa.Table, Array, int]:
        """Return a row for each key (nulls if there is none), a mask of the found rows, and the number of requests."""
        pages = self.pages(keys)
        count = sum(page.rows for page in pages)
        names = (*self.key, *self.columns)
        data = b"".join(page.data for page in pages)
        buffer, starts, lengths = indexed(data, count, len(names), where=self.table.full_name)
        cells = [Cells(buffer, starts[:, i], lengths[:, i]) for i in range(len(names))]
        keys_read = _as_binary(laid_out(cells[: len(self.key)])).to_pylist() if count else []
        places = dict(zip(keys_read, range(count), strict=True))
        rows = np.array([places.get(key, -1) for key in keys], np.int64)
        return self._decoded(cells).take(pa.array(rows, mask=rows < 0)), rows >= 0, len(pages)

    def pages(self, keys: Sequence[bytes]) -> list[Page]:
        """The rows with these keys, one page per request, in any order; a row begins with the cells of its key."""
        requests = self._requests(keys)
        table = self.table
        where = table.full_name
        return send_all(
            self.access, table.keyspace, requests, self.limits, what="looking up rows", where=where, table=table
        )

    def _decoded(self, cells: list[Cells]) -> pa.Table:
        """The decoded columns; `cells` has the columns of the key first."""
        key, values = dict(zip(self.key, cells, strict=False)), cells[len(self.key) :]
        arrays = [
            decoded(self.table, field.name, each, field.type, key)
            for field, each in zip(self.schema, values, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _requests(self, keys: Sequence[bytes]) -> list[CqlRequest]:
        names = ", ".join(map(quoted, (*self.key, *self.columns)))
        parts = [_parts(key) for key in keys]
        at = _column_to_list(parts, self._listable)
        marks = (f"{quoted(name)} {'IN ?' if i == at else '= ?'}" for i, name in enumerate(self.key))
        text = f"SELECT {names} FROM {base_name(self.table)} WHERE {' AND '.join(marks)}"
        owned = by_owner(self.access, self.table.keyspace, parts, self._partition, patience=self.limits.patience)
        return [
            self._request(text, at, alike[i : i + KEYS_TOGETHER])
            for part in owned
            for alike in _alike(part, at)
            for i in range(0, len(alike), KEYS_TOGETHER)
        ]

    @property
    def _listable(self) -> int:
        """How many columns of the key, from the first, can be given as a list.

        ScyllaDB refuses IN on clustering columns if a collection is selected.
        """
        parted = any(column.type.multi_cell for column in self.table.columns if column.name in self.columns)
        return len(self.table.partition_key if parted else self.key)

    def _request(self, text: str, at: int, keys: Sequence[Key]) -> CqlRequest:
        first = keys[0]
        values = [*first[:at], list_bytes([key[at] for key in keys]), *first[at + 1 :]]
        return CqlRequest(((text, values),), self._partition(first))

    def _partition(self, key: Key) -> bytes:
        return partition_key(key[: len(self.table.partition_key)])


def _together(cells: Sequence[Cells]) -> Array:
    """The total length of the cells of each row."""
    return sum((each.lengths.astype(np.int64) for each in cells), np.zeros(1, np.int64))


def _column_to_list(keys: Sequence[Key], listable: int) -> int:
    """The column of the key to request as a list: the other columns have the fewest different values."""
    return min(range(listable), key=lambda at: len({_others(key, at) for key in keys}))


def _alike(keys: Sequence[Key], at: int) -> Iterable[list[Key]]:
    """Group the keys that differ only in this column."""
    groups: dict[Key, list[Key]] = {}
    for key in keys:
        groups.setdefault(_others(key, at), []).append(key)
    return groups.values()


def _others(key: Key, at: int) -> Key:
    return key[:at] + key[at + 1 :]


def _as_binary(cells: Cells) -> pa.Array:
    """Cells that are stored end to end, as an Arrow array."""
    if len(cells.buffer) > MOST_OFFSET:
        raise PenstockError(
            f"keys with {len(cells.buffer)} bytes in total do not fit one Arrow array",
            next="set spark.sql.execution.arrow.maxRecordsPerBatch to a smaller number",
        )
    offsets = np.append(cells.starts, len(cells.buffer)).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(cells), [None, pa.py_buffer(offsets), pa.py_buffer(cells.buffer)])


def _parts(key: bytes) -> Key:
    """The cells of a key, the inverse of `laid_out`."""
    cells, at = [], 0
    while at < len(key):
        (length,) = struct.unpack_from(">i", key, at)
        cells.append(key[at + 4 : at + 4 + length])
        at += 4 + length
    return tuple(cells)
