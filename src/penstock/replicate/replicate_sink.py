"""Writes changes of a table to a table of another cluster, each with its own time: the sink of a replication.

State is a merge: the database keeps the newest write of each cell, whatever order writes come in. So a batch that is
written again changes nothing, and neither do late changes, or a snapshot that is read while the log is applied.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Unpack

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from penstock.border.public import public
from penstock.codec.change_frame import Layout, is_change_frame, layout
from penstock.codec.problem import PROBLEM
from penstock.cql.cql_writer import described
from penstock.database.access import Access, AccessOptions
from penstock.database.cql_types import CqlTable, CqlType
from penstock.database.requests import RequestLimits, Statement, send_all, size_of, together
from penstock.durations import Duration, duration
from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.query.delivery import EXACTLY_ONCE
from penstock.query.packed_rows import COLUMN, is_packed, rows_schema, unpacked
from penstock.query.query import Batch, in_batches
from penstock.replicate.applied_groups import AppliedGroups, TwoWays
from penstock.replicate.change_statements import change_statements, partitions
from penstock.replicate.list_statements import ListStatements
from penstock.replicate.row_statements import row_statements
from penstock.replicate.table_scan import Side
from penstock.replicate.table_statements import TableStatements
from penstock.spark_runtime.logical_plan import require_classic

WHERE = "replicate.sink"
COLUMNS = (
    *("op", "key", "after", "delta", "deleted", "deleted_elements", "range", "operation", "ts", "stream_id", "time"),
    *("end_of_batch", "expires", "write_times", "expiries", "lists", "inserted"),
)
"""The columns of a change frame that statements are made of."""
MOST_STATEMENTS = 50_000
"""Statements of one batch: the protocol counts them with 16 bits."""


@dataclass(frozen=True)
class ReplicateSink:
    """A sink for the changes of one table; created and checked by `sink`."""

    counts_delays: ClassVar[bool] = True
    table: CqlTable
    access: Access
    limits: RequestLimits
    two_ways: TwoWays | None = None
    delivery: str = EXACTLY_ONCE

    @property
    def target(self) -> tuple[str, str]:
        """The identity of the sink in a checkpoint."""
        return "cql", self.table.full_name

    def records(self, frame: DataFrame) -> DataFrame:
        """The columns that statements are made of; raises if the changes are not those of such a table."""
        return self._timed(frame).drop(delays.TIME)

    def _timed(self, frame: DataFrame) -> DataFrame:
        """The same with the times of the changes."""
        return frame.select(*self.columns(frame))

    def columns(self, frame: DataFrame) -> list[Column | str]:
        """The columns that `writer` takes; raises as `records` does."""
        _check(rows_schema(frame.schema), self.table)
        if is_packed(frame.schema):
            return list(frame.columns)
        times = delays.event_micros(frame)
        return [*(name for name in COLUMNS if name in frame.columns), *([] if times is None else [times])]

    @property
    def writer(self) -> ChangeWriter:
        """What applies the changes of a task."""
        return ChangeWriter(self.access, self.table, self.limits, self.two_ways)

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query with only this sink."""
        return in_batches(delays.timed(frame), self.save)

    def save(self, frame: DataFrame, batch: Batch) -> None:
        """Write the changes of one batch; writing it again changes nothing."""
        require_classic(frame, WHERE)
        with delays.failures(batch.query):
            delays.add_rows(batch.query, self._timed(frame).mapInArrow(self.writer, delays.SCHEMA).collect())


