"""Writes frames to PostgreSQL tables: appends rows, or upserts and deletes them by key; each batch exactly once.

Rows go as Arrow batches in COPY's binary format to a staging table, and from there in one transaction to the table (see
`postgres_batch`). A reader sees all of a batch or nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.border.public import public
from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.postgres import postgres_batch as batches
from penstock.postgres.postgres_batch import PostgresBatch
from penstock.postgres.postgres_columns import (
    COLUMNS,
    NAME,
    UNIQUE,
    StagingLayout,
    TargetColumn,
    layout,
    rows_of,
)
from penstock.postgres.postgres_session import Session, connected, literal
from penstock.query.delivery import EXACTLY_ONCE
from penstock.query.query import Batch, KeyedFrame, compute, in_batches
from penstock.query.upsert import require_key, require_no_late_results, require_same

CONNECTIONS = 8


@dataclass(frozen=True)
class PostgresSink:
    """A sink for a PostgreSQL table; created and checked by `sink`."""

    counts_delays: ClassVar[bool] = True
    table: str
    url: str = field(repr=False)  # may contain a password
    key: tuple[str, ...] = ()
    version: str | None = None
    deleted: str | None = None
    connections: int = CONNECTIONS
    delivery: str = EXACTLY_ONCE

    @property
    def target(self) -> tuple[str, str]:
        """The identity of the sink in a checkpoint."""
        return "postgres", self.table

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows for the staging table; raises PenstockError if they do not fit the table in the database."""
        if self.key:
            require_no_late_results(frame, self.key, f"PostgreSQL table {self.table}")
        with connected(self.url, f"table {self.table}") as session:
            batches.prepare(session)
            return rows_of(frame, self._layout(frame, session), self.deleted).drop(delays.TIME)

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query with only this sink."""
        return in_batches(delays.timed(frame), self.save)

    def save(self, frame: DataFrame, batch: Batch) -> None:
        """Write one batch unless it was written before."""
        with (
            delays.failures(batch.query),
            connected(self.url, f"batch {batch.number} for table {self.table}") as session,
        ):
            batches.prepare(session)
            if batches.is_applied(session, batch, self.table):
                compute(frame)
                return
            plan = self._layout(frame, session)
            work = PostgresBatch(self.table, self._name(session), plan, self.key, self.version, batch)
            batches.make_stage(session, work)
            rows = rows_of(frame, work.plan, self.deleted).coalesce(self.connections)
            staged = rows.mapInArrow(batches.copy(self.url, work, _task), batches.LOADED).collect()
            if batches.merge(session, work, [row.load for row in staged]):
                for row in staged:
                    times = delays.EventTimes.of_packed(row.times, row.rows)
                    delays.add(batch.query, times.acknowledged(delays.DelayCounts()).counts(bytes=row.bytes))

    def keyed(self, table: KeyedFrame) -> PostgresSink:
        """The sink for a table's rows; see `write`."""
        key_names = ", ".join(f'"{name}"' for name in table.key)
        require_key("postgres.sink", f"PostgreSQL table {self.table}", self.key, table, f"set key=[{key_names}]")
        require_same("postgres.sink", self.version, self.deleted, table)
        return replace(self, version=table.version, deleted=table.deleted)

    def _name(self, session: Session) -> str:
        rows = session.rows(NAME.format(table=literal(self.table)))
        session.commit()
        return str(rows[0][0])

    def _layout(self, frame: DataFrame, session: Session) -> StagingLayout:
        table = literal(self.table)
        targets = [TargetColumn(*row) for row in session.rows(COLUMNS.format(table=table))]
        unique = [(frozenset(columns), certain) for columns, certain in session.rows(UNIQUE.format(table=table))]
        session.commit()
        return layout(frame, self.table, targets, unique, self.key, self.version, self.deleted)


@public("postgres.sink")
def sink(
    table: str,
    *,
    url: str,
    key: str | Sequence[str] | None = None,
    version: str | None = None,
    deleted: str | None = None,
    connections: int = CONNECTIONS,
) -> PostgresSink:
    """A PostgreSQL sink for `penstock.write`; each batch is written exactly once.

    `url` is "postgresql://user@host:5432/database", with libpq's parameters and environment (PGPASSWORD, sslmode).
    Without `key` rows are appended. With `key` they are upserted: of the rows of a key in a batch the row with the
    highest `version` is written, without `version` the last. If the table has the version column, a row does not
    replace a row with a higher version. `deleted` names a boolean column: where it is true, the row of that key is
    deleted. At most `connections` tasks write at a time.

    Raises PenstockError for invalid arguments here, and in `penstock.write` if the frame does not fit the table.
    """
    keys = (key,) if isinstance(key, str) else tuple(key or ())
    if not re.match(r"postgres(ql)?://", url):
        raise PenstockError(
            "url is not a PostgreSQL address",
            where="postgres.sink",
            next='write it as "postgresql://user@host:5432/database"',
        )
    if not keys and (version or deleted):
        raise PenstockError("version and deleted need a key", where="postgres.sink", next="set key=")
    if connections < 1:
        raise PenstockError(f"connections is {connections}", where="postgres.sink", next="set it to 1 or more")
    return PostgresSink(table, url, keys, version, deleted, connections)


def _task() -> int:
    """The number of the running task."""
    context = TaskContext.get()
    return context.partitionId() if context else 0
