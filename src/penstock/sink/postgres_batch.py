"""One batch into a PostgreSQL table, exactly once.

Tasks copy their rows side by side into a staging table; then one transaction brings them into the table and notes the
number of the batch. A batch whose number is noted is not written again. Whatever fails before the end of that
transaction has changed nothing in the table: rows of failed tasks lie in the staging table under numbers that nobody
asks for, and are removed with the next batch.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from penstock.sink.postgres_session import Session, connected, literal, quoted
from penstock.sink.postgres_table import Layout
from penstock.sink.write import Batch

SCHEMA = "penstock"
APPLIED = f"{SCHEMA}.applied"
# Two that create it at once would fail over each other.
LOCK = f"SELECT pg_advisory_xact_lock({int.from_bytes(b'penstock')})::text"
CREATE = f"""\
CREATE TABLE IF NOT EXISTS {APPLIED} (
    query text PRIMARY KEY, target text NOT NULL, batch bigint NOT NULL, at timestamptz NOT NULL DEFAULT now())"""
LOADED = "load long"
"""What tasks give back: the number under which their rows lie in the staging table."""
PATIENCE = "1min"
PART = 1 << 40
"""Rows of a task, at most; in a batch, those of a later task count as later."""


@dataclass(frozen=True)
class Work:
    """A batch and where it goes; `key` and `version` are names of columns in the table.

    `table` is what the user calls it, `into` what SQL does.
    """

    table: str
    into: str
    plan: Layout
    key: tuple[str, ...]
    version: str | None
    batch: Batch

    @property
    def columns(self) -> str:
        """Those of the staging table."""
        columns = [f"{column.alias} {column.travel.type}" for column in self.plan.columns]
        if self.plan.version:
            columns.append(f"version {self.plan.version.type}")
        if self.plan.deleted:
            columns.append("deleted boolean")
        return ", ".join([*columns, "load bigint", *(["row bigint"] if self.key else [])])

    @property
    def stage(self) -> str:
        """The staging table's name: one for each query, table and set of columns."""
        identity = repr((self.batch.query, self.table, self.columns))
        return f"stage_{hashlib.sha256(identity.encode()).hexdigest()[:20]}"


def prepare(session: Session) -> None:
    """Make the table of applied batches, unless it is there."""
    if session.rows(f"SELECT to_regclass('{APPLIED}') IS NULL") == [(True,)]:
        session.rows(LOCK)
        session.run(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
        session.run(CREATE)
    session.commit()


def is_applied(session: Session, batch: Batch) -> bool:
    noted = session.rows(f"SELECT batch FROM {APPLIED} WHERE query = {literal(batch.query)}")
    session.commit()
    return bool(noted) and int(noted[0][0]) >= batch.number


def make_stage(session: Session, work: Work) -> None:
    """An empty staging table, for this session alone; a crash of the server empties it, and the batch is repeated."""
    name = f"{SCHEMA}.{work.stage}"
    # A run that was killed may not be gone yet. The lock is given back when the session ends.
    session.run(f"SET LOCAL lock_timeout = '{PATIENCE}'")
    session.rows(f"SELECT pg_advisory_lock({int(work.stage[-15:], 16)})::text")
    session.run(f"CREATE UNLOGGED TABLE IF NOT EXISTS {name} ({work.columns}) WITH (autovacuum_enabled = false)")
    if session.rows(f"SELECT EXISTS (SELECT FROM {name})") == [(True,)]:
        session.run(f"TRUNCATE {name}")
    session.commit()


def copy(
    url: str, work: Work, task: Callable[[], int]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a Spark task does with its Arrow batches; `task` gives its number."""
    stage, keyed, where = work.stage, bool(work.key), f"staging of batch {work.batch.number} for {work.table}"

    def copied(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        some = (batch for batch in batches if batch.num_rows)
        first = next(some, None)
        if first is None:
            return
        load = secrets.randbits(63)
        rows = _numbered(chain([first], some), load, task() * PART if keyed else None)
        one = next(rows)
        with connected(url, where) as session:
            session.copy(SCHEMA, stage, pa.RecordBatchReader.from_batches(one.schema, chain([one], rows)))
            session.commit()
        yield pa.record_batch({"load": pa.array([load], pa.int64())})

    return copied


def _numbered(batches: Iterator[pa.RecordBatch], load: int, row: int | None) -> Iterator[pa.RecordBatch]:
    """The batches with the number of their task, and with keys with the place of each row."""
    for batch in batches:
        batch = batch.append_column("load", pa.array(np.full(batch.num_rows, load)))
        if row is not None:
            batch = batch.append_column("row", pa.array(np.arange(row, row + batch.num_rows)))
            row += batch.num_rows
        yield batch


def merge(session: Session, work: Work, loads: Sequence[int]) -> None:
    """From the staging table into the table, with the note that this batch is applied."""
    query, number = literal(work.batch.query), work.batch.number
    noted = session.rows(
        f"INSERT INTO {APPLIED} AS a (query, target, batch) VALUES ({query}, {literal(work.table)}, {number}) "
        "ON CONFLICT (query) DO UPDATE SET target = excluded.target, batch = excluded.batch, at = now() "
        "WHERE a.batch < excluded.batch RETURNING batch"
    )
    if not noted:
        session.rollback()  # another run of the query was quicker
        return
    staged = f"SELECT * FROM {SCHEMA}.{work.stage} WHERE load IN ({', '.join(map(str, loads))})"
    session.run(_upsert(work, staged) if work.key else _insert(work, staged))
    session.run(f"TRUNCATE {SCHEMA}.{work.stage}")
    session.commit()


def _insert(work: Work, staged: str) -> str:
    return f"INSERT INTO {work.into} ({_names(work)}) SELECT {_values(work)} FROM ({staged}) s"


def _upsert(work: Work, staged: str) -> str:
    """Of the rows of a key only the latest counts; what it deletes and what it writes are different rows."""
    keys = [column for column in work.plan.columns if column.name in work.key]
    # As the table has them: texts that differ may be one uuid or number there, which no statement upserts twice.
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


def _change(work: Work) -> str:
    others = [quoted(column.name) for column in work.plan.columns if column.name not in work.key]
    if not others:
        return "NOTHING"
    newer = _newer(work, f"excluded.{quoted(work.version or '')}").replace(" AND ", " WHERE ", 1)
    return f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in others)}{newer}"


def _newer(work: Work, version: str) -> str:
    """A condition that the row's version is not older than the table's, if the table has one."""
    if work.version is None or work.plan.version:
        return ""
    return f" AND (t.{quoted(work.version)} IS NULL OR t.{quoted(work.version)} <= {version})"


def _version(work: Work) -> str | None:
    """What of the staging table tells rows of a key apart."""
    if work.version is None or work.plan.version:
        return "version" if work.version else None
    return next(f"{column.alias}::{column.cast}" for column in work.plan.columns if column.name == work.version)


def _names(work: Work) -> str:
    return ", ".join(quoted(column.name) for column in work.plan.columns)


def _values(work: Work) -> str:
    return ", ".join(f"{column.alias}::{column.cast}" for column in work.plan.columns)