@public("replicate.sink")
def sink(
    table: str,
    *,
    hosts: str,
    two_ways: Side | None = None,
    in_flight: int = RequestLimits.in_flight,
    timeout: Duration = RequestLimits.timeout,
    patience: Duration = RequestLimits.patience,
    **access: Unpack[AccessOptions],
) -> ReplicateSink:
    """A sink for `penstock.write` that applies changes of a table to "keyspace.table" of another cluster.

    It takes frames of `cdc.read(..., write_times=True)`. Each change is written with its own time, and with the time to
    live that is left; deletions of every kind are deletions. The order of changes does not matter, and writing them
    again changes nothing. docs/replicate.md says what CQL cannot carry over. `two_ways` is the table of the changes, if
    changes of the target are replicated to it as well: what came from the target is not sent back. `access` are `user`,
    `password`, `local_dc`, `consistency` and the TLS arguments.

    Raises PenstockError, here or in `penstock.write`, if the table does not exist or differs from the changes' table;
    DatabaseUnavailable if no node answers within `patience`.
    """
    reach = Access.of(hosts, access, where=WHERE, function=sink)
    limits = RequestLimits(in_flight, duration(timeout, name="timeout"), duration(patience, name="patience"))
    target = described(reach, table, limits.patience)
    return ReplicateSink(
        target, reach, limits, None if two_ways is None else _two_ways(two_ways, reach, target, limits)
    )


def _two_ways(source: Side, access: Access, target: CqlTable, limits: RequestLimits) -> TwoWays:
    table = described(source.access, source.table, limits.patience)
    both = (
        AppliedGroups(source.access, table.keyspace, table.name, limits),
        AppliedGroups(access, target.keyspace, target.name, limits),
    )
    for groups in both:
        groups.create(limits.patience)
    return TwoWays(*both)


def _check(schema: StructType, table: CqlTable) -> None:
    """Raise PenstockError if changes with this schema cannot be applied to the table."""
    if not is_change_frame(schema):
        raise PenstockError(
            "replicate.sink takes changes of a table",
            where=f"columns {', '.join(schema.names)}",
            next="pass a frame of penstock.cdc.read(..., write_times=True)",
        )
    known = layout(schema, also=("delta", "deleted", "deleted_elements", "stream_id", "time"))
    require_times(schema, f"changes of {known.full_name}")
    if PROBLEM in schema.names:
        raise PenstockError(
            "changes with values that cannot be read would lose them on their way",
            where=f"changes of {known.full_name}",
            next='read them with bad_values="stop"; or leave these changes out: '
            'frame.where("problem IS NULL").drop("problem")',
        )
    _require_key(known, table)
    kinds = {column.name: column.type for column in table.columns}
    for name, kind in known.types.items():
        _require_column(known, table, name, kind, kinds.get(name))


def require_times(schema: StructType, where: str) -> None:
    """Raise PenstockError if a frame of changes was read without `write_times`."""
    if "expires" not in schema.names:
        raise PenstockError(
            "the changes have no times of expiry",
            where=where,
            next="read them with penstock.cdc.read(..., write_times=True), and keep all columns",
        )


def _require_key(known: Layout, table: CqlTable) -> None:
    keys = (
        (known.partition_key, known.clustering_key),
        tuple(tuple(column.name for column in key) for key in (table.partition_key, table.clustering_key)),
    )
    if keys[0] != keys[1]:
        source, target = (
            f"({', '.join(partition_key)}), {', '.join(clustering_key)}".rstrip(", ")
            for partition_key, clustering_key in keys
        )
        raise PenstockError(
            f"the tables have different keys: {known.full_name} has {source}; {table.full_name} has {target}",
            where=WHERE,
            next="create the target with the same PRIMARY KEY",
        )


def _require_column(known: Layout, table: CqlTable, name: str, kind: CqlType, target: CqlType | None) -> None:
    if target is None:
        raise PenstockError(
            f"the target has no column {name}, which {known.full_name} has",
            where=f"{table.full_name}.{name}",
            next=f"run ALTER TABLE {table.full_name} ADD {name} {kind}; then start again: no change is lost",
        )
    if str(kind) != str(target):
        raise PenstockError(
            f"column {name} is {kind} in {known.full_name} and {target} in the target",
            where=f"{table.full_name}.{name}",
            next="create the target with the same types",
        )


