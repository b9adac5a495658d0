"""Writes frames to tables of ScyllaDB or Cassandra: each row is inserted, merged into the existing row, or deleted.

Writing a batch again changes nothing. Every write has a timestamp: the column `timestamp`, else the time of the batch
plus the row's position in its task, in microseconds. Spark keeps a batch's time in the query's checkpoint, so a batch
that runs again writes the same values with the same timestamps, which changes nothing in the database.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Literal, TypeAlias, Unpack, get_args

from pyspark.sql import Column, DataFrame, SparkSession, functions as F, types as st
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.border.public import public
from penstock.checkpoint.batch_offsets import batch_millis
from penstock.cql.cql_writer import (
    DELETE,
    MAX_TTL,
    TABLE,
    TIMESTAMP,
    TTL,
    CqlWriter,
    check,
    described,
    require_kind,
    used_by,
)
from penstock.database.access import Access, AccessOptions
from penstock.database.cql_types import CqlTable
from penstock.database.requests import RequestLimits
from penstock.database.table_catalog import canonical
from penstock.durations import Duration, duration
from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.query.delivery import EXACTLY_ONCE
from penstock.query.query import Batch, KeyedFrame, in_batches
from penstock.query.upsert import Newest, require_key, require_no_late_results
from penstock.spark_runtime.logical_plan import require_classic

Mode: TypeAlias = Literal["insert", "upsert"]
MODES = get_args(Mode)
WHERE = "cql.sink"


@dataclass(frozen=True)
class CqlSink:
    """A sink for one or several tables; created and checked by `sink`."""

    counts_delays: ClassVar[bool] = True
    table: str | Column
    tables: tuple[CqlTable, ...]
    access: Access
    mode: str
    delete: str | Column | None
    ttl: timedelta | str | Column | None
    timestamp: str | Column | None
    limits: RequestLimits
    delivery: str = EXACTLY_ONCE

    @property
    def target(self) -> tuple[str, str]:
        """The identity of the sink in a checkpoint."""
        return "cql", ", ".join(sorted(table.full_name for table in self.tables))

    def records(self, frame: DataFrame) -> DataFrame:
        """The tables' columns with fitting types, and the control columns; raises if the frame does not fit."""
        for table in self.tables:
            require_no_late_results(frame, _key(table), table.full_name)
        return self._timed(frame).drop(delays.TIME)

    def _timed(self, frame: DataFrame) -> DataFrame:
        """The same with the times of the rows' events, if the frame has them."""
        controls = self._controls(frame)
        wanted = check(frame, self.tables, ignored=used_by(frame, controls) | {delays.TIME})
        columns = [canonical(frame, name, kind).alias(name) for name, kind in wanted.items()]
        times = delays.event_micros(frame)
        return frame.select(*columns, *controls, *([] if times is None else [times]))

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query with only this sink."""
        return in_batches(delays.timed(frame), self.save)

    def save(self, frame: DataFrame, batch: Batch) -> None:
        """Write the rows of one batch; writing it again changes nothing."""
        require_classic(frame, "cql.sink")
        began = batch_micros(frame.sparkSession, batch) if self.timestamp is None else 0
        writer = CqlWriter(self.access, self.tables, self.mode, began, self.limits)
        with delays.failures(batch.query):
            delays.add_rows(batch.query, self._timed(frame).mapInArrow(writer, delays.SCHEMA).collect())

    def keyed(self, table: KeyedFrame) -> Newest:
        """The sink for a table's rows; see `write`."""
        if isinstance(self.table, Column):
            raise _not_keyed("a Table needs a single database table", 'name it: cql.sink("keyspace.table", ...)')
        target = self.tables[0]
        key = _key(target)
        require_key("the database's", target.full_name, key, table, f"key the table of the stream by {', '.join(key)}")
        if self.mode != "insert" or self.delete is not None:
            raise _not_keyed("a Table defines its rows and its deletions", "omit mode= and delete=")
        sink = replace(self, delete=F.col(table.deleted) if table.deleted else None)
        known = {column.name for column in target.columns}
        left_out = [] if table.version in known or self.timestamp == table.version else [table.version]
        return Newest(sink, table, lambda frame: frame.drop(*left_out))

    def _controls(self, frame: DataFrame) -> list[Column]:
        controls = []
        if isinstance(self.table, Column):
            controls.append(self.table.cast("string").alias(TABLE))
        if self.delete is not None:
            sure = F.coalesce(require_kind(frame, self.delete, st.BooleanType, "delete", WHERE), F.lit(False))
            controls.append(sure.alias(DELETE))
        if self.ttl is not None:
            controls.append(_ttl(frame, self.ttl).alias(TTL))
        if self.timestamp is not None:
            controls.append(_micros(frame, self.timestamp).alias(TIMESTAMP))
        return controls


