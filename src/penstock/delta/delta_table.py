"""The log of a Delta table: its layout, the last batch of a query in it, and the commits of a batch.

A commit adds the files of a batch, or merges their rows by key, and carries with it the marker of the batch: Delta's
transaction identifier `penstock-<query>` has the number of the batch, and the commit's own metadata its offsets
(`markers`). Delta admits one commit for a version of the table, and refuses one of two that carry the same identifier.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Semaphore, Thread
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema, WriterProperties
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from penstock.delta.delta_columns import DELETED, Keys, TableLayout, of_table
from penstock.delta.delta_files import DataFile, FilesPlan, file_system
from penstock.query.markers import Marker, is_written
from penstock.query.query import Batch

HISTORY = 100
"""The newest commits among which the offsets of a batch are looked for."""
READ_ROWS = 65_536
"""Staged rows to read at once."""
READ_AHEAD = 2
"""Batches of staged rows that wait for a merge."""
CODECS: Mapping[str, Literal["UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4_RAW"]] = {
    "zstd": "ZSTD",
    "snappy": "SNAPPY",
    "lz4_raw": "LZ4_RAW",
    "gzip": "GZIP",
    "none": "UNCOMPRESSED",
}
ROWS, TABLE = "s", "t"
"""The names of the staged rows and of the table in a merge."""


@dataclass(frozen=True)
class DeltaLog:
    """A table as of one version."""

    table: DeltaTable
    where: str

    def layout(self) -> TableLayout:
        about, protocol = self.table.metadata(), self.table.protocol()
        features = [*(protocol.reader_features or ()), *(protocol.writer_features or ())]
        schema = self.table.schema().to_json()
        return of_table(schema, about.partition_columns, about.configuration, features, self.where)

    def has(self, batch: Batch) -> bool:
        """Whether the table has this batch; raises PenstockError as `markers.is_written` does."""
        name = identifier(batch)
        number = self.table.transaction_version(name)
        if number is None:
            return False
        marker_text = self._noted(name) if number == batch.number and batch.end else None
        return is_written(Marker.read(number, marker_text), batch, f"the {self.where}")

    def _noted(self, name: str) -> str | None:
        """The marker in the newest commit of the query; None if there were many others since, or they were removed."""
        return next((str(commit[name]) for commit in self.table.history(HISTORY) if name in commit), None)

    def append(self, files: Sequence[DataFile], batch: Batch) -> None:
        """Add the files in one commit."""
        now = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(data_file.path, data_file.size, data_file.values, now, True, data_file.stats)
            for data_file in files
        ]
        about = self.table.metadata()
        self.table.create_write_transaction(
            actions, "append", self.table.schema(), about.partition_columns, commit_properties=_properties(batch)
        )

    def merge(self, files: Sequence[DataFile], plan: FilesPlan, keys: Keys, batch: Batch) -> None:
        """Merge the rows of staged files by key in one commit."""
        # What others committed while tasks wrote does not conflict then; it may be this batch.
        self.table.update_incremental()
        if self.has(batch):
            return
        names = [name for name in plan.schema.names if name != DELETED]
        same = [f"{_of(TABLE, name)} = {_of(ROWS, name)}" for name in keys.key]
        newer = _newer(keys, names)
        gone = _of(ROWS, DELETED) if keys.deleted else "false"
        values = {_quoted(name): _of(ROWS, name) for name in names}
        with staged(files, plan) as rows:
            merger = self.table.merge(
                rows,
                " AND ".join([*same, *_ranges(files, plan, keys)]),
                source_alias=ROWS,
                target_alias=TABLE,
                writer_properties=WriterProperties(compression=CODECS[plan.compression]),
                commit_properties=_properties(batch),
            )
            if keys.deleted:
                merger = merger.when_matched_delete(f"{gone}{newer}")
            merger = merger.when_matched_update(values, predicate=f"NOT {gone}{newer}")
            merger.when_not_matched_insert(values, predicate=f"NOT {gone}").execute()
        # A merge that changes nothing makes no commit.
        if self.table.transaction_version(identifier(batch)) != batch.number:
            self.append((), batch)


def opened(uri: str, options: Mapping[str, str], where: str) -> DeltaLog | None:
    """The newest version of a table; None if there is no table."""
    try:
        return DeltaLog(DeltaTable(uri, storage_options=dict(options)), where)
    except TableNotFoundError:
        return None


def created(uri: str, options: Mapping[str, str], layout: TableLayout, where: str) -> DeltaLog:
    """A new empty table, or the one that another writer has made meanwhile."""
    try:
        DeltaTable.create(
            uri,
            Schema.from_json(layout.schema()),
            partition_by=list(layout.partition_by),
            storage_options=dict(options),
            # Of two writers that create it at once, the second would write its schema over the first one's.
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except DeltaError:
        if (log := opened(uri, options, where)) is None:
            raise
        return log
    log = opened(uri, options, where)
    assert log is not None, "the table was created"
    return log


def arrow_schema(layout: TableLayout) -> pa.Schema:
    """The columns as Arrow's, with times in microseconds of UTC."""
    return pa.schema(Schema.from_json(layout.schema()).to_arrow())


