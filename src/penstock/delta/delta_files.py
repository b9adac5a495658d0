"""Tasks write the rows of a batch to Parquet files in the folder of a Delta table, and say what is in each file.

A file is not part of the table until a commit names it. So files of failed attempts are never read; VACUUM removes
them, because their names start like those of all other files.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSystem, PyFileSystem

from penstock.delta.delta_errors import penstock_errors
from penstock.delta.delta_values import FileStatistics, folder_name, partition_text
from penstock.errors import PenstockError
from penstock.metrics import delays

FILES = "files string, rows long, bytes long, times binary"
"""The result of a task: its files as a JSON list of `DataFile`, and what `delays` counts when they are committed."""
LARGEST = 128 << 20
"""Bytes after which a file ends, and another one begins."""
ROW_GROUP = 64 << 20
"""Bytes in memory of the rows that become a row group; a task has one in memory."""
MOST_ROWS = 1 << 20
"""Maximum rows of a row group."""
STREAM_BUFFER = 1 << 20
"""Bytes to hand to delta-rs at once."""

Values: TypeAlias = tuple[str | None, ...]
"""The values of the partition columns, as in Delta's log."""


@dataclass(frozen=True)
class DataFile:
    """A file: its path in the table's folder, its bytes and rows, its partition, and Delta's statistics as JSON."""

    path: str
    size: int
    rows: int
    values: Mapping[str, str | None]
    stats: str


@dataclass(frozen=True)
class FilesPlan:
    """What files are to be written: `schema` has the columns of the tasks' rows in their order, with the table's names.

    `required` has the columns that must not be null, and why.
    """

    uri: str
    options: Mapping[str, str] = field(repr=False)
    schema: pa.Schema
    partition_by: tuple[str, ...]
    required: Mapping[str, str]
    compression: str
    where: str

    @property
    def stored(self) -> pa.Schema:
        """The columns of the files."""
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])


def file_system(uri: str, options: Mapping[str, str]) -> FileSystem:
    """The folder of a table as a file system, through delta-rs; a local folder must exist."""
    return PyFileSystem(DeltaStorageHandler(uri, options=dict(options)))


