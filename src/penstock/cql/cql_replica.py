"""`cql.global_table`: a table of ScyllaDB or Cassandra that every worker holds completely, updated from its change log.

A worker reads the table by token ranges, several at a time, and then follows the log from a moment before that. Only
the key of a change is used: its row is read again. So the order of changes does not matter, nor does a change that the
first read already included.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Any, Unpack

import numpy as np
import pyarrow as pa
from pyspark.sql import types as st

from penstock.border.public import public
from penstock.cdc.cdc_options import CdcSettings, option_text, settings
from penstock.cdc.cdc_source import CdcStreamReader
from penstock.cdc.cdc_tables import frame_schema
from penstock.cdc.generations import FIRST_TOKEN, LAST_TOKEN, MICROSECOND, now_micros
from penstock.cdc.log_pages import pages_of_table
from penstock.cdc.planner import describe as describe_logged, retrying
from penstock.database import Page
from penstock.database.access import Access, AccessOptions
from penstock.database.bad_values import decoded
from penstock.database.cells import indexed
from penstock.database.columns import Cells
from penstock.database.cql_connection import connection
from penstock.database.cql_types import CqlTable, spark_type
from penstock.database.requests import RequestLimits
from penstock.database.row_fetch import RowFetch
from penstock.database.table_catalog import base_name, describe, quoted, table_names, token_of_key
from penstock.durations import Duration, duration
from penstock.errors import PenstockError
from penstock.spark_runtime.arrow_types import to_arrow_type
from penstock.table.global_tables import GlobalTable, Put

WHERE = "cql.global_table"
KEYS = ("text", "ascii", "varchar", "tinyint", "smallint", "int", "bigint", "uuid", "timeuuid")
"""Types of a key that have the same string in the database and in Spark."""
RANGES, READERS = 64, 8
"""Token ranges of the first read, and how many are read at a time."""
PAGE_ROWS = 20_000


@dataclass(frozen=True)
class CqlFeed:
    """What a worker follows; created and checked by `global_table`. `refresh` is the interval of complete reads."""

    settings: CdcSettings
    rows: RowFetch
    logged: bool
    every: timedelta
    refresh: timedelta | None
    memory: int
    folder: str

    @property
    def name(self) -> str:
        return f"table {self.rows.table.full_name}"

    @property
    def schema(self) -> pa.Schema:
        return self.rows.schema

    def decode(self, values: pa.Array, schema: pa.Schema) -> tuple[pa.Table, Any]:
        """The values as rows; a value has the cells of the key and the columns, as received."""
        present = values.drop_null().to_pylist()
        cells = _cells(Page(b"".join(present), len(present), True), 1 + len(schema), self.name)
        table, key = self.rows.table, {self.rows.key[0]: cells[0]}
        arrays = [
            decoded(table, field.name, some, field.type, key) for field, some in zip(schema, cells[1:], strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=schema), np.ones(len(values), bool)

    def follow(self, put: Put, loaded: Callable[[], None]) -> None:
        """See `replica.Feed`."""
        low, ends = now_micros() - self.settings.confidence // MICROSECOND, None
        if self.refresh is not None:
            ends = time.monotonic() + self.refresh.total_seconds()
        for page in self._pages():
            if page.rows:
                put(*self._keyed(page))
        loaded()
        changes = self._changes(low) if self.logged else iter([None])
        while ends is None or time.monotonic() < ends:
            if changed := next(changes, None):
                self._read_again(changed, put)
            else:
                time.sleep(self.every.total_seconds())

    def _pages(self) -> Iterator[Page]:
        """The pages of the table, in turn of READERS token ranges, whose requests are under way at the same time.

        No thread waits for them: the end of the process would wait for that.
        """
        token = token_of_key(self.rows.table)
        names = ", ".join(map(quoted, (*self.rows.key, *self.rows.columns)))
        text = f"SELECT {names} FROM {base_name(self.rows.table)} WHERE {token} > ? AND {token} <= ?"
        ranges = (pages_of_table(self.settings, text, part) for part in _ranges())
        waiting = deque(islice(ranges, READERS))
        while waiting:
            pages = waiting.popleft()
            if (page := next(pages, None)) is None:
                waiting.extend(islice(ranges, 1))
            else:
                waiting.append(pages)
                yield page

    def _changes(self, low: int) -> Iterator[pa.Array | None]:
        """Changed keys, without end; None when there are no changes for the moment."""
        start = datetime.fromtimestamp(low / 1_000_000, UTC).isoformat()
        table = retrying(self.settings, "describing the table", lambda: describe_logged(self.settings))
        # Only the keys, so that an unreadable value in an unused column does no harm.
        keys = st.StructType([frame_schema(table)["key"]])
        reader = CdcStreamReader(replace(self.settings, start=start), table, keys)
        at = reader.initialOffset()
        while True:
            until = reader.latestOffset(at, reader.getDefaultReadLimit())
            if until == at:
                yield None
                continue
            for part in reader.partitions(at, until):
                for batch in reader.read(part):
                    yield batch.column("key").flatten()[0]
            at = until

    def _read_again(self, changed: pa.Array, put: Put) -> None:
        """Read the current rows of these keys, and delete the keys without a row."""
        changed = changed.unique()
        cells, valid = self.rows.keys([changed])
        gone = dict.fromkeys(_text(changed.filter(pa.array(valid))).to_pylist())
        for page in self.rows.pages(cells.filter(pa.array(valid)).to_pylist()):
            if page.rows:
                keys, values = self._keyed(page)
                for key in keys.to_pylist():
                    gone.pop(key, None)
                put(keys, values)
        if gone:
            put(pa.array(list(gone), pa.binary()), pa.nulls(len(gone), pa.binary()))

    def _keyed(self, page: Page) -> tuple[pa.Array, pa.Array]:
        """The keys of a page's rows as strings, and the rows as bytes."""
        (key,) = self.rows.table.partition_key
        cells = _cells(page, 1 + len(self.rows.columns), self.name)
        kind = to_arrow_type(spark_type(key.type), timezone="UTC")
        keys = decoded(self.rows.table, key.name, cells[0], kind, {key.name: cells[0]})
        ends = np.append(cells[0].starts - 4, len(page.data)).astype(np.int32)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(page.data)]
        return _text(keys), pa.Array.from_buffers(pa.binary(), page.rows, buffers)