@public("cql.sink")
def sink(
    table: str | Column,
    *,
    hosts: str,
    mode: Mode = "insert",
    tables: Sequence[str] = (),
    delete: str | Column | None = None,
    ttl: Duration | Column | None = None,
    timestamp: str | Column | None = None,
    in_flight: int = RequestLimits.in_flight,
    timeout: Duration = RequestLimits.timeout,
    patience: Duration = RequestLimits.patience,
    **access: Unpack[AccessOptions],
) -> CqlSink:
    """A sink for `penstock.write` to "keyspace.table", or to the table of `tables` that the column `table` names.

    Columns of the frame go to table columns with the same name; docs/cql.md lists the types that fit. `mode` "insert"
    writes all columns of the frame, including nulls; "upsert" does not write nulls. `delete` is a condition, a column
    or SQL ("op = 'd'"): rows for which it is true are deleted by primary key. `ttl` is a duration or a column of
    seconds (null: no TTL), `timestamp` a column of timestamps or of microseconds; both may be column names. `access`
    are `user`, `password`, `local_dc`, `consistency` and the TLS arguments.

    A batch that is written again changes nothing. Raises PenstockError, here or in `penstock.write`, if a table does
    not exist or has counters, or if columns do not fit.
    """
    _check_arguments(mode, table, tables)
    reach = Access.of(hosts, access, where=WHERE, function=sink)
    limits = RequestLimits(in_flight, duration(timeout, name="timeout"), duration(patience, name="patience"))
    lifetime = _lifetime(ttl)
    names = [table] if isinstance(table, str) else list(tables)
    targets = tuple(_table(reach, name, limits) for name in names)
    return CqlSink(table, targets, reach, mode, delete, lifetime, timestamp, limits)


def _check_arguments(mode: str, table: str | Column, tables: Sequence[str]) -> None:
    if mode not in MODES:
        raise PenstockError(f"unknown mode {mode!r}", where=WHERE, next=f"use {' or '.join(map(repr, MODES))}")
    if isinstance(table, str) == bool(tables):
        raise PenstockError(
            "tables= is required if table is a column, and not allowed otherwise",
            where=WHERE,
            next='pass "keyspace.table", or a column and tables=[...] with all tables that it may name',
        )


def _not_keyed(what: str, next: str) -> PenstockError:
    return PenstockError(what, where=WHERE, next=next)


def _key(table: CqlTable) -> list[str]:
    return [column.name for column in (*table.partition_key, *table.clustering_key)]


def _lifetime(ttl: Duration | Column | None) -> timedelta | str | Column | None:
    """A column or its name is returned as it is; any other value must be a duration."""
    if ttl is None or isinstance(ttl, Column) or (isinstance(ttl, str) and not re.match(r"\s*\d", ttl)):
        return ttl
    value = duration(ttl, name="ttl")
    if not timedelta(seconds=1) <= value <= timedelta(seconds=MAX_TTL):
        raise PenstockError(f"ttl cannot be {value}", where=WHERE, next="use one second to 20 years")
    return value


def _table(access: Access, name: str, limits: RequestLimits) -> CqlTable:
    table = described(access, name, limits.patience)
    if any(column.type.name == "counter" for column in table.columns):
        raise PenstockError(
            "cql.sink does not write counters: a repeated increment counts twice",
            where=table.full_name,
            next="keep the count in the query (groupBy(...).count()) and write it to a bigint column",
        )
    return table


def _ttl(frame: DataFrame, ttl: timedelta | str | Column) -> Column:
    if isinstance(ttl, timedelta):
        return F.lit(int(ttl.total_seconds()))
    return require_kind(frame, _named(frame, ttl, "ttl"), st.IntegralType, "ttl", WHERE).cast("int")


def _micros(frame: DataFrame, timestamp: str | Column) -> Column:
    column = _named(frame, timestamp, "timestamp")
    if isinstance(frame.select(column).schema[0].dataType, st.TimestampType):
        return F.unix_micros(column)
    return require_kind(frame, column, st.IntegralType, "timestamp", WHERE).cast("bigint")


def _named(frame: DataFrame, column: str | Column, argument: str) -> Column:
    if isinstance(column, str) and column not in frame.columns:
        raise PenstockError(
            f"{argument} is not a column of the frame: {column!r}",
            where=f"columns {', '.join(frame.columns)}",
            next="use one of these names, or pass a column",
        )
    return F.col(column) if isinstance(column, str) else column


def batch_micros(spark: SparkSession, batch: Batch) -> int:
    """The batch's time from the checkpoint of its query; the current time if no running query has this id.

    Raises PenstockError if it is not after the time of the previous batch: older rows would hide the new ones.
    """
    query = batch.query.partition(".")[0]
    planned = batch_millis(spark, query, batch.number)
    if planned is None:
        return time.time_ns() // 1000
    before = batch_millis(spark, query, batch.number - 1) if batch.number else None
    if before is not None and planned <= before:
        raise PenstockError(
            f"the clock of this machine went back by {before - planned} ms between two batches: rows of batch "
            f"{batch.number} would be hidden by older ones with later timestamps",
            where=f"{WHERE}, query {batch.query}",
            next=f"correct the clock and wait until it is past {_utc(before)}; then read again from before that with "
            "`penstock checkpoints set NAME --to TIME`, which does not change rows that were written already",
        )
    return planned * 1000


def _utc(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")