def writer(plan: FilesPlan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that writes a Spark task's Arrow batches to files; its result has one row of FILES or none."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with penstock_errors(plan.where):
            times = delays.EventTimes()
            files = _written(_counted(batches, times), plan)
        if files:
            yield _result(files, times)

    return write


def _counted(batches: Iterator[pa.RecordBatch], times: delays.EventTimes) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        batch, micros = delays.split(batch)
        times.add(batch.num_rows, micros)
        if batch.num_rows:
            yield batch


def _result(files: Sequence[DataFile], times: delays.EventTimes) -> pa.RecordBatch:
    numbers = {"rows": times.rows, "bytes": sum(file.size for file in files)}
    columns = {name: pa.array([number], pa.int64()) for name, number in numbers.items()}
    listed = pa.array([json.dumps([asdict(file) for file in files])])
    return pa.record_batch({"files": listed, **columns, "times": pa.array([times.packed()], pa.binary())})


def read_files(text: str) -> list[DataFile]:
    """The files in a row of FILES."""
    return [DataFile(**entry) for entry in json.loads(text)]


def _written(batches: Iterator[pa.RecordBatch], plan: FilesPlan) -> list[DataFile]:
    first = next(batches, None)
    if first is None:
        return []
    if plan.uri.startswith("/"):
        Path(plan.uri).mkdir(parents=True, exist_ok=True)
    files = TaskFiles(plan, file_system(plan.uri, plan.options))
    try:
        files.add(first)
        for batch in batches:
            files.add(batch)
        return files.end()
    except BaseException:
        files.remove()
        raise


class TaskFiles:
    """The files of a task, one after another: its rows are sorted by partition."""

    def __init__(self, plan: FilesPlan, system: FileSystem) -> None:
        self._plan, self._system = plan, system
        self._values: Values | None = None
        self._file: DataFileWriter | None = None
        self._paths: list[str] = []
        self._files: list[DataFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        rows = conformed(batch, self._plan)
        for values, part in partitions(rows, self._plan.partition_by):
            if values != self._values:
                self._close()
            if self._file is None:
                self._file, self._values = self._open(values), values
            self._file.add(part)
            if self._file.is_full:
                self._close()

    def end(self) -> list[DataFile]:
        """Complete the last file; returns all of them."""
        self._close()
        return self._files

    def remove(self) -> None:
        """Delete what was written, as far as the storage allows it."""
        with suppress(Exception):
            if self._file is not None:
                self._file.abandon()
        for path in self._paths:
            with suppress(Exception):
                self._system.delete_file(path)

    def _open(self, values: Values) -> DataFileWriter:
        by_name = dict(zip(self._plan.partition_by, values, strict=True))
        folder = "".join(f"{folder_name(name, value)}/" for name, value in by_name.items())
        path = f"{folder}part-{uuid.uuid4()}.{self._plan.compression}.parquet"
        self._paths.append(path)
        return DataFileWriter(self._system, path, by_name, self._plan)

    def _close(self) -> None:
        if self._file is not None:
            self._files.append(self._file.close())
        self._file = None


class DataFileWriter:
    """A file that is being written: rows wait in memory until they are a row group."""

    def __init__(self, system: FileSystem, path: str, values: Mapping[str, str | None], plan: FilesPlan) -> None:
        self._path, self._values, self._schema = path, values, plan.stored
        self._stream = system.open_output_stream(path, buffer_size=STREAM_BUFFER)
        codec = {"lz4_raw": "lz4"}.get(plan.compression, plan.compression)
        self._writer = pq.ParquetWriter(self._stream, self._schema, compression=codec, store_schema=False)
        self._statistics = FileStatistics(self._schema)
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = self._waiting_rows = self._rows = 0

    @property
    def is_full(self) -> bool:
        return bool(self._stream.tell() >= LARGEST)

    def add(self, rows: pa.RecordBatch) -> None:
        rows = rows.select(self._schema.names)
        self._statistics.look(rows)
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        self._waiting_rows += rows.num_rows
        self._rows += rows.num_rows
        if self._bytes >= ROW_GROUP or self._waiting_rows >= MOST_ROWS:
            self._flush()

    def close(self) -> DataFile:
        self._flush()
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        stats = self._statistics.text(self._writer.writer.metadata)
        return DataFile(self._path, size, self._rows, self._values, stats)

    def abandon(self) -> None:
        self._stream.close()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=MOST_ROWS)
        self._waiting, self._bytes, self._waiting_rows = [], 0, 0


def conformed(batch: pa.RecordBatch, plan: FilesPlan) -> pa.RecordBatch:
    """The rows under the table's names and types; raises PenstockError for a null in a column that must have none."""
    columns = [column.cast(field.type) for column, field in zip(batch.columns, plan.schema, strict=True)]
    for column, name in zip(columns, plan.schema.names, strict=True):
        if name in plan.required and column.null_count:
            raise PenstockError(
                f"the column {name} is null in some rows, and {plan.required[name]}",
                where=plan.where,
                next=f'leave out these rows: frame.where("`{name}` IS NOT NULL"), or give them a value',
            )
    return pa.RecordBatch.from_arrays(columns, schema=plan.schema)


def partitions(rows: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Values, pa.RecordBatch]]:
    """The rows in runs of equal partition values, with these values."""
    if not names:
        yield (), rows
        return
    columns = [_texts(rows.column(name)) for name in names]
    changes = np.flatnonzero(np.any([np.diff(codes) != 0 for codes, _ in columns], axis=0)) + 1
    bounds = [0, *changes.tolist(), rows.num_rows]
    for start, end in pairwise(bounds):
        yield tuple(texts[codes[start]] for codes, texts in columns), rows.slice(start, end - start)


def _texts(column: pa.Array) -> tuple[Any, list[str | None]]:
    """A code for each row, and the text of each code."""
    coded = column.dictionary_encode(null_encoding="encode")
    return coded.indices.to_numpy(), [partition_text(value) for value in coded.dictionary.to_pylist()]
