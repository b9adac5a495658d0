"""`cql.lookup`: adds columns of a table's row to each row of a frame, looked up by primary key in the database.

Each Arrow batch requests every key that its process does not have, once and all at the same time, and waits. The batch
limits what Spark reads meanwhile. A process caches rows for the batches that follow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, functions as F, types as st

from penstock.border.public import public
from penstock.cql.cql_writer import described
from penstock.cql.row_cache import MEASURED, Measures, RowCache, measured
from penstock.database.access import Access, AccessOptions
from penstock.database.cql_types import CqlTable, spark_type
from penstock.database.requests import RequestLimits
from penstock.database.row_fetch import RowFetch
from penstock.database.table_catalog import canonical, require_fit
from penstock.durations import Duration, duration
from penstock.errors import PenstockError
from penstock.keyed_state.arrow_keys import taken

WHERE = "cql.lookup"
KEY = "penstock$key"
"""The temporary column of the keys, in the table's types."""
MEASURES = Measures(("rows", "hits", "keys", "found", "requests", "wait_ms", "cached"))


@public("cql.lookup")
def lookup(
    frame: DataFrame,
    table: str,
    *,
    hosts: str,
    on: str | Sequence[str] | Mapping[str, str],
    columns: Sequence[str] | Mapping[str, str],
    ttl: Duration,
    name: str,
    cache: int = 100_000,
    in_flight: int = RequestLimits.in_flight,
    timeout: Duration = RequestLimits.timeout,
    patience: Duration = RequestLimits.patience,
    **access: Unpack[AccessOptions],
) -> DataFrame:
    """The frame with `columns` of the row of `table` ("keyspace.table") with the primary key `on`; null if none.

    `on` names the frame's columns with the key: the table's names, or {table's: frame's}. `columns` are the table's
    names, or {table's: name in the frame}; their Spark types are as in docs/cdc.md. Each Python process of Spark caches
    a row, or that there is none, for `ttl`, at most `cache` keys. `name` names the metrics in the query's progress
    (`observedMetrics`): rows, hits (rows served from memory), keys (requested), found, requests, wait_ms, slowest_ms
    and cached.

    Raises PenstockError if the table or a column does not exist, `on` is not its primary key, a type does not fit, or
    the frame already has a column of that name.
    """
    reach = Access.of(hosts, access, where=WHERE, function=lookup)
    limits = RequestLimits(in_flight, duration(timeout, name="timeout"), duration(patience, name="patience"))
    cql_table = described(reach, table, limits.patience)
    key = _key(frame, cql_table, on)
    added = _added(frame, cql_table, columns)
    rows = RowFetch(reach, cql_table, tuple(added), limits)
    lifetime = duration(ttl, name="ttl").total_seconds()
    row_lookup = RowLookup(rows, tuple(added.values()), cache, lifetime)
    return measured(_joined(frame, cql_table, key, added, row_lookup), name, MEASURES)


def _key(frame: DataFrame, table: CqlTable, on: str | Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """The frame's column for each column of the table's primary key, in the key's order."""
    names = [on] if isinstance(on, str) else on
    key_columns = dict(names) if isinstance(names, Mapping) else {each: each for each in names}
    key = [column.name for column in (*table.partition_key, *table.clustering_key)]
    if sorted(key_columns) != sorted(key):
        raise PenstockError(
            f"{', '.join(key_columns)} is not the primary key",
            where=table.full_name,
            next=f"set on= to its key {', '.join(key)}: names, or {{table's: frame's}}",
        )
    for column in (*table.partition_key, *table.clustering_key):
        if key_columns[column.name] not in frame.columns:
            raise PenstockError(
                f"the frame has no column {key_columns[column.name]}",
                where=f"{WHERE} of {table.full_name}, columns {', '.join(frame.columns)}",
                next=f"set on={{{column.name!r}: ...}} to the name of one of these",
            )
        require_fit(frame, key_columns[column.name], column.type, table.full_name)
    return {name: key_columns[name] for name in key}


def _added(frame: DataFrame, table: CqlTable, columns: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """The name in the frame of each requested column of the table."""
    wanted = dict(columns) if isinstance(columns, Mapping) else {each: each for each in columns}
    known = [column.name for column in table.columns]
    if unknown := [each for each in wanted if each not in known]:
        raise PenstockError(
            f"the table has no column {unknown[0]}", where=table.full_name, next=f"use one of {', '.join(known)}"
        )
    if taken := [each for each in wanted.values() if each in frame.columns]:
        raise PenstockError(
            f"the frame already has a column {taken[0]}",
            where=f"{WHERE} of {table.full_name}",
            next=f"use another name in columns=: {{{taken[0]!r}: 'new_name'}}",
        )
    return wanted


def _joined(
    frame: DataFrame, table: CqlTable, key: dict[str, str], added: dict[str, str], row_lookup: RowLookup
) -> DataFrame:
    kinds = {column.name: column.type for column in table.columns}
    keys = F.struct(*(canonical(frame, column, kinds[name]).alias(name) for name, column in key.items()))
    fields = [st.StructField(name, spark_type(kinds[column])) for column, name in added.items()]
    return frame.withColumn(KEY, keys).mapInArrow(
        row_lookup, st.StructType([*frame.schema.fields, *fields, MEASURES.field])
    )


@dataclass(frozen=True)
class RowLookup:
    """Adds the columns to the record batches of a task; `names` are their names in the frame."""

    rows: RowFetch
    names: tuple[str, ...]
    limit: int
    seconds: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        cache = _caches.setdefault(self, RowCache(self.rows.schema.append(FOUND), self.limit, self.seconds))
        for batch in batches:
            if batch.num_rows:
                yield self._joined(batch, cache)

    def _joined(self, batch: pa.RecordBatch, cache: RowCache) -> pa.RecordBatch:
        began = time.monotonic()
        keys, valid = self.rows.keys(batch.column(KEY).flatten())
        places = np.where(valid, cache.find(keys, began), -1)
        asked = valid & (places < 0)
        table, wanted, requests = cache.table, 0, 0
        if asked.any():
            coded = keys.filter(pa.array(asked)).dictionary_encode()
            fresh, requests = self._fetched(coded.dictionary)
            places[asked] = table.num_rows + coded.indices.to_numpy()
            table, wanted = pa.concat_tables([table, fresh]), fresh.num_rows
            cache.add(coded.dictionary, fresh, began)
        rows = taken(table, places)
        numbers = [
            len(places),
            int(np.count_nonzero(valid & ~asked)),
            wanted,
            pc.sum(rows.column(FOUND.name)).as_py() or 0,
            requests,
            round((time.monotonic() - began) * 1000) if requests else 0,
            len(cache),
        ]
        plain = [(name, column) for name, column in zip(batch.schema.names, batch.columns, strict=True) if name != KEY]
        added = [rows.column(each.name).combine_chunks() for each in self.rows.schema]
        return pa.RecordBatch.from_arrays(
            [*(column for _, column in plain), *added, MEASURES.column(numbers, len(places))],
            [*(name for name, _ in plain), *self.names, MEASURED],
        )

    def _fetched(self, keys: pa.Array) -> tuple[pa.Table, int]:
        """The row of each key, and the number of requests."""
        rows, is_found, requests = self.rows.fetch(keys.to_pylist())
        return rows.append_column(FOUND, pa.array(is_found)), requests


FOUND = pa.field("penstock$found", pa.bool_())
_caches: dict[RowLookup, RowCache] = {}
"""The caches of this process, by lookup: shared by the batches of a task and by later tasks."""
