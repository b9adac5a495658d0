"""Frames to Parquet files: `<path>/batch=<query>-<number>/[<column>=<value>/...]`, a folder for each batch.

Spark writes a batch below `<path>/_staging`, which readers skip, and one rename of its folder makes it visible: a
reader sees all of a batch or none of it. A batch whose folder exists is complete and is not written again. Its file
`_penstock`, which readers skip, says what the batch covers (`markers`): a folder with other offsets is an error.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JJavaError
from pyarrow.parquet import ParquetFile
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.border.public import public
from penstock.checkpoint.checkpoint_folder import is_object_store
from penstock.checkpoint.hadoop_folder import HadoopFiles
from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.query.delivery import EXACTLY_ONCE
from penstock.query.markers import Marker, is_written
from penstock.query.query import Batch, compute, in_batches
from penstock.spark_runtime.failures import Unavailable, causes
from penstock.spark_runtime.logical_plan import require_classic

COLUMN = "batch"
STAGING = "_staging"
MARKER = "_penstock"
Compression: TypeAlias = Literal["zstd", "snappy", "lz4_raw", "gzip", "none"]
COMPRESSIONS = get_args(Compression)
# The part before the host of a URI, which can hold keys.
USER_INFO = re.compile(r"(?<=://)[^/@]*@")
# The system's messages about a disk or folder that someone can repair while the query waits.
READ_ROWS = 65_536
"""Event times to read at once."""
FULL = re.compile(r"No space left on device|File too large|[Qq]uota|Input/output error|Stale file handle")


@dataclass(frozen=True)
class FilesSink:
    """Where and how files are written; `sink` makes and checks it."""

    counts_delays: ClassVar[bool] = True
    path: str
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    delivery: str = EXACTLY_ONCE

    @property
    def target(self) -> tuple[str, str]:
        """How a checkpoint identifies the sink."""
        return "files", USER_INFO.sub("", self.path)

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows to write; raises `PenstockError` if the frame or the folder cannot be used."""
        if missing := [name for name in self.partition_by if name not in frame.columns]:
            raise _wrong(f"the frame has no column {', '.join(missing)}", "correct partition_by=, or select it", frame)
        if COLUMN in frame.columns:
            raise _wrong(f"the frame's column {COLUMN} would hide the folders' column {COLUMN}", "rename it", frame)
        if len(self.partition_by) == len(set(frame.columns) - {delays.TIME}):
            raise _wrong("partition_by= leaves no column for the files", "name fewer columns", frame)
        require_classic(frame, "files.sink")
        with _penstock_errors(self.path):
            _Folder(frame.sparkSession, self.path).make(STAGING)
        return frame

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query whose only sink is this one."""
        return in_batches(frame, self.save)

    def save(self, frame: DataFrame, batch: Batch) -> None:
        """Write one batch, unless it was written before."""
        require_classic(frame, "files.sink")
        query, _, place = batch.query.partition(".")
        # The start of the id distinguishes queries, and the batches of a new checkpoint, which counts from 0 again.
        prefix = f"{COLUMN}={query[:8]}{place and '.'}{place}-"
        name = f"{prefix}{batch.number:08}"
        with delays.failures(batch.query), _penstock_errors(f"{self.path}/{name}"):
            folder = _Folder(frame.sparkSession, self.path)
            if is_written(_marker(folder, prefix, batch), batch, f"the folder {self.path}"):
                compute(frame)
                return
            folder.remove_staged(name)
            staged = f"{STAGING}/{name}.{uuid.uuid4().hex}"
            self._write(frame.drop(delays.TIME), f"{self.path}/{staged}")
            folder.create(folder.path(f"{staged}/{MARKER}"), Marker.for_batch(batch).text())
            size, times = _written(folder.local(staged), delays.event_field(frame))
            folder.rename(folder.path(staged), folder.path(name), "NONE")
            delays.add(batch.query, times.acknowledged(delays.DelayCounts()).counts(bytes=size))

    def _write(self, frame: DataFrame, path: str) -> None:
        options = {"compression": self.compression, "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
        writer = frame.write.options(**options)
        (writer.partitionBy(*self.partition_by) if self.partition_by else writer).parquet(path)


@public("files.sink")
def sink(
    path: str | PathLike[str], *, partition_by: str | Sequence[str] = (), compression: Compression = "zstd"
) -> FilesSink:
    """A sink of Parquet files for `penstock.write`; `path` is a local folder or a Hadoop URI such as hdfs://host/a.

    Each batch is a folder `batch=<query>-<number>`, with subfolders for the columns of `partition_by`. The file system
    must rename a folder atomically, which object stores do not. Raises `PenstockError` for an object store or an
    unknown `compression` ("zstd", "snappy", "lz4_raw", "gzip" or "none").
    """
    folder = fspath(path)
    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    if is_object_store(folder):
        raise PenstockError(
            # It renames object by object: readers would see parts of a batch.
            f"{folder} is in an object store, which cannot rename a folder atomically",
            where="files.sink",
            next="write to a Delta table there with delta.sink; or to a file system, such as file: or hdfs:",
        )
    if compression not in COMPRESSIONS:
        raise PenstockError(
            f"unknown compression {compression!r}", where="files.sink", next=f"use one of {', '.join(COMPRESSIONS)}"
        )
    return FilesSink(folder.rstrip("/"), columns, compression)


def _marker(folder: _Folder, prefix: str, batch: Batch) -> Marker | None:
    """The marker of the last batch of a stream in the folder; for a batch that a user numbers, only its own marker.

    Batches that a user numbers may come in any order: each has its own folder.
    """

    def name(number: int) -> str:
        return f"{prefix}{number:08}"

    number = batch.number
    if batch.end:
        if folder.has(name(number + 1)):
            return Marker(number + 1)
        # If the folder has the previous batch, it has no later one: batches come in order. Otherwise search the folder.
        if number and not folder.has(name(number - 1)) and (last := folder.last(prefix)) > number:
            return Marker(last)
    return Marker.read(number, folder.read(f"{name(number)}/{MARKER}")) if folder.has(name(number)) else None


def _written(folder: Path | None, event: Sequence[str]) -> tuple[int, delays.EventTimes]:
    """The bytes of a batch's files, and the times of its rows in the column or field `event`.

    Of a folder on another machine nothing is known: it would have to be read again.
    """
    times, size = delays.EventTimes(), 0
    for path in [] if folder is None else folder.rglob("*.parquet"):
        size += path.stat().st_size
        with ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            # A column of partition_by= is not in the files.
            if not event or event[0] not in file.schema_arrow.names:
                times.add(file.metadata.num_rows, None)
                continue
            for batch in file.iter_batches(READ_ROWS, columns=[".".join(event)]):
                times.add(batch.num_rows, _micros(batch.column(0), event[1:]))
    return size, times


def _micros(values: pa.Array, field: Sequence[str]) -> delays.Array:
    plain = pc.struct_field(values, list(field)) if field else values
    return delays.integers(plain.cast(pa.timestamp("us")).cast(pa.int64()))


class _Folder(HadoopFiles):
    """The sink's folder on the file system that Hadoop selects for its URI."""

    def make(self, name: str) -> None:
        self.files.mkdirs(self.path(name))

    def has(self, name: str) -> bool:
        return bool(self.files.exists(self.path(name)))

    def last(self, prefix: str) -> int:
        """The highest number after this prefix in folder names; -1 if there is none."""
        folders = self.files.globStatus(self.path(f"{prefix}*")) or ()
        numbers = [folder.getPath().getName().removeprefix(prefix) for folder in folders]
        return max((int(number) for number in numbers if number.isdecimal()), default=-1)

    def local(self, name: str) -> Path | None:
        """The path in this machine's file system; None in another one."""
        path = self.files.makeQualified(self.path(name)).toUri()
        return Path(path.getPath()) if path.getScheme() == "file" else None

    def remove_staged(self, name: str) -> None:
        """Delete what failed attempts at a batch left."""
        for staged in self.files.globStatus(self.path(f"{STAGING}/{name}.*")) or ():
            self.files.delete(staged.getPath(), True)


@contextlib.contextmanager
def _penstock_errors(where: str) -> Any:
    """Raise errors of the file system as `PenstockError`."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        origin = error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
        said = [str(error), *(text for _, text in causes(origin))]
        if match := next(filter(None, map(FULL.search, said)), None):
            raise Unavailable(
                f"files cannot be written: {match[0]}", where=where, next="free disk space; the batch is repeated"
            ) from error
        if isinstance(error, Py4JJavaError):
            what = str(error.java_exception.getMessage() or error.java_exception)
            raise PenstockError(
                f"files cannot be written: {what}", where=where, next="make the folder writable"
            ) from error
        raise


def _wrong(what: str, next: str, frame: DataFrame) -> PenstockError:
    return PenstockError(what, where=f"files.sink, columns {', '.join(frame.columns)}", next=next)
