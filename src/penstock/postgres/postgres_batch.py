"""Writes one batch to a PostgreSQL table, exactly once.

Tasks copy their rows in parallel to a staging table. Then one transaction moves them to the table and notes the batch,
also an empty one: its number and the offsets it covers (`markers`). A noted batch is not written again, and a batch
that is not the next one is an error. A failure before the end of that transaction changes nothing in the table: rows of
failed tasks stay in the staging table under numbers that no merge reads, and are removed with the next batch.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from penstock.metrics import delays
from penstock.postgres.postgres_columns import StagingLayout
from penstock.postgres.postgres_session import Session, connected, literal, quoted
from penstock.query.markers import Marker, is_written, require_next
from penstock.query.query import Batch

SCHEMA = "penstock"
APPLIED = f"{SCHEMA}.applied"
# Without the lock, two sessions that create the table at once would fail.
LOCK = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'penstock')})::text"
CREATE = f"""\
CREATE TABLE IF NOT EXISTS {APPLIED} (
    query text PRIMARY KEY, target text NOT NULL, batch bigint NOT NULL, at timestamptz NOT NULL DEFAULT now(),
    marker text)"""
EXTEND = f"ALTER TABLE {APPLIED} ADD COLUMN IF NOT EXISTS marker text"
"""For tables of earlier builds, which noted only numbers."""
IS_MADE = (
    f"SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('{APPLIED}') "
    "AND attname = 'marker' AND NOT attisdropped)"
)
LOADED = "load long, rows long, bytes long, times binary"
"""The result of a task: the number of its rows in the staging table, and what `delays` counts when they are merged."""
PATIENCE = "1min"
PART = 1 << 40
"""Maximum rows of a task; rows of a later task count as later in the batch."""


@dataclass(frozen=True)
class PostgresBatch:
    """A batch and its target; `key` and `version` are columns of the table.

    `table` is the user's name of the table, `into` its name in SQL.
    """

    table: str
    into: str
    plan: StagingLayout
    key: tuple[str, ...]
    version: str | None
    batch: Batch

    @property
    def columns(self) -> str:
        """The column definitions of the staging table."""
        columns = [f"{column.alias} {column.travel.type}" for column in self.plan.columns]
        if self.plan.version:
            columns.append(f"version {self.plan.version.type}")
        if self.plan.deleted:
            columns.append("deleted boolean")
        return ", ".join([*columns, "load bigint", *(["row bigint"] if self.key else [])])

    @property
    def stage(self) -> str:
        """The name of the staging table, unique for a query, table and set of columns."""
        identity = repr((self.batch.query, self.table, self.columns))
        return f"stage_{hashlib.sha256(identity.encode()).hexdigest()[:20]}"


def prepare(session: Session) -> None:
    """Create the table of applied batches if it does not exist."""
    if session.rows(IS_MADE) != [(True,)]:
        session.rows(LOCK)
        session.run(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        session.run(CREATE)
        session.run(EXTEND)
    session.commit()


def is_applied(session: Session, batch: Batch, table: str) -> bool:
    """Whether the database has this batch.

    Raises PenstockError if it has a later batch, another batch with this number, or lacks earlier batches.
    """
    rows = session.rows(f"SELECT batch, marker FROM {APPLIED} WHERE query = {literal(batch.query)}")
    session.commit()
    marker = Marker.read(int(rows[0][0]), rows[0][1]) if rows else None
    sink = f"PostgreSQL table {table}"
    forget = f"or, if these rows may be missing, run there: DELETE FROM {APPLIED} WHERE query = {literal(batch.query)}"
    require_next(marker, batch, sink, next=forget)
    return is_written(marker, batch, sink)


def make_stage(session: Session, work: PostgresBatch) -> None:
    """Create an empty staging table, locked for this session; a server crash empties it, and the batch is repeated."""
    name = f"{SCHEMA}.{work.stage}"
    # The session of a killed run may still exist. The lock is released when a session ends.
    session.run(f"SET LOCAL lock_timeout = '{PATIENCE}'")
    session.rows(f"SELECT pg_advisory_lock({int(work.stage[-15:], 16)})::text")
    session.run(f"CREATE UNLOGGED TABLE IF NOT EXISTS {name} ({work.columns}) WITH (autovacuum_enabled = false)")
    if session.rows(f"SELECT EXISTS (SELECT FROM {name})") == [(True,)]:
        session.run(f"TRUNCATE {name}")
    session.commit()


def copy(
    url: str, work: PostgresBatch, task: Callable[[], int]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that copies a Spark task's Arrow batches to the staging table; `task` returns the task's number."""
    stage, keyed, where = work.stage, bool(work.key), f"staging of batch {work.batch.number} for {work.table}"

    def copied(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        staged = Staged()
        some = staged.rows(batch for batch in batches if batch.num_rows)
        first = next(some, None)
        if first is None:
            return
        load = secrets.randbits(63)
        rows = _numbered(chain([first], some), load, task() * PART if keyed else None)
        first_numbered = next(rows)
        with connected(url, where) as session:
            session.copy(
                SCHEMA, stage, pa.RecordBatchReader.from_batches(first_numbered.schema, chain([first_numbered], rows))
            )
            session.commit()
        yield staged.result(load)

    return copied


class Staged:
    """Counts the rows that a task stages; their delays end when they are merged."""

    def __init__(self) -> None:
        self._bytes = 0
        self._times = delays.EventTimes()

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches without the column of event times."""
        for batch in batches:
            batch, times = delays.split(batch)
            self._bytes += batch.nbytes
            self._times.add(batch.num_rows, times)
            yield batch

    def result(self, load: int) -> pa.RecordBatch:
        """The row of LOADED."""
        numbers = {"load": load, "rows": self._times.rows, "bytes": self._bytes}
        columns = {name: pa.array([number], pa.int64()) for name, number in numbers.items()}
        return pa.record_batch({**columns, "times": pa.array([self._times.packed()], pa.binary())})


def _numbered(batches: Iterator[pa.RecordBatch], load: int, row: int | None) -> Iterator[pa.RecordBatch]:
    """The batches with their load number and, unless `row` is None, the position of each row."""
    for batch in batches:
        batch = batch.append_column("load", pa.array(np.full(batch.num_rows, load)))
        if row is not None:
            batch = batch.append_column("row", pa.array(np.arange(row, row + batch.num_rows)))
            row += batch.num_rows
        yield batch


def merge(session: Session, work: PostgresBatch, loads: Sequence[int]) -> bool:
    """Move the rows from the staging table to the table, and note that the batch is applied.

    Returns False if another run of the query has applied the batch meanwhile. Raises PenstockError if the database now
    has another batch with its number.
    """
    if not note(session, work.batch, work.table):
        session.rollback()
        # Another run of the query was faster, with this batch or another one.
        is_applied(session, work.batch, work.table)
        return False
    if loads:
        staged = f"SELECT * FROM {SCHEMA}.{work.stage} WHERE load IN ({', '.join(map(str, loads))})"
        session.run(_upsert(work, staged) if work.key else _insert(work, staged))
        session.run(f"TRUNCATE {SCHEMA}.{work.stage}")
    session.commit()
    return True


def note(session: Session, batch: Batch, table: str) -> bool:
    """Note in the open transaction that a batch is applied; returns False if it or a later batch was noted already."""
    values = f"{literal(batch.query)}, {literal(table)}, {batch.number}, {literal(Marker.for_batch(batch).text())}"
    noted = session.rows(
        f"INSERT INTO {APPLIED} AS a (query, target, batch, marker) VALUES ({values}) "
        "ON CONFLICT (query) DO UPDATE SET "
        "target = excluded.target, batch = excluded.batch, at = now(), marker = excluded.marker "
        "WHERE a.batch < excluded.batch RETURNING batch"
    )
    return bool(noted)


def _insert(work: PostgresBatch, staged: str) -> str:
    return f"INSERT INTO {work.into} ({_names(work)}) SELECT {_values(work)} FROM ({staged}) s"


def _upsert(work: PostgresBatch, staged: str) -> str:
    """SQL that applies the latest row of each key; so it deletes and writes different rows."""
    keys = [column for column in work.plan.columns if column.name in work.key]
    # Cast as in the table: different strings may be the same uuid or number, and a statement cannot upsert a row twice.
    by = ", ".join(f"{column.alias}::{column.cast}" for column in keys)
    order = "".join(f"{column} DESC NULLS LAST, " for column in filter(None, [_version(work)]))
    latest = f"SELECT DISTINCT ON ({by}) * FROM ({staged}) s ORDER BY {by}, {order}row DESC"
    steps = [f"latest AS MATERIALIZED ({latest})"]
    if work.plan.deleted:
        same = " AND ".join(f"t.{quoted(column.name)} = s.{column.alias}::{column.cast}" for column in keys)
        newer = _newer(work, f"s.{_version(work)}")
        steps.append(f"gone AS (DELETE FROM {work.into} t USING latest s WHERE s.deleted AND {same}{newer})")
    alive = " WHERE NOT deleted" if work.plan.deleted else ""
    return (
        f"WITH {', '.join(steps)} INSERT INTO {work.into} AS t ({_names(work)}) "
        f"SELECT {_values(work)} FROM latest{alive} ON CONFLICT ({', '.join(map(quoted, work.key))}) DO {_change(work)}"
    )


def _change(work: PostgresBatch) -> str:
    others = [quoted(column.name) for column in work.plan.columns if column.name not in work.key]
    if not others:
        return "NOTHING"
    newer = _newer(work, f"excluded.{quoted(work.version or '')}").replace(" AND ", " WHERE ", 1)
    return f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}{newer}"


def _newer(work: PostgresBatch, version: str) -> str:
    """A condition that the row's version is not older than the table's, if the table has a version column."""
    if work.version is None or work.plan.version:
        return ""
    return f" AND (t.{quoted(work.version)} IS NULL OR t.{quoted(work.version)} <= {version})"


def _version(work: PostgresBatch) -> str | None:
    """The expression of the version in the staging table, None without a version."""
    if work.version is None or work.plan.version:
        return "version" if work.version else None
    return next(f"{column.alias}::{column.cast}" for column in work.plan.columns if column.name == work.version)


def _names(work: PostgresBatch) -> str:
    return ", ".join(quoted(column.name) for column in work.plan.columns)


def _values(work: PostgresBatch) -> str:
    return ", ".join(f"{column.alias}::{column.cast}" for column in work.plan.columns)
