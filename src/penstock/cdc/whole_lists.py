"""Looks up lists of which a change wrote only some elements.

The log names elements by keys that the database made. Only ScyllaDB lets a client write an element by its key, so a
change of some elements is of no use to another table: it takes the whole list. The list is read from the table, after
the change: it may show later changes too, which come with a list of their own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.cdc.cdc_options import CdcSettings
from penstock.database import Page
from penstock.database.cells import indexed
from penstock.database.columns import Cells, decode
from penstock.database.cql_types import Column, CqlTable, CqlType, spark_type
from penstock.database.encode_cells import as_bytes, encode
from penstock.database.requests import CqlRequest, RequestLimits, send_all
from penstock.database.table_catalog import base_name, quoted
from penstock.database.token_ring import partition_key
from penstock.database.write_times import timed_columns
from penstock.native import Array
from penstock.spark_runtime.arrow_types import to_arrow_type

_TTLS = CqlType("list", (CqlType("int"),), frozen=True)


class WholeLists:
    """Fills the column `lists` of batches of changes."""

    def __init__(self, chosen: CdcSettings, table: CqlTable) -> None:
        self.chosen, self.table = chosen, table
        self.timed = timed_columns(chosen.access, table, chosen.patience)
        self.columns = [column for column in table.values if column.type.nonfrozen_list]
        self.limits = RequestLimits(patience=chosen.patience)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the lists of its changes."""
        if not self.columns:
            return batch
        place = batch.schema.get_field_index("lists")
        target = batch.schema.field(place).type
        lists = [self._column(column, batch, target.field(column.name).type) for column in self.columns]
        struct = pa.StructArray.from_arrays(lists, fields=list(target))
        return batch.set_column(place, batch.schema.field(place), struct)

    def _column(self, column: Column, batch: pa.RecordBatch, target: pa.DataType) -> pa.Array:
        written, deleted = (listed(batch.column(name), column.name) for name in ("written", "deleted"))
        rows = np.flatnonzero(written & ~deleted)
        if not len(rows):
            return pa.nulls(batch.num_rows, target)
        pages = self._read(column, batch.take(pa.array(rows)))
        values, expiries = zip(*(self._list(column, page, target) for page in pages), strict=True)
        read_lists = pa.StructArray.from_arrays(
            [pa.concat_arrays(values), pa.concat_arrays(expiries)], fields=list(target)
        )
        places = np.full(batch.num_rows, -1)
        places[rows] = np.arange(len(rows))
        return read_lists.take(pa.array(places, mask=places < 0))

    def _read(self, column: Column, changes: pa.RecordBatch) -> list[Page]:
        static = column.kind == "static"
        key = self.table.partition_key if static else (*self.table.partition_key, *self.table.clustering_key)
        key_columns = changes.column("key").flatten()
        names = [each.name for each in changes.schema.field("key").type]
        cells = [as_bytes(encode(each.type, key_columns[names.index(each.name)])) for each in key]
        wanted = [quoted(column.name), *([f"TTL({quoted(column.name)})"] if column.name in self.timed else [])]
        where = " AND ".join(f"{quoted(each.name)} = ?" for each in key)
        text = f"SELECT {', '.join(wanted)} FROM {base_name(self.table)} WHERE {where}{' LIMIT 1' if static else ''}"
        count = len(self.table.partition_key)
        requests = [CqlRequest(((text, row),), partition_key(row[:count])) for row in zip(*cells, strict=True)]
        return send_all(
            self.chosen.access,
            self.table.keyspace,
            requests,
            self.limits,
            what="looking up lists",
            where=self.table.full_name,
            table=self.table,
        )

    def _list(self, column: Column, page: Page, target: pa.DataType) -> tuple[pa.Array, pa.Array]:
        """The list on a page of at most one row, and when its elements expire; an empty list if there is none."""
        width = 2 if column.name in self.timed else 1
        buffer, starts, lengths = indexed(page.data, page.rows, width, where=self.table.full_name)
        values, expiries = (target.field(name).type for name in ("values", "expiries"))
        if not page.rows or lengths[0, 0] < 0:
            return pa.array([[]], values), pa.nulls(1, expiries)
        cells = [Cells(buffer, starts[:, place], lengths[:, place]) for place in range(width)]
        elements = decode(column.type, cells[0], values)
        if width == 1 or lengths[0, 1] < 0:
            return elements, pa.nulls(1, expiries)
        ttls = decode(_TTLS, cells[1], to_arrow_type(spark_type(_TTLS)))
        since = pc.add(ttls.values.cast(pa.int64()), page.asked)
        return elements, pa.ListArray.from_arrays(ttls.offsets, since, type=expiries)


def listed(lists: pa.Array, value: Any) -> Array:
    """A mask of the lists that contain a value."""
    mask = np.zeros(len(lists), np.bool_)
    parents = pc.list_parent_indices(lists)
    mask[parents.filter(pc.fill_null(pc.equal(pc.list_flatten(lists), value), False)).to_numpy()] = True
    return mask