def identifier(batch: Batch) -> str:
    """The query's transaction identifier in the table."""
    return f"penstock-{batch.query}"


def remove(files: Iterable[DataFile], plan: FilesPlan) -> None:
    """Delete staged files; those that cannot be deleted now are removed by VACUUM."""
    with suppress(Exception):
        system = file_system(plan.uri, plan.options)
        for data_file in files:
            with suppress(Exception):
                system.delete_file(data_file.path)


def _properties(batch: Batch) -> CommitProperties:
    name = identifier(batch)
    return CommitProperties({name: Marker.for_batch(batch).text()}, app_transactions=[Transaction(name, batch.number)])


@contextmanager
def staged(files: Sequence[DataFile], plan: FilesPlan) -> Iterator[pa.RecordBatchReader]:
    """The rows of staged files, read in a thread of its own: delta-rs reads no files in the threads that merge."""
    room, ready = Semaphore(READ_AHEAD), SimpleQueue[pa.RecordBatch | BaseException | None]()
    ended = Event()

    def read() -> None:
        try:
            for batch in _rows(files, plan):
                room.acquire()
                if ended.is_set():
                    return
                ready.put(batch)
            ready.put(None)
        except BaseException as error:
            ready.put(error)

    def taken() -> Iterator[pa.RecordBatch]:
        while (batch := ready.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            room.release()
            yield batch

    reader = Thread(target=read, name="staged rows", daemon=True)
    reader.start()
    try:
        yield pa.RecordBatchReader.from_batches(plan.stored, taken())
    finally:
        ended.set()
        room.release()
        reader.join()


def _rows(files: Sequence[DataFile], plan: FilesPlan) -> Iterator[pa.RecordBatch]:
    system = file_system(plan.uri, plan.options)
    for data_file in files:
        with system.open_input_file(data_file.path) as stream, pq.ParquetFile(stream) as file:
            for batch in file.iter_batches(READ_ROWS, use_threads=False):
                columns = [column.cast(field.type) for column, field in zip(batch.columns, plan.stored, strict=True)]
                yield pa.RecordBatch.from_arrays(columns, schema=plan.stored)


def _ranges(files: Sequence[DataFile], plan: FilesPlan, keys: Keys) -> Iterator[str]:
    """Conditions between which values of the keys the rows are: files of the table with other keys are not read."""
    statistics = [json.loads(data_file.stats) for data_file in files]
    for name in keys.key:
        kind = plan.schema.field(name).type
        for bounds, chosen, sign in (("minValues", min, ">="), ("maxValues", max, "<=")):
            values = [stats[bounds].get(name) for stats in statistics]
            literals = [_literal(value, kind) for value in values]
            if None not in literals:
                yield f"{_of(TABLE, name)} {sign} {_literal(chosen(values), kind)}"


def _literal(value: Any, kind: pa.DataType) -> str | None:
    """A bound as SQL; None for types and values of which the parser might make another value."""
    if pa.types.is_integer(kind) and value is not None:
        return str(value)
    if pa.types.is_date(kind) and value is not None:
        return f"DATE '{value}'"
    if pa.types.is_string(kind) and value is not None and value.isprintable() and "\\" not in value:
        return "'" + str(value).replace("'", "''") + "'"
    return None


def _newer(keys: Keys, names: Sequence[str]) -> str:
    """A condition that the row is not older than the table's, if the table has the version's column."""
    if keys.version is None or keys.version not in names:
        return ""
    theirs, ours = _of(TABLE, keys.version), _of(ROWS, keys.version)
    return f" AND ({theirs} IS NULL OR {theirs} <= {ours})"


def _of(table: str, name: str) -> str:
    return f"{table}.{_quoted(name)}"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