@public("cql.global_table")
def global_table(
    table: str,
    *,
    hosts: str,
    columns: Sequence[str],
    refresh: Duration | None = None,
    every: Duration = "1 second",
    confidence: Duration = "30 seconds",
    memory: int = 512 << 20,
    folder: str = "",
    **access: Unpack[AccessOptions],
) -> GlobalTable:
    """The `columns` of a table "keyspace.table" with a single primary key column, for `join.enrich`.

    Each Python worker (one per core) reads the whole table before its first lookup. Then it polls the table's change
    log, which must be enabled, at the interval `every`; a write must be visible `confidence` after its timestamp. Rows
    that expire by their time to live are not in the log. `refresh` is the interval at which the table is read again; it
    also works without a log. `memory` and `folder` are as in `table.global_table`, `access` as in `cql.sink`.

    Raises PenstockError if the table or a column does not exist, the key has several columns or an unsupported type, or
    the table has neither a log nor `refresh`.
    """
    Access.of(hosts, access, where=WHERE, function=global_table)
    options = {name: option_text(name, value) for name, value in [*access.items(), ("confidence", confidence)]}
    about = {"table": table, "hosts": hosts, "latency": "low", "page_size": str(PAGE_ROWS)}
    chosen = settings({**about, **options})
    cql_table = retrying(chosen, "describing the table", lambda: describe(connection(chosen.access).rows, table))
    logged = cql_table.log_name in table_names(connection(chosen.access).rows, cql_table.keyspace)
    _require(cql_table, columns, logged or refresh is not None)
    if logged:
        describe_logged(chosen)
    rows = RowFetch(chosen.access, cql_table, tuple(columns), RequestLimits())
    often = None if refresh is None else duration(refresh, name="refresh")
    feed = CqlFeed(chosen, rows, logged, duration(every, name="every"), often, memory, folder)
    kinds = {column.name: spark_type(column.type) for column in cql_table.columns}
    return GlobalTable(feed, st.StructType([st.StructField(name, kinds[name]) for name in columns]))


def _require(table: CqlTable, columns: Sequence[str], fresh: bool) -> None:
    known, where = [column.name for column in table.columns], f"{WHERE} of {table.full_name}"
    if unknown := [name for name in columns if name not in known]:
        raise PenstockError(
            f"the table has no column {', '.join(unknown)}", where=where, next=f"use one of {', '.join(known)}"
        )
    key = (*table.partition_key, *table.clustering_key)
    if len(key) > 1 or key[0].type.name not in KEYS:
        listed = ", ".join(f"{column.name} {column.type}" for column in key)
        raise PenstockError(
            f"the primary key is {listed}",
            where=where,
            next="use a table with one key column of text, integers or UUIDs, or use cql.lookup",
        )
    if not fresh:
        raise PenstockError(
            "the table has no change log to follow",
            where=where,
            next=f"run: ALTER TABLE {table.full_name} WITH cdc = {{'enabled': true}}, or set refresh= to read it again "
            "at an interval",
        )


def _ranges() -> list[tuple[int, int]]:
    ends = [FIRST_TOKEN + (LAST_TOKEN - FIRST_TOKEN) * i // RANGES for i in range(RANGES + 1)]
    return list(pairwise(ends))


def _cells(page: Page, columns: int, where: str) -> list[Cells]:
    buffer, starts, lengths = indexed(page.data, page.rows, columns, where=where)
    return [Cells(buffer, starts[:, i], lengths[:, i]) for i in range(columns)]


def _text(keys: pa.Array) -> pa.Array:
    """The keys as strings, as `GlobalTable.enrich` looks them up."""
    return keys.cast(pa.string()).cast(pa.binary())
