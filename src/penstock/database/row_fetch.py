"""Rows of a table by key: which are asked for as the bytes of their keys, and come as Arrow columns.

Rows whose keys differ in one column are asked for by the dozen, with IN, at the node that owns them: such a request
costs the node and the driver little more than one for a single row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type

from penstock.database.access import Access
from penstock.database.bad_values import decoded
from penstock.database.cells import MOST_OFFSET, indexed
from penstock.database.columns import Cells
from penstock.database.encode_cells import encode, laid_out, list_bytes
from penstock.database.pages import Page
from penstock.database.requests import Request, RequestLimits, send_all
from penstock.database.table_catalog import base_name, quoted
from penstock.database.token_ring import LONGEST_KEY, by_owner, partition_key
from penstock.errors import PenstockError
from penstock.native import Array
from penstock.schema import CqlTable, spark_type

KEYS_TOGETHER = 32
Key: TypeAlias = tuple[bytes, ...]
"""The cells of a primary key."""


@dataclass(frozen=True)
class RowFetch:
    """What to read of a table: whole rows by their whole primary key, `columns` of each."""

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
        """The keys that stand in these columns as bytes, and which of them a row can have.

        None has one with a null, and none that is too long: the database would refuse to look for it.
        """
        kinds = {column.name: column.type for column in self.table.columns}
        cells = [encode(kinds[name], column) for name, column in zip(self.key, columns, strict=True)]
        # The empty value is no partition key, but may be a part of one.
        shortest = 1 if len(self.table.partition_key) == 1 else 0
        valid = cells[0].lengths >= shortest
        for each in cells[1:]:
            valid &= each.lengths >= 0
        count = len(self.table.partition_key)
        # `partition_key` puts 3 bytes about each of several columns.
        short = _together(cells[:count]) + (3 * count if count > 1 else 0) <= LONGEST_KEY
        return _as_binary(laid_out(cells)), valid & short & (_together(cells[count:]) <= LONGEST_KEY)

    def fetch(self, keys: Sequence[bytes]) -> tuple[pa.Table, Array, int]:
        """A row for each key, all null if there is none, whether there is one, and the number of requests."""
        pages = self.pages(keys)
        count = sum(page.rows for page in pages)
        names = (*self.key, *self.columns)
        data = b"".join(page.data for page in pages)
        buffer, starts, lengths = indexed(data, count, len(names), where=self.table.full_name)
        cells = [Cells(buffer, starts[:, i], lengths[:, i]) for i in range(len(names))]
        found = _as_binary(laid_out(cells[: len(self.key)])).to_pylist() if count else []
        places = dict(zip(found, range(count), strict=True))
        rows = np.array([places.get(key, -1) for key in keys], np.int64)
        return self._decoded(cells).take(pa.array(rows, mask=rows < 0)), rows >= 0, len(pages)

    def pages(self, keys: Sequence[bytes]) -> list[Page]:
        """The rows that these keys have, of each first the key's cells: one page a request, in any order."""
        requests = self._requests(keys)
        table = self.table
        where = table.full_name
        return send_all(
            self.access, table.keyspace, requests, self.limits, what="looking up rows", where=where, table=table
        )

    def _decoded(self, cells: list[Cells]) -> pa.Table:
        """The columns, of which the cells stand behind those of the key."""
        key, values = dict(zip(self.key, cells, strict=False)), cells[len(self.key) :]
        arrays = [
            decoded(self.table, field.name, each, field.type, key)
            for field, each in zip(self.schema, values, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _requests(self, keys: Sequence[bytes]) -> list[Request]:
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
        """How many columns of the key, from the first on, may be given as a list.

        ScyllaDB refuses lists of clustering columns beside a collection.
        """
        parted = any(column.type.multi_cell for column in self.table.columns if column.name in self.columns)
        return len(self.table.partition_key if parted else self.key)

    def _request(self, text: str, at: int, keys: Sequence[Key]) -> Request:
        first = keys[0]
        values = [*first[:at], list_bytes([key[at] for key in keys]), *first[at + 1 :]]
        return Request(((text, values),), self._partition(first))

    def _partition(self, key: Key) -> bytes:
        return partition_key(key[: len(self.table.partition_key)])


def _together(cells: Sequence[Cells]) -> Array:
    """How long the cells of each row are together."""
    return sum((each.lengths.astype(np.int64) for each in cells), np.zeros(1, np.int64))


def _column_to_list(keys: Sequence[Key], listable: int) -> int:
    """The column of the key whose values are asked for together: the others have the fewest different values."""
    return min(range(listable), key=lambda at: len({_others(key, at) for key in keys}))


def _alike(keys: Sequence[Key], at: int) -> Iterable[list[Key]]:
    """The keys in parts that differ in this column only."""
    found: dict[Key, list[Key]] = {}
    for key in keys:
        found.setdefault(_others(key, at), []).append(key)
    return found.values()


def _others(key: Key, at: int) -> Key:
    return key[:at] + key[at + 1 :]


def _as_binary(cells: Cells) -> pa.Array:
    """Cells that lie end to end, as an Arrow array."""
    if len(cells.buffer) > MOST_OFFSET:
        raise PenstockError(
            f"keys of {len(cells.buffer)} bytes together do not fit one Arrow array",
            next="set spark.sql.execution.arrow.maxRecordsPerBatch lower",
        )
    offsets = np.append(cells.starts, len(cells.buffer)).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(cells), [None, pa.py_buffer(offsets), pa.py_buffer(cells.buffer)])


def _parts(key: bytes) -> Key:
    """The cells that a key is laid out of."""
    found, at = [], 0
    while at < len(key):
        (length,) = struct.unpack_from(">i", key, at)
        found.append(key[at + 4 : at + 4 + length])
        at += 4 + length
    return tuple(found)
