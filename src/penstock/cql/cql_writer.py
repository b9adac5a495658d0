"""Turns Spark's Arrow batches into CQL statements: whole columns are encoded, rows are assembled from the bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cassandra.query import UNSET_VALUE
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, functions as F, types as st

from penstock.border.spark_refusals import refusal
from penstock.database.access import Access
from penstock.database.cql_connection import connection
from penstock.database.cql_types import CqlTable, CqlType
from penstock.database.encode_cells import as_bytes, encode
from penstock.database.requests import CqlRequest, RequestLimits, Statement, send_all, together
from penstock.database.retrying import retrying
from penstock.database.table_catalog import base_name, describe, quoted, require_fit
from penstock.database.token_ring import LONGEST_KEY, partition_key, too_long
from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.spark_runtime.logical_plan import analyzed, each

# Control columns besides the tables' own; no column of a table can have these names.
TABLE, DELETE, TTL, TIMESTAMP = "penstock$table", "penstock$delete", "penstock$ttl", "penstock$timestamp"
MAX_TTL = 20 * 365 * 86_400
"""The longest TTL that the databases accept, in seconds."""
_BIGINT, _INT = CqlType("bigint"), CqlType("int")


@dataclass(frozen=True)
class CqlWriter:
    """Writes the record batches of a task, and gives a row of counts (`delays`).

    `began` is the first row's write timestamp in microseconds.
    """

    access: Access
    tables: tuple[CqlTable, ...]
    mode: str
    began: int
    limits: RequestLimits

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written, size, repeated = delays.DelayCounts(), 0, list[int]()
        for batch in batches:
            batch, events = delays.split(batch)
            for table, rows, times in self._by_table(batch, self._times(batch, written.rows)):
                writes = _Rows(table, rows, times, self.mode)
                requests = together(self.access, table.keyspace, writes.statements(), self.limits)
                self._send(table, requests, repeated.append)
                size += writes.size
            written.acknowledged(batch.num_rows, events)
        yield written.counts(bytes=size, retries=sum(repeated)).batch()

    def _send(self, table: CqlTable, requests: Sequence[CqlRequest], repeated: Callable[[int], None]) -> None:
        known: dict[str, Any] = {"where": table.full_name, "table": table, "repeated": repeated}
        send_all(self.access, table.keyspace, requests, self.limits, what="writing", **known)

    def _times(self, batch: pa.RecordBatch, done: int) -> pa.Array:
        """The write timestamp of each row; it grows within a task, so that of two rows with a key the last wins."""
        if TIMESTAMP in batch.schema.names:
            return _without_null(batch.column(TIMESTAMP), "timestamp")
        return pa.array(self.began + done + np.arange(batch.num_rows, dtype=np.int64))

    def _by_table(self, batch: pa.RecordBatch, times: pa.Array) -> Iterator[tuple[CqlTable, pa.RecordBatch, pa.Array]]:
        if TABLE not in batch.schema.names:
            yield self.tables[0], batch, times
            return
        names = batch.column(TABLE)
        known = {table.full_name: table for table in self.tables}
        for name in pc.unique(names).to_pylist():
            if name not in known:
                raise PenstockError(
                    f"a row goes to {name}, which is not in tables=",
                    where="cql.sink",
                    next=f"add it to tables=, next to {', '.join(known)}; or filter these rows out",
                )
            chosen = pc.equal(names, name)
            yield known[name], batch.filter(chosen), times.filter(chosen)


class _Rows:
    """Rows of one table as statements; `size` is the bytes of their values."""

    def __init__(self, table: CqlTable, batch: pa.RecordBatch, times: pa.Array, mode: str) -> None:
        self.table, self.batch, self.times = table, batch, times
        kinds = {column.name: column.type for column in table.columns}
        self.size = 0
        self.names = [name for name in batch.schema.names if name in kinds]
        self.key = [column.name for column in (*table.partition_key, *table.clustering_key)]
        for name in self.key:
            _without_null(batch.column(name), name)
        absent = None if mode == "insert" else UNSET_VALUE
        self.cells = {name: self._cells(name, kinds[name], absent) for name in self.names}

    def _cells(self, name: str, kind: CqlType, absent: object) -> list[bytes | None]:
        try:
            encoded = encode(kind, self.batch.column(name))
            if name in self.key and (longest := int(encoded.lengths.max(initial=0))) > LONGEST_KEY:
                raise too_long(longest)
        except PenstockError as error:
            raise PenstockError(error.what, where=f"{self.table.full_name}.{name}", next=error.next) from None
        self.size += int(encoded.lengths.clip(min=0).sum(dtype="int64"))
        cells = as_bytes(encoded)
        return [absent if cell is None else cell for cell in cells] if absent else cells  # type: ignore[misc]

    def statements(self) -> Iterator[tuple[bytes, list[Statement]]]:
        """For each row its partition key and its statement."""
        times = as_bytes(encode(_BIGINT, self.times))
        partitions = map(partition_key, zip(*(self.cells[c.name] for c in self.table.partition_key), strict=True))
        keys = zip(*(self.cells[name] for name in self.key), strict=True)
        rows = zip(*self.cells.values(), strict=True)
        insert, insert_ttl, delete = self._insert(ttl=False), self._insert(ttl=True), self._delete()
        everything = zip(partitions, keys, rows, times, self._ttls(), self._deletes(), strict=True)
        for partition, key, row, at, ttl, gone in everything:
            if gone:
                yield partition, [(delete, [at, *key])]
            elif ttl is None:
                yield partition, [(insert, [*row, at])]
            else:
                yield partition, [(insert_ttl, [*row, at, ttl])]

    def _ttls(self) -> list[bytes | None]:
        if TTL not in self.batch.schema.names:
            return [None] * self.batch.num_rows
        seconds = self.batch.column(TTL)
        bounds = pc.min_max(seconds).as_py()
        if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] <= MAX_TTL:
            raise PenstockError(
                f"a TTL is {bounds['min'] if bounds['min'] < 0 else bounds['max']} seconds",
                where=self.table.full_name,
                next="use null or 0 (no TTL), or at most 20 years",
            )
        return as_bytes(encode(_INT, seconds))

    def _deletes(self) -> Sequence[bool]:
        if DELETE not in self.batch.schema.names:
            return [False] * self.batch.num_rows
        return list(self.batch.column(DELETE).to_pylist())

    def _insert(self, *, ttl: bool) -> str:
        columns, marks = ", ".join(map(quoted, self.names)), ", ".join("?" * len(self.names))
        using = "USING TIMESTAMP ? AND TTL ?" if ttl else "USING TIMESTAMP ?"
        return f"INSERT INTO {base_name(self.table)} ({columns}) VALUES ({marks}) {using}"

    def _delete(self) -> str:
        key = " AND ".join(f"{quoted(name)} = ?" for name in self.key)
        return f"DELETE FROM {base_name(self.table)} USING TIMESTAMP ? WHERE {key}"


def _without_null(values: pa.Array, name: str) -> pa.Array:
    if values.null_count:
        raise PenstockError(
            f"{name} is null in {values.null_count} of {len(values)} rows",
            where="cql.sink",
            next=f"filter these rows out before the sink: frame.where('{name} IS NOT NULL')",
        )
    return values


def described(access: Access, name: str, patience: timedelta) -> CqlTable:
    """The table "keyspace.table"; waits for nodes that are down."""
    return retrying(
        lambda: describe(connection(access).rows, name),
        what="describing the table",
        where=f"{name} at {access.hosts}",
        patience=patience,
    )


# The mapping of a frame's columns to a table's columns and types, checked when the query is built.


def check(frame: DataFrame, tables: tuple[CqlTable, ...], *, ignored: set[str]) -> dict[str, CqlType]:
    """The columns to write, with their types; raises if the frame does not fit the tables."""
    known: dict[str, CqlType] = {}
    for table in tables:
        _require_key(frame, table)
        for column in table.columns:
            if known.setdefault(column.name, column.type) != column.type:
                raise PenstockError(
                    f"column {column.name} is {known[column.name]} in one table and {column.type} in another",
                    where=", ".join(each.full_name for each in tables),
                    next="use a separate sink for each table",
                )
    unknown = [name for name in frame.columns if name not in known and name not in ignored]
    if unknown:
        raise _unknown(unknown[0], known, tables)
    for name in frame.columns:
        if name in known:
            require_fit(frame, name, known[name], ", ".join(table.full_name for table in tables))
    return {name: known[name] for name in frame.columns if name in known}


def _require_key(frame: DataFrame, table: CqlTable) -> None:
    key = [column.name for column in (*table.partition_key, *table.clustering_key)]
    missing = [name for name in key if name not in frame.columns]
    if missing:
        raise PenstockError(
            f"the frame has no column {', '.join(missing)} of the table's primary key",
            where=f"{table.full_name}, key {', '.join(key)}; frame {', '.join(frame.columns)}",
            next="add or rename columns: frame.withColumnRenamed(...)",
        )


def _unknown(name: str, known: dict[str, CqlType], tables: tuple[CqlTable, ...]) -> PenstockError:
    close = get_close_matches(name, known, 1)
    place = ", ".join(table.full_name for table in tables)
    return PenstockError(
        f"the table has no column {name}",
        where=place,
        next=(f"did you mean {close[0]}? Else " if close else "")
        + f"frame.drop({name!r}), or ALTER TABLE {tables[0].full_name} ADD {name} ...",
    )


def require_kind(frame: DataFrame, column: str | Column, kind: type[st.DataType], argument: str, where: str) -> Column:
    """The column, which may be SQL; raises if it does not fit the frame or has another type than `kind`."""
    try:
        resolved = F.expr(column) if isinstance(column, str) else column
        actual = frame.select(resolved).schema[0].dataType
    except PySparkException as error:
        refused = refusal(error, frame.columns)
        raise PenstockError(
            f"{argument} does not fit the frame: {refused.what}",
            where=f"{where}, columns {', '.join(frame.columns)}",
            next=f"{refused.hint}fix {argument}=",
        ) from error
    if not isinstance(actual, kind):
        raise PenstockError(
            f"{argument} is {actual.simpleString()}", where=where, next=f"use a column of {kind.__name__[:-4].lower()}s"
        )
    return resolved


def used_by(frame: DataFrame, columns: list[Column]) -> set[str]:
    """The frame's columns that these columns use."""
    if not columns:
        return set()
    return {str(used.name()) for used in each(analyzed(frame.select(*columns)).references().toSeq())}
