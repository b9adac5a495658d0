"""Writes frames to Delta Lake tables: appends rows, or upserts and deletes them by key; each batch exactly once.

Tasks write Parquet files below the table's folder (`delta_files`), then the driver makes one commit of the batch
(`delta_table`). A reader sees all of a batch or nothing of it. The log is written by the library delta-rs: Delta's own
jar does not run on this Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias, get_args
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.readwriter import DataStreamWriter

from penstock.border.public import public
from penstock.delta.delta_columns import DELETED, Keys, TableLayout, of_frame, require_fit, rows_of
from penstock.delta.delta_errors import penstock_errors
from penstock.delta.delta_files import FILES, DataFile, FilesPlan, read_files, writer
from penstock.delta.delta_table import DeltaLog, arrow_schema, created, opened, remove
from penstock.errors import PenstockError
from penstock.metrics import delays
from penstock.query.delivery import EXACTLY_ONCE
from penstock.query.query import Batch, KeyedFrame, compute, in_batches
from penstock.query.upsert import require_key, require_no_late_results, require_same
from penstock.spark_runtime.logical_plan import require_classic

Compression: TypeAlias = Literal["zstd", "snappy", "lz4_raw", "gzip", "none"]
COMPRESSIONS = get_args(Compression)
STORES = ("s3", "gs", "az", "azure", "adl", "abfs", "abfss", "hdfs")
"""Schemes of the storage that delta-rs reads and writes."""
SAME_STORE = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's schemes of S3."""
_ODD = re.compile(r"[^\w.:/-]")
"""Characters that delta-rs does not find again in an address of HDFS."""
_URI = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+):(.*)", re.DOTALL)


@dataclass(frozen=True)
class DeltaSink:
    """A sink for a Delta table; created and checked by `sink`."""

    counts_delays: ClassVar[bool] = True
    path: str
    key: tuple[str, ...] = ()
    version: str | None = None
    deleted: str | None = None
    partition_by: tuple[str, ...] = ()
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)  # may have passwords
    compression: str = "zstd"
    delivery: str = EXACTLY_ONCE

    @property
    def target(self) -> tuple[str, str]:
        """The identity of the sink in a checkpoint."""
        return "delta", self.path

    def records(self, frame: DataFrame) -> DataFrame:
        """The rows for the files; raises PenstockError if they do not fit the table, or the storage refuses access."""
        require_classic(frame, "delta.sink")
        if self.key:
            require_no_late_results(frame, self.key, self._where)
        with penstock_errors(self._where):
            if self._is_local:
                Path(self.path).mkdir(parents=True, exist_ok=True)
            layout = self._layout(frame, self._opened())
        return rows_of(frame, layout, self._keys).drop(delays.TIME)

    def stream(self, frame: DataFrame) -> DataStreamWriter:
        """The writer of a query with only this sink."""
        return in_batches(delays.timed(frame), self.save)

    def save(self, frame: DataFrame, batch: Batch) -> None:
        """Write one batch unless it was written before."""
        require_classic(frame, "delta.sink")
        where = f"batch {batch.number} for {self._where}"
        with delays.failures(batch.query):
            with penstock_errors(where):
                log = self._opened()
                is_written = log is not None and log.has(batch)
            if is_written:
                compute(frame)
                return
            with penstock_errors(where):
                layout = self._layout(frame, log)
                log = log or self._created(frame, layout)
            plan = self._plan(layout, where)
            written = rows_of(frame, layout, self._keys).mapInArrow(writer(plan), FILES).collect()
            if written:
                with penstock_errors(where):
                    self._commit(log, [file for row in written for file in read_files(row.files)], plan, batch)
                _count(written, batch)

    def keyed(self, table: KeyedFrame) -> DeltaSink:
        """The sink for a table's rows; see `write`."""
        key_names = ", ".join(f'"{name}"' for name in table.key)
        require_key("delta.sink", self._where, self.key, table, f"set key=[{key_names}]")
        require_same("delta.sink", self.version, self.deleted, table)
        return replace(self, version=table.version, deleted=table.deleted)

    @property
    def _where(self) -> str:
        return f"Delta table {self.path}"

    @property
    def _is_local(self) -> bool:
        return self.path.startswith("/")

    @property
    def _keys(self) -> Keys:
        return Keys(self.key, self.version, self.deleted)

    def _opened(self) -> DeltaLog | None:
        return opened(self.path, self.storage_options, self._where)

    def _layout(self, frame: DataFrame, log: DeltaLog | None) -> TableLayout:
        """The layout of the table, or of the one to create; raises PenstockError if the frame does not fit it."""
        layout = log.layout() if log else of_frame(frame, self.partition_by, self._keys, self._where)
        require_fit(frame, layout, self.partition_by, self._keys, self._where)
        return layout

    def _created(self, frame: DataFrame, layout: TableLayout) -> DeltaLog:
        if self._is_local:
            Path(self.path).mkdir(parents=True, exist_ok=True)
        log = created(self.path, self.storage_options, layout, self._where)
        # Another writer may have made it, with other columns.
        self._layout(frame, log)
        return log

    def _plan(self, layout: TableLayout, where: str) -> FilesPlan:
        schema = arrow_schema(layout)
        if self.deleted:
            schema = schema.append(pa.field(DELETED, pa.bool_()))
        required = dict.fromkeys(layout.required, "the table does not admit nulls in it")
        required |= dict.fromkeys(self.key, "a key has no nulls, and no empty strings in a partition column")
        # Staged rows are of any partition.
        partition_by = () if self.key else layout.partition_by
        return FilesPlan(self.path, self.storage_options, schema, partition_by, required, self.compression, where)

    def _commit(self, log: DeltaLog, files: Sequence[DataFile], plan: FilesPlan, batch: Batch) -> None:
        if not self.key:
            log.append(files, batch)
            return
        try:
            log.merge(files, plan, self._keys, batch)
        finally:
            remove(files, plan)