@dataclass(frozen=True)
class ChangeWriter:
    """Applies the changes of a task, and gives a row of counts (`delays`).

    Without `markers`, rows of a snapshot are updated but not inserted.
    """

    access: Access
    table: CqlTable
    limits: RequestLimits
    two_ways: TwoWays | None = None
    markers: bool = True

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written, size, repeated = delays.DelayCounts(), 0, list[int]()
        texts = TableStatements(self.table)
        lists = ListStatements(self.access, texts, self.limits)
        for batch in whole_groups(_changes(batches)):
            batch, events = delays.split(batch)
            writes = list(mutations(texts, lists, batch, time.time_ns() // 1_000_000_000, markers=self.markers))
            if self.two_ways is not None:
                writes = self.two_ways.new(writes)
            requests = together(self.access, self.table.keyspace, writes, self.limits)
            send_all(
                self.access,
                self.table.keyspace,
                requests,
                self.limits,
                what="applying changes",
                where=self.table.full_name,
                table=self.table,
                repeated=repeated.append,
            )
            size += sum(size_of(request.statements) for request in requests)
            written.acknowledged(batch.num_rows, events)
        yield written.counts(bytes=size, retries=sum(repeated)).batch()


def _changes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The changes with their times, packed or not."""
    for batch in batches:
        if batch.schema.names == [COLUMN]:
            for page in unpacked(batch):
                changes = page.select([name for name in COLUMNS if name in page.schema.names])
                yield changes.append_column(delays.TIME, page.column("ts").cast(pa.int64()))
        else:
            yield batch


def whole_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in batches that end with a whole group: what one mutation wrote is applied at once."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        joined = batch if held is None else _joined(held, batch)
        cut = _last_group(joined)
        held = joined.slice(cut)
        if cut:
            yield joined.slice(0, cut)
    if held is not None and held.num_rows:
        yield held


def _joined(first: pa.RecordBatch, second: pa.RecordBatch) -> pa.RecordBatch:
    return pa.Table.from_batches([first, second]).combine_chunks().to_batches()[0] if first.num_rows else second


def _last_group(batch: pa.RecordBatch) -> int:
    """Where the last group begins, if it may go on; else the number of rows."""
    rows: int = batch.num_rows
    times, ends = batch.column("time"), batch.column("end_of_batch")
    if not rows or ends[rows - 1].as_py() is not False:
        return rows
    streams, cut = batch.column("stream_id"), rows - 1
    while cut and times[cut - 1] == times[rows - 1] and streams[cut - 1] == streams[rows - 1]:
        cut -= 1
    return cut


def mutations(
    texts: TableStatements, lists: ListStatements, batch: pa.RecordBatch, now: int, *, markers: bool
) -> Iterator[tuple[bytes, list[Statement]]]:
    """The statements for the changes of a batch: those of one partition in one group together, after their partition.

    `now` is in seconds since 1970.
    """
    statements_of_rows = _statements(texts, batch, now, markers)
    if lists.columns:
        for row, statements in lists.of(batch, now).items():
            statements_of_rows[row] += statements
    groups: dict[tuple[object, bytes, bytes], list[Statement]] = defaultdict(list)
    times, streams = batch.column("time").to_pylist(), batch.column("stream_id").to_pylist()
    for row, partition in enumerate(partitions(texts.table, batch)):
        # The rows of a snapshot were not written together.
        groups[times[row] or row, streams[row], partition] += statements_of_rows[row]
    for (_, _, partition), statements in groups.items():
        for first in range(0, len(statements), MOST_STATEMENTS):
            yield partition, statements[first : first + MOST_STATEMENTS]


def _statements(texts: TableStatements, batch: pa.RecordBatch, now: int, markers: bool) -> list[list[Statement]]:
    """The statements of each change, and of each row of a snapshot, but not of their lists."""
    snapshot = pc.equal(batch.column("op"), "r")
    rows, changes = batch.filter(snapshot), batch.filter(pc.invert(snapshot))
    statements = {
        True: iter(row_statements(texts, rows, now, markers=markers) if rows.num_rows else []),
        False: iter(change_statements(texts, changes, now) if changes.num_rows else []),
    }
    return [next(statements[is_snapshot]) for is_snapshot in snapshot.to_pylist()]