@public("delta.sink")
def sink(
    path: str | PathLike[str],
    *,
    key: str | Sequence[str] | None = None,
    version: str | None = None,
    deleted: str | None = None,
    partition_by: str | Sequence[str] = (),
    storage_options: Mapping[str, str] | None = None,
    compression: Compression = "zstd",
) -> DeltaSink:
    """A sink of a Delta Lake table for `penstock.write`; each batch is one commit, and is written exactly once.

    `path` is a local folder or a URI: s3://bucket/table (also s3a:), gs://bucket/table, abfss://container@account... or
    hdfs://name:8020/table. A table that does not exist is created with the frame's columns, in folders by the columns
    of `partition_by`. `storage_options` are those of delta-rs, such as AWS_ENDPOINT_URL; keys may also be in the
    environment (AWS_ACCESS_KEY_ID). `compression` is that of the Parquet files.

    Without `key` rows are appended. With `key` they are upserted: of the rows of a key in a batch the row with the
    highest `version` is written, without `version` the last. If the table has the version column, a row does not
    replace a row with a higher version. `deleted` names a boolean column: where it is true, the row of that key is
    deleted. The key must not be null.

    Raises PenstockError for invalid arguments here, and in `penstock.write` if the frame does not fit the table.
    """
    keys, columns = ((names,) if isinstance(names, str) else tuple(names or ()) for names in (key, partition_by))
    if not keys and (version or deleted):
        raise PenstockError("version and deleted need a key", where="delta.sink", next="set key=")
    if compression not in COMPRESSIONS:
        raise PenstockError(
            f"unknown compression {compression!r}", where="delta.sink", next=f"use one of {', '.join(COMPRESSIONS)}"
        )
    options = {name: str(value) for name, value in (storage_options or {}).items()}
    return DeltaSink(address(fspath(path)), keys, version, deleted, columns, options, compression)


def address(path: str) -> str:
    """The path as delta-rs takes it: an absolute one of this machine, or a URI; raises PenstockError for others."""
    match = _URI.fullmatch(path)
    if match is None:
        return str(Path(path).absolute())
    scheme, rest = match[1].lower(), match[2]
    if scheme == "file":
        return f"/{unquote(rest).strip('/')}"
    scheme = SAME_STORE.get(scheme, scheme)
    if scheme not in STORES:
        raise PenstockError(
            f"{scheme}: is not a storage that delta.sink writes to",
            where="delta.sink",
            next=f"use a local folder or one of {', '.join(f'{name}://' for name in STORES)}; "
            "for other file systems of Hadoop's use files.sink",
        )
    user = rest.removeprefix("//").partition("/")[0].rpartition("@")[0]
    # In Azure's addresses the container is where others have a user.
    if "?" in rest or ":" in user or (user and not scheme.startswith("abfs")):
        raise PenstockError(
            f"the {scheme}: address has keys in it, which would be in logs",
            where="delta.sink",
            next="pass them as storage_options=, or in the environment",
        )
    if scheme == "hdfs" and (odd := _ODD.search(rest)):
        raise PenstockError(
            f"the hdfs: address has the character {odd[0]!r}", where="delta.sink", next="use letters, digits and . _ -"
        )
    return f"{scheme}:{rest.rstrip('/')}"


def _count(written: Sequence[Row], batch: Batch) -> None:
    for row in written:
        times = delays.EventTimes.of_packed(row.times, row.rows)
        delays.add(batch.query, times.acknowledged(delays.DelayCounts()).counts(bytes=row.bytes))
